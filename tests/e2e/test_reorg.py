"""What was cached is not sent any more once the chain has another block in its place."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from parts.anvils import EMITTER, TICK, Chain, chain
from parts.processes import eventually
from parts.raw_http import JSON, Answer, RawConnection, call
from parts.tollgate import Gateway, bearer, linux_only, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.e2e, linux_only]

DEPTH = 3


@dataclass(frozen=True)
class Caller:
    """A caller with a connection to one worker."""

    connection: RawConnection
    token: str

    def exchange(self, method: str, *params: object) -> Answer:
        answer = self.connection.exchange("/x/eth/sepolia", call(method, *params), {**JSON, **bearer(self.token)})
        assert answer.status == 200, answer
        return answer

    def result(self, method: str, *params: object) -> Any:
        """Give what was answered; None for an error."""
        return self.exchange(method, *params).json().get("result")

    def how(self, method: str, *params: object) -> str:
        """Return how the cache answered."""
        return self.exchange(method, *params).headers["x-tollgate-cache"]


@dataclass(frozen=True)
class Setting:
    chain: Chain
    gateway: Gateway
    callers: list[Caller]
    """One for each worker: each has a memory of its own."""

    def truth(self, method: str, *params: object) -> Any:
        """Call a node itself; None for an error."""
        try:
            return self.chain.nodes[0].call(method, *params)
        except KeyError:
            return None

    def probes(self) -> list[float]:
        """How often each node has reported its head to the prober."""
        metrics = self.gateway.metrics()
        sample = 'tollgate_upstream_probes_total{{family="eth",network="sepolia",outcome="ok",upstream="{}"}}'
        return [metrics[sample.format(f"n{number}")] for number in range(len(self.chain.nodes))]


@pytest.fixture(scope="module")
def whole_setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    folder = tmp_path_factory.mktemp("reorg")
    with chain(folder, 2) as nodes:
        nodes.mine(12, ticks=1)
        upstreams = {"eth/sepolia": [node.url for node in nodes.nodes]}
        with serving(folder, upstreams, {"server": {"workers": 2}}) as gateway:
            token, _ = gateway.books.token(gateway.books.team(), show_upstream=True)
            with gateway.spread(1) as held:
                yield Setting(nodes, gateway, [Caller(connections[0], token) for connections in held.values()])


@pytest.fixture
def setting(whole_setting: Setting) -> Setting:
    """Have a transaction in each of the newest blocks, and everybody know of them."""
    whole_setting.chain.mine(DEPTH + 1, ticks=1)
    eventually(lambda: at_the_head(whole_setting), what="the first blocks")
    return whole_setting


def questions(setting: Setting) -> list[tuple[Any, ...]]:
    """Read the newest blocks in all the ways that name one: by number, by range, by transaction."""
    head = setting.chain.height
    numbers = [hex(number) for number in range(head - DEPTH, head + 1)]
    sent = [setting.chain.block(int(number, 16))["transactions"][0] for number in numbers]
    logs = {"address": EMITTER, "topics": [TICK], "fromBlock": numbers[0], "toBlock": numbers[-1]}
    return [
        *[("eth_getBlockByNumber", number, False) for number in numbers],
        *[("eth_getTransactionReceipt", each) for each in sent],
        *[("eth_getBalance", setting.truth("eth_accounts")[0], number) for number in numbers],
        ("eth_getLogs", logs),
        ("eth_getBlockByNumber", "latest", False),
        ("eth_blockNumber",),
    ]


def remembered(setting: Setting) -> list[tuple[Any, ...]]:
    """Have everything about the newest blocks in the memory of each worker."""
    queries = questions(setting)
    for caller in setting.callers:
        for question in queries:
            assert caller.result(*question) == setting.truth(*question)
            # Not at once: nothing is kept before the prober has seen the block, too.
            eventually(lambda: caller.how(*question) == "hit", what=f"remembering {question}")  # noqa: B023
    return queries


def differing(setting: Setting, queries: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Find the questions whose answers are not those of the chain as it is now."""
    return [
        question
        for caller in setting.callers
        for question in queries
        if caller.result(*question) != setting.truth(*question)
    ]


def at_the_head(setting: Setting) -> bool:
    return all(caller.result("eth_blockNumber") == hex(setting.chain.height) for caller in setting.callers)


def test_replaced_blocks_are_forgotten_with_the_next_block(setting: Setting) -> None:
    queries = remembered(setting)
    before = [setting.truth(*question) for question in queries]
    setting.chain.reorganise(DEPTH)
    setting.chain.mine(ticks=1)
    changed = [
        question for question, known in zip(queries, before, strict=True) if setting.truth(*question) != known
    ]
    assert len(changed) > DEPTH, "or nothing is shown"
    eventually(lambda: at_the_head(setting), what="the next block")
    assert not differing(setting, queries)


def test_blocks_below_the_fork_stay_in_memory(setting: Setting) -> None:
    kept = ("eth_getBlockByNumber", hex(setting.chain.height - DEPTH), False)
    remembered(setting)
    setting.chain.reorganise(DEPTH)
    setting.chain.mine()
    eventually(lambda: at_the_head(setting), what="the next block")
    assert [caller.how(*kept) for caller in setting.callers] == ["hit", "hit"]


def test_subscriber_that_was_sent_the_next_block_gets_its_parent(setting: Setting) -> None:
    """There is no moment in which the same caller is sent the new head and an old block."""
    for _ in range(6):
        for caller in setting.callers:
            for number in range(setting.chain.height - DEPTH, setting.chain.height + 1):
                caller.result("eth_getBlockByNumber", hex(number), False)
        setting.chain.reorganise(DEPTH)
        setting.chain.mine(ticks=1)
        for caller in setting.callers:
            block = eventually(partial(newest, caller, setting.chain.height), what="the next block")
            for _ in range(DEPTH):
                parent = caller.result("eth_getBlockByNumber", hex(int(block["number"], 16) - 1), False)
                assert parent["hash"] == block["parentHash"]
                block = parent


def newest(caller: Caller, height: int) -> Any:
    """Read the newest block past all caches; None if it is not the highest."""
    block = caller.result("eth_getBlockByNumber", "latest", True)
    return block if block["number"] == hex(height) else None


def test_chain_that_went_back_is_reported_as_it_is(setting: Setting) -> None:
    with setting.chain.undone():
        setting.chain.mine(DEPTH, ticks=1)
        eventually(lambda: at_the_head(setting), what="the blocks to be undone")
        queries = remembered(setting)
    setting.chain.mine(ticks=2)
    eventually(lambda: at_the_head(setting), what="the next block")
    assert not differing(setting, queries)


def test_blocks_replaced_while_there_was_no_prober_are_forgotten_with_its_successors_first_word(
    setting: Setting,
) -> None:
    queries = remembered(setting)
    before = [setting.truth(*question) for question in queries]
    prober = setting.gateway.children()["tg-prober"]
    # It must not see what happens before it dies, and its successor comes within milliseconds.
    os.kill(prober, signal.SIGSTOP)
    try:
        setting.chain.reorganise(DEPTH)
        probes = setting.probes()
    finally:
        os.kill(prober, signal.SIGKILL)
    changed = [
        question for question, known in zip(queries, before, strict=True) if setting.truth(*question) != known
    ]
    assert len(changed) > DEPTH, "or nothing is shown"
    # Of a node that is called for the second time the first answer was out of step.
    eventually(
        lambda: all(now >= then + 2 for now, then in zip(setting.probes(), probes, strict=True)),
        what="the successor's first word",
    )
    assert not differing(setting, queries)
    assert at_the_head(setting)
