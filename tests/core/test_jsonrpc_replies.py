"""What nodes answer, and what callers get."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from tollgate.core.jsonrpc import (
    MAX_MESSAGE,
    Unparsable,
    decode_batch,
    decode_reply,
    encode_answer,
    encode_error,
    error_code,
    error_details,
)
from tollgate.core.shapes import Reply

ERROR = b'{"code":3,"message":"execution reverted","data": "0x08"}'


def outcome(reply: Reply) -> tuple[bool, bytes]:
    """Whether a reply is an error, and what the caller is sent of it."""
    answer = encode_answer(1, reply)
    start = b'{"jsonrpc":"2.0","id":1,"error":' if reply.failed else b'{"jsonrpc":"2.0","id":1,"result":'
    assert answer.startswith(start)
    return reply.failed, answer[len(start) : -1]


@pytest.mark.parametrize(
    ("body", "failed", "value"),
    [
        (b'{"jsonrpc":"2.0","id":1,"result":{"a": 1.50}}', False, b'{"a": 1.50}'),
        (b'{"id":1,"jsonrpc":"2.0","error":%b}' % ERROR, True, ERROR),
        (b'{"jsonrpc":"2.0","id":1,"result":null}', False, b"null"),
        (b'{"id":1,"result":"0x1","error":null}', False, b'"0x1"'),
        (b'{"id":1,"error":null,"result":null}', False, b"null"),
        (b'{"id":1,"result":null,"error":%b}' % ERROR, True, ERROR),
        (b'{"id":1,"result":"0x1","error":{}}', True, b"{}"),
        (b'{"id":"x","result":1}', False, b"1"),
        (b'{"id":null,"result":1}', False, b"1"),
        (b'{"id":1.0,"result":1}', False, b"1"),
        (b'{"id":%b,"result":1}' % (b"9" * 5_000), False, b"1"),
        (b'{"result":1}', False, b"1"),
        (b'{"result":1,"result":2,"extra":3}', False, b"2"),
        (b' {"result" : [1 , 2] } ', False, b"[1 , 2]"),
    ],
)
def test_result_or_error_reaches_the_caller_as_the_node_wrote_it(body: bytes, failed: bool, value: bytes) -> None:
    assert outcome(decode_reply(body)) == (failed, value)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"null",
        b"1",
        b'{"id":1}',
        b'{"id":1,"error":null}',
        b'{"id":1,"error":"busy"}',
        b'{"id":1,"error":[1]}',
        b'{"id":1,"result":1',
        b'{"id":1,"result":1}{"id":1}',
        b'{"id":1,"result":' + b"[" * 100_000,
    ],
    ids=lambda body: repr(body[:40]),
)
def test_invalid_response_is_unparsable(body: bytes) -> None:
    with pytest.raises(Unparsable):
        decode_reply(body)


def test_batch_replies_come_back_in_the_order_of_the_calls() -> None:
    body = b'[{"id":2,"result":"c"},{"id":0,"result":"a"},{"id":1,"error":{"code":5}}]'
    expected = [(False, b'"a"'), (True, b'{"code":5}'), (False, b'"c"')]
    assert [outcome(reply) for reply in decode_batch(body, range(3)).items] == expected


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (b'[{"id":0,"result":1}]', 2),
        (b"[]", 1),
        (b'[{"id":0,"result":1},{"id":0,"result":2}]', 2),
        (b'[{"id":0,"result":1},{"id":2,"result":2}]', 2),
        (b'[{"id":0,"result":1},{"id":1,"result":1},{"id":2,"result":2}]', 2),
        (b'[{"id":-1,"result":1}]', 1),
        (b'[{"id":"0","result":1}]', 1),
        (b'[{"id":null,"result":1}]', 1),
        (b'[{"result":1}]', 1),
        (b'[{"id":%b,"result":1}]' % (b"9" * 4_000), 1),
        (b'[{"id":%b,"result":1}]' % (b"9" * 5_000), 1),
        (b'[{"id":0}]', 1),
        (b'[{"id":0,"error":"x"}]', 1),
        (b'{"id":null,"error":{"code":-32600,"message":"no batches"}}', 1),
        (b"[null]", 1),
        (b"[[]]", 1),
        (b"[" * 100_000, 1),
    ],
    ids=lambda value: repr(value[:60]) if isinstance(value, bytes) else str(value),
)
def test_missing_foreign_or_shapeless_replies_spoil_the_batch(body: bytes, count: int) -> None:
    with pytest.raises(Unparsable):
        decode_batch(body, range(count))


def test_two_replies_to_one_call_spoil_the_batch() -> None:
    # It is unknown which of them is the answer.
    with pytest.raises(Unparsable):
        decode_batch(b'[{"id":0,"result":1},{"id":1,"result":1},{"id":1,"result":2}]', range(2))


@given(st.binary())
def test_any_reply_is_a_reply_or_unparsable(body: bytes) -> None:
    for decode in (decode_reply, lambda raw: decode_batch(raw, range(2))):
        with suppress(Unparsable):
            decode(body)


@given(st.permutations(range(6)))
def test_any_order_of_replies_is_put_right(order: list[int]) -> None:
    body = json.dumps([{"jsonrpc": "2.0", "id": number, "result": number * 10} for number in order])
    assert [json.loads(outcome(reply)[1]) for reply in decode_batch(body.encode(), range(6)).items] == [
        0,
        10,
        20,
        30,
        40,
        50,
    ]


@pytest.mark.parametrize("call_id", [b"0", b"1.0", rb'"\u00e9\/"', b"null", b"9" * 50])
def test_answer_has_the_bytes_of_the_callers_id(call_id: bytes) -> None:
    result = decode_reply(b'{"id":7,"result":[1 ]}')
    assert encode_answer(Raw(call_id), result) == b'{"jsonrpc":"2.0","id":%b,"result":[1 ]}' % call_id
    error = decode_reply(b'{"id":7,"error":{"code":1}}')
    assert encode_answer(Raw(call_id), error) == b'{"jsonrpc":"2.0","id":%b,"error":{"code":1}}' % call_id
    assert b'"id":%b,' % call_id in encode_error(Raw(call_id), -32600, "no", {})


def test_error_of_ours_is_a_json_rpc_error_object() -> None:
    answer = json.loads(encode_error(7, -32005, 'wait "a" bit', {"reason": "rate_limited"}))
    error = {"code": -32005, "message": 'wait "a" bit', "data": {"reason": "rate_limited"}}
    assert answer == {"jsonrpc": "2.0", "id": 7, "error": error}


@pytest.mark.parametrize(
    ("body", "all_results"),
    [
        (b'[{"id":0,"result":1},{"id":1,"result":2}]', True),
        (b'[{"id":1,"result":1},{"id":0,"result":2,"error":null}]', True),
        (b'[{"id":0,"result":1},{"id":1,"error":{"code":3}}]', False),
    ],
)
def test_batch_without_an_error_is_known_as_such(body: bytes, all_results: bool) -> None:
    assert decode_batch(body, range(2)).all_results is all_results


def test_reply_too_many_is_refused_even_if_it_is_an_error() -> None:
    with pytest.raises(Unparsable):
        decode_batch(b'[{"id":0,"result":1},{"id":1,"result":2},{"id":1,"error":{"code":3}}]', range(2))


@pytest.mark.parametrize("text", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80"])
def test_answer_that_is_not_utf8_is_none_alone_and_in_a_batch(text: bytes) -> None:
    with pytest.raises(Unparsable, match="UTF-8"):
        decode_reply(b'{"jsonrpc":"2.0","id":0,"result":"%b"}' % text)
    with pytest.raises(Unparsable, match="UTF-8"):
        decode_batch(b'[{"jsonrpc":"2.0","id":0,"result":"%b"}]' % text, [0])


def test_answer_beyond_ascii_reaches_the_caller_as_it_is() -> None:
    assert bytes(decode_reply('{"id":0,"result":"é😀"}'.encode()).result) == '"é😀"'.encode()


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (b"-32000", -32_000),
        (b"%d" % (2**63 - 1), 2**63 - 1),
        (b"%d" % 2**63, None),
        (b"%d" % -(2**63 - 1), -(2**63 - 1)),
        (b"%d" % -(2**63), None),
        (b'"3"', None),
        (b"null", None),
    ],
)
def test_code_of_an_error_is_a_number_that_any_database_keeps(code: bytes, found: int | None) -> None:
    assert error_code(Reply(error=Raw(b'{"code":%b,"message":"no"}' % code))) == found


def test_message_of_an_error_is_cut() -> None:
    message = "m" * MAX_MESSAGE
    error = json.dumps({"code": 3, "message": message + "more"}).encode()
    assert error_details(Reply(error=Raw(error))) == (3, message)
    assert error_details(Reply(error=Raw(b'{"code":3,"message":7}'))) == (3, "")
