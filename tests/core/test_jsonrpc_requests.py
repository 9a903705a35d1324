"""Request bodies: what is a call, what is not, and that only method, params and id are forwarded."""

import json
from collections.abc import Sequence
from contextlib import suppress

import msgspec
import pytest

from tollgate.core.jsonrpc import (
    MAX_NAMED_BYTES,
    MAX_SENT_ID_BYTES,
    caller_id,
    encode_batch,
    encode_call,
    named,
    parse,
)
from tollgate.core.shapes import Call, PlainCall, WrittenCall
from tollgate.errors import BatchTooLarge, InvalidRequest, ParseError

MOST = 5


def id_bytes(call: Call) -> bytes:
    """The id as a caller gets it back."""
    return msgspec.json.encode(caller_id(call))


def one(body: bytes) -> Call:
    call = parse(body, MOST)
    assert not isinstance(call, list)
    return call


def many(body: bytes) -> Sequence[Call]:
    calls = parse(body, MOST)
    assert isinstance(calls, list)
    return calls


def problem(call: Call) -> str:
    return call.problem if isinstance(call, WrittenCall) else ""


def sent(call: Call) -> bytes:
    """What a node gets."""
    return encode_call(call)


def request(call_id: bytes = b"1", method: bytes = b'"m"', params: bytes = b"[]") -> bytes:
    return b'{"jsonrpc":"2.0","method":%b,"params":%b,"id":%b}' % (method, params, call_id)


# --- Ids ---------------------------------------------------------------------------------------------------

IDS = [
    b"0",
    b"-0",
    b"-1",
    b"1",
    b"18446744073709551616",
    b"9" * 5_000,
    b'""',
    b'"1"',
    rb'"a\"b\\c\/d\n\u00e9\ud83d\ude00"',
    '"é😀"'.encode(),
    b"null",
]


@pytest.mark.parametrize("call_id", IDS, ids=lambda value: value[:20].decode())
def test_id_is_kept_byte_for_byte(call_id: bytes) -> None:
    assert id_bytes(one(request(call_id))) == call_id
    calls = many(b"[%b,%b]" % (request(call_id), request(b"7")))
    assert [id_bytes(call) for call in calls] == [call_id, b"7"]


def test_spaces_around_an_id_are_not_part_of_it() -> None:
    assert id_bytes(one(b'{"jsonrpc":"2.0","method":"m","id" : \t\r\n12 }')) == b"12"
    assert id_bytes(one(b'{"jsonrpc":"2.0","method":"m","id" : \t\r\n"12" }')) == b'"12"'


def test_call_without_id_is_a_notification() -> None:
    call = one(b'{"jsonrpc":"2.0","method":"m"}')
    assert call.id is None
    assert id_bytes(call) == b"null"


def test_null_id_is_no_notification() -> None:
    assert one(request(b"null")).id is not None


@pytest.mark.parametrize("call_id", [b"true", b"false", b"[1]", b"{}", b"1.5", b"1.0", b"1e5", b"-0.0", b"2E+3"])
def test_id_of_another_type_is_refused_and_answered_with_null(call_id: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(request(call_id), MOST)
    assert caught.value.caller_id == b"null"


# --- Members -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (b"[]", b"[]"),
        (b"null", b"[]"),
        (b"{}", b"{}"),
        (b"[1,2.50,-0,1E400]", b"[1,2.50,-0,1E400]"),
        (b'[ {"b" : [null]} ]', b'[{"b" : [null]}]'),
        (b'{"a":{"b":[null]},"c":1.0}', b'{"a":{"b":[null]},"c":1.0}'),
        (rb'["\u00e9\/",18446744073709551616]', rb'["\u00e9\/",18446744073709551616]'),
    ],
)
@pytest.mark.parametrize("call_id", [b"1", b'"x"'])
def test_params_may_be_null_array_or_object_and_keep_their_values(
    call_id: bytes, written: bytes, kept: bytes
) -> None:
    call = one(request(call_id, params=written))
    assert sent(call) == b'{"jsonrpc":"2.0","id":%b,"method":"m","params":%b}' % (call_id, kept)
    assert encode_batch([call]) == b'[{"jsonrpc":"2.0","id":0,"method":"m","params":%b}]' % kept


