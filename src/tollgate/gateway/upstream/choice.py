"""Which upstream to call: in rotation, allowed, far enough; by priority; of equals the cheaper of two.

Pure but for chance, which is an argument. Nobody else decides an order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from tollgate.chains.methods import Scope
from tollgate.gateway.upstream.health import Upstream
from tollgate.shm.upstream_status import NOTHING, Snapshot, State

# State older than this many blocks is what pruned nodes lack (geth keeps 128).
RECENT_BLOCKS = 128
# States in which an upstream may still be called where there is no other: a wrong chain is worse than no answer.
_LAST_RESORT = frozenset(set(State) - {State.WRONG_CHAIN})
_UP, _WRONG_CHAIN = int(State.UP), int(State.WRONG_CHAIN)
_LAST_RESORT_FOR_TIPS = frozenset({State.UNKNOWN, State.UP, State.DOWN})


class View:
    """The shared status of a network at one look, and the upstreams that a call may go to then.

    Worked out again only when the network's epoch changes.
    """

    __slots__ = (
        "_all",
        "_any",
        "_archive",
        "_heads",
        "_lowest",
        "_only",
        "_only_tip",
        "_tip",
        "believed_until",
        "epoch",
        "picky",
        "snapshot",
    )

    def __init__(self, epoch: float, snapshot: Snapshot, upstreams: Sequence[Upstream]) -> None:
        self.epoch = epoch
        """The network's when it was made: it holds until the next."""
        self.snapshot = snapshot
        self.believed_until = snapshot.believed_until
        self._all = [upstream for upstream in upstreams if upstream.status.state == _UP]
        self._any = _best(self._all)
        self.picky = any(upstream.picky for upstream in upstreams)
        behind = [upstream for upstream in self._all if NOTHING < upstream.status.head < snapshot.floor]
        self._tip = _best([upstream for upstream in self._all if upstream not in behind])
        self._heads = [upstream.status.head for upstream in self._all]
        self._lowest = min([head for head in self._heads if head != NOTHING], default=NOTHING)
        # Where there is no choice: most have one upstream, or one of the best priority.
        self._only = self._any[0] if len(self._any) == 1 and not self.picky else None
        self._only_tip = self._tip[0] if len(self._tip) == 1 and not self.picky else None
        self._archive = all(upstream.settings.archive for upstream in self._all)

    def choose(self, method: str, scope: Scope, now: float, random: Callable[[], float]) -> Upstream | None:
        """The upstream that `choose` would take; None where it takes more than a look to find one."""
        only = self._only_tip if scope.tip else self._only
        if only is not None and scope.number is None and not only.in_doubt:
            return only
        fit = self._tip if scope.tip else self._any
        if (scope.number is not None or self.picky) and self._is_special(scope):
            fit = self._filtered(method, scope)
        for upstream in fit:
            if upstream.in_doubt and not upstream.available(now):
                fit = self._filtered(method, scope, now)
                break
        count = len(fit)
        if count == 2:
            one, other = fit
            # As `cost`, without its calls.
            left = (one.ewma + 1e-6) * (one.in_flight + 1) * other.weight
            return one if left <= (other.ewma + 1e-6) * (other.in_flight + 1) * one.weight else other
        return fit[0] if count == 1 else _cheaper(fit, random)

    def other(
        self, requirements: Requirements, tried: Sequence[Upstream], now: float, random: Callable[[], float]
    ) -> Upstream | None:
        """The upstream that `choose` would take next; None where it takes more than a look to find one."""
        if requirements.slot is not None:
            return None
        snapshot, number, oldest = self.snapshot, requirements.number, requirements.oldest
        floor = NOTHING
        if requirements.tip:
            floor = snapshot.floor
        elif number is not None and number <= snapshot.floor:
            floor = number
        archive = oldest is not None and wants_archive(oldest, snapshot.head)
        found: list[Upstream] = []
        for upstream, head in zip(self._all, self._heads, strict=True):
            if (
                upstream in tried
                or NOTHING < head < floor
                or (archive and not upstream.settings.archive)
                or (upstream.picky and not upstream.takes(requirements.method))
                or (upstream.in_doubt and not upstream.available(now))
            ):
                continue
            if found and found[0].priority != upstream.priority:
                break
            found.append(upstream)
        return found[0] if len(found) == 1 else _cheaper(found, random)

    def _is_special(self, scope: Scope) -> bool:
        number = scope.number
        snapshot = self.snapshot
        return (
            self.picky
            or (number is not None and self._lowest < number <= snapshot.floor)
            or (not self._archive and scope.state and scope.oldest is not None)
        )

    def _filtered(self, method: str, scope: Scope, now: float | None = None) -> list[Upstream]:
        """Those of the best priority that may answer; `now`: and that nothing speaks against."""
        snapshot, number = self.snapshot, scope.number
        floor = NOTHING
        if scope.tip:
            floor = snapshot.floor
        elif number is not None and number <= snapshot.floor:
            floor = number
        archive = scope.state and scope.oldest is not None and wants_archive(scope.oldest, snapshot.head)
        return _best(
            [
                upstream
                for upstream in self._all
                if not NOTHING < upstream.status.head < floor
                and (not archive or upstream.settings.archive)
                and (not upstream.picky or upstream.takes(method))
                and (now is None or not upstream.in_doubt or upstream.available(now))
            ]
        )


