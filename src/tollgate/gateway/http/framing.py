"""Framing: the bytes of a connection into whole requests.

`RequestFraming` is the target of the HTTP parser. It owns the request that is being read, the heads that need no
parsing, and the bounds of heads, chunks and bodies. It answers nothing: the connection gets whole requests,
and the reason where the bytes are not HTTP.
"""

from __future__ import annotations

import re
from typing import Protocol

import httptools

from tollgate.errors import InvalidRequest, MethodNotPost, Overloaded, Refusal
from tollgate.gateway.http.bounds import TOO_MANY_LARGE, CallerBounds
from tollgate.gateway.http.handshake import Header
from tollgate.gateway.http.known_heads import MAX_HEADS, KnownHead, known_head
from tollgate.gateway.http.request import NO_HTTP, PREFIX, ambiguity, joined
from tollgate.gateway.http.worker_context import WorkerContext
from tollgate.gateway.messages import Request

# Node allows 16 KiB, nginx 32; browsers with many headers stay far below.
MAX_HEAD_BYTES = 65_536
# Bytes of framing in a chunked body (chunk heads, extensions, trailers): this many, and one for each _FRAMED bytes
# of the body. So a short body may come byte by byte, and a long one in chunks of 20 bytes.
MAX_FRAMING_BYTES, _FRAMED = 16_384, 4
# A refused body is read up to here, so that a browser sees the reason and not a reset.
MAX_DRAINED_BYTES = 16 * 1_048_576
# Requests that may wait on one connection before it is read no further.
MAX_WAITING = 8
# Bytes with more requests than that, or with many lines (chunks or headers), are parsed in pieces, one in each
# loop iteration: a waiting request takes a hundred times its bytes, and other connections are served in between.
PIECE_BYTES, MAX_LINES = 1_024, 512
# Request lines of streaming protocols that the parser accepts as HTTP.
_FOREIGN = re.compile(rb" (?:RTSP|ICE)/[0-9]\.[0-9]\r\n")
_FOREIGN_BYTES = 11
# After this many kept heads in a row that did not come again, a connection keeps no more.
MAX_UNUSED_HEADS = 8


class FramedConnection(Protocol):
    """The connection that takes what was read."""

    since: float
    """When the present wait started."""
    continue_pending: bool
    """Whether the caller waits for `100 Continue`."""

    @property
    def peer(self) -> str:
        """The address of the client."""

    def request_read(self, request: Request) -> None:
        """Answer a request, or let it wait until those before it are answered."""

    def reject(self, refusal: Refusal) -> None:
        """Answer what was read before, send the reason, and close: the connection cannot go on."""

    def send_continue(self) -> None:
        """Send `100 Continue` to a caller that waits for it, unless answers before it are outstanding."""

    def open_asgi_request(self, url: bytes, headers: list[Header]) -> None:
        """Hand the request that is being read over to the ASGI app."""

    def asgi_body_read(self, body: bytes) -> None:
        """Hand over a part of its body."""

    def asgi_request_read(self) -> None:
        """Hand over its end."""

    def become_websocket(self) -> bool:
        """Hand the connection over to the WebSocket protocol, if this is a handshake that it can answer."""


