"""One connection to an upstream: request bytes out, parsed responses in.

HTTP/1.1 by llhttp (httptools). One request at a time; no pipelining, because a lost connection would then
leave several calls in doubt. Knows no pool: it notifies its owner when it is free again or gone. The
sender of a request is its `Receiver`, called back once: a call on the fast path, or a request of the pool.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sized
from typing import Protocol, cast

import httptools
from msgspec import Struct

from tollgate import log
from tollgate.api.logs import AttemptVerdict
from tollgate.gateway.memory_budget import SMALL, Budget, CountedBody

_log = log.get("upstream")

# Most requests are short, and writing a number takes a while.
_FEW = 1_024
_LENGTHS = [b"%d\r\n\r\n" % length for length in range(_FEW)]
_GZIP = b"\x1f\x8b"
_GZIP_START = _GZIP[0]
# zlib's format cannot expand further than this.
_MAX_EXPANSION = 1_032
# Bytes of a response that are not its body (heads, interim responses, chunk heads, trailers): as many, and one for
# so many bytes of it.
_MAX_FRAMING_BYTES, _FRAMED = 65_536, 4
# Response heads known by their bytes, for each pool; a longer one is not kept.
_MAX_HEADS, _MAX_HEAD_BYTES = 512, 2_048
# Unknown heads in a row before the pool stops looking, and responses until it tries again: some upstreams send
# a header of its own with every response.
_MAX_MISSES, _SKIPPED = 64, 1_024


class Response(Struct, frozen=True, gc=False):
    """What an upstream sent back."""

    status: int
    body: bytes


class AttemptFailed(Exception):
    """An attempt at an upstream that gave no response. `sent`: whether bytes of the call may have left."""

    outcome = "broken"
    """As metrics name it."""
    verdict = AttemptVerdict.CONNECTION
    """As records have it."""
    status = 0
    """The HTTP status, where that is the reason."""

    def __init__(self, message: str, *, sent: bool, stale: bool = False) -> None:
        self.sent = sent
        self.stale = stale
        """A kept connection that was closed before it sent a byte: most likely it had been idle too long."""
        super().__init__(message)


class ConnectFailed(AttemptFailed):
    """No connection, so nothing was sent."""

    outcome = "connect"


class TimedOut(AttemptFailed):
    """The deadline of the attempt passed."""

    outcome = "timeout"
    verdict = AttemptVerdict.TIMEOUT


class ResponseTooLarge(AttemptFailed):
    """The response is over the limit."""

    outcome = "too_large"
    verdict = AttemptVerdict.TOO_LARGE


class NoRoom(AttemptFailed):
    """We hold too many large bodies already."""

    outcome = "no_room"
    verdict = AttemptVerdict.BUSY


class PoolFull(AttemptFailed):
    """All connections are busy, and enough callers wait already."""

    outcome = "full"
    verdict = AttemptVerdict.BUSY


class Owner(Protocol):
    """The owner of connections."""

    idle: list[Connection]
    """Connections that are kept, the newest last."""
    retired: bool
    """Whether none is kept any more."""
    clock: float
    """The time, exact enough for idle connections."""

    @property
    def waiters(self) -> Sized:
        """Who waits for one that is free."""

    def freed(self, connection: Connection) -> None:
        """Take back a connection that may be used again."""

    def lost(self, connection: Connection) -> None:
        """Forget a connection."""


class Receiver(Protocol):
    """Waits for the response to one request."""

    @property
    def holder(self) -> str:
        """Which caller holds the connection meanwhile; empty: the service itself."""

    def received(self, status: int, body: bytes) -> None:
        """Take the response."""

    def failed(self, failure: AttemptFailed) -> None:
        """Take the reason why there is none."""


class Unanswered:
    """A receiver whose call was abandoned."""

    holder = ""

    def received(self, status: int, body: bytes) -> None:
        """Drop the response."""

    def failed(self, failure: AttemptFailed) -> None:
        """Drop the reason."""


class KnownHeads:
    """Heads of responses that the parser has read before: status 200, kept alive, a body of this length.

    The same bytes mean the same again, so the parser need not see them.
    """

    __slots__ = ("end", "last", "length", "lengths", "misses", "skip")

    def __init__(self) -> None:
        self.lengths: dict[bytes, int] = {}
        self._forget()
        self.misses = 0
        """Unknown heads in a row."""
        self.skip = 0
        """Responses that are not compared: too many were unknown."""

    def _forget(self) -> None:
        self.last, self.end, self.length = b"?", 1, -1
        """The head of the last response, its length, and that of the body; -1: it is not known."""

    def find(self, data: bytes) -> None:
        """Look whether the head of these bytes is known."""
        self.end = data.find(b"\r\n\r\n") + 4
        self.last = data[: self.end]
        self.length = self.lengths.get(self.last, -1)

    def remember(self, data: bytes, body: bytes) -> None:
        """Keep the head of a response that was parsed whole, where its body is all the rest."""
        if self.skip:
            self.skip -= 1
            return
        self.misses += 1
        if self.misses > _MAX_MISSES:
            self.misses, self.skip = 0, _SKIPPED
            self.lengths.clear()
            self._forget()
            return
        end = len(data) - len(body)
        if end < _MAX_HEAD_BYTES and data.find(b"\r\n\r\n") + 4 == end:
            if len(self.lengths) >= _MAX_HEADS:
                self.lengths.clear()
            self.lengths[data[:end]] = len(body)
            self.last, self.end, self.length = data[:end], end, len(body)


class Connection(asyncio.Protocol):
    """A connection, busy with one request or idle."""

    __slots__ = (
        "_body",
        "_budget",
        "_complete",
        "_head",
        "_heads",
        "_held",
        "_max_bytes",
        "_owner",
        "_parser",
        "_partial",
        "_received",
        "_size",
        "_transport",
        "_used",
        "deadline",
        "idle_since",
        "receiver",
        "usable",
    )

    def __init__(self, owner: Owner, head: bytes, heads: KnownHeads, max_bytes: int, budget: Budget) -> None:
        self._owner = owner
        self._head = head
        """Everything of a request but its length and body."""
        self._heads = heads
        self._max_bytes = max_bytes
        self._budget = budget
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self.receiver: Receiver | None = None
        """What waits for the response; it may be replaced while the request is under way."""
        self._partial = False
        """Whether the parser has seen a part of the response."""
        self._complete = False
        self._used = False
        self.usable = True
        """Whether a request may be sent once it is idle."""
        self.deadline = 0.0
        self.idle_since = 0.0
        self._body: list[bytes] = []
        self._size = 0
        self._received = 0
        """Bytes of a response that is not whole yet."""
        self._held = 0
        """Bytes of the body that the budget counts."""

    @property
    def busy(self) -> bool:
        """Whether a response is awaited."""
        return self.receiver is not None

    def request(self, body: bytes, deadline: float, receiver: Receiver) -> tuple[asyncio.Transport, bytes]:
        """Wait for the response to a request.

        Returns its bytes, and where they are to be written in this loop tick. The receiver is called back once.
        """
        transport = self._transport
        if transport is None:
            raise AttemptFailed("connection lost", sent=False)
        self.receiver = receiver
        self.deadline = deadline
        length = len(body)
        framing = _LENGTHS[length] if length < _FEW else b"%d\r\n\r\n" % length
        return transport, b"".join((self._head, framing, body))

    def send(self, body: bytes, deadline: float, receiver: Receiver, more: bytes = b"") -> None:
        """Send a request at once, with more header lines where there are any."""
        transport = self._transport
        if transport is None:
            raise AttemptFailed("connection lost", sent=False)
        self.receiver = receiver
        self.deadline = deadline
        length = len(body)
        framing = _LENGTHS[length] if length < _FEW and not more else b"%d\r\n%b\r\n" % (length, more)
        transport.write(b"".join((self._head, framing, body)))

    def fail(self, failure: AttemptFailed) -> None:
        """Give up the request under way, and with it the connection."""
        self.usable = False
        receiver, self.receiver = self.receiver, None
        if self._transport is not None:
            self._transport.abort()
        if receiver is not None:
            receiver.failed(failure)

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
        """Take what came. Unsolicited data means that we lost count: close."""
        receiver = self.receiver
        if receiver is None:
            self.fail(AttemptFailed("unexpected data", sent=True))
            return
        heads, whole = self._heads, not self._partial
        if whole and not heads.skip:
            # The last one first: most are the same, and to look for the end takes a while.
            if data[: heads.end] != heads.last:
                heads.find(data)
            end = heads.end
            if len(data) - end == heads.length:
                heads.misses = 0
                body = data[end:]
                if self.usable and heads.length and body[0] != _GZIP_START:
                    # As `_deliver` and `freed`, without their calls: most responses come this way.
                    self.receiver = None
                    self._used = True
                    owner = self._owner
                    if owner.waiters or owner.retired:
                        owner.freed(self)
                    else:
                        self.idle_since = owner.clock
                        owner.idle.append(self)
                    try:
                        receiver.received(200, body)
                    except Exception as error:  # noqa: BLE001 - a defect of a caller's is not this connection's
                        _defect(receiver, error)
                else:
                    self._deliver(receiver, 200, body)
                return
        self._partial = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.usable = False
            if not self._complete:
                self.fail(AttemptFailed(f"not HTTP: {error}", sent=True))
        if self._complete:
            self._hand_over(data if whole else b"")
            return
        self._received += len(data)
        if self._received - self._size > _MAX_FRAMING_BYTES + self._size // _FRAMED:
            self.fail(AttemptFailed("the head is too large, or the chunks are too small", sent=True))

    def eof_received(self) -> None:
        """Let the transport close: an answer without a length ends here."""

    def connection_lost(self, exc: Exception | None) -> None:
        """End. A response without a length is whole now; a torn one is no JSON, and found out as such."""
        self._transport = None
        self.usable = False
        if self.receiver is not None:
            if exc is None and self._body:
                self._hand_over(b"")
            else:
                stale = self._used and not self._partial
                self.fail(AttemptFailed("connection lost", sent=True, stale=stale))
        # The parser keeps this object until garbage is collected: not what it has read.
        self._body = []
        if self._held:
            self._budget.free(self._held)
            self._held = 0
        self._owner.lost(self)

    # --- httptools. No `on_header`: a call back for each header is dear, and none is needed -------------

    def on_message_begin(self) -> None:
        """Notice what follows a complete response: it was not requested."""
        if self._complete:
            self.usable = False

    def on_body(self, body: bytes) -> None:
        """Collect, within bounds."""
        if self.receiver is None or self._complete:
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
            # Read here or never: the parser forgets it with the message.
            if not self._parser.should_keep_alive():
                self.usable = False

    def _hand_over(self, data: bytes) -> None:
        """Hand the response over; `data` is all of it, where it came in one piece.

        Not before all that was received is parsed: the rest could be taken for the answer to the next call.
        """
        self._complete = self._partial = False
        receiver, status = self.receiver, self._parser.get_status_code()
        if receiver is None:
            return
        chunks = self._body
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._body = []
        self._size = self._received = 0
        if self._held:
            # Counts for as long as it is on its way to its caller, however long that takes. Its pieces go now.
            chunks.clear()
            body = CountedBody.of(body, self._budget, self._held)
            self._held = 0
        if data and status == 200 and self.usable and len(body) <= SMALL:
            self._heads.remember(data, body)
        self._deliver(receiver, status, body)

    def _deliver(self, receiver: Receiver, status: int, body: bytes) -> None:
        """Be free for the next request, then call the receiver: it may need a connection."""
        self.receiver = None
        self._used = True
        if self.usable:
            self._owner.freed(self)
        else:
            self.close()
        # JSON never begins like this, so the header need not be looked at.
        if body[:2] == _GZIP:
            try:
                body = self._counted(_unpacked(body, self._max_bytes))
            except AttemptFailed as failure:
                receiver.failed(failure)
                return
        try:
            receiver.received(status, body)
        except Exception as error:  # noqa: BLE001 - a defect of a caller's is not this connection's
            _defect(receiver, error)

    def _too_large(self) -> None:
        self.fail(ResponseTooLarge("the response is too large", sent=True))

    def _counted(self, body: bytes) -> bytes:
        """A body that was not counted as it came."""
        if len(body) <= SMALL:
            return body
        if not self._budget.hold(len(body)):
            raise NoRoom("too many large responses at once", sent=True)
        return CountedBody.of(body, self._budget, len(body))


def _defect(receiver: Receiver, error: Exception) -> None:
    """Let a call whose answer could not be taken go on as one without an answer."""
    _log.error("an answer could not be taken", exc_info=error)
    receiver.failed(AttemptFailed("the answer could not be taken", sent=True))


def _unpacked(body: bytes, max_bytes: int) -> bytes:
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # 16: gzip
    try:
        if len(body) * _MAX_EXPANSION <= max_bytes:
            # Cannot exceed the bound, so one call does it all.
            return zlib.decompress(body, zlib.MAX_WBITS | 16)
        unpacked = unpacker.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise AttemptFailed("a broken gzip body", sent=True) from error
    if len(unpacked) > max_bytes:
        raise ResponseTooLarge("the response is too large", sent=True)
    if not unpacker.eof:
        raise AttemptFailed("a torn gzip body", sent=True)
    return unpacked