@pytest.mark.parametrize(("rest", "call_id"), [(b'"id":1', b"1"), (b'"id":"x"', b'"x"'), (b'"x":1', b"1")])
def test_absent_params_become_an_empty_array(rest: bytes, call_id: bytes) -> None:
    call = one(b'{"jsonrpc":"2.0","method":"m",%b}' % rest)
    assert sent(call) == b'{"jsonrpc":"2.0","id":%b,"method":"m","params":[]}' % call_id


@pytest.mark.parametrize("rest", [b'"id":null', b'"params":[]'])
def test_null_id_and_notification_go_out_under_a_number(rest: bytes) -> None:
    assert json.loads(sent(one(b'{"jsonrpc":"2.0","method":"m",%b}' % rest)))["id"] == 1


@pytest.mark.parametrize(
    "body",
    [
        request(params=b"1"),
        request(params=b'"x"'),
        request(params=b"true"),
        request(method=b"1"),
        request(method=b"null"),
        request(method=b'""'),
        request(method=b'["m"]'),
        b'{"jsonrpc":"1.0","method":"m","id":1}',
        b'{"jsonrpc":2.0,"method":"m","id":1}',
        b'{"jsonrpc":null,"method":"m","id":1}',
        b'{"method":"m","id":1}',
        b'{"jsonrpc":"2.0","id":1}',
        b'{"id":1}',
    ],
)
def test_wrong_member_is_an_invalid_request_that_keeps_its_id(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(body, MOST)
    assert caught.value.caller_id == b"1"


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        (b'{"jsonrpc":"1.0","method":"m","id":1}', '"jsonrpc"'),
        (b'{"jsonrpc":"1.0","jsonrpc":"2.0","method":"m","id":1}', "twice"),
        (b'{"jsonrpc":"2.0","method":"","method":"m","id":1}', "twice"),
        (b'{"jsonrpc":"2.0","method":"m","params":7,"params":{},"id":1}', "twice"),
        (b'{"jsonrpc":"1.0","jsonrpc":"2.0","method":"m","params":null,"id":1}', "twice"),
        (request(params=b"1"), '"params"'),
        (request(method=b"1"), '"method"'),
        (request(method=b'""'), '"method"'),
        (request(method=b"[]"), '"method"'),
        (b'{"jsonrpc":"2.0","id":1}', '"method"'),
        (b'{"jsonrpc":"2.0","method":"m","params":"[]","id":1}', '"params"'),
        (b'{"method":"m","id":1}', '"jsonrpc"'),
    ],
)
def test_member_that_is_wrong_is_named(body: bytes, wrong: str) -> None:
    with pytest.raises(InvalidRequest, match=wrong):
        parse(body, MOST)
    (member,) = many(b"[%b]" % body)
    assert isinstance(member, WrittenCall)
    assert wrong in member.problem


