"""Which upstream to call: in rotation, allowed, far enough; by priority; of equals the cheaper of two.

Decides on a `View`, and is pure but for chance, which is an argument. No other module orders upstreams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from tollgate.chains.methods import Scope
from tollgate.gateway.upstream.health import Upstream
from tollgate.shm.upstream_status import NOTHING, Snapshot, State

# State older than this many blocks is what pruned nodes lack (geth keeps 128).
RECENT_BLOCKS = 128
_UP, _WRONG_CHAIN = int(State.UP), int(State.WRONG_CHAIN)
# States in which an upstream may still be called where there is no other: a wrong chain is worse than no answer.
_LAST_RESORT = frozenset(set(State) - {State.WRONG_CHAIN})
_LAST_RESORT_FOR_TIPS = frozenset({State.UNKNOWN, State.UP, State.DOWN})


class Requirements(Struct, frozen=True, gc=False):
    """What a call requires of the upstream that answers it."""

    method: str
    repeatable: bool = True
    """Whether the call may safely be repeated."""
    tip: bool = False
    """The head of the chain: upstreams behind it may not answer."""
    oldest: int | None = None
    """State of a block that is as old as this."""
    slot: int | None = None
    """One certain upstream: what it knows the others do not."""
    number: int | None = None
    """The highest block that it names: upstreams that do not have it may not answer."""


class View:
    """The shared status of a network and its upstreams at one look. Made again only when the epoch changes.

    `first` serves the fast path, from lists that are made with the view; `choose` covers everything else.
    """

    __slots__ = (
        "_any",
        "_archive",
        "_lowest",
        "_members",
        "_only",
        "_only_tip",
        "_tip",
        "believed_until",
        "count",
        "epoch",
        "picky",
        "snapshot",
    )

    def __init__(self, epoch: float, snapshot: Snapshot, upstreams: Sequence[Upstream]) -> None:
        """`upstreams` are in the order of priority."""
        self.epoch = epoch
        """The network's when it was made: it holds until the next."""
        self.snapshot = snapshot
        self.believed_until = snapshot.believed_until
        """From then on the prober is silent: states and heads are not believed."""
        self.count = len(upstreams)
        members = [(each, each.status.state, each.status.head) for each in upstreams]
        self._members = [member for member in members if member[1] != _WRONG_CHAIN]
        self.picky = any(upstream.picky for upstream in upstreams)
        up = [(upstream, head) for upstream, state, head in members if state == _UP]
        self._any = _best([upstream for upstream, _ in up])
        self._tip = _best([upstream for upstream, head in up if not NOTHING < head < snapshot.floor])
        self._lowest = min([head for _, head in up if head != NOTHING], default=NOTHING)
        # Where there is no choice: most networks have one upstream, or one of the best priority.
        self._only = self._any[0] if len(self._any) == 1 and not self.picky else None
        self._only_tip = self._tip[0] if len(self._tip) == 1 and not self.picky else None
        self._archive = all(upstream.settings.archive for upstream, _ in up)

    def first(self, method: str, scope: Scope, now: float, random: Callable[[], float]) -> Upstream | None:
        """The upstream for the first attempt at a read, as `choose` finds it. Only while states are believed."""
        number = scope.number
        only = self._only_tip if scope.tip else self._only
        if only is not None and number is None and not only.in_doubt:
            return only
        fit = self._tip if scope.tip else self._any
        if self.picky or (number is not None and self._is_special(scope, number)):
            fit = []
        for upstream in fit:
            if upstream.in_doubt and not upstream.available(now):
                fit = []
                break
        count = len(fit)
        if count == 2:
            one, other = fit
            # As `cost`, without its calls.
            left = (one.ewma + 1e-6) * (one.in_flight + 1) * other.weight
            return one if left <= (other.ewma + 1e-6) * (other.in_flight + 1) * one.weight else other
        if count:
            return fit[0] if count == 1 else _cheaper(fit, random)
        oldest = scope.oldest if scope.state else None
        return self.choose(Requirements(method, True, scope.tip, oldest, None, number), (), now, random)

    def _is_special(self, scope: Scope, number: int) -> bool:
        """Whether not every upstream in rotation may have the block, or its state."""
        return self._lowest < number <= self.snapshot.floor or (
            not self._archive and scope.state and scope.oldest is not None
        )

    def choose(
        self, requirements: Requirements, tried: Sequence[Upstream], now: float, random: Callable[[], float]
    ) -> Upstream | None:
        """The upstream in rotation to call next; None where there is none.

        One without an archive is called for old state where no other can be. One that was never probed is called
        where none is known to be up: it may turn out to be on another chain.
        """
        silent, oldest = now >= self.believed_until, requirements.oldest
        archive = oldest is not None and wants_archive(oldest, self.snapshot.head)
        found: list[Upstream] = []
        second: list[Upstream] = []
        for upstream, state, _ in self._able(requirements, tried, self._floor(requirements, now)):
            if (state > _UP and not silent) or (upstream.in_doubt and not upstream.available(now)):
                continue
            is_good = (state == _UP or silent) and (not archive or upstream.settings.archive)
            rank = found if is_good else second
            if not rank or rank[0].priority == upstream.priority:
                rank.append(upstream)
        fit = found or second
        return fit[0] if len(fit) == 1 else _cheaper(fit, random)

    def last_resort(self, requirements: Requirements, tried: Sequence[Upstream], now: float) -> Upstream | None:
        """An upstream out of rotation, where no other is left: an error would be the only other answer."""
        states = _LAST_RESORT_FOR_TIPS if requirements.tip and now < self.believed_until else _LAST_RESORT
        for upstream, state, _ in self._able(requirements, tried, self._floor(requirements, now)):
            if state in states:
                return upstream
        return None

    def has_others(self, requirements: Requirements, tried: Sequence[Upstream]) -> bool:
        """Whether any upstream is left that might be called, sooner or later."""
        return requirements.slot is None and bool(self._able(requirements, tried, NOTHING))

    def is_worth_waiting(self, requirements: Requirements, tried: Sequence[Upstream], now: float) -> bool:
        """Whether an upstream in rotation could answer once it has the block."""
        floor = self._floor(requirements, now)
        return floor != NOTHING and any(
            NOTHING < head < floor and state <= _UP and upstream.available(now)
            for upstream, state, head in self._able(requirements, tried, NOTHING)
        )

    @property
    def on_another_chain(self) -> bool:
        """Whether all upstreams are."""
        return self.count > 0 and not self._members

    def _able(
        self, requirements: Requirements, tried: Sequence[Upstream], floor: int
    ) -> list[tuple[Upstream, int, int]]:
        """The upstreams with state and head that could answer, in rotation or not."""
        method, slot = requirements.method, requirements.slot
        able: list[tuple[Upstream, int, int]] = []
        for member in self._members:
            upstream, _, head = member
            if not (
                upstream in tried
                or NOTHING < head < floor
                or (slot is not None and upstream.slot != slot)
                or (upstream.picky and not upstream.takes(method))
            ):
                able.append(member)
        return able

    def _floor(self, requirements: Requirements, now: float) -> int:
        """The block that an upstream must have; NOTHING: any may answer."""
        if requirements.slot is not None or now >= self.believed_until:
            return NOTHING
        floor, number = self.snapshot.floor, requirements.number
        if requirements.tip:
            return floor
        # A block that no caller has seen yet may be requested from any upstream.
        return number if number is not None and number <= floor else NOTHING


def wants_archive(oldest: int, head: int) -> bool:
    """Whether state of this block is older than pruned nodes keep."""
    return head != NOTHING and oldest < head - RECENT_BLOCKS


def _best(upstreams: list[Upstream]) -> list[Upstream]:
    """Those of the best priority, of upstreams in the order of priority."""
    return [upstream for upstream in upstreams if upstream.priority == upstreams[0].priority]


def _cheaper(found: list[Upstream], random: Callable[[], float]) -> Upstream | None:
    """The power of two choices: of two taken by chance, the one that is quicker and less busy."""
    count = len(found)
    if count <= 1:
        return found[0] if found else None
    if count == 2:
        one, other = found
    else:
        first = int(random() * count)
        second = int(random() * (count - 1))
        one, other = found[first], found[second + (second >= first)]
    return one if one.cost <= other.cost else other
