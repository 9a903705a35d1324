"""What a node's reply to one call means, and whether it fits what callers have seen of the chain."""

from __future__ import annotations

from tollgate.chains.catalogue import Holds, Look, Scope
from tollgate.chains.faults import Verdict
from tollgate.core.shapes import ABSENT, Reply
from tollgate.gateway.upstream.exchange import Exchange
from tollgate.gateway.upstream.failover import OutOfStep
from tollgate.gateway.upstream.health import Upstream
from tollgate.shm.upstream_status import NOTHING

# A head so far above the highest one that is known is a mistake: no chain is that fast.
MAX_AHEAD = 10_000
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

    def __call__(self, reply: Reply) -> Verdict:
        """What a reply means. Raise `OutOfStep` where callers have seen more of the chain than it shows."""
        if reply.error is not ABSENT:
            return self._exchange.verdict_of(self.kind, reply)
        if self._reorgs >= 0:
            number = self._exchange.network.catalogue.revealed(self._method, self._scope, reply.result)
            if number is not None:
                self._check(number)
            self._number = number
        return _FINAL

    def _check(self, number: int) -> None:
        status = self._exchange.status
        # The head when the call was sent: what the prober saw since does not count, what callers saw does.
        head = self._head if status.reorgs == self._reorgs else NOTHING
        least = max(head, status.shown)
        if number < least:
            raise OutOfStep(f"block {number}, where callers have seen {least}", sent=True)
        if head != NOTHING and number > max(status.head, least) + MAX_AHEAD:
            raise OutOfStep(f"block {number}, where the highest known is {least}", sent=True)

    def note(self, upstream: Upstream) -> None:
        """Publish the head that the last reply showed: no caller is shown less from now on."""
        if self._number is not None and self._exchange.status.reorgs == self._reorgs:
            upstream.status.observe_head(self._number)
            self._exchange.status.observe_head(self._number)
