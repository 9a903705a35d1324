"""From a worker to the control process: an ASGI app that forwards over a Unix socket, and the other end of it.

Only the service's own user can open the socket, so what arrives on it comes from a worker, and the answer from
our own server. One connection for each request: it costs little, and none is ever found stale. This runs in
workers, so no framework may enter.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable
from pathlib import Path
from typing import Any

from tollgate import log
from tollgate.core import addresses
from tollgate.core.address_shares import AddressShares, limit_key
from tollgate.gateway.memory_budget import Budget
from tollgate.processes import listeners, status
from tollgate.processes.status import App, Receive, Scope, Send

# As in `control/app.py`, which must not be imported here.
MAX_BODY_BYTES = 262_144
MAX_AT_ONCE = 64
# Longer than the slowest honest answer: a domain's proof is looked for in seconds.
ANSWER_SECONDS = 35.0
# An answer that streams must send something more often than this, if only an empty line.
SILENCE_SECONDS = 60.0
MAX_HEAD_BYTES = 65_536
# Open streams (server-sent events) that one worker carries beside its requests: more than there may be tails.
MAX_STREAMS = 400
# Files that are made while they are sent, likewise.
MAX_DOWNLOADS = 64
# One client address has this part of the places at most: who takes answers in slowly keeps none but itself out.
ADDRESS_PART, MIN_PART = 4, 2
# Of the places for requests this part is kept for those whose credential was found good before, two for each; that
# many credentials are remembered.
KNOWN_PART, MAX_KNOWN = 4, 4_096
_IN_DOUBT = "see whether it was done, then try again."

# RFC 9110, 7.6.1, and `expect`, which the worker has met itself.
_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect")
)
_OWN = b"x-tollgate-"
_CLIENT = b"x-tollgate-client"
_SCHEME = b"x-tollgate-scheme"
_KNOWN = b"x-tollgate-known"
_SESSION = re.compile(rb"(?:^|;)\s*(?:__Host-)?tollgate=([^;]*)")
_HOST = re.compile(rb"[A-Za-z0-9.:\[\]_-]{1,255}")
_TRY_AGAIN = (b"retry-after", b"1")
_CLOSE = (b"connection", b"close")
_log = log.get("forward")

Headers = list[tuple[bytes, bytes]]


class ControlAddress:
    """Where the control process listens. Made by the parent, inherited by all."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self.listener = listeners.bind_unix(data_dir, "control.sock")
        self._path: str = self.listener.getsockname()

    def app(self, trusted: tuple[addresses.Network, ...]) -> App:
        """The app of a worker: it forwards to the control process."""
        return ControlProxy(
            self._path,
            trusted=trusted,
            max_bytes=MAX_BODY_BYTES,
            max_at_once=MAX_AT_ONCE,
            seconds=ANSWER_SECONDS,
        )

    def remove(self) -> None:
        """Remove the socket's file, and its folder where one was made for it."""
        path = Path(self._path)
        path.unlink(missing_ok=True)
        if path.parent != self._data_dir:
            path.parent.rmdir()


class AnswerCut(Exception):
    """An answer ended before its end. What the client has of it must not look whole."""


