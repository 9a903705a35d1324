"""Fills a store for a run. The only file of the benchmark that knows how Tollgate keeps its tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# Far above what one core can answer: the limits are at work in every call, and never refuse one.
PER_SECOND = 1_000_000


def seed(data_dir: Path, tokens: int) -> str:
    """Fill an empty data folder: a store with one team and its `tokens` tokens; return the secret of one.

    That token and its team have `PER_SECOND` as their limit: "everything on" means that limits are counted.
    The pepper is made here too, as `serve` makes it, so that the hash fits.
    """
    raise NotImplementedError(f"no store yet: {tokens} tokens at {PER_SECOND}/s in {data_dir}")
