"""Calls for batches, and what became of each."""

from __future__ import annotations

from typing import Any

from tests.gateway.callers import summary
from tests.gateway.fake_gateway import FakeGateway

from tollgate.gateway.call.batch_resolution import BatchItem

KEPT = {"cache_bytes": 1_000_000}
CHAIN: tuple[str, list[Any]] = ("eth_chainId", [])
PRICE: tuple[str, list[Any]] = ("eth_gasPrice", [])
WRITE = ("eth_sendRawTransaction", ["0x1"])


def balance(number: int, block: str = "0x1") -> tuple[str, list[Any]]:
    return ("eth_getBalance", [hex(number), block])


def results(items: list[BatchItem]) -> list[Any]:
    assert all(each.result is not None for each in items)
    return [summary(each.result) for each in items]


def ways(items: list[BatchItem]) -> list[str]:
    return [each.route.cache for each in items]


def sizes(gateway: FakeGateway, index: int = 0) -> list[int]:
    """The calls in each body that an upstream was sent; 1 for a single call, which is no batch."""
    return [len(body) if isinstance(body, list) else 1 for body in gateway.nodes[index].requests]
