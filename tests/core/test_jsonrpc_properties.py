"""Any bytes, and any request that is right."""

import json
import tracemalloc
from contextlib import suppress
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from tollgate.core.jsonrpc import MAX_SENT_ID_BYTES, caller_id, encode_batch, encode_call, parse
from tollgate.core.shapes import Call
from tollgate.errors import BatchTooLarge, InvalidRequest, ParseError

MOST = 4

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
ids = st.none() | st.integers() | st.text()
methods = st.text(min_size=1)


def id_bytes(call: Call) -> bytes:
    """The id as a caller gets it back."""
    return msgspec.json.encode(caller_id(call))


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    request: dict[str, Any] = {"jsonrpc": "2.0", "method": draw(methods)}
    if draw(st.booleans()):
        params = st.none() | st.lists(values, max_size=4) | st.dictionaries(st.text(), values, max_size=4)
        request["params"] = draw(params)
    if draw(st.booleans()):
        request["id"] = draw(ids)
    return {name: request[name] for name in draw(st.permutations(list(request)))}


@st.composite
def written(draw: st.DrawFn, what: st.SearchStrategy[Any]) -> bytes:
    """A value as JSON in one of the ways that programs write it."""
    indent = draw(st.sampled_from([None, 1]))
    return json.dumps(draw(what), ensure_ascii=draw(st.booleans()), indent=indent).encode()


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A request with some bytes cut out and others put in their place."""
    body = draw(written(requests() | st.lists(requests(), max_size=6)))
    start = draw(st.integers(0, len(body)))
    end = draw(st.integers(start, min(len(body), start + 8)))
    return body[:start] + draw(st.binary(max_size=6)) + body[end:]


def rebuilt(request: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": request["method"], "params": request.get("params") or []}


@given(st.binary() | written(values) | damaged() | written(st.lists(values | requests(), max_size=6)))
@example(b"[" + b"0" * 20)
@example(b'[{"jsonrpc":"2.0","method":"\\ud800"}]')
def test_any_bytes_are_calls_or_one_of_three_refusals(body: bytes) -> None:
    try:
        parsed = parse(body, MOST)
    except (ParseError, InvalidRequest, BatchTooLarge):
        return
    calls = parsed if isinstance(parsed, list) else [parsed]
    assert 1 <= len(calls) <= MOST
    for call in calls:
        assert id_bytes(call) in body or (call.id is None) or id_bytes(call) == b"null"
        json.loads(encode_call(call))


@given(written(values))
def test_any_json_is_not_called_a_parse_error(body: bytes) -> None:
    with suppress(InvalidRequest, BatchTooLarge):
        parse(body, MOST)


@given(requests(), st.data())
def test_any_request_goes_on_with_the_same_meaning(request: dict[str, Any], data: st.DataObject) -> None:
    call = parse(data.draw(written(st.just(request))), MOST)
    assert not isinstance(call, list)
    assert (call.id is None) == ("id" not in request)
    sent = json.loads(encode_call(call))
    # As it was written: nodes need not take a long one.
    numbered = request.get("id") is None or len(id_bytes(call)) > MAX_SENT_ID_BYTES
    expected = rebuilt(request) | {"id": 1 if numbered else request["id"]}
    if request.get("params") == {}:
        expected["params"] = {}
    assert sent == expected


@given(st.lists(requests(), min_size=1, max_size=MOST), st.data())
def test_any_batch_goes_on_with_the_same_meaning(requests: list[dict[str, Any]], data: st.DataObject) -> None:
    calls = parse(data.draw(written(st.just(requests))), MOST)
    assert isinstance(calls, list)
    sent = json.loads(encode_batch(calls))
    assert [each["method"] for each in sent] == [each["method"] for each in requests]
    assert [each["params"] or [] for each in sent] == [each.get("params") or [] for each in requests]
    assert [each["id"] for each in sent] == list(range(len(requests)))


def test_methods_that_callers_invent_take_no_memory_for_long() -> None:
    tracemalloc.start()
    for number in range(200):
        call = parse(json.dumps({"jsonrpc": "2.0", "method": f"{number}" + "x" * 50_000, "id": 1}).encode(), 1)
        assert not isinstance(call, list)
        encode_call(call)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 1_000_000
