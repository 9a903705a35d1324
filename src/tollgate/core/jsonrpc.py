"""JSON-RPC 2.0: request bytes into calls, replies into answer bytes.

Owns the grammar and nothing else. Two rules:
- What the caller sent is never passed on: a call is rebuilt from its parsed method, params and id, so that a
  doubled or oddly cased member cannot slip past a rule that looked at another one.
- An id comes back exactly as it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import msgspec
from msgspec import Raw

from tollgate.core.shapes import (
    ABSENT,
    AnyCall,
    Call,
    ErrorAnswer,
    ErrorCode,
    ErrorMessage,
    LooseCall,
    NumberedReply,
    PlainCall,
    Replies,
    Reply,
    Result,
    SentCall,
    WrittenCall,
)
from tollgate.errors import BatchTooLarge, InvalidRequest, ParseError

NULL = Raw(b"null")
# What a good id begins with; null aside.
_IDS = b'"-0123456789'
# What params begin with: an array, an object or null; or nothing, where there are none.
_PARAMS = (b"[", b"{", b"n", b"")
# Nodes disagree about absent and null params; all take an empty array.
_NO_PARAMS: list[Raw] = []

_plain = msgspec.json.Decoder(PlainCall).decode
_plain_batch = msgspec.json.Decoder(list[PlainCall]).decode
_any = msgspec.json.Decoder(AnyCall).decode
_loose = msgspec.json.Decoder(LooseCall).decode
_anything = msgspec.json.Decoder(Raw).decode
_members = msgspec.json.Decoder(list[Raw]).decode
_error_code = msgspec.json.Decoder(ErrorCode).decode
_error_message = msgspec.json.Decoder(ErrorMessage).decode
# What any database keeps: 63 bits.
_LEAST_CODE = -(2**63) + 1
_reply = msgspec.json.Decoder(Reply).decode
_replies = msgspec.json.Decoder(list[NumberedReply]).decode
_json = msgspec.json.Encoder().encode

# No real method is longer; what callers invent must not fill a memory that counts names, not bytes.
MAX_REMEMBERED_METHOD = 128
# A refusal must stay cheap.
MAX_NAMED_BYTES = 4_096
# What is looked at of a node's error message.
MAX_MESSAGE = 512
# Of an id that goes out to a node: some break at a number of thousands of digits, and would be taken for ill.
MAX_SENT_ID_BYTES = 100
# Of members of a batch, where those are not all plain calls: as many can be counted without reading all.
_MAX_BOUNDED = 1_000
_A_NUMBER = 1
_VERSION = "2.0"


class Unparsable(ValueError):
    """A node's answer that is not a JSON-RPC response."""


# --- Requests ------------------------------------------------------------------------------------------------


def parse(body: bytes, max_calls: int) -> Call | list[PlainCall] | list[WrittenCall]:
    """Read a request body: one call, or a batch of at most `max_calls`."""
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise ParseError from error
    # The one integer that is not written back as it came. Looking for one byte first is much quicker.
    usual = b"-" not in body or b"-0" not in body
    try:
        if body.startswith(b"[") or body.lstrip()[:1] == b"[":
            return _batch(body, max_calls, usual)
        try:
            return _plain(body) if usual else _written(body)
        except msgspec.ValidationError:
            return _written(body)
    except msgspec.ValidationError as error:
        raise _not_a_request(body) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise ParseError from error


def named(body: bytes) -> list[str]:
    """The methods of a request that is refused unread, for its record; one of no name if large or no request."""
    if len(body) > MAX_NAMED_BYTES:
        return [""]
    try:
        parsed = parse(body, MAX_NAMED_BYTES)
    except (InvalidRequest, ParseError):
        return [""]
    calls: Sequence[Call] = parsed if isinstance(parsed, list) else [parsed]
    return [call.method for call in calls]


def _batch(body: bytes, max_calls: int, usual: bool) -> list[PlainCall] | list[WrittenCall]:
    if usual:
        try:
            calls = _plain_batch(body)
        except msgspec.ValidationError:
            pass
        else:
            _check_size(len(calls), max_calls)
            return calls
    if len(body) > MAX_NAMED_BYTES and max_calls <= _MAX_BOUNDED:
        try:
            _bounded(max_calls)(body)
        except msgspec.ValidationError as error:
            raise _too_many(f"more than {max_calls}", max_calls) from error
    members = _members(body)
    _check_size(len(members), max_calls)
    return [_member(member) for member in members]


def _check_size(calls: int, max_calls: int) -> None:
    if not calls:
        raise InvalidRequest("An empty batch: send at least one call.")
    if calls > max_calls:
        raise _too_many(str(calls), max_calls)


def _too_many(calls: str, max_calls: int) -> BatchTooLarge:
    return BatchTooLarge(
        f"The batch has {calls} calls, {max_calls} are allowed: split it.", data={"limit": max_calls}
    )


@cache
def _bounded(max_calls: int) -> Callable[[bytes], object]:
    """A decoder that stops at the first member too many: a megabyte may have half a million of them."""
    members = [(f"m{number}", Raw, ABSENT) for number in range(max_calls)]
    shape = msgspec.defstruct("Members", members, array_like=True, forbid_unknown_fields=True)
    return msgspec.json.Decoder(shape).decode


def _member(member: Raw) -> WrittenCall:
    """Read one member of a batch; a bad one is answered in its place, it does not spoil the others."""
    try:
        return _written(member)
    except msgspec.ValidationError:
        refusal = _explained(member)
    except InvalidRequest as error:
        refusal = error
    return WrittenCall("", None, Raw(refusal.caller_id), refusal.message)


