"""What a node's reply to one call means, and whether it fits what callers have seen of the chain."""

from __future__ import annotations

from tollgate.chains.catalogue import Holds, Look, Scope
from tollgate.chains.faults import Verdict
from tollgate.core.shapes import ABSENT, Reply
from tollgate.gateway.upstream.exchange import Exchange
from tollgate.gateway.upstream.failover import OutOfStep, TooFarAhead
from tollgate.gateway.upstream.health import Upstream
from tollgate.shm.upstream_status import NOTHING

# A head so far above the highest one that is known is a mistake: no chain is that fast.
MAX_AHEAD = 10_000
# A head is believed so many blocks above what the prober or another upstream shows, and as many more for each
# second since the prober last looked as quick chains make.
BELIEVED_BLOCKS, BLOCKS_PER_SECOND = 3, 4
_TIP, _NOWHERE, _FINAL = Holds.TIP, Look.NOWHERE, Verdict.FINAL


def reveals_tip(scope: Scope) -> bool:
    """Whether results of a call show where the tip is."""
    return scope.holds is _TIP and scope.look is not _NOWHERE


class ReplyValidator:
    """Validates the replies to one call, and remembers which head the last one showed."""

    __slots__ = ("_exchange", "_head", "_method", "_number", "_reorgs", "_scope", "kind", "plain")

    def __init__(self, exchange: Exchange, method: str, scope: Scope) -> None:
        """To be made before the call is sent."""
        self._exchange = exchange
        self._method = method
        self._scope = scope
        self.kind = exchange.network.catalogue.kind(method)
        self._number: int | None = None
        self._reorgs = -1
        self.plain = not reveals_tip(scope)
        """Whether a result needs no look at all."""
        if not self.plain:
            status = exchange.status
            self._reorgs = status.reorgs
            self._head = status.head if status.is_fresh else NOTHING

    def __call__(self, reply: Reply, upstream: Upstream) -> Verdict:
        """What a reply of an upstream means.

        Raise `OutOfStep` where callers have seen more of the chain than it shows, `TooFarAhead` where no other
        upstream shows as much.
        """
        if reply.error is not ABSENT:
            return self._exchange.verdict_of(self.kind, reply)
        if self._reorgs >= 0:
            number = self._exchange.network.catalogue.revealed(self._method, self._scope, reply.result)
            self._number = number if number is None or self._is_believed(number, upstream) else None
        return _FINAL

    def _is_believed(self, number: int, upstream: Upstream) -> bool:
        """Whether callers may rely on a head from now on."""
        status = self._exchange.status
        # The head when the call was sent: what the prober saw since does not count, what callers saw does.
        head = self._head if status.reorgs == self._reorgs else NOTHING
        least = max(head, status.shown)
        if number < least:
            raise OutOfStep(f"block {number}, where callers have seen {least}", sent=True)
        if head != NOTHING and number > max(status.head, least) + MAX_AHEAD:
            raise OutOfStep(f"block {number}, where the highest known is {least}", sent=True)
        if head == NOTHING or number <= status.head + BELIEVED_BLOCKS:
            return True
        return self._is_confirmed(number, upstream)

    def _is_confirmed(self, number: int, upstream: Upstream) -> bool:
        """Whether others show a head that is far above the prober's. If none does, it counts against the upstream.

        Where no other one can be called its answer is passed on, but no caller has to wait for that block.
        """
        exchange = self._exchange
        now, status = exchange.now(), exchange.status
        few = BELIEVED_BLOCKS + int(BLOCKS_PER_SECOND * status.head_age)
        others = [each for each in exchange.upstreams if each is not upstream and each.in_rotation(now)]
        for other in others:
            if number <= max(other.status.head, other.claimed_head(now)) + few:
                other.confirm(number)
                return True
        # What was believed before is not news.
        if number <= max(status.head + few, status.shown, upstream.status.head):
            return True
        if upstream.doubt(number, now):
            status.request_probe()
        if others:
            raise TooFarAhead(f"block {number}, where the highest known is {status.head}", sent=True)
        return False

    def note(self, upstream: Upstream) -> None:
        """Publish the head that the last reply showed: no caller is shown less from now on."""
        if self._number is not None and self._exchange.status.reorgs == self._reorgs:
            upstream.status.observe_head(self._number)
            self._exchange.status.observe_head(self._number)
