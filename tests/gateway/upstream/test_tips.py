"""`latest` never goes backwards: any heads of upstreams, any order of questions, answers and probes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.callers import summary
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fakes import run_pending

from tollgate.core.shapes import ABSENT, Reply
from tollgate.errors import UpstreamUnavailable
from tollgate.gateway.call.batch_resolution import BatchItem
from tollgate.shm.upstream_status import State

START = 100
NUMBER, BLOCK, BALANCE = "eth_blockNumber", "eth_getBlockByNumber", "eth_getBalance"


class Chain:
    """Two upstreams at heads of their own, a prober that looks now and then, callers that call at any time."""

    def __init__(self, gateway: FakeGateway) -> None:
        self.gateway = gateway
        self.heads = [START, START]
        self.slips = [0, 0]
        """Blocks by which the next answer of an upstream is behind: one service may be several nodes."""
        self.pending: list[tuple[asyncio.Future[Any], int]] = []
        """Questions, and the highest block that had been shown when each was sent."""
        self.shown = 0
        gateway.publish_heads(START, START)
        for index, node in enumerate(gateway.nodes):
            node.holds = True
            node.respond_with(self.respond, index)

    def respond(self, index: int, method: str, _: Any) -> Any:
        if method == "eth_chainId":
            return "0x1"
        number = hex(self.heads[index] - self.slips[index])
        self.slips[index] = 0
        return {"number": number} if method == BLOCK else number

    def grow(self, index: int, blocks: int) -> None:
        self.heads[index] += blocks

    def slip(self, index: int, blocks: int) -> None:
        self.slips[index] = blocks

    def probe(self, index: int, _: int) -> None:
        self.gateway.statuses[index].publish(State.UP, self.heads[index])
        if self.heads[index] > self.gateway.status.head:
            self.gateway.status.publish(self.heads[index], 0, changed=True)
        self.gateway.status.pulse()

    def call(self, which: int, _: int) -> None:
        future = [self.gateway.send(NUMBER), self.gateway.send(BLOCK, "latest", False)][which]
        self.note(future)
        self.pending = [each for each in self.pending if not each[0].done()]

    def batch(self, which: int, _: int) -> None:
        calls = [(NUMBER, []), (BLOCK, ["latest", False])]
        self.note(self.gateway.resolve_many(*calls[which:], ("eth_chainId", [])))

    def note(self, future: asyncio.Future[Any]) -> None:
        floor = self.shown
        self.pending.append((future, floor))
        # Called as soon as a caller is answered.
        future.add_done_callback(lambda done: self.check_result(done, floor))

    def release(self, index: int, which: int) -> None:
        held = self.gateway.nodes[index].held
        if held:
            self.gateway.nodes[index].release(which % len(held))

    def check_result(self, future: asyncio.Future[Any], floor: int) -> None:
        """What a caller is shown is at least what any caller had been shown when it called."""
        if future.exception() is not None:
            assert isinstance(future.exception(), UpstreamUnavailable)
            return
        replies = future.result() if isinstance(future.result(), list) else [future.result()]
        for reply in replies:
            if isinstance(reply, BatchItem):
                reply = reply.result
            if isinstance(reply, Reply) and reply.error is ABSENT:
                answer = summary(reply)
                number = int(answer["number"] if isinstance(answer, dict) else answer, 16)
                if number == 1:
                    continue
                assert number >= floor
                self.shown = max(self.shown, number)


steps = st.tuples(
    st.sampled_from(["grow", "slip", "probe", "call", "call", "batch", "release", "release", "release"]),
    st.integers(0, 1),
    st.integers(1, 3),
)


@pytest.mark.parametrize("cache_bytes", [0, 1_000_000])
@given(st.lists(steps, min_size=5, max_size=60))
@settings(max_examples=3 * settings().max_examples // 2)
async def test_tip_never_goes_back_for_any_caller(cache_bytes: int, script: list[tuple[str, int, int]]) -> None:
    gateway = await open_gateway(cache_bytes=cache_bytes)
    chain = Chain(gateway)
    for what, index, count in script:
        getattr(chain, what)(index, count)
        await run_pending(4)
        await gateway.loop.advance(0.03)
    # Everybody comes to the same head in the end, and everything is answered.
    chain.heads = [max(*chain.heads, gateway.status.floor)] * 2
    chain.slips = [0, 0]
    left = [future for future, _ in chain.pending]
    for _ in range(100):
        for index in (0, 1):
            chain.probe(index, 0)
            while gateway.nodes[index].held:
                chain.release(index, 0)
        await gateway.loop.advance(0.1)
    assert all(future.done() for future in left)
    assert not gateway.resolver.flights


async def test_balance_that_is_kept_is_not_reported_after_a_newer_block_was_shown() -> None:
    gateway = await open_gateway(cache_bytes=1_000_000)
    gateway.publish_heads(START, START)
    gateway.nodes[0].respond = lambda method, _: hex(START + 1) if method == NUMBER else "new"
    gateway.nodes[1].respond = lambda method, _: "old"
    gateway.publish_state("up0", State.DOWN, START)
    assert await gateway.call(BALANCE, "0xa", "latest") == "old"
    assert await gateway.call(BALANCE, "0xa", "latest") == "old"
    gateway.publish_state("up0", State.UP, START)
    assert await gateway.call(NUMBER) == hex(START + 1)
    assert await gateway.call(BALANCE, "0xa", "latest") == "new"


async def test_two_workers_share_what_callers_have_seen(gateway: FakeGateway) -> None:
    gateway.publish_heads(START, START)
    other = gateway.shared_status.network(0, 0)
    other.observe_head(START + 5)
    gateway.nodes[0].always(hex(START))
    gateway.nodes[1].always(hex(START + 5))
    gateway.publish_state("up1", State.UP, START + 5)
    assert await gateway.call(NUMBER) == hex(START + 5)
    assert gateway.counts() == [0, 1]
