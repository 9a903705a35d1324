"""One call on its way to its answer: an equal call under way, or attempts at upstreams. By plain calls.

Only an `eth_getLogs` in several parts takes a task. Knows no caller and no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from msgspec import Raw

from tollgate import log
from tollgate.chains.catalogue import Kind, Scope
from tollgate.chains.faults import Verdict
from tollgate.core import jsonrpc
from tollgate.core.shapes import ABSENT, Call, Params, Reply, WrittenCall
from tollgate.errors import InternalError, Overloaded, RateLimited, Refusal
from tollgate.gateway.call.reply_validator import ReplyValidator
from tollgate.gateway.call.resolver import APART, STOPPING, Resolved, Resolver, SingleFlight
from tollgate.gateway.messages import Route
from tollgate.gateway.upstream import sticky
from tollgate.gateway.upstream.attempts import AttemptOutcome, Attempts, FirstAttempt
from tollgate.gateway.upstream.broadcast import SIGNED, Broadcast
from tollgate.gateway.upstream.choice import Requirements
from tollgate.gateway.upstream.get_logs import GET_LOGS, Logs, is_wide
from tollgate.gateway.upstream.health import Upstream
from tollgate.shm.upstream_status import Stamp

_WRITE = Kind.WRITE
_log = log.get("gateway")
T = TypeVar("T")


class Cancellable(Protocol):
    """What may be under way for a call."""

    def cancel(self) -> object:
        """End it."""


class Resolution:
    """One call on its way to its answer. `done` is called once, with a reply or a refusal.

    States: waiting for an equal call; sent (`_work` makes the attempts); done.
    """

    __slots__ = (
        "_call",
        "_deadline",
        "_done",
        "_flight",
        "_key",
        "_resolver",
        "_scope",
        "_validator",
        "_work",
        "route",
    )

    def __init__(
        self,
        resolver: Resolver,
        call: Call,
        key: bytes | None,
        deadline: float,
        route: Route,
        done: Callable[[Resolved], None],
        scope: Scope | None = None,
    ) -> None:
        self._resolver = resolver
        self._call = call
        self._key = key
        self._deadline = deadline
        self.route = route
        self._done: Callable[[Resolved], None] | None = done
        self._flight: SingleFlight | None = None
        """What others wait for."""
        self._scope = resolver.scope(call) if scope is None else scope
        self._validator: ReplyValidator | None = None
        self._work: Cancellable | None = None

    def start(self) -> None:
        """Wait for an equal call, or call upstreams."""
        if self._key is None:
            self.fetch()
            return
        stamp = self._resolver.exchange.status.stamp
        flight = self._resolver.flights.get(self._key)
        if flight is not None and flight.stamp == stamp:
            self.route.cache = "coalesced"
            flight.join(self._completed)
        else:
            self._lead(self._key, stamp)

    def _lead(self, key: bytes, stamp: Stamp) -> None:
        resolver = self._resolver
        if self._call.method in resolver.cached:
            self.route.cache = "miss"
        self._flight = resolver.flights[key] = SingleFlight(stamp)
        self.fetch()

    def _completed(self, reply: Resolved) -> None:
        """Take the answer to an equal call."""
        if self._done is None:
            return
        if isinstance(reply, RateLimited) and self._key is not None:
            # By the limits of the caller that it joined, which are not its own.
            self._lead(self._key, self._resolver.stamp())
        else:
            self._finish(reply)

    # --- Upstreams -------------------------------------------------------------------------------------

    def fetch(self, tried: Sequence[Upstream] = ()) -> None:
        """Call upstreams, but those that were tried."""
        call, resolver = self._call, self._resolver
        method, exchange = call.method, resolver.exchange
        if method not in APART:
            self._send(call, None, tried)
        elif method in SIGNED:
            self._work = work = Broadcast(exchange, call, self._deadline, self.route, self._sent)
            work.start()
        elif method == GET_LOGS:
            if is_wide(call.params, exchange.status.floor, resolver.logs_blocks):
                self._get_logs()
            else:
                self._send(call, None, tried)
        else:
            params, slot = sticky.decode_slot(method, call.params)
            if slot is not None and not exchange.has(slot):
                # The upstream that made it is not here any more: another one answers with a node's error.
                params, slot = call.params, None
            self._send(_with(call, params), slot, tried)

    def _send(self, call: Call, slot: int | None, tried: Sequence[Upstream] = ()) -> None:
        self._validator = self._resolver.validator(call.method, self._scope)
        self._work = work = self._attempts(jsonrpc.encode_call(call), self._answered, slot, tried)
        work.start()

    def resume(self, sent: FirstAttempt, flight: SingleFlight | None, validator: ReplyValidator | None) -> None:
        """Go on with a call that the fast path has sent."""
        self._flight = flight
        self._validator = validator or self._resolver.validator(self._call.method, self._scope)
        self._work = work = self._attempts(sent.body, self._answered)
        work.resume(sent)

    def _attempts(
        self,
        body: bytes,
        done: Callable[[AttemptOutcome[Reply] | Refusal], None],
        slot: int | None = None,
        tried: Sequence[Upstream] = (),
    ) -> Attempts[Reply]:
        resolver, scope, method = self._resolver, self._scope, self._call.method
        oldest = scope.oldest if scope.state else None
        return Attempts(
            resolver.exchange,
            Requirements(method, method in resolver.repeatable, scope.tip, oldest, slot, scope.number),
            self._deadline,
            body,
            jsonrpc.decode_reply,
            self._validator,
            self.route,
            done,
            tried,
        )

    def _answered(self, outcome: AttemptOutcome[Reply] | Refusal) -> None:
        validator = self._validator
        if validator is not None and validator.kind is _WRITE:
            self._resolver.exchange.status.request_probe()
        if isinstance(outcome, Refusal):
            self._finish(outcome)
            return
        if validator is not None and not validator.plain:
            validator.note(outcome.upstream)
        method, reply = self._call.method, outcome.answer
        if method not in APART:
            self._finish(reply)
            return
        if method != GET_LOGS and reply.error is ABSENT:
            reply = Reply(sticky.encode_slot(method, reply.result, outcome.upstream.slot))
        elif outcome.verdict is Verdict.TOO_WIDE and method == GET_LOGS:
            self._get_logs(outcome)
            return
        self._finish(reply)

    def _sent(self, outcome: AttemptOutcome[Reply] | Refusal) -> None:
        """Take the end of a transaction."""
        self._finish(outcome if isinstance(outcome, Refusal) else outcome.answer)

    def _get_logs(self, refused: AttemptOutcome[Reply] | None = None) -> None:
        """Get logs in several parts."""
        resolver, route = self._resolver, self.route
        self._validator = resolver.validator(GET_LOGS, self._scope)

        async def send(params: Params) -> AttemptOutcome[Reply]:
            future: asyncio.Future[AttemptOutcome[Reply] | Refusal] = resolver.loop.create_future()
            body = jsonrpc.encode_call(_with(self._call, params))
            attempts = self._attempts(body, partial(fulfil, future))
            attempts.start()
            try:
                outcome = await future
            except asyncio.CancelledError:
                attempts.cancel()
                raise
            if isinstance(outcome, Refusal):
                raise outcome
            return outcome

        def charge(calls: int) -> None:
            if route.charge is not None:
                route.charge(calls)
            route.extra += calls

        blocks = 0 if refused is not None else resolver.logs_blocks
        getting = Logs(send, charge).get(self._call.params, resolver.exchange.status.floor, blocks, refused)
        self._work = task = resolver.loop.create_task(getting)
        task.add_done_callback(self._got_logs)

    def _got_logs(self, task: asyncio.Task[Reply]) -> None:
        if task.cancelled() or self._done is None:
            return
        error = task.exception()
        if error is None:
            self._finish(task.result())
        elif isinstance(error, Refusal):
            self._finish(error)
        else:
            _log.error("logs could not be joined", exc_info=error)
            self._finish(InternalError())

    # --- The end ---------------------------------------------------------------------------------------

    def _finish(self, result: Resolved) -> None:
        if self._flight is not None and self._key is not None:
            self._resolver.complete(self._key, self._flight, self._scope, result)
        done, self._done = self._done, None
        if done is not None:
            done(result)

    def cancel(self) -> None:
        """End it with a refusal: the service stops."""
        if self._done is not None:
            if self._work is not None:
                self._work.cancel()
            self._finish(Overloaded(STOPPING))


async def resolve(resolver: Resolver, call: Call, key: bytes | None, deadline: float, route: Route) -> Reply:
    """Get the answer to one call that is not cached under its key, or raise a refusal."""
    return await _awaited(resolver, call, key, deadline, route, Resolution.start)


async def fetch(
    resolver: Resolver, call: Call, deadline: float, route: Route, tried: Sequence[Upstream] = ()
) -> Reply:
    """Call upstreams, but those that were tried, or raise a refusal."""
    return await _awaited(resolver, call, None, deadline, route, partial(Resolution.fetch, tried=tried))


async def _awaited(
    resolver: Resolver,
    call: Call,
    key: bytes | None,
    deadline: float,
    route: Route,
    start: Callable[[Resolution], None],
) -> Reply:
    future: asyncio.Future[Resolved] = resolver.loop.create_future()
    resolution = Resolution(resolver, call, key, deadline, route, partial(fulfil, future))
    start(resolution)
    try:
        result = await future
    except asyncio.CancelledError:
        resolution.cancel()
        raise
    if isinstance(result, Refusal):
        raise result
    return result


def _with(call: Call, params: Params) -> Call:
    return call if params is call.params else WrittenCall(call.method, params, Raw(b"1"))


def fulfil(future: asyncio.Future[T], result: T) -> None:
    """Give a result to the coroutine that waits for it."""
    if not future.done():
        future.set_result(result)
