"""The checks of a request, in their order, and how refusals and answers are written, counted and recorded.

`Pipeline.answer` reads like the table in docs/request-path.md: credentials, caps and limits, parse, policy; the
first check that fails answers. `call.py` makes the same checks for callers that were let in before, and comes here
only to refuse. A request that passes is handed to `serve` and answered later; one that needs the store is a
coroutine for the connection to run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NoReturn

from msgspec import Raw
from msgspec.structs import replace

from tollgate import log
from tollgate.chains import contracts
from tollgate.chains.access import domain_refusal_of, refusal_of
from tollgate.chains.catalogue import Kind
from tollgate.core import jsonrpc
from tollgate.core.entries import BILLABLE, MAX_METHOD_BYTES, CallEntry
from tollgate.core.shapes import ABSENT, Call, Params, Reply, WrittenCall
from tollgate.errors import (
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NetworkNotAllowed,
    Overloaded,
    RateLimited,
    Refusal,
    SpendingCap,
    UnknownNetwork,
)
from tollgate.gateway.access.caller import Caller
from tollgate.gateway.access.credentials import Credentials
from tollgate.gateway.access.limits import Limiter
from tollgate.gateway.call.batch_resolution import BatchItem
from tollgate.gateway.call.resolver import STOPPING, Resolver
from tollgate.gateway.http import cors, response
from tollgate.gateway.messages import Answer, KnownCaller, Request, ServedNetwork
from tollgate.gateway.recording.counters import NODE_ERROR, OK, Counters
from tollgate.gateway.recording.journal import RecordSink
from tollgate.gateway.upstream import sticky

# Decisions about methods that are remembered; callers can invent names.
_MAX_METHODS = 4_096
_NO_CONTENT = Answer(204, b"")
_NOTHING: frozenset[str] = frozenset()
_log = log.get("gateway")


Answering = Answer | Coroutine[Any, Any, Answer | None] | None


class Pipeline:
    """Checks the requests of one worker, and writes their answers."""

    subscribes = False
    """Whether calls about subscriptions are understood: a POST has no connection to notify."""
    serve: Callable[[Request, Caller, Resolver, Call | Sequence[Call]], None]
    """Serves a call or batch that passed; set by `call.py`."""

    def __init__(
        self,
        credentials: Credentials,
        limiter: Limiter,
        networks: Mapping[str, Resolver],
        counters: Counters,
        *,
        max_calls: int,
        request_seconds: float,
        now: Callable[[], float],
        sink: RecordSink,
        seal: sticky.TeamSeal,
        bills_upstream_calls: bool = True,
        shows_upstreams: bool = True,
    ) -> None:
        self._credentials = credentials
        self._limiter = limiter
        self._networks = networks
        self._counters = counters
        self._now = now
        self.seal = seal
        self._sink = sink
        """Where records go. While it is full nothing more can be written down, so nothing more may be answered."""
        self._allowed: dict[tuple[str, bool], set[str]] = {}
        """Methods that a network lets through for tokens, and for domains, as far as they have been called."""
        self.change(
            max_calls,
            request_seconds,
            bills_upstream_calls=bills_upstream_calls,
            shows_upstreams=shows_upstreams,
        )

    def change(
        self,
        max_calls: int,
        request_seconds: float,
        *,
        bills_upstream_calls: bool = True,
        shows_upstreams: bool = True,
    ) -> None:
        """Take over limits, and the rules of networks as they are now."""
        self.max_calls = max_calls
        self.request_seconds = request_seconds
        self.bills_upstream_calls = bills_upstream_calls
        """Whether each upstream call that one call needs is recorded as a call."""
        self._shows_upstreams = shows_upstreams
        """Whether teams may see the names of upstreams."""
        self._allowed = {}

    def answer(self, request: Request) -> Answering:
        """Answer a request that was read whole: at once, later by its connection (None), or by a coroutine."""
        if request.method == b"OPTIONS":
            return cors.preflight(request)
        try:
            if request.refusal is not None:
                raise request.refusal
            caller = self._credentials.recall(request)
            if caller is None:
                return self._answer_new_caller(request)
            return self._answer_caller(request, caller)
        except Refusal as refusal:
            return self.refuse(request, refusal)

    async def _answer_new_caller(self, request: Request) -> Answer | None:
        """Answer a caller that is not in memory."""
        try:
            caller = await self._credentials.look_up(request)
            answer = self._answer_caller(request, caller)
        except Refusal as refusal:
            return self.refuse(request, refusal)
        return answer if answer is None or isinstance(answer, Answer) else await answer

    def _answer_caller(self, request: Request, caller: Caller) -> Answering:
        assert request.network is not None  # noqa: S101 - the intake refuses what has none
        request.caller = caller
        if self._sink.is_full:
            raise Overloaded("Calls cannot be recorded now: try again.")
        resolver = self._networks.get(request.network.path) or self._not_served(request.network)
        self._limiter.admit(caller, request)
        parsed = jsonrpc.parse(request.body, self.max_calls)
        if isinstance(parsed, list):
            self._limiter.admit_rest(caller, request, len(parsed))
            self._limiter.take_calls(caller, len(parsed))
            return self._pass_on(request, request.network, resolver, caller, parsed)
        refusal = self.policy(request.network, caller, parsed.method, parsed.params)
        if refusal is not None:
            self._counters.called(request.network, parsed.method, refusal.reason)
            return self.refuse(request, refusal, jsonrpc.caller_id(parsed), parsed.method)
        self._limiter.take_calls(caller, 1)
        return self._pass_on(request, request.network, resolver, caller, parsed)

    def _pass_on(
        self,
        request: Request,
        network: ServedNetwork,  # noqa: ARG002 - the pipeline of WebSockets needs it
        resolver: Resolver,
        caller: Caller,
        parsed: Call | Sequence[Call],
    ) -> Answering:
        """Let a request be served that has passed all checks."""
        self.serve(request, caller, resolver, parsed)
        return None

    def _not_served(self, network: ServedNetwork) -> NoReturn:
        served = ", ".join(sorted(self._networks)) or "none"
        raise UnknownNetwork(f"{network.path} is not served any more. Served here: {served}.")

    def admit_more(self, caller: Caller, request: Request, calls: int) -> None:
        """Count calls to upstreams that one call needs beyond the first, or refuse them."""
        self._limiter.admit_more(caller, request, calls)
        if self.bills_upstream_calls:
            self._limiter.take_calls(caller, calls)

    # --- One call --------------------------------------------------------------------------------------

    def render(self, request: Request, network: ServedNetwork, call: Call, result: Reply | Refusal) -> Answer:
        """The answer to one call, counted and noted for the record."""
        caller, route = request.caller, request.route
        assert caller is not None  # noqa: S101 - called on behalf of one
        body, entry = self._written(request, caller, call, result)
        extra = route.extra if self.bills_upstream_calls else 0
        if entry.outcome not in BILLABLE:
            self._give_back(request, 1 + extra)
            extra = 0
        request.calls = (entry, *(replace(entry, response_bytes=0),) * extra)
        if isinstance(result, Refusal):
            self._counters.called(network, call.method, result.reason)
            self._counters.refused(result)
            return response.refuse(request, result, call.id) if call.id is not None else _NO_CONTENT
        self._counters.resolved(network, call.method, entry.outcome, route.counted or route.cache)
        if call.id is None:
            return _NO_CONTENT
        return Answer(200, body, self.shown(route.upstream, route.cache) if caller.shows else b"")

    def _give_back(self, request: Request, calls: int) -> None:
        """Give back calls of an allowance that are not charged."""
        if calls and isinstance(request.caller, Caller):
            self._limiter.give_back(request.caller, calls)

    def _written(
        self, request: Request, caller: KnownCaller, call: Call, result: Reply | Refusal
    ) -> tuple[bytes, CallEntry]:
        """The answer to a call, empty for a notification, and what is recorded of it."""
        outcome, code, body = OK, None, b""
        if isinstance(result, Refusal):
            outcome, code = result.reason, result.code
            if call.id is not None:
                body = response.error_body(request, result, call.id)
        else:
            if call.method in sticky.METHODS:
                result = self.seal.closed(call.method, result, caller.filters_of)
            if result.error is not ABSENT:
                outcome, code = NODE_ERROR, jsonrpc.error_code(result)
            if call.id is not None:
                body = jsonrpc.encode_answer(call.id, result)
        return body, CallEntry(call.method[:MAX_METHOD_BYTES], outcome, code, len(body))

    def shown(self, upstreams: str, cache: str) -> bytes:
        """The header lines with the origin of an answer, for a token that shows it."""
        return response.shown(upstreams if self._shows_upstreams else "", cache)

    # --- A batch ---------------------------------------------------------------------------------------

    def refusals(self, network: ServedNetwork, caller: Caller, calls: Sequence[Call]) -> list[Refusal | None]:
        """Why each call of a batch may not be made; empty: all of them may."""
        allowed = self._allowed.get((network.path, caller.grant.domain is not None), _NOTHING)
        if not caller.restricted and allowed.issuperset([call.method for call in calls]):
            return []
        refusals = [self._refusal(network, caller, call) for call in calls]
        return refusals if any(refusals) else []

    def opened(self, calls: Sequence[Call], caller: Caller) -> Sequence[Call]:
        """The calls of a batch, with what is sealed for the caller opened."""
        if sticky.METHODS.isdisjoint([call.method for call in calls]):
            return calls
        seal, owner = self.seal, caller.filters_of
        return [seal.opened(call, owner) if call.method in sticky.METHODS else call for call in calls]

    def render_batch(
        self, request: Request, network: ServedNetwork, caller: Caller, items: Sequence[BatchItem]
    ) -> Answer:
        """The answer to a batch, counted and noted for the record."""
        bodies: list[bytes] = []
        entries: list[CallEntry] = []
        counts: dict[tuple[str, str, str], int] = {}
        unbilled = 0
        for item in items:
            call, route = item.call, item.route
            assert item.result is not None  # noqa: S101 - each has one by now
            body, entry = self._written(request, caller, call, item.result)
            entry = replace(entry, upstream=route.upstream, attempts=route.kept, cache=route.cache)
            bodies.append(body)
            entries.append(entry)
            extra = route.extra if self.bills_upstream_calls else 0
            if entry.outcome not in BILLABLE:
                unbilled += 1 + extra
            elif extra:
                entries += [replace(entry, response_bytes=0, attempts=0)] * extra
            counted = (call.method, entry.outcome, route.counted or route.cache)
            counts[counted] = counts.get(counted, 0) + 1
        self._give_back(request, unbilled)
        for (method, outcome, way), count in counts.items():
            self._counters.called(network, method, outcome, count)
            self._counters.cached(network, way, count)
        bodies = [body for body in bodies if body]
        request.calls = entries
        if not bodies:
            return _NO_CONTENT
        headers = b""
        if caller.shows:
            routes = [item.route for item in items]
            headers = self.shown(
                ", ".join(sorted({route.upstream for route in routes if route.upstream})),
                ", ".join(sorted({route.cache for route in routes})),
            )
        return Answer(200, b"[%b]" % b",".join(bodies), headers)

    # --- Rules -----------------------------------------------------------------------------------------

    def _refusal(self, network: ServedNetwork, caller: Caller, call: Call) -> Refusal | None:
        if isinstance(call, WrittenCall) and call.problem:
            return InvalidRequest(call.problem)
        return self.policy(network, caller, call.method, call.params)

    def policy(self, network: ServedNetwork, caller: Caller, method: str, params: Params = None) -> Refusal | None:
        """Why this caller may not call this method here, with these parameters, if so."""
        if caller.networks and network.path not in caller.networks:
            return NetworkNotAllowed(
                f"This token may not call {network.path}, only: {', '.join(sorted(caller.networks))}."
            )
        why = self._network_policy(network, method, from_domain=caller.grant.domain is not None)
        if why is None and not caller.allows(method):
            why = "It is not on the list of this token."
        if why is None and caller.contracts:
            why = contracts.refusal_of(network.catalogue.method(method), params, caller.contracts)
        if why is None:
            return None
        return MethodNotAllowed(f"{method[:64]} may not be called on {network.path}. {why}")

    def _network_policy(self, network: ServedNetwork, method: str, *, from_domain: bool) -> str | None:
        allowed = self._allowed.setdefault((network.path, from_domain), set())
        if method in allowed:
            return None
        why = refusal_of(method, network.catalogue, network.policy)
        if why is None and from_domain:
            why = domain_refusal_of(method, network.catalogue, network.policy)
        if why is None and not self.subscribes and network.catalogue.kind(method) is Kind.SUBSCRIBE:
            why = "Subscriptions need a WebSocket: connect to the same address by wss:// or ws://."
        if why is None and len(method) <= jsonrpc.MAX_REMEMBERED_METHOD:
            if len(allowed) >= _MAX_METHODS:
                allowed.clear()
            allowed.add(method)
        return why

    def refuse(
        self, request: Request, refusal: Refusal, call_id: Raw | int = jsonrpc.NULL, method: str = ""
    ) -> Answer:
        """Answer a whole request with a refusal, and count it."""
        self._counters.refused(refusal)
        answer = response.refuse(request, refusal, call_id)
        if request.caller is not None:
            methods = [method]
            if not method and isinstance(refusal, RateLimited | SpendingCap):
                # Refused before it was parsed; its team wants to know what it was.
                methods = jsonrpc.named(request.body)
            entries = [CallEntry(each[:MAX_METHOD_BYTES], refusal.reason, refusal.code) for each in methods]
            request.calls = (replace(entries[0], response_bytes=len(answer.body)), *entries[1:])
        return answer

    def outcome(self, request: Request, task: asyncio.Task[Answer | None]) -> Answer | None:
        """The answer of a finished task, or the refusal for its failure; None: it is answered later."""
        if task.cancelled():
            return self.refuse(request, Overloaded(STOPPING))
        error = task.exception()
        return self.failed(request, error) if error is not None else task.result()

    def failed(self, request: Request, error: BaseException | None) -> Answer:
        """Answer a request at which we failed ourselves."""
        _log.error("a request failed", request_id=request.request_id.decode("latin-1"), exc_info=error)
        return self.refuse(request, InternalError())
