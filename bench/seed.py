"""Fills a store for a run. The only file of the benchmark that knows how Tollgate keeps its tokens."""

from __future__ import annotations

import secrets as random
import time
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import insert

from tollgate.core import secrets
from tollgate.processes.bootstrap import prepare
from tollgate.settings.model import Settings
from tollgate.store import engines, tables
from tollgate.store.ledger import BUSY_MILLISECONDS

if TYPE_CHECKING:
    from pathlib import Path

# Far above what one core can answer: the limits are at work in every call, and never refuse one.
PER_SECOND = 1_000_000
_TEAM_ID = "team_bench"


def seed(data_dir: Path, tokens: int, more: str = "") -> str:
    """Fill an empty data folder: a store with one team and its `tokens` tokens; return the secret of one.

    That token and its team have `PER_SECOND` as their limit: "everything on" means that limits are counted.
    The pepper is made here too, as `serve` makes it, so that the hash fits. `more` are further settings.
    """
    settings = msgspec.toml.decode(f"data_dir = {str(data_dir)!r}\n{more}", type=Settings)
    bootstrap = prepare(settings)
    secret = secrets.new_token()
    digests = [secrets.digest(secret.encode(), bootstrap.pepper)]
    digests += [random.token_bytes(32) for _ in range(tokens - 1)]
    team = {"id": _TEAM_ID, "name": "bench", "created_at": time.time(), "requests_per_second": PER_SECOND}
    engine = engines.open_control(bootstrap.store_url, BUSY_MILLISECONDS)
    with engine.begin() as connection:
        connection.execute(insert(tables.teams).values(team))
        connection.execute(insert(tables.tokens), [_row(number, digest) for number, digest in enumerate(digests)])
    engine.dispose()
    return secret


def _row(number: int, digest: bytes) -> dict[str, object]:
    return {
        "id": f"tok_{number}",
        "team_id": _TEAM_ID,
        "name": f"token {number}",
        "digest": digest,
        "prefix": secrets.PREFIX,
        "created_at": time.time(),
        "requests_per_second": PER_SECOND,
    }
