"""JSON-RPC 2.0: request bytes into calls, replies into answer bytes.

Owns the grammar and nothing else. Two rules:
- What the caller sent is never passed on: a call is rebuilt from its parsed method, params and id, so that a
  doubled or oddly cased member cannot slip past a rule that looked at another one.
- Ids and params stay bytes: an id comes back exactly as it was written.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from tollgate.errors import BatchTooLarge, InvalidRequest, ParseError

NULL = b"null"
NO_PARAMS = b"[]"
_ABSENT = Raw(b"")
_ID_STARTS = b'"-0123456789'


class Call(Struct, frozen=True, gc=False):
    """One call. `id` is None for a notification; `problem` is set where a member of a batch is not a call."""

    method: str
    params: bytes
    id: bytes | None
    problem: str = ""


class Reply(Struct, frozen=True, gc=False):
    """What a node said to one call: a result or, if `failed`, an error object; as the bytes it sent."""

    value: bytes
    failed: bool = False


class _Request(Struct, gc=False):
    jsonrpc: str | None = None
    method: str | None = None
    params: Raw = _ABSENT
    id: Raw = _ABSENT


class _Identified(Struct, gc=False):
    id: Raw = _ABSENT


class _Response(Struct, gc=False):
    result: Raw = _ABSENT
    error: Raw = _ABSENT
    id: Raw = _ABSENT


class _ErrorObject(Struct, gc=False):
    code: int


_one = msgspec.json.Decoder(_Request).decode
_many = msgspec.json.Decoder(list[_Request]).decode
_anything = msgspec.json.Decoder(Raw).decode
_members = msgspec.json.Decoder(list[Raw]).decode
_identified = msgspec.json.Decoder(_Identified).decode
_response = msgspec.json.Decoder(_Response).decode
_responses = msgspec.json.Decoder(list[_Response]).decode
_error_object = msgspec.json.Decoder(_ErrorObject).decode
_text = msgspec.json.Encoder().encode


class Unparsable(ValueError):
    """A node's answer that is not a JSON-RPC response."""


def parse(body: bytes, most: int) -> Call | list[Call]:
    """Read a request body: one call, or a batch of at most `most`."""
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise ParseError from error
    try:
        return _batch(body, most) if body.lstrip()[:1] == b"[" else _call(_one(body))
    except msgspec.ValidationError as error:
        raise _not_a_request(body) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise ParseError from error


def _not_a_request(body: bytes) -> InvalidRequest | ParseError:
    """Tell JSON of the wrong shape from a body that is wrong further on: msgspec stops at the first."""
    try:
        _anything(body)
    except (msgspec.DecodeError, RecursionError):
        return ParseError()
    return InvalidRequest(caller_id=_id_of(body))


def _batch(body: bytes, most: int) -> list[Call]:
    members: list[_Request] | list[Raw]
    try:
        members = _many(body)
    except msgspec.ValidationError:
        members = _members(body)
    if not members:
        raise InvalidRequest("An empty batch: send at least one call.")
    if len(members) > most:
        raise BatchTooLarge(
            f"The batch has {len(members)} calls, {most} are allowed: split it.", data={"limit": most}
        )
    return [_member(member) for member in members]


def _member(member: _Request | Raw) -> Call:
    """Read one member of a batch; a bad one is answered in its place, it does not spoil the others."""
    try:
        return _call(_one(member) if isinstance(member, Raw) else member)
    except msgspec.ValidationError:
        return Call("", NO_PARAMS, _id_of(member) if isinstance(member, Raw) else NULL, InvalidRequest.hint)
    except InvalidRequest as refusal:
        return Call("", NO_PARAMS, refusal.caller_id, refusal.message)


def _call(request: _Request) -> Call:
    call_id = bytes(request.id)
    if request.jsonrpc != "2.0":
        raise _invalid('The member "jsonrpc" must be "2.0".', call_id)
    if not request.method:
        raise _invalid('The member "method" must be a non-empty string.', call_id)
    if call_id and call_id[0] not in _ID_STARTS and call_id != NULL:
        raise _invalid('The member "id" must be an integer, a string or null.', NULL)
    params = bytes(request.params) or NO_PARAMS
    if params[0] not in b"[{":
        if params != NULL:
            raise _invalid('The member "params" must be an array or an object.', call_id)
        params = NO_PARAMS
    return Call(request.method, params, call_id or None)


def _invalid(message: str, call_id: bytes) -> InvalidRequest:
    return InvalidRequest(message, caller_id=call_id if call_id[:1] and call_id[0] in _ID_STARTS else NULL)


def _id_of(body: bytes | Raw) -> bytes:
    """Find the id of something that is not a call, as well as can be."""
    try:
        found = bytes(_identified(body).id)
    except (msgspec.DecodeError, RecursionError):
        return NULL
    return found if found[:1] and found[0] in _ID_STARTS else NULL


def encode_call(call: Call, call_id: bytes) -> bytes:
    """Write one call for a node."""
    return b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % (call_id, _text(call.method), call.params)


def encode_batch(calls: list[Call]) -> bytes:
    """Write calls for a node, numbered from 0: callers' ids may repeat, and nodes may rewrite them."""
    return b"[%b]" % b",".join([encode_call(call, b"%d" % number) for number, call in enumerate(calls)])


def decode_reply(body: bytes) -> Reply:
    """Read a node's answer to one call."""
    try:
        return _reply(_response(body))
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unparsable("not a JSON-RPC response") from error


def decode_batch(body: bytes, count: int) -> list[Reply]:
    """Read a node's answer to a batch of `count` calls, in the order of the calls."""
    try:
        responses = _responses(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unparsable("not a JSON-RPC batch response") from error
    replies: list[Reply | None] = [None] * count
    for response in responses:
        number = bytes(response.id)
        if not number.isdigit() or (index := int(number)) >= count:
            raise Unparsable("a response with an id that was not asked for")
        replies[index] = _reply(response)
    complete = [reply for reply in replies if reply is not None]
    if len(complete) != count:
        raise Unparsable(f"{len(complete)} responses to {count} calls")
    return complete


def _reply(response: _Response) -> Reply:
    error = bytes(response.error)
    if error and error != NULL:
        if error[:1] != b"{":
            raise Unparsable("an error that is not an object")
        return Reply(error, failed=True)
    result = bytes(response.result)
    if not result:
        raise Unparsable("neither result nor error")
    return Reply(result)


def error_code(error: bytes) -> int:
    """Return the code of a node's error object; 0 where it has none."""
    try:
        return _error_object(error).code
    except msgspec.DecodeError:
        return 0


def encode_answer(call_id: bytes, reply: Reply) -> bytes:
    """Write the answer to one call, under the caller's own id."""
    member = b"error" if reply.failed else b"result"
    return b'{"jsonrpc":"2.0","id":%b,"%b":%b}' % (call_id, member, reply.value)


def encode_error(call_id: bytes, code: int, message: str, data: dict[str, object]) -> bytes:
    """Write an error of ours."""
    error = {"code": code, "message": message, "data": data}
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (call_id, _text(error))