class _ProxyRefusal(Exception):
    """A request that the worker answers itself. Raised only before an answer has started."""

    def __init__(self, status_code: int, detail: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(detail)
        self.status = status_code
        self.detail = detail
        self.headers = headers


def _slots(count: int) -> AddressShares:
    return AddressShares(count, max(count // ADDRESS_PART, MIN_PART), MIN_PART)


class Known:
    """Credentials that were found good, as digests, and how many requests of each are in progress."""

    def __init__(self) -> None:
        self._good: dict[bytes, None] = {}
        self._under_way: Counter[bytes] = Counter()

    def is_preferred(self, credential: bytes) -> bool:
        """Whether it may take a reserved slot."""
        return credential in self._good and self._under_way[credential] < MIN_PART

    def begin(self, credential: bytes) -> None:
        self._under_way[credential] += 1

    def end(self, credential: bytes, *, is_good: bool) -> None:
        """Note that a request is over, and whether its credential was found good.

        One that is revoked is preferred until others push it out: pages that need none say nothing about it.
        """
        self._under_way -= Counter([credential])
        if is_good:
            self._good.pop(credential, None)
            self._good[credential] = None
            if len(self._good) > MAX_KNOWN:
                del self._good[next(iter(self._good))]


def credential_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The digest of a request's credential, its token or session; empty where it has none."""
    given = dict(headers)
    session = _SESSION.search(given.get(b"cookie", b""))
    shown = given.get(b"authorization") or (session[1] if session else b"")
    return hashlib.sha256(shown).digest() if shown else b""


class _Slot:
    """The slot of a request in progress, or of its answer where that lasts.

    A stream lasts for minutes and costs next to nothing, a download as long as its client takes: open ones must
    not keep requests out.
    """

    def __init__(self, requests: AddressShares, address: str) -> None:
        self._slots = requests
        self._address = address
        self.is_known = False
        """Whether the control process found the credential good."""
        requests.take(address)

    def move(self, slots: AddressShares) -> bool:
        """Take one of other slots instead; False where none is free."""
        if not slots.has_room(self._address):
            return False
        self._slots.give_back(self._address)
        self._slots = slots
        self._slots.take(self._address)
        return True

    def leave(self) -> None:
        self._slots.give_back(self._address)


def behind_workers(app: App) -> App:
    """Wrap the app of the control process: it sees the workers' clients."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope["headers"])
        headers = [header for header in scope["headers"] if not header[0].startswith(_OWN)]
        client = (given.get(_CLIENT, b"").decode("latin-1"), 0)
        scheme = given.get(_SCHEME, b"http").decode("latin-1")
        await app({**scope, "headers": headers, "client": client, "scheme": scheme}, receive, send)

    return wrapped


class ControlProxy:
    """The app of a worker that forwards requests to the control process, whose socket has this path."""

    def __init__(
        self,
        path: str,
        *,
        trusted: tuple[addresses.Network, ...],
        max_bytes: int,
        max_at_once: int,
        seconds: float,
    ) -> None:
        self._path = path
        self._trusted = trusted
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._requests = _slots(max_at_once)
        self._kept = max_at_once // KNOWN_PART
        self._known = Known()
        self._streams = _slots(MAX_STREAMS)
        self._downloads = _slots(MAX_DOWNLOADS)
        # Requests that are still being read count by what they hold, not by their number: otherwise a few
        # clients that send nothing could keep all others out.
        self._budget = Budget(max_at_once * max_bytes, MIN_PART * max_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        identity = status.request_id(scope)
        client = self._client(scope)
        address, body = limit_key(client), bytearray()
        try:
            if await self._read(scope, receive, body, address):
                await self._forward(scope, receive, send, identity, body, client)
        except _ProxyRefusal as refused:
            if refused.status in (502, 504):
                _log.warning("no answer from the control process", status=refused.status, id=identity.decode())
            await status.problem(send, identity, refused.status, refused.detail, *refused.headers)
        finally:
            self._budget.free(len(body), address)

    # --- The request -----------------------------------------------------------------------------------

    async def _read(self, scope: Scope, receive: Receive, body: bytearray, address: str) -> bool:
        """Read the body whole; False if the client is gone before its end."""
        length = dict(scope["headers"]).get(b"content-length", b"")
        if length.isdigit() and int(length) > self._max_bytes:
            raise self._too_large()
        try:
            async with asyncio.timeout(self._seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return False
                    piece = message.get("body", b"")
                    if len(body) + len(piece) > self._max_bytes:
                        raise self._too_large()
                    if not self._budget.hold(len(piece), address):
                        raise _ProxyRefusal(503, "Too many large requests at once: try again.", _TRY_AGAIN)
                    body += piece
                    if not message.get("more_body", False):
                        return True
        except TimeoutError:
            raise _ProxyRefusal(
                408, f"The body did not arrive within {self._seconds:g} s: send it again, faster.", _CLOSE
            ) from None

    def _too_large(self) -> _ProxyRefusal:
        return _ProxyRefusal(413, f"The body is larger than {self._max_bytes} bytes: send a smaller one.")

    def _client(self, scope: Scope) -> str:
        forwarded = b",".join(value for name, value in scope["headers"] if name == b"x-forwarded-for")
        peer: str = scope["client"][0] if scope["client"] is not None else ""
        return addresses.client_address(peer, forwarded.decode("latin-1"), self._trusted)

    def _head(self, scope: Scope, identity: bytes, length: int, client: str) -> bytes:
        """The head of the request as the control process gets it."""
        query = scope["query_string"]
        target = scope["raw_path"] + (b"?" + query if query else b"")
        host, scheme = self._outside(scope)
        replaced = (b"content-length", b"x-request-id", *((b"host",) if host else ()))
        headers = [
            header
            for header in end_to_end(scope["headers"])
            if header[0] not in replaced and not header[0].startswith((_OWN, b"x-forwarded-"))
        ]
        headers += [(b"host", host)] if host else []
        headers += [
            (b"content-length", b"%d" % length),
            (b"x-request-id", identity),
            (_CLIENT, client.encode("latin-1")),
            (_SCHEME, scheme),
        ]
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        return b"%b %b HTTP/1.1\r\n%b\r\n" % (scope["method"].encode("ascii"), target, lines)

    def _outside(self, scope: Scope) -> tuple[bytes, bytes]:
        """Host and scheme as the client sees them, where a trusted proxy names them; the host may be empty."""
        given, scheme = dict(scope["headers"]), scope["scheme"].encode("ascii")
        peer: str = scope["client"][0] if scope["client"] is not None else ""
        if not addresses.is_within(peer, self._trusted):
            return b"", scheme
        # Of several proxies each adds its own: the last word is that of the one we trust.
        host = given.get(b"x-forwarded-host", b"").rpartition(b",")[2].strip()
        proto = given.get(b"x-forwarded-proto", b"").rpartition(b",")[2].strip().lower()
        return host if _HOST.fullmatch(host) else b"", proto if proto in (b"http", b"https") else scheme

    # --- The exchange ----------------------------------------------------------------------------------

    async def _forward(
        self, scope: Scope, receive: Receive, send: Send, identity: bytes, body: bytearray, client: str
    ) -> None:
        address = limit_key(client)
        credential = credential_of(scope["headers"])
        kept = 0 if self._known.is_preferred(credential) else self._kept
        if not self._requests.has_room(address, reserved=kept):
            raise _ProxyRefusal(503, "Too many requests at once: try again.", _TRY_AGAIN)
        head = self._head(scope, identity, len(body), client)
        slot = _Slot(self._requests, address)
        self._known.begin(credential)
        try:
            await _unless_gone(receive, self._exchange(scope, send, identity, head, body, slot))
        finally:
            slot.leave()
            self._known.end(credential, is_good=slot.is_known)

    async def _exchange(
        self, scope: Scope, send: Send, identity: bytes, head: bytes, body: bytearray, slot: _Slot
    ) -> None:
        """Forward the request, and stream the response."""
        deadline = asyncio.get_running_loop().time() + self._seconds
        try:
            async with asyncio.timeout_at(deadline):
                reader, writer = await asyncio.open_unix_connection(self._path, limit=MAX_HEAD_BYTES)
        except OSError:
            why = "The control plane is starting or being replaced: try again."
            raise _ProxyRefusal(503, why, _TRY_AGAIN) from None
        try:
            # Without waiting until it is taken: the answer may start first, and must be read.
            writer.write(head)
            writer.write(body)
            try:
                async with asyncio.timeout_at(deadline):
                    code, headers = _parse_head(await reader.readuntil(b"\r\n\r\n"))
            except TimeoutError:
                why = f"The control plane gave no answer within {self._seconds:g} s: {_IN_DOUBT}"
                raise _ProxyRefusal(504, why) from None
            except (EOFError, OSError, ValueError, asyncio.LimitOverrunError):
                raise _ProxyRefusal(502, f"The control plane broke off: {_IN_DOUBT}") from None
            slot.is_known = (_KNOWN, b"1") in headers
            headers = [header for header in headers if not header[0].startswith(_OWN)]
            lasting = self._slots_for(headers)
            if lasting is not None and not slot.move(lasting):
                why = "Too many live views or exports are open: close one, or try again."
                raise _ProxyRefusal(503, why, _TRY_AGAIN)
            bodiless = code in (204, 304)
            await send(_start(code, headers, identity, b"content-length" if bodiless else b""))
            await _stream(_pieces(reader, [] if bodiless or scope["method"] == "HEAD" else headers), send)
        finally:
            writer.transport.abort()

    def _slots_for(self, headers: Headers) -> AddressShares | None:
        """Where an answer belongs that lasts as long as its reader likes; None for all others."""
        # Server-sent events last until one side closes the connection.
        if any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers):
            return self._streams
        return self._downloads if (b"transfer-encoding", b"chunked") in headers else None


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Leave out what belongs to one connection alone. `host` stays even if listed: the app relies on it."""
    headers = list(headers)
    options = b",".join(value for name, value in headers if name == b"connection")
    dropped = _HOP_BY_HOP | ({option.strip().lower() for option in options.split(b",")} - {b"host"})
    return [header for header in headers if header[0] not in dropped and not header[0].startswith(b"proxy-")]


def _parse_head(head: bytes) -> tuple[int, Headers]:
    """Status and headers of an answer; ValueError where it is none."""
    first, *lines = head[:-4].split(b"\r\n")
    code = int(first.removeprefix(b"HTTP/1.1 ")[:3])
    if not 200 <= code < 600:
        raise ValueError(f"status {code}")
    return code, [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]


def _start(code: int, headers: Headers, identity: bytes, *dropped: bytes) -> dict[str, Any]:
    """The message that begins the answer to the client; it always has a request id."""
    # The worker's server writes a date of its own, and waits for as many bytes as a length promises.
    sent = [header for header in end_to_end(headers) if header[0] not in (b"date", *dropped)]
    if not any(name == b"x-request-id" for name, _ in sent):
        sent.append((b"x-request-id", identity))
    return {"type": "http.response.start", "status": code, "headers": sent}


async def _pieces(reader: asyncio.StreamReader, headers: Headers) -> AsyncIterator[tuple[bytes, bool]]:
    """The body as it arrives, each piece with whether more follows; EOFError, ValueError or OSError where it ends
    too early.

    One whose length is known comes whole: a slow reader holds memory of the worker, which is bounded by
    client address, and no place.
    """
    given = dict(headers)
    if given.get(b"transfer-encoding") != b"chunked":
        yield await reader.readexactly(int(given.get(b"content-length", b"0"))), False
        return
    while size := int(await reader.readline(), 16):
        while size > 0:
            piece = await reader.read(min(size, MAX_HEAD_BYTES))
            if not piece:
                raise EOFError
            size -= len(piece)
            yield piece, True
        await reader.readexactly(2)
    await reader.readexactly(2)
    yield b"", False


async def _stream(pieces: AsyncIterator[tuple[bytes, bool]], send: Send) -> None:
    """Send the body on as it arrives. How long the client may take it in is the server's affair."""
    more = True
    while more:
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                piece, more = await anext(pieces)
        except TimeoutError:
            raise AnswerCut(
                f"The control process did not answer for {SILENCE_SECONDS:g} s within an answer."
            ) from None
        except (EOFError, OSError, ValueError):
            raise AnswerCut("The control process closed the connection within an answer.") from None
        await send({"type": "http.response.body", "body": piece, "more_body": more})


async def _unless_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do the work, or drop it when the client goes away."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        gone.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)
    if not working.cancelled():
        working.result()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
