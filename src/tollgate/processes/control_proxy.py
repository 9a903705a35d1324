"""From a worker to the control process: an ASGI app that forwards, and a wrapper for the app that receives.

Owns the connection between the two processes: who may use it, what crosses it, its deadlines and bounds. Knows
nothing of what is asked for. It runs in workers, so no framework may enter.

One connection for each request: on loopback it costs little, and none is ever found stale. A shared secret
keeps other programs of the machine out; without it they could claim to be any client.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any

from tollgate import log
from tollgate.core import addresses
from tollgate.gateway.memory_budget import Budget
from tollgate.processes import status
from tollgate.processes.control_answer import ControlAnswer, Headers, end_to_end
from tollgate.processes.status import App, Receive, Scope, Send

# An answer that streams must say something more often than this, if only an empty line.
SILENCE_SECONDS = 60.0
# A worker sends a body in one go: what of it is still missing when the answer ends is nearly there.
REST_SECONDS = 5.0
_READ_BYTES = 65_536
_IN_DOUBT = "see whether it was done, then try again."

_OWN = b"x-tollgate-"
_INNER = b"x-tollgate-inner"
_CLIENT = b"x-tollgate-client"
_SCHEME = b"x-tollgate-scheme"
_TRY_AGAIN = (b"retry-after", b"1")
_CLOSE = (b"connection", b"close")
_log = log.get("forward")


class AnswerCut(Exception):
    """An answer ended before its end. What the client has of it must not look whole."""


class _Refused(Exception):
    """A request that the worker answers itself. Raised only before an answer has begun."""

    def __init__(self, status_code: int, detail: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(detail)
        self.status = status_code
        self.detail = detail
        self.headers = headers


def forwarding_app(
    target: tuple[str, int],
    secret: str,
    *,
    trusted: tuple[addresses.Network, ...],
    max_bytes: int,
    max_at_once: int,
    seconds: float,
) -> App:
    """The app of a worker that hands requests to the control process at `target`."""
    return _Forwarder(target, _bytes_of(secret), trusted, max_bytes, max_at_once, seconds)


def behind_workers(app: App, secret: str) -> App:
    """Wrap the app of the control process: only workers reach it, and it sees their clients."""
    expected = _bytes_of(secret)

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope["headers"])
        if not hmac.compare_digest(given.get(_INNER, b""), expected):
            await status.problem(
                send,
                status.request_id(scope),
                404,
                "Nothing is served here: use the public address of the service.",
            )
            return
        seen = {
            **scope,
            "headers": [header for header in scope["headers"] if not header[0].startswith(_OWN)],
            "client": (given.get(_CLIENT, b"").decode("latin-1"), 0),
            "scheme": given.get(_SCHEME, b"http").decode("latin-1"),
        }
        await app(seen, *_reading_to_the_end(receive, send))

    return wrapped


def _bytes_of(secret: str) -> bytes:
    if not secret:
        raise ValueError("The secret between workers and control process is empty.")
    return secret.encode()


def _reading_to_the_end(receive: Receive, send: Send) -> tuple[Receive, Send]:
    """Let an answer end only after the request's whole body is read.

    The server closes the connection then. With bytes unread that is a reset, which can take the answer with it.
    """
    whole = False

    async def receiving() -> dict[str, Any]:
        nonlocal whole
        message = await receive()
        whole = whole or message["type"] != "http.request" or not message.get("more_body", False)
        return message

    async def sending(message: dict[str, Any]) -> None:
        if not whole and message["type"] == "http.response.body" and not message.get("more_body", False):
            with suppress(TimeoutError):
                async with asyncio.timeout(REST_SECONDS):
                    while not whole:
                        await receiving()
        await send(message)

    return receiving, sending


class _Forwarder:
    """What the requests that a worker forwards share: where to, and how much at once."""

    def __init__(
        self,
        target: tuple[str, int],
        secret: bytes,
        trusted: tuple[addresses.Network, ...],
        max_bytes: int,
        max_at_once: int,
        seconds: float,
    ) -> None:
        self._target = target
        self._secret = secret
        self._trusted = trusted
        self._max_bytes = max_bytes
        self._max_at_once = max_at_once
        self._seconds = seconds
        self._under_way = 0
        # Requests that are still being read count by what they hold, not by their number: otherwise a few
        # clients that send nothing could keep everybody out.
        self._budget = Budget(max_at_once * max_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        identity = status.request_id(scope)
        body = bytearray()
        try:
            if await self._read(scope, receive, body):
                await self._forward(scope, receive, send, identity, body)
        except _Refused as refused:
            if refused.status in (502, 504):
                _log.warning("no answer from the control process", status=refused.status, id=identity.decode())
            await status.problem(send, identity, refused.status, refused.detail, *refused.headers)
        finally:
            self._budget.free(len(body))

    # --- The request -----------------------------------------------------------------------------------

    async def _read(self, scope: Scope, receive: Receive, body: bytearray) -> bool:
        """Read the body whole; False if the client is gone before its end."""
        self._check_length(scope["headers"])
        try:
            async with asyncio.timeout(self._seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return False
                    self._keep(message.get("body", b""), body)
                    if not message.get("more_body", False):
                        return True
        except TimeoutError:
            raise _Refused(
                408, f"The body did not arrive within {self._seconds:g} s: send it again, faster.", _CLOSE
            ) from None

    def _check_length(self, headers: Headers) -> None:
        """Refuse a body by what its head says of it."""
        given = dict(headers)
        length = given.get(b"content-length", b"")
        if length.isdigit() and int(length) > self._max_bytes:
            # Who waits for leave to send the body will not send it, so the next request could be taken for it.
            raise self._too_large(*((_CLOSE,) if b"expect" in given else ()))

    def _keep(self, piece: bytes, body: bytearray) -> None:
        if len(body) + len(piece) > self._max_bytes:
            raise self._too_large()
        if not self._budget.hold(len(piece)):
            raise _Refused(503, "Too many large requests at once: try again.", _TRY_AGAIN)
        body += piece

    def _too_large(self, *headers: tuple[bytes, bytes]) -> _Refused:
        return _Refused(413, f"The body is larger than {self._max_bytes} bytes: send a smaller one.", *headers)

    def _head(self, scope: Scope, identity: bytes, length: int) -> bytes:
        """The head of the request as the control process gets it."""
        query = scope["query_string"]
        target = scope["raw_path"] + (b"?" + query if query else b"")
        replaced = (b"content-length", b"x-request-id")
        headers = [
            header
            for header in end_to_end(scope["headers"])
            if header[0] not in replaced and not header[0].startswith((_OWN, b"x-forwarded-"))
        ]
        headers += [
            (b"connection", b"close"),
            (b"content-length", b"%d" % length),
            (b"x-request-id", identity),
            (_INNER, self._secret),
            (_CLIENT, self._address(scope).encode("latin-1")),
            (_SCHEME, scope["scheme"].encode("ascii")),
        ]
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        return b"%b %b HTTP/1.1\r\n%b\r\n" % (scope["method"].encode("ascii"), target, lines)

    def _address(self, scope: Scope) -> str:
        """The client's address, as far as it can be believed."""
        peer: str = scope["client"][0] if scope["client"] is not None else ""
        given = b",".join(value for name, value in scope["headers"] if name == b"x-forwarded-for")
        return addresses.client_address(peer, given.decode("latin-1"), self._trusted)

    # --- The exchange ----------------------------------------------------------------------------------

    async def _forward(self, scope: Scope, receive: Receive, send: Send, identity: bytes, body: bytearray) -> None:
        if self._under_way >= self._max_at_once:
            raise _Refused(503, "Too many requests at once: try again.", _TRY_AGAIN)
        request = (self._head(scope, identity, len(body)), body)
        answer = ControlAnswer(to_head=scope["method"] == "HEAD")
        self._under_way += 1
        try:
            await _unless_gone(receive, self._exchange(request, answer, send, identity))
        finally:
            self._under_way -= 1
            answer.close()

    async def _exchange(
        self, request: Iterable[bytes | bytearray], answer: ControlAnswer, send: Send, identity: bytes
    ) -> None:
        """Ask, and send the answer on while it arrives."""
        deadline = asyncio.get_running_loop().time() + self._seconds
        reader, writer = await self._connect(deadline)
        try:
            for piece in request:
                # Without waiting until it is taken: the answer may begin first, and somebody must read it.
                writer.write(piece)
            await self._read_head(reader, answer, deadline)
            await send(answer.start(identity))
            await _stream(reader, answer, send)
        finally:
            writer.transport.abort()

    async def _connect(self, deadline: float) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            async with asyncio.timeout_at(deadline):
                return await asyncio.open_connection(*self._target)
        except OSError:
            raise _Refused(
                503, "The control plane is starting or being replaced: try again.", _TRY_AGAIN
            ) from None

    async def _read_head(self, reader: asyncio.StreamReader, answer: ControlAnswer, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                while not answer.begun:
                    data = await reader.read(_READ_BYTES)
                    answer.feed(data)
                    if not data or (answer.wrong and not answer.begun):
                        raise _Refused(502, f"The control plane broke off: {_IN_DOUBT}")
        except TimeoutError:
            why = f"The control plane gave no answer within {self._seconds:g} s: {_IN_DOUBT}"
            raise _Refused(504, why) from None
        except OSError:
            raise _Refused(502, f"The control plane broke off: {_IN_DOUBT}") from None


async def _stream(reader: asyncio.StreamReader, answer: ControlAnswer, send: Send) -> None:
    """Send the body on as it arrives. How long the client may take it in is the server's affair."""
    while True:
        piece = answer.take()
        if piece or answer.whole:
            await send({"type": "http.response.body", "body": piece, "more_body": not answer.whole})
        if answer.whole:
            return
        if answer.wrong:
            raise AnswerCut("The control process sent a broken body.")
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                data = await reader.read(_READ_BYTES)
        except TimeoutError:
            raise AnswerCut(
                f"The control process was silent for {SILENCE_SECONDS:g} s within an answer."
            ) from None
        except OSError:
            data = b""
        if not data:
            raise AnswerCut("The control process hung up within an answer.")
        answer.feed(data)


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
