"""One request, top to bottom: credentials, caps and limits, parse, policy, upstream, answer.

`Pipeline.answer` reads like section 7 of the contract: the first check that applies answers. Whatever needs
no upstream and no store is answered at once, without a task; the rest is a coroutine that the edge runs.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

from msgspec import Raw

from tollgate import log
from tollgate.core import jsonrpc
from tollgate.core.entries import LONGEST_METHOD
from tollgate.core.methods import refusal_of
from tollgate.core.shapes import ABSENT, Call, PlainCall, Replies, Reply, WrittenCall
from tollgate.errors import (
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NetworkNotAllowed,
    Overloaded,
    Refusal,
)
from tollgate.gateway import cors, respond
from tollgate.gateway.admission import Admission
from tollgate.gateway.caller import Caller
from tollgate.gateway.credentials import Credentials
from tollgate.gateway.exchange import Exchange
from tollgate.gateway.messages import Answer, Network, Request
from tollgate.gateway.record import NODE_ERROR, OK, Recorder

# Decisions about methods that are remembered; callers can invent names.
_MOST_METHODS = 4_096
_NO_CONTENT = Answer(204, b"")
_log = log.get("gateway")


class Pipeline:
    """Answers requests of one worker."""

    def __init__(
        self,
        credentials: Credentials,
        admission: Admission,
        exchanges: dict[str, Exchange],
        recorder: Recorder,
        *,
        most_calls: int,
        request_seconds: float,
        now: Callable[[], float],
        is_full: Callable[[], bool],
    ) -> None:
        self._credentials = credentials
        self._admission = admission
        self._exchanges = exchanges
        self._recorder = recorder
        self._most_calls = most_calls
        self._request_seconds = request_seconds
        self._now = now
        self._is_full = is_full
        """Whether nothing more can be written down, so that nothing more may be answered."""
        self._allowed: dict[str, set[str]] = {path: set() for path in exchanges}
        """Methods that a network lets through, as far as they have been asked for."""

    def answer(self, request: Request) -> Answer | Coroutine[Any, Any, Answer]:
        """Answer a request that was read whole: at once, or by a coroutine to run."""
        if request.method == b"OPTIONS":
            return cors.preflight(request)
        try:
            if request.refusal is not None:
                raise request.refusal
            caller = self._credentials.recall(request)
            if caller is None:
                return self._answer_stranger(request)
            return self._answer_caller(request, caller)
        except Refusal as refusal:
            return self.refuse(request, refusal)

    async def _answer_stranger(self, request: Request) -> Answer:
        """Answer a caller that is not in memory."""
        try:
            caller = await self._credentials.look_up(request)
            answer = self._answer_caller(request, caller)
        except Refusal as refusal:
            return self.refuse(request, refusal)
        return answer if isinstance(answer, Answer) else await answer

    def _answer_caller(self, request: Request, caller: Caller) -> Answer | Coroutine[Any, Any, Answer]:
        assert request.network is not None  # noqa: S101 - the intake refuses what has none
        request.caller = caller
        if self._is_full():
            raise Overloaded("Calls cannot be recorded now: try again.")
        self._admission.admit(caller, request)
        parsed = jsonrpc.parse(request.body, self._most_calls)
        if isinstance(parsed, list):
            self._admission.admit_rest(caller, request, len(parsed))
            return self._answer_batch(request, request.network, caller, parsed)
        if not caller.restricted and parsed.method in self._allowed[request.network.path]:
            return self._answer_call(request, request.network, parsed)
        refusal = self._policy(request.network, caller, parsed)
        if refusal is not None:
            self._recorder.called(request.network, parsed.method, refusal.reason)
            return self.refuse(request, refusal, jsonrpc.caller_id(parsed), parsed.method)
        return self._answer_call(request, request.network, parsed)

    # --- One call --------------------------------------------------------------------------------------

    async def _answer_call(self, request: Request, network: Network, call: Call) -> Answer:
        try:
            reply = await self._exchanges[network.path].ask(
                jsonrpc.encode_call(call),
                jsonrpc.decode_reply,
                self._now() + self._request_seconds,
                request,
                repeatable=call.method in network.reads,
            )
        except Refusal as refusal:
            self._recorder.called(network, call.method, refusal.reason)
            if call.id is not None:
                return self.refuse(request, refusal, call.id, call.method)
            self._recorder.refused(refusal)
            request.calls = ((call.method[:LONGEST_METHOD], refusal.reason, refusal.code, 0),)
            return _NO_CONTENT
        answer = _NO_CONTENT if call.id is None else Answer(200, jsonrpc.encode_answer(call.id, reply))
        outcome, code = (OK, None) if reply.error is ABSENT else (NODE_ERROR, jsonrpc.error_code(reply))
        self._recorder.called(network, call.method, outcome)
        request.calls = ((call.method[:LONGEST_METHOD], outcome, code, len(answer.body)),)
        return answer

    # --- A batch ---------------------------------------------------------------------------------------

    async def _answer_batch(
        self, request: Request, network: Network, caller: Caller, calls: Sequence[Call]
    ) -> Answer:
        methods = [call.method for call in calls]
        if caller.restricted or not self._allowed[network.path].issuperset(methods):
            outcomes = await self._ask_allowed(request, network, caller, calls)
        else:
            asked = await self._ask_batch(request, network, calls, methods)
            if isinstance(asked, Replies) and asked.all_results and isinstance(calls[0], PlainCall):
                self._count(network, methods, [OK] * len(methods))
                plain = cast("Sequence[PlainCall]", calls)
                answer = Answer(200, jsonrpc.encode_results(plain, asked.items))
                share = len(answer.body) // len(methods)
                request.calls = [(method[:LONGEST_METHOD], OK, None, share) for method in methods]
                return answer
            outcomes = _spread(asked, len(calls))
        self._count(network, methods, [_result(outcome) for outcome in outcomes])
        answers = [
            b"" if call.id is None else _body(request, call.id, outcome)
            for call, outcome in zip(calls, outcomes, strict=True)
        ]
        request.calls = [
            (method[:LONGEST_METHOD], _result(outcome), _code(outcome), len(body))
            for method, outcome, body in zip(methods, outcomes, answers, strict=True)
        ]
        bodies = [body for body in answers if body]
        return Answer(200, b"[%b]" % b",".join(bodies)) if bodies else _NO_CONTENT

    async def _ask_allowed(
        self, request: Request, network: Network, caller: Caller, calls: Sequence[Call]
    ) -> Sequence[Reply | Refusal]:
        """Ask for those calls of a batch that may be made, and refuse the others in their places."""
        refusals = [self._refusal(network, caller, call) for call in calls]
        sent = [call for call, refusal in zip(calls, refusals, strict=True) if refusal is None]
        if not sent:
            return [refusal for refusal in refusals if refusal is not None]
        asked = await self._ask_batch(request, network, sent, [call.method for call in sent])
        answers = iter(_spread(asked, len(sent)))
        return [next(answers) if refusal is None else refusal for refusal in refusals]

    def _count(self, network: Network, methods: list[str], results: list[str]) -> None:
        if methods.count(methods[0]) == len(methods) == results.count(OK):
            self._recorder.called(network, methods[0], OK, len(methods))
            return
        pairs = list(zip(methods, results, strict=True))
        for method, result in set(pairs):
            self._recorder.called(network, method, result, pairs.count((method, result)))

    async def _ask_batch(
        self, request: Request, network: Network, calls: Sequence[Call], methods: list[str]
    ) -> Replies | Refusal:
        try:
            return await self._exchanges[network.path].ask(
                jsonrpc.encode_batch(calls),
                lambda body: jsonrpc.decode_batch(body, len(calls)),
                self._now() + self._request_seconds,
                request,
                repeatable=network.reads.issuperset(methods),
            )
        except Refusal as refusal:
            return refusal

    # --- Rules -----------------------------------------------------------------------------------------

    def _refusal(self, network: Network, caller: Caller, call: Call) -> Refusal | None:
        if isinstance(call, WrittenCall) and call.problem:
            return InvalidRequest(call.problem)
        return self._policy(network, caller, call)

    def _policy(self, network: Network, caller: Caller, call: Call) -> Refusal | None:
        """Why this caller may not make this call here, if so."""
        if caller.networks and network.path not in caller.networks:
            return NetworkNotAllowed(
                f"This token may not call {network.path}, only: {', '.join(sorted(caller.networks))}."
            )
        why = self._network_policy(network, call.method)
        if why is None and not caller.allows(call.method):
            why = "It is not on the list of this token."
        if why is None:
            return None
        return MethodNotAllowed(f"{call.method[:64]} may not be called on {network.path}. {why}")

    def _network_policy(self, network: Network, method: str) -> str | None:
        allowed = self._allowed[network.path]
        if method in allowed:
            return None
        why = refusal_of(method, network.policy)
        if why is None and len(method) <= jsonrpc.LONGEST_REMEMBERED:
            if len(allowed) >= _MOST_METHODS:
                allowed.clear()
            allowed.add(method)
        return why

    def refuse(
        self, request: Request, refusal: Refusal, call_id: Raw | int = jsonrpc.NULL, method: str = ""
    ) -> Answer:
        """Answer a whole request with a refusal, and count it."""
        self._recorder.refused(refusal)
        answer = respond.refuse(request, refusal, call_id)
        if request.caller is not None:
            request.calls = ((method[:LONGEST_METHOD], refusal.reason, refusal.code, len(answer.body)),)
        return answer

    def failed(self, request: Request, error: BaseException | None) -> Answer:
        """Answer a request at which we failed ourselves."""
        _log.error("a request failed", request_id=request.request_id.decode("latin-1"), exc_info=error)
        return self.refuse(request, InternalError())


def _spread(asked: Replies | Refusal, count: int) -> Sequence[Reply | Refusal]:
    """What became of each call of a batch."""
    return asked.items if isinstance(asked, Replies) else [asked] * count


def _result(outcome: Reply | Refusal) -> str:
    if isinstance(outcome, Reply):
        return OK if outcome.error is ABSENT else NODE_ERROR
    return outcome.reason


def _code(outcome: Reply | Refusal) -> int | None:
    """The code of a call's JSON-RPC error."""
    if isinstance(outcome, Reply):
        return None if outcome.error is ABSENT else jsonrpc.error_code(outcome)
    return outcome.code


def _body(request: Request, call_id: Raw | int, outcome: Reply | Refusal) -> bytes:
    if isinstance(outcome, Reply):
        return jsonrpc.encode_answer(call_id, outcome)
    return respond.error_body(request, outcome, call_id)
