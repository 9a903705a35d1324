"""A caller's connection: a uvicorn protocol that answers `/x/` itself and leaves every other path to the ASGI app.

Owns framing, order of answers, deadlines, graceful stop. Knows no JSON. A healthy call goes from `data_received`
by plain calls to its upstream (`call/straight.py`); what needs more becomes a task (`WorkerContext.start`). It
leans on uvicorn's internals, so the version is pinned and tests/gateway/http/test_uvicorn.py states what it
relies on.

Requests of one connection are answered in their order, whoever answers them: `_line` holds what waits.
"""

from __future__ import annotations

import asyncio
import fcntl
import re
import termios
from functools import partial
from typing import Any

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from tollgate.errors import InvalidRequest, MethodNotPost, Overloaded, Refusal
from tollgate.gateway.http import handshake, response
from tollgate.gateway.http.known_heads import END, MAX_HEADS, KnownHead, known_head
from tollgate.gateway.http.request import NO_HTTP, PREFIX, ambiguity, joined
from tollgate.gateway.http.worker_context import Answered, Outgoing, WorkerContext
from tollgate.gateway.messages import Answer, Request
from tollgate.gateway.recording.spans import end_span

# Node allows 16 KiB, nginx 32; browsers with many headers stay far below.
MAX_HEAD_BYTES = 65_536
# Bytes of framing in a chunked body (chunk heads, extensions, trailers): as many, and one for so many bytes of it.
# So a short body may come byte by byte, and a long one in chunks of 20 bytes: each costs as much as a large one.
MAX_FRAMING_BYTES, _FRAMED = 16_384, 4
# What is read past of a body that is refused, so that a browser sees the reason and not a reset.
MAX_DRAINED_BYTES = 16 * 1_048_576
# Requests that may wait in line before we stop reading from their connection.
MAX_WAITING = 8
# What comes with more requests than that, or with many lines (chunks, or headers), is parsed in pieces, a piece in
# a turn of the loop: a request that waits takes a hundred times its bytes, and others have their turn.
_PIECE, _MAX_LINES = 1_024, 512
# On stop, a kept connection gets this long to send a request that is already on its way.
LINGER_SECONDS = 0.5
# Ends of request lines that the parser takes for HTTP's: of streaming protocols that look like it.
_FOREIGN = re.compile(rb" (?:RTSP|ICE)/[0-9]\.[0-9]\r\n")
_FOREIGN_BYTES = 11
# Heads that were kept in vain, one after the other, before no more are.
MAX_IN_VAIN = 8


class _Flow(FlowControl):
    """Reads nothing more while it is held: the ASGI app, which waits for its caller to leave, would read on."""

    held = False

    def resume_reading(self) -> None:
        if not self.held:
            super().resume_reading()

    def hold(self) -> None:
        self.held = True
        self.pause_reading()

    def release(self) -> None:
        self.held = False
        self.resume_reading()


