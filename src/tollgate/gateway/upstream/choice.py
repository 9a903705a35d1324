"""Which upstream to ask: in rotation, allowed, far enough; by priority; of equals the cheaper of two.

Pure but for chance, which is an argument. Nobody else decides an order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from tollgate.gateway.upstream.health import Peer
from tollgate.shm.upstream_status import NOTHING, State

# State older than this many blocks is what pruned nodes lack (geth keeps 128).
RECENT_BLOCKS = 128
# States in which an upstream may still be asked where there is nobody else: a wrong chain is worse than no answer.
_LAST_RESORT = frozenset(set(State) - {State.WRONG_CHAIN})
_UP, _WRONG_CHAIN = int(State.UP), int(State.WRONG_CHAIN)
_LAST_RESORT_FOR_TIPS = frozenset({State.UNKNOWN, State.UP, State.DOWN})


class Need(Struct, frozen=True, gc=False):
    """What a call needs of whoever answers it."""

    method: str
    repeatable: bool = True
    """Whether asking a second time can do no harm."""
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


class Known(Struct, frozen=True, gc=False):
    """What the board says of the network, for one choice."""

    floor: int = NOTHING
    """Nobody who is below this block may answer. None while nothing is believed."""
    head: int = NOTHING
    believed: bool = True
    """Whether what the prober said of upstreams still counts."""


def choose(
    peers: Sequence[Peer],
    need: Need,
    known: Known,
    tried: Sequence[Peer],
    now: float,
    random: Callable[[], float],
) -> Peer | None:
    """The upstream in rotation to ask next; None where there is none. `peers` are in the order of priority.

    Who holds no archive is asked for old state where nobody else can be, and who was never probed where nobody is
    known to be up: it may turn out to be on another chain.
    """
    found: list[Peer] = []
    second: list[Peer] = []
    believed, oldest = known.believed, need.oldest
    for peer in peers:
        state = peer.row.state
        if state > _UP if believed else state == _WRONG_CHAIN:
            continue
        if peer in tried or (peer.in_doubt and not peer.is_willing(now)) or not _may_answer(peer, need, known):
            continue
        best = state == _UP or not believed
        if oldest is not None and not peer.upstream.archive and wants_archive(oldest, known.head):
            best = False
        line = found if best else second
        if not line or line[0].priority == peer.priority:
            line.append(peer)
    return _cheaper(found or second, now, random)


def last_resort(peers: Sequence[Peer], need: Need, known: Known, tried: Sequence[Peer]) -> Peer | None:
    """Somebody out of rotation, where nobody else is left: an error would be the only other answer."""
    states = _LAST_RESORT_FOR_TIPS if need.tip and known.believed else _LAST_RESORT
    for peer in peers:
        if peer not in tried and peer.row.state in states and _may_answer(peer, need, known):
            return peer
    return None


def somebody_else(peers: Sequence[Peer], need: Need, tried: Sequence[Peer]) -> bool:
    """Whether there is anybody left who might be asked, sooner or later."""
    if need.slot is None:
        for peer in peers:
            if peer not in tried and peer.row.state != _WRONG_CHAIN and peer.takes(need.method):
                return True
    return False


def somebody_is_behind(peers: Sequence[Peer], need: Need, known: Known, tried: Sequence[Peer], now: float) -> bool:
    """Whether it is worth waiting: somebody could answer if only its head came along."""
    return (
        need.has_floor
        and need.slot is None
        and known.believed
        and any(
            peer not in tried
            and NOTHING < peer.row.head < known.floor
            and peer.in_rotation(now)
            and peer.takes(need.method)
            for peer in peers
        )
    )


def wants_archive(oldest: int, head: int) -> bool:
    """Whether state of this block is older than pruned nodes keep."""
    return head != NOTHING and oldest < head - RECENT_BLOCKS


def _may_answer(peer: Peer, need: Need, known: Known) -> bool:
    if peer.picky and not peer.takes(need.method):
        return False
    if need.slot is not None:
        return peer.slot == need.slot
    # There is a floor only where what is known of heads is believed.
    return known.floor == NOTHING or not need.has_floor or not NOTHING < peer.row.head < known.floor


def _cheaper(found: list[Peer], now: float, random: Callable[[], float]) -> Peer | None:
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
    return one if one.cost(now) <= other.cost(now) else other