def _written(body: bytes | Raw) -> WrittenCall:
    """Read a call whose id is not a plain integer."""
    call = _any(body)
    call_id = bytes(call.id)
    if call_id and call_id != b"null" and not _is_id(call_id):
        raise InvalidRequest('The member "id" must be an integer, a string or null.')
    return WrittenCall(call.method, call.params, Raw(call_id) if call_id else None)


def _is_id(written: bytes) -> bool:
    """Whether an id is an integer or a string: JavaScript clients lose digits of fractions, so none are taken."""
    if written[:1] not in _IDS:
        return False
    return written[:1] == b'"' or not any(sign in written for sign in b".eE")


def _not_a_request(body: bytes) -> InvalidRequest | ParseError:
    """Whether the whole body is JSON: msgspec stops at the first value of the wrong shape."""
    try:
        _anything(body)
    except (msgspec.DecodeError, RecursionError):
        return ParseError()
    return _explained(body)


def _explained(request: bytes | Raw) -> InvalidRequest:
    """Return what is wrong with something that is not a request, under its id if it has a good one."""
    try:
        loose = _loose(request)
    except (msgspec.DecodeError, RecursionError):
        return InvalidRequest()
    call_id = bytes(loose.id)
    call_id = call_id if call_id and _is_id(call_id) else b"null"
    if bytes(loose.jsonrpc) != b'"2.0"':
        message = 'The member "jsonrpc" must be "2.0".'
    elif bytes(loose.method)[:1] != b'"' or bytes(loose.method) == b'""':
        message = 'The member "method" must be a non-empty string.'
    elif bytes(loose.params)[:1] not in _PARAMS:
        message = 'The member "params" must be an array or an object.'
    else:
        # Of two, the last is taken here, and both are looked at before.
        message = "A member is given twice, once with a wrong value: give each once."
    return InvalidRequest(message, caller_id=call_id)


def caller_id(call: Call) -> Raw | int:
    """The id to answer with, as the caller wrote it; null for a notification."""
    return NULL if call.id is None else call.id


# --- To and from nodes -----------------------------------------------------------------------------------------


def encode_call(call: Call) -> bytes:
    """Write one call for a node. Nodes disagree about null ids, long ones and notifications: a number is sent."""
    call_id = call.id
    if call_id is None or (
        isinstance(call_id, Raw) and (call_id == NULL or len(bytes(call_id)) > MAX_SENT_ID_BYTES)
    ):
        call_id = _A_NUMBER
    return _json(SentCall(_VERSION, call_id, call.method, _NO_PARAMS if call.params is None else call.params))


def encode_batch(calls: Sequence[Call]) -> bytes:
    """Write calls for a node, numbered from 0: callers' ids may repeat, and nodes may rewrite them."""
    return _json(
        [
            SentCall(_VERSION, number, call.method, _NO_PARAMS if call.params is None else call.params)
            for number, call in enumerate(calls)
        ]
    )


def decode_reply(body: bytes) -> Reply:
    """Read a node's answer to one call."""
    if not body.isascii():
        _check_text(body)
    try:
        reply = _reply(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unparsable("not a JSON-RPC response") from error
    return reply if reply.error is ABSENT and reply.result is not ABSENT else _settled(reply)


def error_code(reply: Reply) -> int | None:
    """The code of a node's error; None where it gave none that is a number."""
    try:
        code = _error_code(reply.error).code
    except (msgspec.MsgspecError, RecursionError):
        return None
    return code if _LEAST_CODE <= code <= -_LEAST_CODE else None


def error_details(reply: Reply) -> tuple[int | None, str]:
    """The code and the message of a node's error, as far as it has them; the message is cut."""
    try:
        failure = _error_message(reply.error)
    except (msgspec.MsgspecError, RecursionError):
        return error_code(reply), ""
    # Not its data: a contract may revert with any text.
    return failure.code, failure.message[:MAX_MESSAGE]


def decode_batch(body: bytes, ids: Sequence[int]) -> Replies:
    """Read a node's answer to a batch of calls under these ids, in their order."""
    _check_text(body)
    try:
        replies = _replies(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unparsable("not a JSON-RPC batch response") from error
    by_id = {reply.id: reply for reply in replies}
    if len(replies) != len(ids) or len(by_id) != len(ids) or any(each not in by_id for each in ids):
        raise Unparsable(f"{len(replies)} responses to {len(ids)} calls, or unknown ids")
    settled = [_settled(by_id[each]) for each in ids]
    return Replies(settled, all_results=all(reply.error is ABSENT for reply in settled))


def _check_text(body: bytes) -> None:
    """Refuse what is not UTF-8: msgspec does not look into what it skips."""
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise Unparsable("not UTF-8") from error


def _settled(reply: Reply) -> Reply:
    """Check a reply, and make one of it that is either a result or an error."""
    if reply.error is ABSENT and reply.result is not ABSENT:
        return reply
    error = bytes(reply.error)
    if error in (b"", b"null"):
        if reply.result is ABSENT:
            raise Unparsable("neither result nor error")
        return Reply(reply.result)
    if error[:1] != b"{":
        raise Unparsable("an error that is not an object")
    return Reply(ABSENT, reply.error)


# --- Answers -------------------------------------------------------------------------------------------------


def encode_answer(call_id: Raw | int, reply: Reply) -> bytes:
    """Write the answer to one call, under the caller's own id."""
    if reply.error is ABSENT:
        return _json(Result(_VERSION, call_id, reply.result))
    return _json(ErrorAnswer(_VERSION, call_id, reply.error))


def encode_error(call_id: Raw | int, code: int, message: str, data: dict[str, object] | None = None) -> bytes:
    error: dict[str, object] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return _json(ErrorAnswer(_VERSION, call_id, Raw(_json(error))))