class Requirements(Struct, frozen=True, gc=False):
    """What a call needs of whoever answers it."""

    method: str
    repeatable: bool = True
    """Whether the call may safely be repeated."""
    tip: bool = False
    """The head of the chain: nobody who is behind it may answer."""
    oldest: int | None = None
    """State of a block that is as old as this."""
    slot: int | None = None
    """One certain upstream: what it knows the others do not."""
    number: int | None = None
    """The highest block that it names: nobody who does not have it may answer."""

    @property
    def has_floor(self) -> bool:
        """Whether it matters how far an upstream is."""
        return self.tip or self.number is not None


class NetworkView(Struct, frozen=True, gc=False):
    """The shared status of the network, for one choice."""

    floor: int = NOTHING
    """Nobody who is below this block may answer. None while nothing is believed."""
    head: int = NOTHING
    believed: bool = True
    """Whether the prober's states of upstreams are fresh."""


def choose(
    upstreams: Sequence[Upstream],
    requirements: Requirements,
    known: NetworkView,
    tried: Sequence[Upstream],
    now: float,
    random: Callable[[], float],
) -> Upstream | None:
    """The upstream in rotation to call next; None where there is none. `upstreams` are in the order of priority.

    One without an archive is called for old state where no other can be, and who was never probed where nobody is
    known to be up: it may turn out to be on another chain.
    """
    found: list[Upstream] = []
    second: list[Upstream] = []
    believed, oldest = known.believed, requirements.oldest
    for upstream in upstreams:
        state = upstream.status.state
        if state > _UP if believed else state == _WRONG_CHAIN:
            continue
        if (
            upstream in tried
            or (upstream.in_doubt and not upstream.available(now))
            or not _may_answer(upstream, requirements, known)
        ):
            continue
        best = state == _UP or not believed
        if oldest is not None and not upstream.settings.archive and wants_archive(oldest, known.head):
            best = False
        line = found if best else second
        if not line or line[0].priority == upstream.priority:
            line.append(upstream)
    return _cheaper(found or second, random)


def last_resort(
    upstreams: Sequence[Upstream], requirements: Requirements, known: NetworkView, tried: Sequence[Upstream]
) -> Upstream | None:
    """Somebody out of rotation, where nobody else is left: an error would be the only other answer."""
    states = _LAST_RESORT_FOR_TIPS if requirements.tip and known.believed else _LAST_RESORT
    for upstream in upstreams:
        if (
            upstream not in tried
            and upstream.status.state in states
            and _may_answer(upstream, requirements, known)
        ):
            return upstream
    return None


def somebody_else(upstreams: Sequence[Upstream], requirements: Requirements, tried: Sequence[Upstream]) -> bool:
    """Whether there is any upstream left that might be called, sooner or later."""
    if requirements.slot is None:
        for upstream in upstreams:
            if (
                upstream not in tried
                and upstream.status.state != _WRONG_CHAIN
                and (not upstream.picky or upstream.takes(requirements.method))
            ):
                return True
    return False


def somebody_is_behind(
    upstreams: Sequence[Upstream],
    requirements: Requirements,
    known: NetworkView,
    tried: Sequence[Upstream],
    now: float,
) -> bool:
    """Whether it is worth waiting: somebody could answer if only its head came along."""
    return (
        requirements.has_floor
        and requirements.slot is None
        and known.believed
        and any(
            upstream not in tried
            and NOTHING < upstream.status.head < known.floor
            and upstream.in_rotation(now)
            and upstream.takes(requirements.method)
            for upstream in upstreams
        )
    )


def wants_archive(oldest: int, head: int) -> bool:
    """Whether state of this block is older than pruned nodes keep."""
    return head != NOTHING and oldest < head - RECENT_BLOCKS


def _may_answer(upstream: Upstream, requirements: Requirements, known: NetworkView) -> bool:
    if upstream.picky and not upstream.takes(requirements.method):
        return False
    if requirements.slot is not None:
        return upstream.slot == requirements.slot
    # There is a floor only where what is known of heads is believed.
    return known.floor == NOTHING or not requirements.has_floor or not NOTHING < upstream.status.head < known.floor


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
