"""One connection to an upstream: request bytes out, parsed responses in.

HTTP/1.1 by llhttp (httptools). One request at a time; no pipelining, because a lost connection would then
leave several calls in doubt. Knows no pool: it tells its owner when it is free again or gone.
"""

from __future__ import annotations

import asyncio
import zlib
from typing import Protocol, cast

import httptools
from msgspec import Struct

from tollgate.gateway.memory_budget import SMALL, Budget
from tollgate.gateway.upstream.completion import Pending

_GZIP = b"\x1f\x8b"


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


class ResponseTooLarge(AttemptFailed):
    """The response is over the limit."""

    outcome = "too_large"


class NoRoom(AttemptFailed):
    """We hold too many large bodies already."""

    outcome = "no_room"


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

    def __init__(self, owner: Owner, loop: asyncio.AbstractEventLoop, max_bytes: int, budget: Budget) -> None:
        self._owner = owner
        self._loop = loop
        self._max_bytes = max_bytes
        self._budget = budget
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiting: Pending[Response] | None = None
        self._heard = False
        self._complete = False
        self._used = False
        self.usable = True
        """Whether a request may be sent once it is idle."""
        self.deadline = 0.0
        self.idle_since = 0.0
        self._body: list[bytes] = []
        self._size = 0
        self._held = 0
        """Bytes of the body that the budget counts."""

    @property
    def busy(self) -> bool:
        """Whether a response is awaited."""
        return self._waiting is not None

    def send(self, request: bytes, deadline: float) -> Pending[Response]:
        """Send a whole request and return its response to come."""
        if self._transport is None:
            raise AttemptFailed("connection lost", sent=False)
        pending: Pending[Response] = Pending(self._loop)
        self._waiting = pending
        self._heard = False
        self.deadline = deadline
        self._transport.write(request)
        return pending

    def fail(self, failure: AttemptFailed) -> None:
        """Give up the request under way, and with it the connection."""
        self.usable = False
        waiting, self._waiting = self._waiting, None
        if self._transport is not None:
            self._transport.abort()
        if waiting is not None:
            waiting.fail(failure)

    def close(self) -> None:
        """Close an idle connection."""
        self.usable = False
        if self._transport is not None:
            self._transport.close()

    # --- asyncio ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Feed the parser. Data that nobody asked for means that we lost count: hang up."""
        if self._waiting is None:
            self.fail(AttemptFailed("unexpected data", sent=True))
            return
        self._heard = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.usable = False
            if not self._complete:
                self.fail(AttemptFailed(f"not HTTP: {error}", sent=True))
        if self._complete:
            self._hand_over()

    def eof_received(self) -> None:
        """Let the transport close: an answer without a length ends here."""

    def connection_lost(self, exc: Exception | None) -> None:
        """End. A response without a length is whole now; a torn one is no JSON, and found out as such."""
        self._transport = None
        self.usable = False
        if self._held:
            self._give_back()
        if self._waiting is not None:
            if exc is None and self._body:
                self._hand_over()
            else:
                stale = self._used and not self._heard
                self.fail(AttemptFailed("connection lost", sent=True, stale=stale))
        self._owner.lost(self)

    # --- httptools. No `on_header`: a call back for each header is dear, and none is needed -------------

    def on_message_begin(self) -> None:
        """Notice what follows a complete response: nobody asked for it."""
        if self._complete:
            self.usable = False

    def on_body(self, body: bytes) -> None:
        """Collect, within bounds."""
        if self._waiting is None or self._complete:
            return
        self._body.append(body)
        self._size += len(body)
        if self._size > self._max_bytes:
            self._too_large()
        elif self._size > SMALL:
            if self._budget.hold(len(body)):
                self._held += len(body)
            else:
                self.fail(NoRoom("too many large responses at once", sent=True))

    def on_message_complete(self) -> None:
        """Note that a response is whole; an interim one does not count."""
        if self._parser.get_status_code() >= 200:
            self._complete = True
            # Told here or never: the parser forgets it with the message.
            if not self._parser.should_keep_alive():
                self.usable = False

    def _hand_over(self) -> None:
        """Hand the response over and be free for the next request.

        Not before all that was received is parsed: the rest could be taken for the answer to the next call.
        """
        self._complete = False
        waiting, status = self._waiting, self._parser.get_status_code()
        if waiting is None:
            return
        chunks = self._body
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._waiting = None
        self._used = True
        self._body = []
        self._size = 0
        if self._held:
            self._give_back()
        # Free before the answer goes on its way: whoever it wakes may need a connection.
        if self.usable:
            self._owner.freed(self)
        else:
            self.close()
        # JSON never begins like this, so the header need not be looked at.
        if body.startswith(_GZIP):
            self._deliver_unpacked(waiting, status, body)
        else:
            waiting.settle(Response(status, body))

    def _deliver_unpacked(self, waiting: Pending[Response], status: int, body: bytes) -> None:
        try:
            waiting.settle(Response(status, _unpacked(body, self._max_bytes)))
        except AttemptFailed as failure:
            waiting.fail(failure)

    def _too_large(self) -> None:
        self.fail(ResponseTooLarge("the response is too large", sent=True))

    def _give_back(self) -> None:
        self._budget.free(self._held)
        self._held = 0


def _unpacked(body: bytes, most: int) -> bytes:
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # 16: gzip
    try:
        unpacked = unpacker.decompress(body, most + 1)
    except zlib.error as error:
        raise AttemptFailed("a broken gzip body", sent=True) from error
    if len(unpacked) > most:
        raise ResponseTooLarge("the response is too large", sent=True)
    if not unpacker.eof:
        raise AttemptFailed("a torn gzip body", sent=True)
    return unpacked