class RequestFraming:
    """What one connection has read."""

    __slots__ = (
        "_bounds",
        "_connection",
        "_context",
        "_declined",
        "_head_bytes",
        "_in_head",
        "_last_bytes",
        "_read",
        "_unread_held",
        "between",
        "chunks",
        "finished",
        "for_asgi",
        "headers",
        "heads",
        "last_head",
        "parser",
        "request",
        "size",
        "started",
        "unread",
        "unused_heads",
        "url",
    )

    def __init__(self, connection: FramedConnection, context: WorkerContext, bounds: CallerBounds) -> None:
        self._connection = connection
        self._context = context
        self._bounds = bounds
        self.parser = httptools.HttpRequestParser(self)
        # A request after one with `connection: close` must not turn into an error before that one is answered.
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.url = b""
        self.headers: list[Header] = []
        self.request: Request | None = None
        """The request under /x/ that is being read."""
        self.for_asgi = False
        """Set while a request for the ASGI app is read."""
        self.chunks: list[bytes] = []
        self.size = 0
        self.started = 0
        """Requests whose head has started."""
        self.between = True
        """Set while the parser has seen nothing of the next request."""
        self.finished = False
        """Set when nothing more is read: the connection closes after the answer under way."""
        self.heads: dict[bytes, KnownHead] = {}
        """Heads that were parsed before, by their bytes."""
        self.last_head: KnownHead | None = None
        self.unused_heads = 0
        self._read: Request | None = None
        """The last request under /x/, while its bytes are at hand."""
        self.unread = b""
        """Bytes that were received and are not parsed yet."""
        self._unread_held = 0
        self._declined = False
        """Set when the offer of another protocol was declined: a second one ends the connection."""
        self._head_bytes = 0
        self._in_head = True
        self._last_bytes = b""
        """The last bytes of a head that is not complete."""

    # --- Bytes -----------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Parse bytes, and keep the head if they are one request."""
        between = self.between
        self._parse(data)
        if self._read is not None:
            self._remember(data, whole=between and self.between)

    def put_aside(self, data: bytes) -> bool:
        """Keep bytes for `next_piece`; False where there is no room for them."""
        if not self._bounds.hold(len(data)):
            self._connection.reject(Overloaded(TOO_MANY_LARGE))
            return False
        self.unread, self._unread_held = data, len(data)
        return True

    def next_piece(self) -> bytes:
        """Take the next bytes out of those that were put aside."""
        piece, self.unread = self.unread[:PIECE_BYTES], self.unread[PIECE_BYTES:]
        if not self.unread:
            self.drop_unread()
        return piece

    def feed_piece(self, piece: bytes) -> None:
        """Parse such bytes."""
        if piece and not self.finished:
            self._parse(piece)
            self._read = None

    def drop_unread(self) -> None:
        self.unread = b""
        self._bounds.free(self._unread_held)
        self._unread_held = 0

    def _parse(self, data: bytes) -> None:
        """Feed the parser, within the bounds of a head and of what frames a body."""
        last = self._last_bytes
        if (last or b"RTSP/" in data or b"ICE/" in data) and (found := _FOREIGN.search(last + data)):
            self._last_bytes = b""
            self._parse(data[: max(found.start() - len(last), 0)])
            if not self.finished:
                self._connection.reject(InvalidRequest(NO_HTTP))
            return
        between, started = self.between, self.started
        size, heading = 0 if between else self.size, between or self._in_head
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self._connection.reject(InvalidRequest("Not a well-formed HTTP request."))
            return
        except httptools.HttpParserUpgrade as upgrade:
            if not self.finished:
                self._upgrade(data[upgrade.args[0] :])
            return
        self._last_bytes = (last + data)[-_FOREIGN_BYTES:] if self._in_head else b""
        if self.between or self.finished or self.started - started > between:
            # Nothing is open, or what is open started within these bytes, which are bounded themselves.
            return
        # Bytes that are not of the body: of the head, or of chunk heads and trailers.
        self._head_bytes += len(data) - max(0, self.size - size)
        if self._head_bytes > (MAX_HEAD_BYTES if heading else MAX_FRAMING_BYTES + self.size // _FRAMED):
            self._connection.reject(
                InvalidRequest("The request's head is too large, or its chunks are too small.")
            )
        elif not self._in_head and heading:
            self._head_bytes = 0

    def _upgrade(self, rest: bytes) -> None:
        """Become a WebSocket, or continue in HTTP/1.1 where a client offers another protocol first (h2c).

        The parser stops at such a head, so a new one gets it again without the offer; once in a connection, so
        that a caller cannot make this recurse. A tunnel is never opened.
        """
        if not rest and self._connection.become_websocket():
            return
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._connection.reject(MethodNotPost())
            return
        if self._declined:
            self._connection.reject(
                InvalidRequest("Another protocol was offered and declined before: use HTTP/1.1.")
            )
            return
        self._declined = True
        offer = (b"connection", b"upgrade", b"http2-settings")
        lines = [b"%b: %b\r\n" % header for header in self.headers if header[0] not in offer]
        version = self.parser.get_http_version().encode()
        head = b"%b %b HTTP/%b\r\n%b\r\n" % (method, self.url, version, b"".join(lines))
        self.parser = httptools.HttpRequestParser(self)
        self._parse(head + rest)

    # --- Known heads -----------------------------------------------------------------------------------

    def similar_head(self, data: bytes, end: int) -> KnownHead | None:
        """The head of a request, where only its length differs from the last known one; kept from now on."""
        last = self.last_head
        known = last.with_length(data, end) if last is not None else None
        if known is None or self._is_counted(known.size - end):
            return None
        self._keep(data[:end], known)
        return known

    def _remember(self, data: bytes, *, whole: bool) -> None:
        """Keep the head of the request that was just read, where these bytes are all of it and nothing else."""
        request, self._read = self._read, None
        if request is None or self._is_counted(len(request.body)):
            return
        self.unused_heads += 1
        if self.unused_heads > MAX_UNUSED_HEADS:
            self.heads.clear()
            self.last_head = None
            return
        if not whole or request.refusal is not None or self.finished:
            return
        known = known_head(data, self.url, request.headers, len(request.body))
        if known is not None:
            known.digest, known.admission = request.digest, request.admission
            self._keep(known.head, known)
            self.last_head = known

    def _is_counted(self, size: int) -> bool:
        """Whether a body of this size is compared with the limits.

        Heads of such requests are not kept: the fast path compares no size, and new limits void admissions.
        """
        return size > self._context.counted_from

    def _keep(self, head: bytes, known: KnownHead) -> None:
        if len(self.heads) >= MAX_HEADS:
            self.heads.clear()
        self.heads[head] = known

    # --- The parser's callbacks ------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Start a request."""
        self.url = b""
        self.headers = []
        self.between = False
        self.started += 1
        self._head_bytes = self.size = 0
        self._in_head = True
        self.for_asgi = False
        if not self._bounds.blocked:
            self._connection.since = self._context.clock

    def on_url(self, url: bytes) -> None:
        """Collect the target."""
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header. Trailers are dropped: decisions that headers make are made before them."""
        if self._in_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Open the request, or hand it over to the ASGI app."""
        self._in_head = False
        if self.finished:
            # After the last request that is answered: read past it.
            return
        parser = self.parser
        headers = dict(self.headers)
        if len(headers) != len(self.headers):
            headers = joined(self.headers)
        version = parser.get_http_version()
        if (why := ambiguity(version, headers)) is not None:
            self._connection.reject(InvalidRequest(why))
            return
        if parser.should_upgrade() and (b"upgrade" in headers or parser.get_method() == b"CONNECT"):
            # The parser stops here: `_upgrade` goes on.
            return
        if not self.is_ours():
            self._connection.open_asgi_request(self.url, self.headers)
            self.for_asgi = True
            return
        self.request = request = self._context.reader.open(
            parser.get_method(), self.url, headers, self._connection.peer
        )
        # A client of HTTP/1.0 expects a header that the connection is kept; it gets none.
        request.keep_alive = parser.should_keep_alive() and not (version == "1.0" and b"connection" in headers)
        if headers.get(b"expect", b"").lower() == b"100-continue":
            if request.refusal is not None:
                # The caller waits before it sends the body: it need not send it at all.
                self._finish(request)
            else:
                self._connection.continue_pending = True
                self._connection.send_continue()

    def is_ours(self) -> bool:
        """Whether the target is under /x/, also in absolute form, which proxies may send (RFC 9112, 3.2.2)."""
        if self.url.startswith(PREFIX):
            return True
        if self.url.startswith(b"/"):
            return False
        try:
            parts = httptools.parse_url(self.url)
        except httptools.HttpParserInvalidURLError:
            return False
        self.url = (parts.path or b"/") + (b"?" + parts.query if parts.query else b"")
        return self.url.startswith(PREFIX)

    def on_body(self, body: bytes) -> None:
        """Collect the body, or read past it."""
        self.size += len(body)
        request = self.request
        if request is None:
            if self.for_asgi and not self.finished:
                self._connection.asgi_body_read(body)
            return
        self.chunks.append(body)
        if self.size > self._context.counted_from or request.refusal is not None:
            self._bound(request, body)

    def _bound(self, request: Request, body: bytes) -> None:
        """Count a large body, refuse one that is too large, and read past a refused one."""
        if request.refusal is not None:
            self.chunks.clear()
            if self.size > MAX_DRAINED_BYTES:
                self._finish(request)
            return
        if self.size > self._context.max_bytes:
            request.refusal = self._context.reader.too_large()
        elif self._bounds.hold(len(body)):
            self._bounds.held += len(body)
        else:
            request.refusal = Overloaded(TOO_MANY_LARGE)
        if request.refusal is not None:
            self.chunks.clear()

    def on_message_complete(self) -> None:
        """The request is whole."""
        self.between = True
        self._connection.continue_pending = False
        request = self.request
        if request is None:
            if self.for_asgi:
                self._connection.asgi_request_read()
            return
        if request.keep_alive and request.method == b"POST":
            self._read = request
        self.complete(request)

    def _finish(self, request: Request) -> None:
        """Hand over a refused request before its end, and read nothing more."""
        request.keep_alive = False
        self.finish()
        self.complete(request)

    def finish(self) -> None:
        """Read no request after this. Without known heads, `data_received` takes no fast path."""
        self.finished = True
        self.heads.clear()

    def complete(self, request: Request) -> None:
        """Hand over a request with what was read of its body."""
        chunks = self.chunks
        request.body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        bounds = self._bounds
        if bounds.held:
            request.held, bounds.held = bounds.held, 0
        self.request = None
        self.chunks = []
        self._connection.request_read(request)
