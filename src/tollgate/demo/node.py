"""The simulated node: JSON-RPC over HTTP and WebSocket for all simulated networks, at `/<family>/<network>`.

Those of Starknet are by the newest version there, and by each version at `/starknet/<network>/rpc/v0_…`.

An ASGI application. The clock comes in as an argument, and is read once a request, so that all calls of a batch
see the same head.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from tollgate.chains import starknet_versions as versions
from tollgate.demo.chain import genesis_before
from tollgate.demo.eth_methods import eth_network
from tollgate.demo.network import SimulatedNetwork
from tollgate.demo.params import RpcError, Shape
from tollgate.demo.starknet_feed import StarknetFeed
from tollgate.demo.starknet_methods import in_version, starknet_network

PARSE_ERROR = -32700
INVALID_REQUEST = -32600

# geth's limits for a body and a batch.
_MAX_BODY_BYTES = 5 * 1024 * 1024
_MAX_BATCH = 1000

_HEADERS = [(b"content-type", b"application/json"), (b"x-simulated-chain", b"1")]
_NULL = Raw(b"null")

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]


class Answers(Protocol):
    """Where calls go: a network, or a connection to one that can subscribe."""

    def answer(self, method: str, params: object, now: float) -> object:
        """Return the result of a call, or raise `RpcError`."""


class SimulatedNode:
    """An ASGI application that answers for all simulated networks."""

    def __init__(self, now: Callable[[], float], genesis: int | None = None) -> None:
        self._now = now
        start = genesis_before(now()) if genesis is None else genesis
        self.networks: dict[str, SimulatedNetwork] = {}
        for network in ("mainnet", "sepolia"):
            self.networks[f"/eth/{network}"] = eth_network(network, start)
            newest = starknet_network(network, start)
            self.networks[f"/starknet/{network}"] = newest
            for version in versions.VERSIONS:
                path = f"/starknet/{network}{versions.path(version)}"
                self.networks[path] = in_version(newest, version)

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        if scope["type"] == "websocket":
            with suppress(OSError):  # the client left
                await self._converse(scope, receive, send)
            return
        status, body = await self._serve(scope, receive)
        length = [] if status == 204 else [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": _HEADERS + length})
        await send({"type": "http.response.body", "body": body})

    async def _serve(self, scope: _Message, receive: _Receive) -> tuple[int, bytes]:
        network = self._network(scope)
        if network is None:
            return 404, self._unknown()
        if scope["method"] != "POST":
            return 405, _refusal(INVALID_REQUEST, "Only POST is answered")
        body = await _body(receive)
        if body is None:
            return 413, _refusal(INVALID_REQUEST, f"The body is larger than {_MAX_BODY_BYTES} bytes")
        answer = respond(network, body, self._now())
        return (204, b"") if answer is None else (200, answer)

    def _network(self, scope: _Message) -> SimulatedNetwork | None:
        return self.networks.get(scope["path"].rstrip("/"))

    def _unknown(self) -> bytes:
        return _refusal(INVALID_REQUEST, f"The simulated networks are {', '.join(self.networks)}")

    async def _converse(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """Answer the calls of a WebSocket, and send what it has subscribed to."""
        network = self._network(scope)
        await receive()
        if network is None:
            start = {"type": "websocket.http.response.start", "status": 404, "headers": _HEADERS}
            await send(start)
            await send({"type": "websocket.http.response.body", "body": self._unknown()})
            return
        await send({"type": "websocket.accept"})
        # Networks of eth have no subscriptions.
        feed = StarknetFeed(network) if network.version else None
        message = asyncio.ensure_future(receive())
        try:
            while True:
                wait_seconds = feed.wait_seconds(self._now()) if feed else None
                received, _ = await asyncio.wait({message}, timeout=wait_seconds)
                if received:
                    given = message.result()
                    if given["type"] == "websocket.disconnect":
                        return
                    body = given.get("bytes") or (given.get("text") or "").encode()
                    answer = respond(feed or network, body, self._now())
                    if answer is not None:
                        await send({"type": "websocket.send", "text": answer.decode()})
                    message = asyncio.ensure_future(receive())
                for notification in feed.notifications(self._now()) if feed else ():
                    await send({"type": "websocket.send", "text": notification.decode()})
        finally:
            message.cancel()


async def _body(receive: _Receive) -> bytes | None:
    """Read a request's body; `None` if it is too large."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > _MAX_BODY_BYTES:
            return None
        if not message.get("more_body", False):
            return bytes(body)


# ---- JSON-RPC


class _Call(Struct, frozen=True):
    jsonrpc: str
    method: str
    params: Any = None
    id: Raw | UnsetType = UNSET


def respond(network: Answers, body: bytes, now: float) -> bytes | None:
    """Answer a JSON-RPC body; `None` if it held nothing but notifications."""
    try:
        # Syntax is checked first and whole: a Raw is cut out without a look at what is inside.
        msgspec.json.decode(body)
        is_batch = body.lstrip()[:1] == b"["
        calls = msgspec.json.decode(body, type=list[Raw]) if is_batch else [Raw(body)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _refusal(PARSE_ERROR, "The body is not JSON")
    if not 0 < len(calls) <= _MAX_BATCH:
        return _refusal(INVALID_REQUEST, f"The batch has {len(calls)} calls, not 1 to {_MAX_BATCH}")
    replies = [reply for call in calls if (reply := _reply(network, call, now)) is not None]
    if not replies:
        return None
    return msgspec.json.encode(replies if is_batch else replies[0])


def _reply(network: Answers, raw: Raw, now: float) -> Shape | None:
    try:
        call = msgspec.json.decode(raw, type=_Call)
        # An id is a string, a number or null.
        if call.jsonrpc != "2.0" or (call.id is not UNSET and bytes(call.id)[:1] in b"[{tf"):
            return _error(_NULL, RpcError(INVALID_REQUEST, "The call is not a JSON-RPC 2.0 request"))
        try:
            reply: Shape = {
                "jsonrpc": "2.0",
                "id": call.id,
                "result": network.answer(call.method, call.params, now),
            }
        except RpcError as error:
            reply = _error(call.id, error)
    except (msgspec.ValidationError, RecursionError):
        # What could just be decoded may be too deep to be encoded again.
        return _error(_NULL, RpcError(INVALID_REQUEST, "The call is not a JSON-RPC request"))
    return None if call.id is UNSET else reply


def _error(call_id: object, error: RpcError) -> Shape:
    shown: Shape = {"code": error.code, "message": error.message}
    if error.data is not None:
        shown["data"] = error.data
    return {"jsonrpc": "2.0", "id": call_id, "error": shown}


def _refusal(code: int, message: str) -> bytes:
    """Write an error that answers no call in particular."""
    return msgspec.json.encode(_error(_NULL, RpcError(code, message)))
