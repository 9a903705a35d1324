"""Filters and pages of events: found again at the upstream that made them, by every worker."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from tests.gateway.callers import raw
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fake_node import DROP, Error
from tests.gateway.fakes import run_pending

from tollgate.errors import UpstreamUnavailable
from tollgate.gateway.upstream.sticky import decode_slot, encode_slot
from tollgate.shm.upstream_status import State

NEW, CHANGES, UNINSTALL = "eth_newFilter", "eth_getFilterChanges", "eth_uninstallFilter"
EVENTS = "starknet_getEvents"
NO_FILTER = Error(-32000, "filter not found")


def written(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


def read(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: json.loads(bytes(each)) for name, each in value.items()}
    return [json.loads(bytes(each)) for each in value]


slots = st.integers(0, 255)


@given(st.integers(0, 2**128), slots)
def test_filter_comes_back_to_where_it_was_made(number: int, slot: int) -> None:
    given_out = encode_slot(NEW, written(hex(number)), slot)
    assert decode_slot(CHANGES, [given_out, written(1)]) == ([written(hex(number)), written(1)], slot)


@given(st.text(), slots, st.booleans())
def test_continuation_token_comes_back_to_where_it_was_given(token: str, slot: int, by_name: bool) -> None:
    result = {"events": [{"data": ["0x1"]}], "continuation_token": token}
    given_out = json.loads(bytes(encode_slot(EVENTS, written(result), slot)))
    assert given_out["events"] == result["events"]
    assert given_out["continuation_token"] != token
    filter_ = {"chunk_size": 5, "continuation_token": given_out["continuation_token"]}
    params = {"filter": written(filter_), "more": written(1)} if by_name else [written(filter_), written(1)]
    back, found = decode_slot(EVENTS, params)
    before = {"chunk_size": 5, "continuation_token": token}
    assert read(back) == ({"filter": before, "more": 1} if by_name else [before, 1])
    assert found == slot


@pytest.mark.parametrize(
    ("method", "result"),
    [
        (NEW, None),
        (NEW, "filter"),
        (NEW, 17),
        (CHANGES, "0x1234"),
        ("eth_call", "0x1234"),
        (EVENTS, {"events": []}),
        (EVENTS, {"events": [], "continuation_token": None}),
        (EVENTS, {"events": [{"data": "continuation_token"}]}),
        (EVENTS, []),
    ],
)
def test_other_results_are_left_as_they_are(method: str, result: Any) -> None:
    assert encode_slot(method, written(result), 3) == written(result)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        (CHANGES, []),
        (CHANGES, ["0x1"]),
        (CHANGES, ["0x"]),
        (CHANGES, ["filter"]),
        (CHANGES, [5]),
        (CHANGES, {"id": "0x12345"}),
        ("eth_call", ["0x12345"]),
        (NEW, [{"fromBlock": "0x12345"}]),
        (EVENTS, []),
        (EVENTS, [{}]),
        (EVENTS, [{"continuation_token": "0-5"}]),
        (EVENTS, [{"continuation_token": "tg.5"}]),
        (EVENTS, [{"continuation_token": "tg1234.5"}]),
        (EVENTS, [{"continuation_token": 5}]),
        (EVENTS, [{"keys": ["continuation_token"]}]),
        (EVENTS, ["continuation_token"]),
        (EVENTS, {"other": {"continuation_token": "tg1.5"}}),
    ],
)
def test_what_we_did_not_give_out_goes_to_anybody_as_it_is(method: str, params: Any) -> None:
    given_ = raw(params)
    assert decode_slot(method, given_) == (given_, None)


# --- Over upstreams ------------------------------------------------------------------------------------------


def filters(gateway: FakeGateway) -> None:
    """Each upstream knows its own filters, under the same ids."""
    for node in gateway.nodes:
        node.respond_with(lambda name, method, params: "0x1" if method == NEW else [name, params], node.name)


@pytest.mark.parametrize("batch", [True, False])
async def test_filter_is_requested_where_it_was_made_whatever_the_worker(batch: bool) -> None:
    gateway = await open_gateway({}, {}, {})
    gateway.publish_heads(9, 9, 9)
    other = FakeGateway({}, {}, {})
    other.publish_heads(9, 9, 9)
    for each in (gateway, other):
        filters(each)
    gateway.publish_state("up0", State.DOWN)
    made = await gateway.call(NEW, {})
    gateway.publish_state("up0", State.UP)
    assert made == "0x101"
    for each in (gateway, other):
        if batch:
            (item,) = await each.resolve_many((CHANGES, [made]))
            assert json.loads(bytes(item.result.result)) == ["up1", ["0x1"]]  # type: ignore[union-attr]
        else:
            assert await each.call(CHANGES, made) == ["up1", ["0x1"]]
            assert await each.call(UNINSTALL, made) == ["up1", ["0x1"]]


@pytest.mark.parametrize("made_up", ["0x107", "0xdead", "0xff"])
async def test_filter_whose_upstream_is_gone_or_never_was_is_reported_in_a_nodes_words(
    made_up: str, gateway: FakeGateway
) -> None:
    gateway.nodes[0].always(NO_FILTER)
    assert await gateway.call(CHANGES, made_up) == NO_FILTER
    assert gateway.nodes[0].calls == [(CHANGES, [made_up])]


async def test_page_of_an_upstream_that_is_gone_is_requested_by_a_token_that_no_node_knows() -> None:
    gateway = await open_gateway(family="starknet")
    gateway.publish_heads(9, 9)
    gateway.nodes[0].always(Error(33, "The supplied continuation token is invalid or unknown"))
    pending = {"chunk_size": 1, "continuation_token": "tg99.5-1"}
    assert (await gateway.call(EVENTS, pending)).code == 33
    assert gateway.nodes[0].calls == [(EVENTS, [pending])], "never as the token of another upstream"


async def test_filter_whose_upstream_is_down_is_refused(gateway: FakeGateway) -> None:
    filters(gateway)
    gateway.loop.refusing = True
    pending = gateway.send(CHANGES, "0x101")
    await gateway.advance(1.0)
    with pytest.raises(UpstreamUnavailable):
        await pending


async def test_filter_is_made_elsewhere_after_a_failure_but_its_changes_are_read_once(
    gateway: FakeGateway,
) -> None:
    filters(gateway)
    gateway.nodes[0].always(DROP)
    made = await gateway.call(NEW, {})
    assert made == "0x101"
    gateway.nodes[1].always(DROP)
    pending = gateway.send(CHANGES, made)
    await gateway.advance(1.0)
    with pytest.raises(Exception, match="carried out"):
        await pending
    assert gateway.counts() == [1, 2]


async def test_pages_of_events_come_from_one_upstream_and_may_be_read_again() -> None:
    def respond(name: str, _: str, params: Any) -> Any:
        page = params[0].get("continuation_token")
        return {"events": [name, page], **({} if page else {"continuation_token": "0-5"})}

    gateway = await open_gateway(family="starknet")
    for node in gateway.nodes:
        node.respond_with(respond, node.name)
    gateway.publish_heads(9, 9)
    gateway.publish_state("up0", State.DOWN)
    first = await gateway.call(EVENTS, {"chunk_size": 1})
    assert first == {"events": ["up1", None], "continuation_token": "tg1.0-5"}
    gateway.publish_state("up0", State.UP, 9)
    gateway.nodes[1].in_turn(DROP, {"events": ["up1", "0-5"]})
    pending = gateway.send(EVENTS, {"chunk_size": 1, "continuation_token": "tg1.0-5"})
    await gateway.advance(1.0)
    await run_pending()
    assert json.loads(bytes((await pending).result)) == {"events": ["up1", "0-5"]}
    assert gateway.counts()[0] == 0
