"""The rules of health: from what was seen of all upstreams of a network to the state of each, and why.

Pure: observations with their times in, verdicts out. The prober sends the requests; which of two chains the
network is on is decided in `branches.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from enum import IntEnum

from msgspec import Struct

# Probes that must fail in a row. One refused connection is enough: then nothing listens there.
FAILURES = 2
# Probes in a row that may show another block than the network's: at the tip that is normal for a moment.
DISAGREEMENTS = 2
# Heads that are remembered of each upstream, to assess the others by.
REMEMBERED = 64
# A head that no upstream has any more is given up after this.
LOST_SECONDS = 5.0
# Answers in a row in which an upstream has gone back, before that is believed. A service that spreads our
# questions over several nodes of its own goes back for one answer or two.
RETREATS = 3


NOTHING = -1
"""A number that is not known."""


class State(IntEnum):
    """Whether an upstream is in rotation, and why not."""

    UNKNOWN = 0
    """Not probed yet, or of a family that cannot be probed: it is in rotation."""
    UP = 1
    DOWN = 2
    """It does not answer the prober."""
    LAGGING = 3
    """Too many blocks behind the highest."""
    SYNCING = 4
    """It reports that it is still catching up."""
    FORKED = 5
    """It has another block where the others have theirs."""
    WRONG_CHAIN = 6
    """It reports another chain id. It is never called."""


class HealthRules(Struct, frozen=True):
    """What a network demands of its upstreams."""

    chain_id: str = ""
    """Written as upstreams' are; empty: the majority's."""
    lag_blocks: int = 5


class SeenHead(Struct, frozen=True):
    """A head, and when it was known."""

    at: float
    number: int


class Sight(Struct, frozen=True):
    """What is known of one upstream."""

    name: str
    priority: int
    tried: bool = False
    """Whether a probe has come to its end, good or bad."""
    failures: int = 0
    """Probes that failed since the last good one."""
    refused: bool = False
    """Whether the last probe that failed was a refused connection."""
    fault: str = ""
    """Why that one failed."""
    chain_id: str = ""
    syncing: bool = False
    disagreements: int = 0
    """Probes in a row that showed another block than the network's."""
    heads: tuple[SeenHead, ...] = ()
    """Its last heads, oldest first."""
    queried_at: float = 0.0
    """When the newest of them was queried: a block that came later cannot be in the answer."""
    finalized: int = NOTHING

    @property
    def head(self) -> int:
        return self.heads[-1].number if self.heads else NOTHING

    @property
    def down(self) -> bool:
        return self.failures >= FAILURES or (self.refused and self.failures > 0)


class UpstreamVerdict(Struct, frozen=True):
    """How an upstream is."""

    state: State
    reason: str = ""
    behind: int = 0
    """Requested blocks that it lacked."""


def with_head(heads: tuple[SeenHead, ...], at: float, number: int) -> tuple[SeenHead, ...]:
    """Note a head. The same head again changes nothing."""
    if heads and heads[-1].number == number:
        return heads
    return (*heads[1 - REMEMBERED :], SeenHead(at, number))


def expected_chain(sights: Sequence[Sight], rules: HealthRules) -> str:
    """The chain id that counts: the setting, else that of most; of equally many, of the first in priority.

    Those that are down now are still counted: a minority does not become right because the others are unavailable.
    """
    if rules.chain_id:
        return rules.chain_id
    supporters: dict[str, list[Sight]] = {}
    for sight in sights:
        if sight.chain_id:
            supporters.setdefault(sight.chain_id, []).append(sight)
    best = max(
        supporters.values(), key=lambda each: (len(each), -min(sight.priority for sight in each)), default=None
    )
    return best[0].chain_id if best else ""


def counts(sight: Sight, chain_id: str) -> bool:
    return _is_on(sight, chain_id) and bool(sight.heads) and not sight.down and not sight.syncing


def _is_on(sight: Sight, chain_id: str) -> bool:
    """Whether it is not known to be on another chain."""
    return not chain_id or sight.chain_id in ("", chain_id)


def assess(sights: Sequence[Sight], rules: HealthRules) -> list[UpstreamVerdict]:
    chain_id = expected_chain(sights, rules)
    leaders = [sight for sight in sights if counts(sight, chain_id) and not sight.disagreements]
    return [_verdict(sight, leaders, chain_id, rules) for sight in sights]


def _verdict(sight: Sight, leaders: Sequence[Sight], chain_id: str, rules: HealthRules) -> UpstreamVerdict:
    highest = max((_head_at(each.heads, sight.queried_at) for each in leaders), default=NOTHING)
    behind = max(0, highest - sight.head) if sight.heads else 0
    if not sight.tried:
        return UpstreamVerdict(State.UNKNOWN, "not probed yet")
    if sight.down:
        return UpstreamVerdict(State.DOWN, sight.fault, behind)
    if not sight.heads:
        return UpstreamVerdict(State.UNKNOWN, sight.fault)
    if not _is_on(sight, chain_id):
        return UpstreamVerdict(State.WRONG_CHAIN, f"reports chain id {sight.chain_id}, not {chain_id}")
    if sight.syncing:
        return UpstreamVerdict(State.SYNCING, "reports that it is syncing", behind)
    if sight.disagreements > DISAGREEMENTS:
        return UpstreamVerdict(State.FORKED, f"has another block than the others at or below {sight.head}", behind)
    if behind > rules.lag_blocks:
        return UpstreamVerdict(State.LAGGING, f"{behind} blocks behind", behind)
    return UpstreamVerdict(State.UP, "", behind)


def _head_at(heads: tuple[SeenHead, ...], at: float) -> int:
    position = bisect_right(heads, at, key=lambda seen: seen.at)
    return heads[position - 1].number if position else NOTHING


def finality(reported: Iterable[int], head: int, before: int) -> int:
    """The network's newest final block: the highest reported. Never above the head; it never goes back."""
    return min(max(before, *reported, NOTHING), head)


def given_up(short_since: float, now: float, *, all_went_back: bool) -> bool:
    """Whether a head that no upstream shows any more is to be given up."""
    return all_went_back or now - short_since >= LOST_SECONDS
