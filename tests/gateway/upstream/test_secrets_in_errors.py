"""Errors of nodes that repeat what they were called with: callers get them without the provider's key."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.gateway.callers import call, sent
from tests.gateway.calls import answers_to
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fake_node import Error

KEY = "0123456789abcdef0123456789abcdef"
TOLD = Error(-32600, f"Must be authenticated: /v2/{KEY}")


@pytest.fixture
async def gateway() -> FakeGateway:
    gateway = await open_gateway(
        {"url": f"http://up0:1/v2/{KEY}"},
        {"headers": {"Authorization": f"Bearer {KEY}"}},
    )
    gateway.publish_heads(100, 100, finalized=90)
    for node in gateway.nodes:
        node.respond = lambda _method, _params: TOLD
    return gateway


@pytest.mark.parametrize(
    "body",
    [
        call(1, "eth_call"),
        call("a", "eth_call"),
        call(1, "foo_bar"),
        [call(1, "eth_call"), call(2, "eth_chainId")],
        [call(1, "eth_call"), call(2, "foo_bar")],
        call(1, "eth_sendRawTransaction", params=["0x02"]),
        call(1, "eth_getLogs", params=[{}]),
        call(1, "eth_newFilter", params=[{}]),
    ],
)
async def test_error_of_a_node_reaches_the_caller_without_the_key(gateway: FakeGateway, body: Any) -> None:
    for _ in range(2):
        ((status, answer),) = await answers_to(gateway, sent(body))
        assert status == 200
        assert KEY not in json.dumps(answer)
        first = answer[0] if isinstance(answer, list) else answer
        assert first["error"]["message"] == "Must be authenticated: /v2/…"
        assert first["error"]["code"] == TOLD.code
