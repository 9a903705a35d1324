"""One connection to an upstream: request bytes out, parsed responses in.

HTTP/1.1 by llhttp (httptools). One request at a time; no pipelining, because a lost connection would then
leave several calls in doubt. Knows no pool: it tells its owner when it is free again or gone.
"""

from __future__ import annotations

import asyncio
import zlib
from typing import Protocol

import httptools
from msgspec import Struct

from tollgate.gateway.budget import SMALL, Budget


class Response(Struct, frozen=True, gc=False):
    """What an upstream sent back."""

    status: int
    body: bytes


class AttemptFailed(Exception):
    """An attempt at an upstream that gave no response. `sent`: whether bytes of the call may have left."""

    outcome = "broken"

    def __init__(self, message: str, *, sent: bool, stale: bool = False) -> None:
        self.sent = sent
        self.stale = stale
        """A kept connection that was closed before it said a word: most likely it had been idle too long."""
        super().__init__(message)


class ConnectFailed(AttemptFailed):
    """No connection, so nothing was sent."""

    outcome = "connect"


class TimedOut(AttemptFailed):
    """The deadline of the attempt passed."""

    outcome = "timeout"


class TooLarge(AttemptFailed):
    """The response is over the limit, or there is no room for it."""

    outcome = "too_large"


class PoolFull(AttemptFailed):
    """All connections are busy, and enough callers wait already."""

    outcome = "full"


class Owner(Protocol):
    """Whoever keeps connections."""

    def freed(self, connection: Connection) -> None:
        """Take back a connection that may be used again."""
        ...

    def lost(self, connection: Connection) -> None:
        """Forget a connection."""
        ...


class Connection(asyncio.Protocol):
    """A connection, busy with one request or idle."""

    def __init__(
        self, owner: Owner, loop: asyncio.AbstractEventLoop, most_bytes: int, budget: Budget
    ) -> None:
        self._owner = owner
        self._loop = loop
        self._most_bytes = most_bytes
        self._budget = budget
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiting: asyncio.Future[Response] | None = None
        self._heard = False
        self._used = False
        self.deadline = 0.0
        self.idle_since = 0.0
        self._held = 0
        self._reset()

    @property
    def usable(self) -> bool:
        """Whether a request may be sent now."""
        return self._waiting is None and self._transport is not None and not self._transport.is_closing()

    @property
    def busy(self) -> bool:
        """Whether a response is awaited."""
        return self._waiting is not None

    def send(self, request: bytes, deadline: float) -> asyncio.Future[Response]:
        """Send a whole request; the future holds its response."""
        assert self._transport is not None  # noqa: S101 - the pool hands out usable connections only
        self._waiting = future = self._loop.create_future()
        self._heard = False
        self.deadline = deadline
        self._transport.write(request)
        return future

    def fail(self, failure: AttemptFailed) -> None:
        """Give up the request under way, and with it the connection."""
        waiting, self._waiting = self._waiting, None
        if self._transport is not None:
            self._transport.abort()
        if waiting is not None and not waiting.done():
            waiting.set_exception(failure)

    def close(self) -> None:
        """Close an idle connection."""
        if self._transport is not None:
            self._transport.close()

    # --- asyncio ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = transport  # type: ignore[assignment] - a stream transport

    def data_received(self, data: bytes) -> None:
        """Feed the parser. Data that nobody asked for means that we lost count: hang up."""
        if self._waiting is None:
            self.fail(AttemptFailed("unexpected data", sent=True))
            return
        self._heard = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.fail(AttemptFailed(f"not HTTP: {error}", sent=True))

    def eof_received(self) -> None:
        """Let the transport close: an answer without a length ends here."""

    def connection_lost(self, exc: Exception | None) -> None:
        """End; a response that has no length is whole now."""
        self._transport = None
        if self._waiting is not None and exc is None and self._until_close:
            self._deliver()
        elif self._waiting is not None:
            stale = self._used and not self._heard
            self.fail(AttemptFailed("connection lost", sent=True, stale=stale))
        self._reset()
        self._owner.lost(self)

    # --- httptools -------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note the headers that matter."""
        size = len(name)
        if size == 14 and name.lower() == b"content-length":
            self._until_close = False
            if value.isdigit() and int(value) > self._most_bytes:
                self._too_large()
        elif size == 16 and name.lower() == b"content-encoding":
            self._encoding = value.strip().lower()
        elif size == 17 and name.lower() == b"transfer-encoding":
            self._until_close = False

    def on_headers_complete(self) -> None:
        """Note the status."""
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """Collect, within bounds."""
        if self._waiting is None:
            return
        self._body.append(body)
        self._size += len(body)
        if self._size > self._most_bytes:
            self._too_large()
        elif self._size > SMALL:
            if self._budget.hold(len(body)):
                self._held += len(body)
            else:
                self._too_large()

    def on_message_complete(self) -> None:
        """Hand the response over and be free for the next request."""
        if self._status < 200:
            self._until_close = True
            return
        if self._waiting is None:
            return
        keep = self._parser.should_keep_alive()
        self._deliver()
        self._used = True
        if keep:
            self._owner.freed(self)
        else:
            self.close()

    def _deliver(self) -> None:
        waiting, self._waiting = self._waiting, None
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        status, encoding = self._status, self._encoding
        self._reset()
        if waiting is None or waiting.done():
            return
        try:
            waiting.set_result(Response(status, _decoded(body, encoding, self._most_bytes)))
        except AttemptFailed as failure:
            waiting.set_exception(failure)

    def _too_large(self) -> None:
        self.fail(TooLarge("the response is too large", sent=True))

    def _reset(self) -> None:
        if self._held:
            self._budget.free(self._held)
        self._body: list[bytes] = []
        self._size = self._held = 0
        self._status = 0
        self._encoding = b""
        self._until_close = True


def _decoded(body: bytes, encoding: bytes, most: int) -> bytes:
    if not encoding or encoding == b"identity":
        return body
    if encoding not in (b"gzip", b"x-gzip", b"deflate"):
        raise AttemptFailed(f"content encoding {encoding.decode('latin-1')!r} was not asked for", sent=True)
    # 32: zlib or gzip, told by its header.
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    try:
        unpacked = unpacker.decompress(body, most + 1)
    except zlib.error as error:
        raise AttemptFailed("a broken gzip body", sent=True) from error
    if len(unpacked) > most:
        raise TooLarge("the response is too large", sent=True)
    if not unpacker.eof:
        raise AttemptFailed("a torn gzip body", sent=True)
    return unpacked
