"""A caller's connection: answers `/x/` itself and leaves every other path to the ASGI app.

Owns the order of answers. A call whose head is known goes from `data_received` by plain calls to its upstream
(`call/call.py`); other requests are read by `RequestFraming` and answered by the fast path or by the pipeline.
Knows no JSON.

Requests of one connection are answered in order: `queue` holds those that wait.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from tollgate.errors import Overloaded, Refusal
from tollgate.gateway.http import response
from tollgate.gateway.http.asgi_bridge import AsgiBridge, AsgiRequest
from tollgate.gateway.http.bounds import TOO_MANY_LARGE, CallerBounds
from tollgate.gateway.http.framing import MAX_LINES, MAX_WAITING, PIECE_BYTES, RequestFraming
from tollgate.gateway.http.known_heads import END, Admitted, KnownHead
from tollgate.gateway.http.outbox import Answered, Outgoing
from tollgate.gateway.http.under_way import ConnectionCall
from tollgate.gateway.http.worker_context import WorkerContext
from tollgate.gateway.messages import Answer, Request
from tollgate.gateway.recording.spans import end_span


class CallerConnection(AsgiBridge):
    """One connection of a caller."""

    __slots__ = ("_advancing", "_reading_on", "admission", "call", "continue_pending", "eof", "leaving")
    speaks_http = True

    def __init__(
        self,
        context: WorkerContext,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(context, config, server_state, app_state, _loop)
        self.bounds = CallerBounds(self, context)
        self.framing = RequestFraming(self, context, self.bounds)
        self.call: ConnectionCall | None = None
        """The call object of this connection, used for one request after the other."""
        self.admission: Admitted | None = None
        """Of the caller that was admitted last."""
        self.continue_pending = False
        """Whether the caller waits for `100 Continue`."""
        self.leaving = 0
        """Answers of the slow path that wait for their records to be written."""
        self.eof = False
        """Set when the caller has sent its last byte but still reads."""
        self._reading_on: asyncio.Handle | None = None
        """Set while the next piece of unread bytes is scheduled."""
        self._advancing = False

    # --- The connection --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, unless there are too many."""
        super().connection_made(transport)
        self.since = self.context.clock
        self.context.connections.add(self)
        why = self.bounds.enter(self.peer)
        if why is not None:
            self.reject(Overloaded(why))

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the caller. Its requests continue, their answers are dropped."""
        self.context.connections.discard(self)
        self._drop_waiting()
        # Its call keeps this object until garbage is collected: not what was read.
        self.framing.chunks = []
        self.bounds.leave()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection for the answers that the caller still waits for after its last byte.

        One with TLS ends here: its loop logs a warning where it is to be kept.
        """
        self.eof = True
        return bool(self.answering or self.leaving or self.queue) and self.transport.can_write_eof()

    def pause_writing(self) -> None:
        """Stop answering while the caller does not read."""
        super().pause_writing()
        self.bounds.pause()

    def resume_writing(self) -> None:
        """Answer what waits."""
        super().resume_writing()
        self.bounds.resume()
        self.advance()

    def check(self, now: float) -> None:
        """Close the connection if it has waited for its caller for too long."""
        self.bounds.check(now)

    def shutdown(self) -> None:
        """Stop: requests that were sent already are answered, an idle connection is closed in a moment."""
        self.context.drain()
        super().shutdown()
        self.bounds.linger()

    def is_busy(self) -> bool:
        """Whether an answer is outstanding."""
        return bool(self.answering or self.leaving or self.asgi or self.queue or self.framing.unread)

    def is_reading(self) -> bool:
        """Whether a part of a request was read."""
        return not self.framing.between

    @property
    def closing(self) -> bool:
        """Whether the connection closes after the answer under way."""
        return (self.context.draining or self.eof) and not (self.queue or self.framing.unread)

    # --- Requests --------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Start a call whose head is known; parse the rest."""
        framing = self.framing
        if framing.between and framing.heads and not framing.unread:
            # The last head first: most are the same, and finding the end takes longer.
            known = framing.last_head
            if known is None or data[: known.end] != known.head:
                end = data.find(END) + 4
                known = framing.heads.get(data[:end]) or framing.similar_head(data, end)
                framing.last_head = known or framing.last_head
            if known is not None and len(data) == known.size:
                body, admission = data[known.end :], known.admission
                if (
                    admission is not None
                    and admission.epoch == self.context.epoch
                    and self.answering is None
                    and not (self.bounds.blocked or self.asgi)
                ):
                    # A connection whose caller was admitted has one.
                    call: ConnectionCall = self.call  # type: ignore[assignment]
                    try:
                        if call.start(admission, body) or call.go(admission, body):
                            framing.unused_heads = 0
                            return
                    except Exception as error:  # noqa: BLE001 - the border: a defect must not pass for a broken connection
                        self._fail(error)
                        return
                    if self._answer_known(known, body, tried=True):
                        return
                elif self._answer_known(known, body, tried=False):
                    return
        self._read(framing, data)

    def _read(self, framing: RequestFraming, data: bytes) -> None:
        """Parse bytes, in pieces where they may be many requests or chunks, or have to wait anyway."""
        if framing.finished:
            return
        if framing.unread:
            framing.unread += data
        elif len(data) > PIECE_BYTES and (
            self._must_wait() or data.count(END) > MAX_WAITING or data.count(b"\r\n") > MAX_LINES
        ):
            if framing.put_aside(data):
                self._read_on()
        else:
            framing.feed(data)

    def _must_wait(self) -> bool:
        """Whether a request that is read now has to wait."""
        return bool(self.answering or self.queue or (self.asgi is not None and not self.asgi.more_body))

    def _read_on(self) -> None:
        """Parse the next piece of what was put aside. The one after it follows when no request waits."""
        self._reading_on = None
        if self.queue:
            return
        framing = self.framing
        piece = framing.next_piece()
        if framing.unread:
            self.flow.hold()
        framing.feed_piece(piece)
        self.advance()

    def _answer_known(self, known: KnownHead, body: bytes, tried: bool) -> bool:
        """Answer a request whose head is known; False where it has to be parsed. `tried`: not by the fast path."""
        context = self.context
        if len(body) > context.counted_from:
            return False
        request = context.reader.again(known.url, known.headers, self.peer)
        if request is None:
            return False
        request.body = body
        request.digest = known.digest
        self.framing.unused_heads = 0
        if self.answering or self.asgi or self.queue or self.bounds.blocked:
            self.enqueue(request)
        else:
            self.since = context.clock
            if tried:
                request.admission = known.admission
            self._answer(request, tried=tried)
            known.digest, known.admission = request.digest, request.admission
        return True

    def request_read(self, request: Request) -> None:
        """Answer a request, or let it wait until those before it are answered."""
        if self.answering or self.asgi or self.queue or self.bounds.blocked:
            self.enqueue(request)
        else:
            self._answer(request)

    def reject(self, refusal: Refusal) -> None:
        """Answer what was read before, send the reason, and close: the connection cannot go on."""
        framing = self.framing
        framing.finish()
        if framing.for_asgi and not framing.between and not self.drop_asgi():
            return
        request = framing.request or Request(b"", {}, "", self.context.reader.new_id())
        request.refusal = refusal
        request.keep_alive = False
        framing.complete(request)

    def send_continue(self) -> None:
        """Send `100 Continue` to a caller that waits for it, unless answers before it are outstanding."""
        if self.continue_pending and not self.is_busy():
            self.continue_pending = False
            self.transport.write(response.CONTINUE)

    # --- The queue -------------------------------------------------------------------------------------

    def enqueue(self, waiting: Request | AsgiRequest) -> None:
        """Let a request wait until those before it are answered. Its body counts meanwhile, however small."""
        self.queue.append(waiting)
        if isinstance(waiting, Request) and not waiting.held and waiting.refusal is None:
            if self.bounds.hold(len(waiting.body)):
                waiting.held = len(waiting.body)
            else:
                waiting.body, waiting.refusal = b"", Overloaded(TOO_MANY_LARGE)
        if len(self.queue) >= MAX_WAITING or not isinstance(waiting, Request):
            # The app reads the body of its request, up to a bound, once it is started.
            self.flow.hold()

    def advance(self) -> None:
        """Answer what waits, as far as it can be answered now; then continue reading."""
        framing = self.framing
        if self._advancing or not (self.queue or self.flow.read_paused or self.continue_pending):
            return
        # An answer that leaves at once advances again: that must not recurse as deep as the queue is long.
        self._advancing = True
        while self.queue and not (self.answering or self.bounds.blocked or self.asgi):
            waiting = self.queue.pop(0)
            if isinstance(waiting, Request):
                if len(waiting.body) <= self.context.counted_from:
                    self.bounds.free(waiting.held)
                    waiting.held = 0
                self._answer(waiting)
            else:
                self.start_asgi(*waiting)
        self._advancing = False
        if self.queue or self.transport.is_closing():
            return
        if framing.unread:
            self._reading_on = self._reading_on or self.loop.call_soon(self._read_on)
        else:
            self.flow.release()
            self.send_continue()

    def _drop_waiting(self) -> None:
        self.framing.drop_unread()
        for waiting in self.queue:
            if isinstance(waiting, Request):
                self.bounds.free(waiting.held)
        self.queue.clear()

    # --- Answers ---------------------------------------------------------------------------------------

    def _answer(self, request: Request, *, tried: bool = False) -> None:
        context = self.context
        request.started = context.now()
        if request.refusal is None and len(context.calls) + len(context.tasks) >= context.max_in_flight:
            request.refusal = Overloaded()
        if context.tracer is not None:
            request.span = context.tracer.begin(request.headers)
        try:
            # Traced requests take the slow path, where attempts are traced too.
            if request.refusal is None and request.span is None and not tried and context.begin(self, request):
                return
            self.answering = request
            request.connection = self
            answer = context.pipeline.answer(request)
        except Exception as error:  # noqa: BLE001 - the border: a defect must not take the connection down
            answer = context.pipeline.failed(request, error)
        if isinstance(answer, Answer):
            self.answered(request, answer)
        elif answer is not None:
            context.under_way.start(answer, partial(self._ran, request))

    def _ran(self, request: Request, task: asyncio.Task[Answer | None]) -> None:
        answer = self.context.pipeline.outcome(request, task)
        if answer is not None:
            self.answered(request, answer)

    def answered(self, request: Request, answer: Answer) -> None:
        """Send an answer that leaves by its request: a refusal, a notification's, or one with spans."""
        self.answering = None
        self._send(request, answer)

    def _fail(self, error: Exception) -> None:
        """Answer a call that ended with a defect, and close: what was done of it is not known."""
        request = Request(b"POST", {}, "", self.context.reader.new_id())
        request.keep_alive = False
        self.answering = None
        self._send(request, self.context.pipeline.failed(request, error))

    def _send(self, request: Request, answer: Answer) -> None:
        context = self.context
        if request.held:
            self.bounds.free(request.held)
        context.counters.answered(request, answer.status)
        if request.span is not None:
            end_span(request, answer.status)
        close = not request.keep_alive or self.closing
        data = response.render(request, answer, context.heads.date, close=close)
        self.leaving += 1
        if request.caller is not None:
            request.status = answer.status
            context.outbox.put(Answered(self, data, request, close))
            context.outbox.count_large(data)
        elif self.leaving > 1:
            context.outbox.put(Answered(self, data, close=close))
        else:
            self.leave(Answered(self, data, None, close))
        if close:
            self.framing.finish()
            self._drop_waiting()

    def leave(self, answer: Outgoing) -> None:
        """Send an answer whose record is written."""
        data = answer.data
        if answer is self.answering:
            # A call object answers until its answer leaves: it is used again for the next call.
            self.answering, answer.data = None, b""
        else:
            self.leaving -= 1
        self.since = self.context.clock
        transport = self.transport
        if transport.is_closing():
            return
        transport.write(data)
        if answer.close:
            transport.close()
        elif self.queue or self.flow.read_paused or self.continue_pending:
            self.advance()
