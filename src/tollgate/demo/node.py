"""The simulated node: JSON-RPC 2.0 over HTTP in front of the simulated chains.

Owns the HTTP and JSON-RPC framing, single calls and batches, on `POST /<family>/<network>`. What a method
answers is not its business. The clock comes in as an argument, and is read once a request, so that all calls
of a batch see the same head.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from tollgate.demo import eth, starknet
from tollgate.demo.chain import genesis_before
from tollgate.demo.chain_params import RpcError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

PARSE_ERROR = -32700
INVALID_REQUEST = -32600

# geth's limits for a body and a batch.
_LARGEST_BODY = 5 * 1024 * 1024
_LARGEST_BATCH = 1000

_HEADERS = [(b"content-type", b"application/json"), (b"x-simulated-chain", b"1")]
_NULL = Raw(b"null")


class Network(Protocol):
    """What stands behind one path: a chain that answers calls, or raises `RpcError`."""

    def answer(self, method: str, params: object, now: float) -> object:
        """Return the result of a call."""


class _Call(Struct, frozen=True):
    method: str
    jsonrpc: str | UnsetType = UNSET
    params: Any = None
    id: Raw | UnsetType = UNSET


class _Result(Struct, frozen=True):
    jsonrpc: str
    id: Raw
    result: object


class _Error(Struct, frozen=True, omit_defaults=True):
    code: int
    message: str
    data: object = None


class _Failure(Struct, frozen=True):
    jsonrpc: str
    id: Raw
    error: _Error


_Reply = _Result | _Failure


def networks(genesis: int) -> dict[str, Network]:
    """Return every simulated network by its path."""
    found: dict[str, Network] = {}
    found |= {f"/eth/{name}": eth.EthNode(name, genesis) for name in eth.NETWORKS}
    found |= {f"/starknet/{name}": starknet.StarknetNode(name, genesis) for name in starknet.NETWORKS}
    return found


class SimulatedNode:
    """An ASGI application that answers for all simulated networks."""

    def __init__(self, now: Callable[[], float], genesis: int | None = None) -> None:
        self._now = now
        self.networks = networks(genesis_before(now()) if genesis is None else genesis)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            status, body = await self._serve(scope, receive)
            length = [] if status == 204 else [(b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": status, "headers": _HEADERS + length})
            await send({"type": "http.response.body", "body": body})

    async def _serve(self, scope: Scope, receive: Receive) -> tuple[int, bytes]:
        network = self.networks.get(scope["path"].rstrip("/"))
        if network is None:
            return 404, _refusal(INVALID_REQUEST, f"The simulated networks are {', '.join(self.networks)}")
        if scope["method"] != "POST":
            return 405, _refusal(INVALID_REQUEST, "Only POST is answered")
        body = await _body(receive)
        if body is None:
            return 413, _refusal(INVALID_REQUEST, f"The body is larger than {_LARGEST_BODY} bytes")
        answer = respond(network, body, self._now())
        return (204, b"") if answer is None else (200, answer)


def respond(network: Network, body: bytes, now: float) -> bytes | None:
    """Answer a JSON-RPC body; `None` if it held nothing but notifications."""
    try:
        # Syntax is checked first and whole: a Raw is cut out without a look at what is inside.
        msgspec.json.decode(body)
        is_batch = body.lstrip()[:1] == b"["
        calls = msgspec.json.decode(body, type=list[Raw]) if is_batch else [Raw(body)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _refusal(PARSE_ERROR, "The body is not JSON")
    if not calls:
        return _refusal(INVALID_REQUEST, "The batch is empty")
    if len(calls) > _LARGEST_BATCH:
        return _refusal(INVALID_REQUEST, f"The batch has more than {_LARGEST_BATCH} calls")
    replies = [reply for call in calls if (reply := _reply(network, call, now)) is not None]
    if not replies:
        return None
    return msgspec.json.encode(replies if is_batch else replies[0])


def _reply(network: Network, raw: Raw, now: float) -> _Reply | None:
    try:
        call = msgspec.json.decode(raw, type=_Call)
    except (msgspec.ValidationError, RecursionError):
        return _failure(_NULL, RpcError(INVALID_REQUEST, "The call is not a JSON-RPC request"))
    if call.jsonrpc != "2.0" or not _is_id(call.id):
        return _failure(_NULL, RpcError(INVALID_REQUEST, "The call is not a JSON-RPC 2.0 request"))
    try:
        result = network.answer(call.method, call.params, now)
    except RpcError as error:
        return None if isinstance(call.id, UnsetType) else _failure(call.id, error)
    except RecursionError:
        # What could just be decoded may be too deep to be encoded again.
        return _failure(_NULL, RpcError(INVALID_REQUEST, "The call is nested too deeply"))
    return None if isinstance(call.id, UnsetType) else _Result("2.0", call.id, result)


def _is_id(value: Raw | UnsetType) -> bool:
    """Tell whether an id is absent, a string, a number or null, by how it begins."""
    return isinstance(value, UnsetType) or bytes(value)[:1] not in b"[{tf"


def _failure(call_id: Raw, error: RpcError) -> _Failure:
    return _Failure("2.0", call_id, _Error(error.code, error.message, error.data))


def _refusal(code: int, message: str) -> bytes:
    return msgspec.json.encode(_failure(_NULL, RpcError(code, message)))


async def _body(receive: Receive) -> bytes | None:
    """Read a request's body; `None` if it is too large."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > _LARGEST_BODY:
            return None
        if not message.get("more_body", False):
            return bytes(body)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
