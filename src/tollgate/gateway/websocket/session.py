"""One open WebSocket: what comes in is a call or a batch, what goes out are answers and notifications.

Each message takes the way of a POST body: the same pipeline, the same record before its answer leaves. Answers
come as they are ready, in any order. What waits for a client that does not read is bounded; beyond that it is cut.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
from msgspec import Raw, Struct

from tollgate.core import jsonrpc
from tollgate.core.shapes import Reply
from tollgate.errors import Overloaded, Refusal
from tollgate.gateway.access.caller import Caller
from tollgate.gateway.call.admission import Admission
from tollgate.gateway.call.call import ServedCall
from tollgate.gateway.call.served import Served
from tollgate.gateway.feeds.subscribers import Subscriber
from tollgate.gateway.http.outbox import Answered, Outgoing
from tollgate.gateway.http.under_way import CallUnderWay
from tollgate.gateway.http.worker_context import WorkerContext
from tollgate.gateway.memory_budget import SMALL
from tollgate.gateway.messages import Answer, Request
from tollgate.gateway.recording.spans import end_span
from tollgate.gateway.websocket.outbox import Outbox, Send
from tollgate.gateway.websocket.subscriptions import (
    CallerUse,
    SocketPipeline,
    SocketRequest,
    Stream,
    Subscriptions,
)

Receive = Callable[[], Awaitable[dict[str, Any]]]

# Calls under way on one connection before nothing more is read from it.
MAX_IN_FLIGHT = 64
# After so many messages others have their turn.
_IN_A_ROW = 16
# For what waits, and the last message, to leave before the connection is closed.
FLUSH_SECONDS = 1.0
# What fits into a close frame (RFC 6455, 5.5).
_MAX_REASON = 123

GOING_AWAY, FAILED, TRY_LATER = 1001, 1011, 1013
_STOPPING = "The service stops: try again."


class SocketSession:
    """One open WebSocket."""

    # What a call reads of its connection.
    speaks_http = False
    eof, closing = True, False

    def __init__(
        self,
        context: WorkerContext,
        pipeline: SocketPipeline,
        opened: Request,
        url: bytes,
        stream: Stream | None,
        *,
        max_queued: int,
        max_subscriptions: int,
        use: CallerUse,
        caller: Caller,
        on_notified: Callable[[], None],
        on_cut: Callable[[str], None],
    ) -> None:
        self._context = context
        self._pipeline = pipeline
        self.opened = opened
        """The handshake: whose connection it is."""
        self._url = url
        # Each message gets an id of its own.
        self._headers = {name: value for name, value in opened.headers.items() if name != b"x-request-id"}
        self._on_notified = on_notified
        self._on_cut = on_cut
        assert opened.network is not None  # noqa: S101 - a handshake without one is refused
        self._subscriptions = (
            Subscriptions(opened.network.family, stream, self, max_subscriptions, use, self._charge)
            if stream is not None
            else None
        )
        self._caller = caller
        self._admission: Admission | None = None
        self._calls: dict[Request | Served, asyncio.Task[Answer | None] | None] = {}
        """Messages that are not answered yet, and the tasks of those that need one."""
        self._leaving: deque[Request] = deque()
        """Answers that wait for their records to be written."""
        self._room = asyncio.Event()
        self._address = context.addresses.key(opened.peer)
        self._outbox = Outbox(context.budget, max_queued, self._room.set, self._address)
        self._ending: tuple[int, str] | None = None
        self._stopping = False
        self._send: Send | None = None
        self._writing: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    # --- In --------------------------------------------------------------------------------------------

    async def run(self, receive: Receive, send: Send) -> None:
        """Serve the connection until one side closes it."""
        self._send = send
        self._writing = asyncio.create_task(self._outbox.write(send))
        if self._ending:
            self._closing = asyncio.create_task(self._close())
        received = 0
        try:
            while (message := await receive())["type"] == "websocket.receive":
                text = message.get("text")
                self._receive(text.encode() if text is not None else message["bytes"])
                await self._wait_for_room()
                received += 1
                if not received % _IN_A_ROW:
                    await asyncio.sleep(0)
            if self._closing is not None:
                await asyncio.wait({self._closing})
        finally:
            self._end()

    async def _wait_for_room(self) -> None:
        while not self._ending and (len(self._calls) >= MAX_IN_FLIGHT or self._outbox.is_full):
            self._room.clear()
            await self._room.wait()

    def _receive(self, body: bytes) -> None:
        """Answer a message, now or later."""
        if self._ending or self._begin(body):
            return
        context = self._context
        request = self._open(body)
        request.connection = self
        try:
            answer = self._pipeline.answer(request)
        except Exception as error:  # noqa: BLE001 - the border: a defect must not take the connection down
            answer = self._pipeline.failed(request, error)
        if isinstance(answer, Answer):
            self._answered(request, answer)
        elif answer is not None:
            self._calls[request] = context.under_way.start(answer, partial(self._ran, request))

    def _begin(self, body: bytes) -> bool:
        """Serve a message as a POST of a caller that was let in; False: nothing was done, it is the pipeline's."""
        context, admission = self._context, self._admission
        if self._stopping or context.tracer is not None or len(body) > context.counted_from:
            return False
        if admission is None or admission.epoch != context.epoch:
            admission = self._admission = context.admit(self.request())
            if admission is None:
                return False
        call = ServedCall(self)
        return call.start(admission, body) or call.go(admission, body)

    @property
    def answering(self) -> CallUnderWay | Request | None:
        """Unlike on HTTP, many calls may be under way: each is noted as it begins."""
        return None

    @answering.setter
    def answering(self, served: CallUnderWay | Request | None) -> None:
        assert isinstance(served, Served)  # noqa: S101 - no other sets it
        self._calls[served] = None

    def answered(self, request: Request, answer: Answer) -> None:
        """Let an answer leave that leaves by its request: a refusal, a notification's, or one with spans."""
        self._calls.pop(request.work, None)
        self._answered(request, answer)

    def _ran(self, request: SocketRequest, task: asyncio.Task[Answer | None]) -> None:
        answer = self._pipeline.outcome(request, task)
        if answer is not None:
            self._answered(request, answer)
        else:
            # Its call is under way.
            del self._calls[request]

    def request(self) -> SocketRequest:
        """A request like the handshake. Made anew each time: a reload may have changed the network."""
        opened = self._context.reader.open(b"POST", self._url, self._headers, self.opened.peer)
        request = SocketRequest(b"POST", self._headers, opened.peer, opened.request_id)
        request.network, request.path_token, request.refusal = opened.network, opened.path_token, opened.refusal
        return request

    def _charge(self, method: str, calls: int) -> None:
        """Count calls to upstreams that a subscription needs, or refuse them."""
        request = self.request()
        # As it is now: a cap may have been set since it connected.
        request.caller = caller = self._pipeline.caller_of(request) or self._caller
        request.started = self._context.now()
        if self._pipeline.charge_caller(request, caller, calls, method):
            request.status = 200
            self._context.journal.write([request])

    def _open(self, body: bytes) -> SocketRequest:
        context = self._context
        request = self.request()
        request.subscriptions = self._subscriptions
        request.body = body
        request.started = context.now()
        if context.tracer is not None:
            # Without the headers of the handshake: a connection is no request.
            request.span = context.tracer.begin({})
        if self._stopping:
            request.refusal = Overloaded(_STOPPING)
        elif len(context.under_way) >= context.max_in_flight:
            request.refusal = Overloaded()
        elif len(body) > context.max_bytes:
            # A reload may have lowered the bound.
            request.refusal = context.reader.too_large()
        elif len(body) > SMALL:
            if context.budget.hold(len(body), self._address):
                request.held = len(body)
            else:
                request.refusal = Overloaded("Too many large requests at once: try again.")
        return request

    # --- Out -------------------------------------------------------------------------------------------

    def _answered(self, request: Request, answer: Answer) -> None:
        """Let an answer leave when its record is written."""
        context = self._context
        self._calls.pop(request, None)
        self._room.set()
        if request.held:
            context.budget.free(request.held, self._address)
        context.counters.answered(request, answer.status)
        if request.span is not None:
            end_span(request, answer.status)
        request.status = answer.status
        self._leaving.append(request)
        record = request if request.caller is not None else None
        context.outbox.put(Answered(self, addressed(request.body, answer), record))

    def leave(self, answer: Outgoing) -> None:
        fresh: Sequence[Subscriber] = ()
        if isinstance(answer, Served):
            self._calls.pop(answer, None)
            self._room.set()
        else:
            request = self._leaving.popleft()
            fresh = request.fresh if isinstance(request, SocketRequest) else ()
        if self._ending:
            return
        # It was requested, so it may wait beyond the bound.
        if answer.data and not self._outbox.put_beyond(answer.data):
            self._cut_slow()
        for subscriber in fresh:
            subscriber.open()
        if self._stopping:
            self._close_when_idle()

    def notify(self, data: bytes) -> None:
        """Let a notification wait for its turn, or cut the connection where too much waits already."""
        if self._ending:
            return
        if self._outbox.is_full:
            self._cut_slow()
            return
        self._on_notified()
        self._outbox.put(data)

    @property
    def has_room(self) -> bool:
        return self._outbox.has_room

    def _cut_slow(self) -> None:
        self._on_cut("slow")
        self.close(
            TRY_LATER,
            "You read too slowly, too many bytes are waiting: read faster, or subscribe to less.",
            drop=True,
        )

    # --- The end ---------------------------------------------------------------------------------------

    @property
    def ending(self) -> bool:
        """Whether it is being closed already."""
        return self._ending is not None

    def lose(self, why: str) -> None:
        """Close, because a subscription cannot continue."""
        if not self._ending:
            self._on_cut("behind")
            self.close(FAILED, why)

    def close(self, code: int, reason: str, message: bytes = b"", *, drop: bool = False) -> None:
        """Send a last message and close; `drop`: without what still waits."""
        if self._ending:
            return
        self._ending = (code, reason.encode()[:_MAX_REASON].decode("utf-8", "ignore"))
        if self._subscriptions is not None:
            self._subscriptions.close()
        if drop:
            self._outbox.drop()
        if message:
            self._outbox.put(message)
        self._outbox.finish()
        self._room.set()
        if self._writing is not None:
            self._closing = asyncio.create_task(self._close())

    async def _close(self) -> None:
        assert self._writing is not None  # noqa: S101
        assert self._send is not None  # noqa: S101
        assert self._ending is not None  # noqa: S101
        await asyncio.wait({self._writing}, timeout=FLUSH_SECONDS)
        if not self._writing.done():
            self._writing.cancel()
            await asyncio.wait({self._writing})
        code, reason = self._ending
        with suppress(OSError):
            await self._send({"type": "websocket.close", "code": code, "reason": reason})

    def stop(self) -> None:
        """Begin to stop: what is under way is still answered."""
        self._stopping = True
        self._close_when_idle()

    def stop_now(self) -> None:
        """Answer what is still under way with a refusal, and close."""
        for call, task in list(self._calls.items()):
            if isinstance(call, Served):
                self._context.calls.discard(call)
                call.stop()
            elif task is not None:
                task.cancel()

    def _close_when_idle(self) -> None:
        if not self._calls and not self._leaving:
            self.close(GOING_AWAY, "The service stops: connect again.")

    def _end(self) -> None:
        """Forget everything: the connection is gone. Calls under way continue, their answers are dropped."""
        self._ending = self._ending or (GOING_AWAY, "")
        if self._subscriptions is not None:
            self._subscriptions.close()
        self._outbox.drop()
        for task in (self._writing, self._closing):
            if task is not None:
                task.cancel()


# Whole requests that are refused have such a status.
_REFUSED = 400
# Calls of a refused batch that are answered one by one; a larger one is refused for its size.
_MAX_ADDRESSED = 1_000


class _Refused(Struct):
    error: Raw
    id: Raw


_refused = msgspec.json.Decoder(_Refused).decode


def addressed(body: bytes, answer: Answer) -> bytes:
    """The answer to a message under the ids of its calls.

    What is refused before it is read (caps, rates, credentials) has no id. On HTTP its place shows what it
    answers; on a WebSocket a client would wait for ever.
    """
    if answer.status < _REFUSED:
        return answer.body
    refused = _refused(answer.body)
    if bytes(refused.id) != b"null":
        return answer.body
    try:
        parsed = jsonrpc.parse(body, _MAX_ADDRESSED)
    except Refusal:
        return answer.body
    calls = parsed if isinstance(parsed, list) else [parsed]
    reply = Reply(error=refused.error)
    written = [jsonrpc.encode_answer(call.id, reply) for call in calls if call.id is not None]
    # Notifications have no answer, and nothing is not an empty list (JSON-RPC 2.0, section 6).
    return b"[%b]" % b",".join(written) if isinstance(parsed, list) and written else b"".join(written)
