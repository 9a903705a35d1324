"""JSON-RPC 2.0 as the simulated node speaks it: single calls, batches and notifications, over any transport.

Owns the framing of bodies. What a method answers is not its business. The time is read once a body, so that all
calls of a batch see the same head.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from tollgate.demo.chain_params import RpcError

PARSE_ERROR = -32700
INVALID_REQUEST = -32600

# geth's limits for a body and a batch.
LARGEST_BODY = 5 * 1024 * 1024
_LARGEST_BATCH = 1000

_NULL = Raw(b"null")


class Answerer(Protocol):
    """Who answers the calls, or raises `RpcError`."""

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


def respond(network: Answerer, body: bytes, now: float) -> bytes | None:
    """Answer a JSON-RPC body; `None` if it held nothing but notifications."""
    try:
        # Syntax is checked first and whole: a Raw is cut out without a look at what is inside.
        msgspec.json.decode(body)
        is_batch = body.lstrip()[:1] == b"["
        calls = msgspec.json.decode(body, type=list[Raw]) if is_batch else [Raw(body)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return refusal(PARSE_ERROR, "The body is not JSON")
    if not calls:
        return refusal(INVALID_REQUEST, "The batch is empty")
    if len(calls) > _LARGEST_BATCH:
        return refusal(INVALID_REQUEST, f"The batch has more than {_LARGEST_BATCH} calls")
    replies = [reply for call in calls if (reply := _reply(network, call, now)) is not None]
    if not replies:
        return None
    return msgspec.json.encode(replies if is_batch else replies[0])


def _reply(network: Answerer, raw: Raw, now: float) -> _Reply | None:
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


def refusal(code: int, message: str) -> bytes:
    """Write an error that answers no call in particular."""
    return msgspec.json.encode(_failure(_NULL, RpcError(code, message)))