@pytest.mark.parametrize("body", [b"1", b"null", b'"x"', b"true", b"{}", b'{"a":1}', b" {} "])
def test_json_that_is_no_request_is_answered_with_a_null_id(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(body, MOST)
    assert caught.value.caller_id == b"null"


@pytest.mark.parametrize("call_id", [b"2", b'"two"', b"-0"])
def test_of_doubled_members_the_last_counts_and_only_that_one_goes_on(call_id: bytes) -> None:
    call = one(
        b'{"jsonrpc":"2.0","jsonrpc":"2.0","method":"eth_call","method":"admin_peers",'
        b'"params":[1],"params":[2],"id":1,"id":%b}' % call_id
    )
    assert (call.method, id_bytes(call)) == ("admin_peers", call_id)
    assert sent(call) == b'{"jsonrpc":"2.0","id":%b,"method":"admin_peers","params":[2]}' % call_id


def test_escaped_member_names_are_the_same_members() -> None:
    assert one(rb'{"jsonrpc":"2.0","method":"a","meth\u006fd":"b","id":1}').method == "b"
    assert one(rb'{"jsonrpc":"2.0","method":"a","meth\u006fd":"b","id":"x"}').method == "b"


def test_escaped_method_is_judged_and_sent_as_the_name_it_spells() -> None:
    call = one(rb'{"jsonrpc":"2.0","method":"\u0061dmin_peers","id":1}')
    assert call.method == "admin_peers"
    assert b'"admin_peers"' in sent(call)


@pytest.mark.parametrize("call_id", [b"1", b'"x"'])
def test_oddly_cased_and_unknown_members_do_not_go_on(call_id: bytes) -> None:
    call = one(
        b'{"jsonrpc":"2.0","method":"a","Method":"admin_x","METHOD":"y","id":%b,"ID":2,"extra":{}}' % call_id
    )
    assert (call.method, id_bytes(call)) == ("a", call_id)
    assert set(json.loads(sent(call))) == {"jsonrpc", "id", "method", "params"}


# --- Not JSON ----------------------------------------------------------------------------------------------

DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"nonsense",
        request()[:-1],
        request() + b"x",
        request() + request(),
        b"[" + request(),
        b"[" + request() + b",]",
        b"\xef\xbb\xbf" + request(),
        request().decode().encode("utf-16"),
        request(params=b'["\xff"]'),
        request(call_id=b'"\xc3\x28"'),
        request(params=b'["\xed\xa0\x80"]'),
        request(params=rb'["\q"]'),
        request(params=b'["\x01"]'),
        request(call_id=rb'"\q"'),
        request(call_id=b'"a\nb"'),
        request(call_id=b"01"),
        request(call_id=b"1."),
        request(params=b"[NaN]"),
        request(params=b"[1,]"),
        request(params=b"{'a':1}"),
        b'{"jsonrpc":"2.0","method":1,"id":1',
        b'{"jsonrpc":"2.0","method":1,"id":1}x',
        b"[1,2",
        DEEP,
        request(params=DEEP + b"]" * 100_000),
        request(call_id=DEEP + b"]" * 100_000),
        b'{"a":' * 100_000,
    ],
    ids=lambda body: repr(body[:70]),
)
def test_what_is_not_json_is_a_parse_error(body: bytes) -> None:
    with pytest.raises(ParseError):
        parse(body, MOST)


def test_moderate_nesting_passes_unchanged() -> None:
    params = b"[" * 200 + b"]" * 200
    assert params in sent(one(request(params=params)))


@pytest.mark.parametrize("start", [b'"jsonrpc":"2.0","method":"m","id":1', b'"id":1', b'"method":7'])
@pytest.mark.parametrize("form", [b"{%b,%b}", b"[{%b,%b}]", b"[1,{%b,%b}]"])
def test_nesting_of_any_depth_is_read_or_refused(start: bytes, form: bytes) -> None:
    # The border lies where the stack ends, and that is not the same place for each step of reading.
    for depth in range(850, 1_010):
        body = form % (start, b'"params":' + b"[" * depth + b"]" * depth)
        with suppress(ParseError, InvalidRequest):
            parse(body, MOST)


# --- Batches -----------------------------------------------------------------------------------------------


def test_batch_keeps_the_order_of_its_calls() -> None:
    calls = many(b" [%b]" % b",".join(request(b"%d" % number) for number in (3, 1, 2)))
    assert [id_bytes(call) for call in calls] == [b"3", b"1", b"2"]


