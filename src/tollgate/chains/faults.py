"""What an error of a node means: an answer for the caller, or a reason to try another upstream.

A table of texts that nodes and providers were seen to give (`fault_rules`). The first rule that fits decides; an
error that no rule knows is the answer. Rules are tried in order: first what a contract or a caller can put into a
message (a revert may read "rate limit exceeded"), then the narrow ones, then whole codes.

Only the message is looked at, never `data`, which a contract fills as it likes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from functools import lru_cache

from msgspec import Struct

from tollgate.chains.fault_rules import RULES
from tollgate.chains.methods import Kind

# What concerns the node is at the beginning.
_MAX_CHARACTERS = 500


class Verdict(Enum):
    """What is done about an error."""

    FINAL = "final"
    """It is the answer."""
    ELSEWHERE = "elsewhere"
    """Something is wrong with the upstream: another is tried."""
    LAGGING = "lagging"
    """The upstream does not have the block yet."""
    PRUNED = "pruned"
    """The upstream does not have the state or the history any more."""
    QUOTA = "quota"
    """The upstream limits our rate: another is tried, and this one is not called for a while."""
    TOO_WIDE = "too_wide"
    """The range of blocks, or what is found in it, is too much for the upstream."""
    KNOWN = "known"
    """The transaction is there already."""
    UNSUPPORTED = "unsupported"
    """The upstream does not have the method; another may."""


class Fault(Struct, frozen=True):
    """An error as a node gives it."""

    family: str
    """Empty: every family."""
    code: int | None
    """None: any code."""
    pattern: str
    """A regular expression in small letters, found in the message whatever the case of its letters."""
    verdict: Verdict
    example: str
    """A message as it was seen."""
    by: str
    """Whose message it is."""


FAULTS: tuple[Fault, ...] = tuple(
    Fault(family, code, pattern, Verdict(verdict), example, by)
    for family, verdict, rules in RULES
    for code, pattern, example, by in rules
)
_Search = Callable[[str], re.Match[str] | None]


def _rules(*families: str) -> tuple[tuple[int | None, bool, _Search, Fault], ...]:
    return tuple(
        (each.code, each.verdict is Verdict.KNOWN, re.compile(each.pattern).search, each)
        for each in FAULTS
        if each.family in families
    )


_OF_ALL = _rules("")
_OF_FAMILY = {family: _rules("", family) for family in {each.family for each in FAULTS}}


def fault(family: str, kind: Kind, code: int | None, message: str) -> Fault | None:
    """The first rule that fits an error; None where none does."""
    return _first(family, kind is Kind.WRITE, code, message[:_MAX_CHARACTERS].lower())


# Most errors are the same few; to find that no rule fits takes some 70 microseconds.
@lru_cache(maxsize=1024)
def _first(family: str, write: bool, code: int | None, text: str) -> Fault | None:
    for its_code, writes_only, search, found in _OF_FAMILY.get(family, _OF_ALL):
        if (its_code is None or its_code == code) and (write or not writes_only) and search(text):
            return found
    return None


def verdict(family: str, kind: Kind, code: int | None, message: str) -> Verdict:
    found = fault(family, kind, code, message)
    return Verdict.FINAL if found is None else found.verdict
