"""Batches: sent as one, each member answered in its place."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.callers import call, reason
from tests.gateway.calls import send
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fake_node import http

from tollgate.settings import model
from tollgate.shm import metrics


async def test_batch_goes_out_as_one_and_is_answered_in_order(gateway: FakeGateway) -> None:
    gateway.echo()
    status, replies = await send(gateway, [call(3), call(1, "eth_call"), call("x", "eth_gasPrice")])
    assert status == 200
    assert [(each["id"], each["result"][0]) for each in replies] == [
        (3, "eth_chainId"),
        (1, "eth_call"),
        ("x", "eth_gasPrice"),
    ]
    (transport,) = gateway.loop.transports
    assert transport.take().count(b"POST ") == 1
    assert gateway.counted(metrics.CALLS, "eth", "mainnet", "eth_call", "ok") == 1


async def test_answers_that_a_node_gives_in_another_order_are_sorted() -> None:
    def backwards(body: bytes) -> bytes:
        replies = [{"jsonrpc": "2.0", "id": each["id"], "result": each["method"]} for each in json.loads(body)]
        return http(json.dumps(replies[::-1]).encode())

    gateway = await open_gateway(node=backwards)
    replies = (await send(gateway, [call(5), call(5, "eth_call")]))[1]
    assert [each["result"] for each in replies] == ["eth_chainId", "eth_call"]


async def test_upstream_failure_is_reported_to_every_call_of_a_batch() -> None:
    gateway = await open_gateway(node=lambda _: http(b"[]"))
    status, replies = await send(gateway, [call(1), call("b"), {"jsonrpc": "2.0", "method": "eth_call"}])
    assert status == 200
    assert [(each["id"], reason(each)) for each in replies] == [(1, "upstream_error"), ("b", "upstream_error")]


async def test_batch_of_notifications_alone_has_no_body(gateway: FakeGateway) -> None:
    note = {"jsonrpc": "2.0", "method": "eth_call"}
    assert await send(gateway, [note, note]) == (204, None)
    assert len(gateway.loop.transports) == 1


ids = st.integers(-(2**70), 2**70) | st.text(max_size=5) | st.none()
members = st.one_of(
    st.builds(lambda i: ("ok", i, call(i)), ids),
    st.builds(lambda i: ("method_not_allowed", i, call(i, "admin_x")), ids),
    st.builds(lambda i: ("invalid_request", i, call(i, "")), ids),
    st.builds(lambda i: ("invalid_request", i, {"id": i}), ids),
    st.just(("silent", None, {"jsonrpc": "2.0", "method": "eth_chainId"})),
    st.just(("silent", None, {"jsonrpc": "2.0", "method": "admin_x"})),
    st.sampled_from([1, "x", None, [], [[]], True]).map(lambda value: ("invalid_request", None, value)),
)


@given(st.lists(members, min_size=1, max_size=8))
@settings(max_examples=80)
async def test_every_member_of_any_batch_is_answered_in_order(batch: list[tuple[str, object, object]]) -> None:
    gateway = await open_gateway()
    for _ in range(2):
        status, replies = await send(gateway, [member for _, _, member in batch])
        expected = [(outcome, call_id) for outcome, call_id, _ in batch if outcome != "silent"]
        assert status == (200 if expected else 204)
        found = [("ok" if "result" in each else reason(each), each["id"]) for each in replies or []]
        assert found == expected


async def test_batch_limit_is_exact() -> None:
    gateway = await open_gateway(limits=model.LimitSettings(batch_calls=3))
    assert (await send(gateway, [call(1)] * 3))[0] == 200
    status, reply = await send(gateway, [call(1)] * 4)
    assert (status, reason(reply)) == (413, "batch_too_large")