class CallerConnection(HttpToolsProtocol):
    """One connection of a caller."""

    flow: _Flow

    # Slots, because a dictionary of all that a connection has is too large for Python's quick way to its values.
    __slots__ = (
        "_address",
        "_advancing",
        "_asgi",
        "_begun",
        "_between",
        "_blocked",
        "_chunks",
        "_continue_pending",
        "_cut",
        "_declined",
        "_finished",
        "_head_bytes",
        "_heads",
        "_held",
        "_in_head",
        "_in_vain",
        "_last_head",
        "_line",
        "_read",
        "_reading_asgi",
        "_reading_on",
        "_request",
        "_since",
        "_size",
        "_unread",
        "_unread_held",
        "_unsent",
        "admission",
        "answering",
        "call",
        "context",
        "eof",
        "leaving",
    )

    def __init__(
        self,
        context: WorkerContext,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.context = context
        self.call: Any = None
        """The straight call of this connection, used for one request after the other."""
        self.admission: Any = None
        """Who was let in last."""
        self.answering: Any = None
        """What is being answered: a straight call, or a request on the general way."""
        self._request: Request | None = None
        """The request of ours that is being read."""
        self._chunks: list[bytes] = []
        self._size = 0
        self._held = 0
        self._unsent = 0
        """Bytes of answers that the caller has not taken, as the budget counts them."""
        self._address = ""
        self._begun = 0
        """Requests whose head was begun."""
        self._between = True
        """Set while the parser has seen nothing of the next request."""
        self._read: Request | None = None
        """The request of ours that was read last, while its bytes are at hand."""
        self._heads: dict[bytes, KnownHead] = {}
        """Heads that were parsed before, by their bytes."""
        self._last_head: KnownHead | None = None
        self._in_vain = 0
        self._line: list[Request | tuple[RequestResponseCycle, ASGI3Application]] = []
        self._unread = b""
        """What has come and is not parsed yet."""
        self._unread_held = 0
        self._reading_on: asyncio.Handle | None = None
        """Set while that waits for its turn."""
        self._advancing = False
        self.leaving = 0
        """Answers of the general way that wait for their records to be written."""
        self._reading_asgi = False
        """Set while a request for the ASGI app is read."""
        self._asgi: RequestResponseCycle | None = None
        """The request under way in the ASGI app."""
        self._finished = False
        """Set when nothing more is read: the connection closes after the answer under way."""
        self._continue_pending = False
        """Set when the caller waits for `100 Continue`."""
        self._declined = False
        """Set when an offer of another protocol was declined: a second one ends the connection."""
        self.eof = False
        """Set when the caller has sent its last byte but still listens."""
        self._head_bytes = 0
        self._cut = b""
        """The last bytes that came, where they are of a head that is not whole."""
        self._in_head = True
        self._since = 0.0
        """When the present wait began: for a request, for its rest, or for the caller to take an answer."""
        self._blocked = False

    # --- The connection --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a caller in, unless there are too many already."""
        super().connection_made(transport)
        self.flow = _Flow(transport)
        context = self.context
        self._since = context.clock
        context.connections.add(self)
        self._address = context.addresses.enter(self.client[0] if self.client is not None else "")
        if len(context.connections) + context.upgraded > context.max_connections:
            self._hang_up(Overloaded("Too many connections: try again."))
        elif context.addresses.is_crowded(self._address):
            self._hang_up(Overloaded("Too many connections from this address: close some, or try again later."))

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a caller. Its requests go on, their answers are dropped."""
        self.context.connections.discard(self)
        self.context.addresses.leave(self._address)
        self._forget_line()
        # Its straight call keeps this object until garbage is collected: not what was read.
        self._chunks = []
        self.context.budget.free(self._held + self._unsent, self._address)
        self._held = self._unsent = 0
        self._blocked = False
        if self._asgi is not None:
            # uvicorn notifies only the newest request, which may be one that waits behind this.
            self._asgi.disconnected = True
            self._asgi.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came: a call whose head is known goes straight on, the rest to the parser."""
        if self._finished:
            return
        if self._unread:
            self._unread += data
            return
        if self._between and self._heads:
            # The last one first: most are the same, and to look for the end takes a while.
            known = self._last_head
            if known is None or data[: known.end] != known.head:
                end = data.find(END) + 4
                known = self._heads.get(data[:end]) or self._similar_head(data, end)
                self._last_head = known or self._last_head
            if known is not None and len(data) == known.size:
                body, admission = data[known.end :], known.admission
                tried = (
                    admission is not None
                    and admission.epoch == self.context.epoch
                    and self.answering is None
                    and not (self._blocked or self._asgi)
                )
                if tried:
                    try:
                        if self.call.start(admission, body) or self.call.go(admission, body):
                            self._in_vain = 0
                            return
                    except Exception as error:  # noqa: BLE001 - the border: a defect must not pass for a broken connection
                        self._defect(error)
                        return
                if self._repeat(known, body, tried):
                    return
        self._read_in(data)

    def _read_in(self, data: bytes) -> None:
        """Parse what came, in pieces where it may be many requests or chunks, or comes before its turn."""
        if len(data) > _PIECE and (
            self._is_early() or data.count(END) > MAX_WAITING or data.count(b"\r\n") > _MAX_LINES
        ):
            if not self.context.budget.hold(len(data), self._address):
                self._hang_up(Overloaded("Too many large requests at once: try again."))
                return
            self._unread, self._unread_held = data, len(data)
            self._read_on()
            return
        between = self._between
        self._parse(data)
        if self._read is not None:
            self._remember(data, whole=between and self._between)

    def _is_early(self) -> bool:
        """Whether what comes is of a request that has to wait."""
        return bool(self.answering or self._line or (self._asgi is not None and not self._asgi.more_body))

    def _read_on(self) -> None:
        """Parse a piece of what has come. The next one has its turn when no request waits."""
        self._reading_on = None
        if self._line:
            return
        piece, self._unread = self._unread[:_PIECE], self._unread[_PIECE:]
        if self._unread:
            self.flow.hold()
        else:
            self._forget_unread()
        if piece and not self._finished:
            self._parse(piece)
            self._read = None
        self.advance()

    def _parse(self, data: bytes) -> None:
        """Feed the parser, within the bounds of a head and of what frames a body."""
        if (self._cut or b"RTSP/" in data or b"ICE/" in data) and (found := _FOREIGN.search(self._cut + data)):
            before = data[: max(found.start() - len(self._cut), 0)]
            self._cut = b""
            self._parse(before)
            if not self._finished:
                self._hang_up(InvalidRequest(NO_HTTP))
            return
        between, begun = self._between, self._begun
        size, heading = 0 if between else self._size, between or self._in_head
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self._hang_up(InvalidRequest("Not a well-formed HTTP request."))
            return
        except httptools.HttpParserUpgrade as upgrade:
            if self._finished:
                return
            rest = data[upgrade.args[0] :]
            if not rest and self._become_websocket():
                return
            self._decline_upgrade(rest)
            return
        self._cut = (self._cut + data)[-_FOREIGN_BYTES:] if self._in_head else b""
        if self._between or self._finished or self._begun - begun > between:
            # Nothing is open, or what is open began somewhere in these bytes, which are bounded themselves.
            return
        # What of these bytes is no body: of the head, or of chunk heads and trailers.
        self._head_bytes += len(data) - max(0, self._size - size)
        if self._head_bytes > (MAX_HEAD_BYTES if heading else MAX_FRAMING_BYTES + self._size // _FRAMED):
            self._hang_up(InvalidRequest("The request's head is too large, or its chunks are too small."))
        elif not self._in_head and heading:
            self._head_bytes = 0

    def _defect(self, error: Exception) -> None:
        """Answer a request at which we failed ourselves, and close: what was done of it is not known."""
        request = Request(b"POST", {}, "", self.context.reader.new_id())
        request.keep_alive = False
        self.answering = None
        self._send(request, self.context.pipeline.failed(request, error))

    def _similar_head(self, data: bytes, end: int) -> KnownHead | None:
        """The head of a request, where it is the last known one but for the length; known from now on."""
        last = self._last_head
        known = last.with_length(data, end) if last is not None else None
        if known is not None:
            if len(self._heads) >= MAX_HEADS:
                self._heads.clear()
            self._heads[data[:end]] = known
        return known

    def _repeat(self, known: KnownHead, body: bytes, tried: bool) -> bool:
        """Answer a request whose head is known; whether that can be done. `tried`: its call cannot go straight."""
        context = self.context
        if len(body) > context.weighed_from:
            return False
        request = context.reader.again(known.url, known.headers, self.client[0] if self.client is not None else "")
        if request is None:
            return False
        request.body = body
        request.digest = known.digest
        self._in_vain = 0
        if self.answering or self._asgi or self._line or self._blocked:
            self._queue(request)
        else:
            self._since = context.clock
            if tried:
                request.admission = known.admission
            self._answer(request, tried=tried)
            known.digest, known.admission = request.digest, request.admission
        return True

    def _remember(self, data: bytes, *, whole: bool) -> None:
        """Keep the head of the request that was just read, where these bytes are all of it and nothing else."""
        request, self._read = self._read, None
        self._in_vain += 1
        if self._in_vain > MAX_IN_VAIN:
            self._heads.clear()
            self._last_head = None
            return
        if request is None or not whole or request.refusal is not None:
            return
        known = known_head(data, self.url, request.headers, len(request.body))
        if known is not None:
            known.digest, known.admission = request.digest, request.admission
            if len(self._heads) >= MAX_HEADS:
                self._heads.clear()
            self._heads[known.head] = self._last_head = known

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection for the answers that a caller still waits for after its last byte.

        One with TLS ends here: its loop logs a warning where it is to be kept.
        """
        self.eof = True
        return bool(self.answering or self.leaving or self._line) and self.transport.can_write_eof()

    def _become_websocket(self) -> bool:
        """Hand the connection over to the protocol of WebSockets, if this is a handshake that it can answer."""
        # While an answer waits for the caller, nobody else would count it, or see it leave.
        if self._busy() or self._blocked or not self._should_upgrade() or self.parser.get_http_version() == "1.0":
            return False
        if not self.url.startswith(PREFIX) and not self._is_absolute():
            return False
        kept = handshake.needed(self.parser.get_method(), self.url, self.headers)
        if kept is None:
            return False
        self.context.connections.discard(self)
        self._stay_counted()
        self.scope = {"method": "GET", "headers": kept}  # type: ignore[typeddict-item]
        self.handle_websocket_upgrade()
        return True

    def _stay_counted(self) -> None:
        """Let the WebSocket that this becomes count as a connection of the worker and of its address."""
        context, address, make = self.context, self._address, self.ws_protocol_class
        self._address = ""
        context.upgraded += 1

        def depart() -> None:
            context.upgraded -= 1
            context.addresses.leave(address)

        def made(**given: Any) -> Any:
            protocol: Any = make(**given)  # type: ignore[misc]
            protocol.depart, protocol.address = depart, address
            return protocol

        self.ws_protocol_class = made  # type: ignore[assignment]

    def _decline_upgrade(self, rest: bytes) -> None:
        """Go on in HTTP/1.1 with a request that offered another protocol, as some clients do at first (h2c).

        The parser stops at such a head, so another one gets it again without the offer; once for a connection, so
        that nothing recurses with what a caller sends. A tunnel is never opened.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._hang_up(MethodNotPost())
            return
        if self._declined:
            self._hang_up(InvalidRequest("Another protocol was offered and declined before: use HTTP/1.1."))
            return
        self._declined = True
        offer = (b"connection", b"upgrade", b"http2-settings")
        lines = [b"%b: %b\r\n" % header for header in self.headers if header[0] not in offer]
        version = self.parser.get_http_version().encode()
        head = b"%b %b HTTP/%b\r\n%b\r\n" % (method, self.url, version, b"".join(lines))
        self.parser = httptools.HttpRequestParser(self)
        self._parse(head + rest)

    def pause_writing(self) -> None:
        """Stop answering while the caller does not read. What waits for it counts as held."""
        super().pause_writing()
        self._blocked = True
        self._since = self.context.clock
        # In a moment, when the upstream's side has given back what it held of the same bytes.
        self.loop.call_soon(self._count_unsent)

    def _count_unsent(self) -> None:
        if not self._blocked or self._unsent:
            return
        unsent = self.transport.get_write_buffer_size()
        if self.context.budget.hold(unsent, self._address):
            self._unsent = unsent
        else:
            self.transport.abort()

    def resume_writing(self) -> None:
        """Go on with what waits."""
        super().resume_writing()
        self._blocked = False
        self.context.budget.free(self._unsent, self._address)
        self._unsent = 0
        self._since = self.context.clock
        self.advance()

    def check(self, now: float) -> None:
        """Close a connection that has waited for its caller for too long."""
        waited = now - self._since
        if self._blocked:
            if waited > self.context.read_seconds:
                self.transport.abort()
        elif self._busy():
            return
        elif self._reading():
            if waited > self.context.read_seconds:
                self.transport.close()
        elif waited > self.context.keep_alive_seconds and not self._has_unread():
            self.transport.close()

    def shutdown(self) -> None:
        """Begin to stop. A request on its way is still answered; an idle connection is closed in a moment."""
        self.context.drain()
        if self._asgi is not None:
            super().shutdown()
        self.loop.call_later(LINGER_SECONDS, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self._busy() or self._reading() or self.transport.is_closing():
            return
        if self._has_unread():
            self.loop.call_later(LINGER_SECONDS, self._close_if_idle)
        else:
            self.transport.close()
            self.loop.call_later(LINGER_SECONDS, self._abort_if_sent)

    def _abort_if_sent(self) -> None:
        """Do not wait until a caller confirms the end of TLS: one that reads only after it has sent never does."""
        if not self.transport.get_write_buffer_size():
            self.transport.abort()

    def _has_unread(self) -> bool:
        """Whether the kernel has bytes for us: a loop that was held up comes to timers before it reads them."""
        own = self.transport.get_extra_info("socket")
        if own is None or self.transport.is_closing():
            return False
        none = bytes(4)
        return fcntl.ioctl(own, termios.FIONREAD, none) != none

    def _busy(self) -> bool:
        return bool(self.answering or self.leaving or self._asgi or self._line or self._unread)

    def _reading(self) -> bool:
        return not self._between

    # --- The parser ------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Start a request; the ASGI scope is made only where it is needed."""
        self.url = b""
        self.headers = []
        self._between = False
        self._begun += 1
        self._head_bytes = self._size = 0
        self._in_head = True
        self._reading_asgi = False
        if not self._blocked:
            self._since = self.context.clock

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header. A trailer is dropped: it comes after what headers decide."""
        if self._in_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Choose who answers: we, or the ASGI app."""
        self._in_head = False
        if self._finished:
            # Behind the last request that is answered: read past it.
            return
        headers = dict(self.headers)
        if len(headers) != len(self.headers):
            headers = joined(self.headers)
        if (why := ambiguity(self.parser.get_http_version(), headers)) is not None:
            self._hang_up(InvalidRequest(why))
            return
        if self.parser.should_upgrade() and (b"upgrade" in headers or self.parser.get_method() == b"CONNECT"):
            # The parser stops here: `_parse` goes on.
            return
        if not self.url.startswith(PREFIX) and not self._is_absolute():
            self._leave_to_asgi()
            return
        peer = self.client[0] if self.client is not None else ""
        self._request = request = self.context.reader.open(self.parser.get_method(), self.url, headers, peer)
        request.keep_alive = self.parser.should_keep_alive()
        if b"connection" in headers and self.parser.get_http_version() == "1.0":
            # Such a caller expects a header that the connection is kept; it is not.
            request.keep_alive = False
        if b"expect" in headers and headers[b"expect"].lower() == b"100-continue":
            if request.refusal is not None:
                # The caller waits before it sends the body: it need not send it at all.
                request.keep_alive = False
                self._finished = True
                self._whole(request)
            else:
                self._continue_pending = True
                self._send_continue()

    def _is_absolute(self) -> bool:
        """Read a target in absolute form, which proxies may send (RFC 9112, 3.2.2); whether it is one of ours."""
        if self.url.startswith(b"/"):
            return False
        try:
            parts = httptools.parse_url(self.url)
        except httptools.HttpParserInvalidURLError:
            return False
        self.url = (parts.path or b"/") + (b"?" + parts.query if parts.query else b"")
        return self.url.startswith(PREFIX)

    def _send_continue(self) -> None:
        """Let a caller that waits for it send its body, once all answers before are out."""
        if self._continue_pending and not self._busy():
            self._continue_pending = False
            self.transport.write(response.CONTINUE)

    def on_body(self, body: bytes) -> None:
        """Collect the body, or read past it."""
        self._size += len(body)
        request = self._request
        if request is None:
            if self._reading_asgi and not self._finished:
                super().on_body(body)
                if self._line:
                    self._hold_waiting(len(body))
            return
        self._chunks.append(body)
        if self._size > self.context.weighed_from or request.refusal is not None:
            self._weigh(request, body)

    def _hold_waiting(self, size: int) -> None:
        """Count a body for the ASGI app that comes before its turn."""
        if self.context.budget.hold(size, self._address):
            self._held += size
        else:
            self._hang_up(Overloaded("Too many large requests at once: try again."))

    def _weigh(self, request: Request, body: bytes) -> None:
        """Bound a large body, or read past a refused one."""
        if request.refusal is not None:
            self._chunks.clear()
            if self._size > MAX_DRAINED_BYTES:
                request.keep_alive = False
                self._finished = True
                self._whole(request)
            return
        if self._size > self.context.max_bytes:
            request.refusal = self.context.reader.too_large()
        elif self.context.budget.hold(len(body), self._address):
            self._held += len(body)
        else:
            request.refusal = Overloaded("Too many large requests at once: try again.")
        if request.refusal is not None:
            self._chunks.clear()

    def on_message_complete(self) -> None:
        """A request is whole."""
        self._between = True
        self._continue_pending = False
        request = self._request
        if request is None:
            if self._reading_asgi:
                super().on_message_complete()
            return
        if request.keep_alive and request.method == b"POST":
            self._read = request
        self._whole(request)

    def _whole(self, request: Request) -> None:
        """Answer a request, or let it wait for its turn."""
        chunks = self._chunks
        request.body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if self._held:
            request.held, self._held = self._held, 0
        self._request = None
        self._chunks = []
        if self.answering or self._asgi or self._line or self._blocked:
            self._queue(request)
        else:
            self._answer(request)

    # --- Answers, in order -----------------------------------------------------------------------------

    def _answer(self, request: Request, *, tried: bool = False) -> None:
        context = self.context
        request.began = context.now()
        if request.refusal is None and len(context.calls) + len(context.tasks) >= context.max_in_flight:
            request.refusal = Overloaded()
        if context.tracer is not None:
            request.span = context.tracer.begin(request.headers)
        try:
            # What is traced takes the general way, where attempts are traced too.
            if request.refusal is None and request.span is None and not tried and context.begin(self, request):
                return
            self.begin(request)
            answer = context.pipeline.answer(request)
        except Exception as error:  # noqa: BLE001 - the border: a defect must not take the connection down
            answer = context.pipeline.failed(request, error)
        if isinstance(answer, Answer):
            self.answered(request, answer)
        elif answer is not None:
            context.tasks.discard(request)
            context.start(answer, partial(self._ran, request))

    def begin(self, request: Request) -> None:
        """Wait for the answer of the general way."""
        self.answering = request
        request.done = self.answered
        self.context.tasks.add(request)

    def _ran(self, request: Request, task: asyncio.Task[Answer | None]) -> None:
        answer = self.context.pipeline.outcome(request, task)
        if answer is not None:
            self.answered(request, answer)
        elif self.answering is request:
            self.context.tasks.add(request)

    def answered(self, request: Request, answer: Answer) -> None:
        """Send the answer of the general way, also to a request that a straight call has given up."""
        self.answering = None
        self.context.tasks.discard(request)
        self._send(request, answer)

    def _send(self, request: Request, answer: Answer) -> None:
        context = self.context
        if request.held:
            context.budget.free(request.held, self._address)
        context.counters.answered(request, answer.status)
        if request.span is not None:
            end_span(request, answer.status)
        close = not request.keep_alive or self.closing
        data = response.render(request, answer, context.date, close=close)
        self.leaving += 1
        if request.caller is not None:
            request.status = answer.status
            context.put(Answered(self, data, request, close))
            context.count_large(data)
        elif self.leaving > 1:
            context.send(self, data, close=close)
        else:
            self.leave(Answered(self, data, None, close))
        if close:
            self.finish()

    def finish(self) -> None:
        """Read nothing more: the connection closes after the answer that is being sent."""
        self._finished = True
        self._forget_line()

    @property
    def closing(self) -> bool:
        """Whether the connection closes after the answer under way."""
        return (self.context.draining or self.eof) and not (self._line or self._unread)

    def leave(self, answer: Outgoing) -> None:
        """Send an answer whose record is written."""
        data = answer.data
        if answer is self.answering:
            # A straight call answers until its answer leaves: it is used again for the next one.
            self.answering, answer.data = None, b""
        else:
            self.leaving -= 1
        self._since = self.context.clock
        transport = self.transport
        if transport.is_closing():
            return
        transport.write(data)
        if answer.close:
            transport.close()
        elif self._line or self.flow.read_paused or self._continue_pending:
            self.advance()

    def _queue(self, waiting: Request | tuple[RequestResponseCycle, ASGI3Application]) -> None:
        """Let a request wait for its turn. Its body counts as long, however small."""
        self._line.append(waiting)
        if isinstance(waiting, Request) and not waiting.held and waiting.refusal is None:
            if self.context.budget.hold(len(waiting.body), self._address):
                waiting.held = len(waiting.body)
            else:
                waiting.body, waiting.refusal = b"", Overloaded("Too many large requests at once: try again.")
        if len(self._line) >= MAX_WAITING or not isinstance(waiting, Request):
            # The app reads the body of a request, up to a bound, when its turn has come.
            self.flow.hold()

    def advance(self) -> None:
        """Answer what waits, as long as its turn has come; then read on."""
        if self._advancing or not (self._line or self.flow.read_paused or self._continue_pending):
            return
        # An answer that leaves at once advances again: that must not go as deep as the line is long.
        self._advancing = True
        while self._line and not (self.answering or self._blocked or self._asgi):
            waiting = self._line.pop(0)
            if isinstance(waiting, Request):
                if len(waiting.body) <= self.context.weighed_from:
                    self.context.budget.free(waiting.held, self._address)
                    waiting.held = 0
                self._answer(waiting)
            else:
                self._start_asgi(*waiting)
        self._advancing = False
        if self._line or self.transport.is_closing():
            return
        if self._unread:
            self._reading_on = self._reading_on or self.loop.call_soon(self._read_on)
        else:
            self.flow.release()
            self._send_continue()

    def _forget_unread(self) -> None:
        self._unread = b""
        self.context.budget.free(self._unread_held, self._address)
        self._unread_held = 0

    def _forget_line(self) -> None:
        self._forget_unread()
        for waiting in self._line:
            if isinstance(waiting, Request):
                self.context.budget.free(waiting.held, self._address)
        self._line.clear()

    def _hang_up(self, refusal: Refusal) -> None:
        """Answer what was read before, send the reason, and close: the connection cannot go on."""
        self._finished = True
        if self._reading_asgi and not self._between and not self._drop_asgi():
            return
        request = self._request or Request(b"", {}, "", self.context.reader.new_id())
        request.refusal = refusal
        request.keep_alive = False
        self._whole(request)

    # --- The ASGI app --------------------------------------------------------------------------------

    def _leave_to_asgi(self) -> None:
        """Let uvicorn make an ASGI request of it, after ours that came before."""
        headers, url = self.headers, self.url
        super().on_message_begin()
        self.url = url
        for name, value in headers:
            super().on_header(name, value)
        # Fails where the target is none.
        super().on_headers_complete()
        self._reading_asgi = True
        if self.expect_100_continue:
            # An answer may come before its caller was let continue: what comes then is a body, or is none.
            self.cycle.keep_alive = False
        if self.pipeline:
            # uvicorn's own line knows nothing of ours.
            self._queue(self.pipeline.pop())

    def _drop_asgi(self) -> bool:
        """Forget the ASGI request that is being read, whose rest cannot be; False where its answer has begun."""
        cycle = self.cycle
        if cycle.response_complete:
            self.transport.close()
            return False
        if cycle.response_started:
            cycle.keep_alive = False
            return False
        cycle.disconnected = True
        cycle.message_event.set()
        if self._asgi is cycle:
            self._asgi = None
        else:
            self._line.pop()
        return True

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Start an ASGI request, or put it in line behind ours."""
        if self.answering or self._line:
            self._queue((cycle, app))
        else:
            self._start_asgi(cycle, app)

    def _start_asgi(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._asgi = cycle
        if self._held and self._request is None:
            self.context.budget.free(self._held, self._address)
            self._held = 0
        if self.context.draining and not self._line:
            cycle.keep_alive = False
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Go on after an ASGI answer."""
        self._asgi = None
        self._since = self.context.clock
        super().on_response_complete()
        # Idle connections are our business (`check`): uvicorn's timer knows nothing of our answers.
        self._unset_keepalive_if_required()
        if not self.transport.is_closing():
            self.advance()
