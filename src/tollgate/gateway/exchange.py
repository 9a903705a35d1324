"""Attempts at upstreams until one answers, within a deadline.

`failover` decides, and does no I/O: it yields the upstream to ask and is told what went wrong. `Exchange`
drives it. A call that may change something goes to one upstream, and to another only while nothing of it has
left: a transaction sent twice is worse than an error.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from tollgate import metrics
from tollgate.config import Upstream
from tollgate.core.jsonrpc import Unparsable
from tollgate.errors import Overloaded, Refusal, UpstreamError, UpstreamTimeout, UpstreamUnavailable
from tollgate.gateway.messages import Network, Request
from tollgate.gateway.transport import Pool
from tollgate.gateway.wire import AttemptFailed, ConnectFailed, NoRoom, PoolFull, Response, TimedOut

T = TypeVar("T")

# These statuses speak of the upstream, not of the call: its key, its quota, its health.
_ABOUT_THE_UPSTREAM = frozenset({401, 402, 403, 407, 408, 429})
_IN_DOUBT = " The call may have been carried out all the same: check before you send it again."


class BadStatus(AttemptFailed):
    """An HTTP status that is no answer to the call."""

    outcome = "status"


class Nonsense(AttemptFailed):
    """A body that is no JSON-RPC response."""

    outcome = "nonsense"


def failover(upstreams: Sequence[Upstream], *, repeatable: bool) -> Generator[Upstream, AttemptFailed, Refusal]:
    """Yield upstreams to ask, be sent each one's failure, return the refusal when none is left."""
    failure: AttemptFailed | None = None
    for upstream in upstreams:
        failure = yield upstream
        if failure.sent and not repeatable:
            return _refusal(failure, _IN_DOUBT)
    return _refusal(failure)


def _refusal(failure: AttemptFailed | None, doubt: str = "") -> Refusal:
    if isinstance(failure, NoRoom):
        return Overloaded("Too many large answers at once: try again." + doubt)
    if failure is None or isinstance(failure, ConnectFailed | PoolFull):
        return UpstreamUnavailable(UpstreamUnavailable.hint + doubt)
    if isinstance(failure, TimedOut):
        return UpstreamTimeout(UpstreamTimeout.hint + doubt)
    return UpstreamError(UpstreamError.hint + doubt)


class Exchange:
    """Asks the upstreams of one network."""

    def __init__(
        self,
        network: Network,
        pools: dict[str, Pool],
        writer: metrics.Writer,
        now: Callable[[], float],
    ) -> None:
        self._upstreams = network.upstreams
        self._now = now
        self._writer = writer
        self._cells = writer.cells
        self._names = (network.family, network.name)
        self._ready = {
            name: (
                pool,
                writer.cell(metrics.UPSTREAM_ATTEMPTS, *self._names, name, "ok"),
                writer.histogram(metrics.UPSTREAM_SECONDS, *self._names, name),
            )
            for name, pool in pools.items()
        }

    async def ask(
        self, body: bytes, read: Callable[[bytes], T], deadline: float, request: Request, *, repeatable: bool
    ) -> T:
        """Return what the first upstream that answers says, as `read` understands it; note which one that was."""
        attempts = failover(self._upstreams, repeatable=repeatable)
        upstream = next(attempts)
        while True:
            began = self._now()
            pool, ok, histogram = self._ready[upstream.name]
            request.attempts += 1
            request.upstream = upstream.name
            until = min(deadline, began + upstream.timeout_seconds)
            try:
                response = await pool.send(body, until, repeatable=repeatable)
                answer = read_response(response, read)
            except AttemptFailed as failure:
                upstream = self._next(attempts, upstream, failure, deadline)
            else:
                self._cells[ok] += 1
                self._writer.observe(histogram, self._now() - began)
                return answer

    def _next(
        self,
        attempts: Generator[Upstream, AttemptFailed, Refusal],
        upstream: Upstream,
        failure: AttemptFailed,
        deadline: float,
    ) -> Upstream:
        """Count a failure and return the upstream to ask next, or refuse."""
        cell = self._writer.cell(metrics.UPSTREAM_ATTEMPTS, *self._names, upstream.name, failure.outcome)
        self._writer.add(cell)
        try:
            upstream = attempts.send(failure)
        except StopIteration as stop:
            raise stop.value from failure
        if self._now() >= deadline:
            raise UpstreamTimeout from failure
        return upstream


def read_response(response: Response, read: Callable[[bytes], T]) -> T:
    """Tell an answer to the call from a failure of the upstream."""
    status = response.status
    if status >= 500 or status in _ABOUT_THE_UPSTREAM or 300 <= status < 400:
        raise BadStatus(f"HTTP {status}", sent=True)
    try:
        return read(response.body)
    except Unparsable as error:
        raise Nonsense(f"HTTP {status}: {error}", sent=True) from error