@pytest.mark.parametrize("body", [b"[]", b" [ ] "])
def test_empty_batch_is_one_invalid_request(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(body, MOST)
    assert caught.value.caller_id == b"null"


def test_batch_may_be_as_large_as_the_limit_and_no_larger() -> None:
    assert len(many(b"[%b]" % b",".join([request()] * MOST))) == MOST
    with pytest.raises(BatchTooLarge) as caught:
        parse(b"[%b]" % b",".join([request()] * (MOST + 1)), MOST)
    assert caught.value.data == {"limit": MOST}
    with pytest.raises(BatchTooLarge):
        parse(b"[1,2,3,4,5,6]", MOST)


@pytest.mark.parametrize("member", [b"1,", b"{},", b"[],"])
def test_large_batch_of_junk_is_not_read_beyond_the_first_member_too_many(member: bytes) -> None:
    # It is no JSON at all, which would be found at its end.
    with pytest.raises(BatchTooLarge) as caught:
        parse(b"[" + member * 100_000, MOST)
    assert caught.value.data == {"limit": MOST}
    large = b"[%b]" % b",".join([b'"%b"' % (b"a" * 50_000)] * MOST)
    assert len(many(large)) == MOST


def test_bad_members_are_answered_in_their_place_with_the_id_they_have() -> None:
    calls = many(b'[1, %b, {"jsonrpc":"2.0","method":7,"id":"x"}, {"id":-5}, [[]]]' % request(b"4"))
    assert [bool(problem(call)) for call in calls] == [True, False, True, True, True]
    assert [id_bytes(call) for call in calls] == [b"null", b"4", b'"x"', b"-5", b"null"]


def test_bad_member_among_well_typed_ones_keeps_its_id() -> None:
    calls = many(b'[%b,{"jsonrpc":"1.0","method":"m","id":8},{"jsonrpc":"2.0","method":"n"}]' % request())
    assert [id_bytes(call) for call in calls] == [b"1", b"8", b"null"]
    assert [(call.id is None) for call in calls] == [False, False, True]
    assert [bool(problem(call)) for call in calls] == [False, True, False]


def test_member_that_is_a_notification_in_all_but_validity_is_answered_with_null() -> None:
    (call,) = many(b'[{"jsonrpc":"2.0"}]')
    assert problem(call)
    assert call.id is not None
    assert id_bytes(call) == b"null"


def test_calls_of_a_batch_are_numbered_for_the_node() -> None:
    calls = many(b"[%b,%b]" % (request(b'"same"', b'"a"'), request(b'"same"', b'"b"')))
    assert [(each["id"], each["method"]) for each in json.loads(encode_batch(calls))] == [(0, "a"), (1, "b")]


@pytest.mark.parametrize("call_id", [b"9" * 5_000, b'"%b"' % (b"a" * MAX_SENT_ID_BYTES)])
def test_id_that_a_node_could_break_at_is_not_sent_to_one_and_comes_back(call_id: bytes) -> None:
    call = one(request(call_id))
    assert encode_call(call) == b'{"jsonrpc":"2.0","id":1,"method":"m","params":[]}'
    assert id_bytes(call) == call_id


def test_longest_id_is_sent_to_a_node_as_it_is() -> None:
    call_id = b'"%b"' % (b"a" * (MAX_SENT_ID_BYTES - 2))
    assert call_id in encode_call(one(request(call_id)))


@pytest.mark.parametrize(
    ("body", "methods"),
    [
        (request(), ["m"]),
        (b"[%b,%b,%b]" % (request(), request(method=b'"eth_call"'), request()), ["m", "eth_call", "m"]),
        (b"[%b,7]" % request(), ["m", ""]),
        (b"", [""]),
        (b"[]", [""]),
        (b"{bad", [""]),
        (b"[" * 2_000, [""]),
        (b'{"jsonrpc":"2.0","id":1}', [""]),
        (b"\xff", [""]),
        (request().ljust(MAX_NAMED_BYTES), ["m"]),
        (request().ljust(MAX_NAMED_BYTES + 1), [""]),
    ],
)
def test_methods_of_a_request_that_is_refused_unread(body: bytes, methods: list[str]) -> None:
    assert named(body) == methods


@pytest.mark.parametrize("method", [b'"m"', b'"a-b"', b'"a0b"'])
@pytest.mark.parametrize("call_id", [b"1", b"-1"])
def test_call_with_an_integer_as_id_is_read_the_quick_way(method: bytes, call_id: bytes) -> None:
    assert isinstance(one(request(call_id, method=method)), PlainCall)
    assert isinstance(many(b"[%b]" % request(call_id, method=method))[0], PlainCall)


def test_negative_zero_is_read_as_it_is_written() -> None:
    assert isinstance(one(request(b"-0")), WrittenCall)
    assert isinstance(many(b"[%b]" % request(b"-0"))[0], WrittenCall)


@pytest.mark.parametrize(
    ("members", "counted"), [(MOST + 1, f"{MOST + 1}"), (MAX_NAMED_BYTES, f"more than {MOST}")]
)
def test_members_that_are_no_calls_are_counted_only_where_they_are_few(members: int, counted: str) -> None:
    with pytest.raises(BatchTooLarge, match=f"has {counted} calls"):
        parse(b"[%b]" % b",".join([b"1"] * members), MOST)
