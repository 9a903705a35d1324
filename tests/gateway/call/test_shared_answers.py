"""Answers about final blocks go to other workers and come from them; no call is involved."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tests.gateway.call.test_cache import CHAIN, FINAL, HEAD, LATEST, Shelf, at, call

from tollgate.gateway.call.cache import key_of, method_of
from tollgate.gateway.call.shared_answers import MAX_ENTRY, RETRY_SECONDS, SharedAnswers
from tollgate.shm import metrics
from tollgate.store.base import SharedAnswer, SharedUnreachable


class Log:
    """A log that hands out what it was given."""

    def __init__(self) -> None:
        self.sent: list[SharedAnswer] = []
        self.waiting: list[SharedAnswer] = []
        self.forgotten: list[str] = []
        self.turns = 0
        self.down = False
        self.silent = False

    async def exchange(
        self, networks: Sequence[str], sent: Mapping[str, Sequence[SharedAnswer]]
    ) -> dict[str, list[SharedAnswer]]:
        self.turns += 1
        if self.silent:
            await asyncio.Event().wait()
        if self.down:
            raise SharedUnreachable("gone")
        for answers in sent.values():
            self.sent += answers
        waiting, self.waiting = self.waiting, []
        return {networks[0]: waiting} if waiting else {}

    async def forget(self, network: str) -> None:
        self.forgotten.append(network)

    async def close(self) -> None:
        """Nothing to release."""


class WorkerCache:
    """A worker's cache of one network, and its exchange with others."""

    def __init__(self, chain_id: str = "0x1", max_bytes: int = 1_000_000) -> None:
        self.shelf = Shelf(max_bytes=max_bytes)
        network = SimpleNamespace(family="eth", name="mainnet", chain_id=chain_id)
        resolver: Any = SimpleNamespace(
            exchange=SimpleNamespace(network=network, status=self.shelf.row), cache=self.shelf.cache
        )
        self.log = Log()
        self.writer = metrics.Regions(1).writer(0)
        self.answers = SharedAnswers(self.log, {"eth/mainnet": resolver}, self.writer, self.shelf.clock)

    def called_twice(self, *calls: Any, result: Any = "0x1") -> None:
        for each in calls:
            self.shelf.put(each, result)
            assert self.shelf.get(each) is not None

    def count(self, how: str, *names: str) -> int:
        return self.writer.cells[self.writer.cell(metrics.SHARED_ANSWERS, *(names or ("eth", "mainnet")), how)]


@pytest.fixture
def worker() -> WorkerCache:
    return WorkerCache()


def answer(number: int, result: bytes = b'"0x7"') -> SharedAnswer:
    return SharedAnswer(key_of(at(number)), number, result)


async def test_final_answer_that_was_requested_again_is_sent_once(worker: WorkerCache) -> None:
    worker.called_twice(at(FINAL))
    await worker.answers.tick()
    await worker.answers.tick()
    assert worker.log.sent == [SharedAnswer(key_of(at(FINAL)), FINAL, b'"0x1"')]
    assert worker.count("sent") == 1


async def test_what_is_not_final_or_was_requested_once_stays(worker: WorkerCache) -> None:
    worker.shelf.put(at(FINAL))
    worker.called_twice(at(FINAL + 1), at(HEAD), LATEST, CHAIN)
    worker.called_twice(call("eth_getBalance", "0xb", hex(FINAL)), result="x" * MAX_ENTRY)
    await worker.answers.tick()
    assert worker.log.sent == []


async def test_answer_of_another_worker_is_a_hit_here(worker: WorkerCache) -> None:
    worker.log.waiting = [answer(FINAL)]
    await worker.answers.tick()
    assert worker.shelf.get(at(FINAL)) == "0x7"
    assert worker.count("taken") == 1
    await worker.answers.tick()
    assert worker.log.sent == [], "and is not sent back"


async def test_log_that_never_answers_keeps_no_call_waiting(worker: WorkerCache) -> None:
    worker.log.silent = True
    turn = asyncio.create_task(worker.answers.tick())
    await asyncio.sleep(0)
    assert worker.log.turns == 1
    # Plain functions: a call's look-up has nothing to wait for.
    worker.called_twice(at(FINAL))
    assert worker.shelf.get(at(FINAL)) == "0x1"
    assert not turn.done()
    turn.cancel()


@pytest.mark.parametrize(
    "other",
    [
        answer(FINAL + 1),
        answer(-1),
        SharedAnswer(b"eth_sendRawTransaction(1", FINAL, b"1"),
        answer(1, b"x" * 200_000),
    ],
    ids=["not final here", "no block", "not a method to cache", "too large"],
)
async def test_what_does_not_belong_here_is_not_taken(worker: WorkerCache, other: SharedAnswer) -> None:
    worker.log.waiting = [other]
    await worker.answers.tick()
    assert len(worker.shelf.cache) == 0


async def test_own_answers_are_neither_replaced_nor_pushed_out() -> None:
    worker = WorkerCache(max_bytes=1_000)
    worker.called_twice(at(FINAL))
    worker.log.waiting = [answer(FINAL), *(answer(number) for number in range(10))]
    await worker.answers.tick()
    assert worker.shelf.get(at(FINAL)) == "0x1"
    assert worker.shelf.cache.used <= 1_000


async def test_reorganisation_below_ends_what_others_sent(worker: WorkerCache) -> None:
    worker.log.waiting = [answer(FINAL), answer(FINAL - 10)]
    await worker.answers.tick()
    worker.shelf.row.publish_reorg(FINAL - 5)
    assert worker.shelf.get(at(FINAL)) is None
    assert worker.shelf.get(at(FINAL - 10)) == "0x7"


async def test_replaced_final_blocks_are_forgotten_by_all(worker: WorkerCache) -> None:
    await worker.answers.tick()
    worker.shelf.row.publish_reorg(FINAL + 5)
    await worker.answers.tick()
    assert worker.log.forgotten == [], "an ordinary one"
    worker.shelf.row.publish_reorg(FINAL - 5)
    await worker.answers.tick()
    assert worker.log.forgotten == ["eth/mainnet@0x1"]


async def test_network_without_a_chain_id_takes_no_part() -> None:
    worker = WorkerCache(chain_id="")
    worker.called_twice(at(FINAL))
    await worker.answers.tick()
    assert worker.log.turns == 0


async def test_lost_log_is_left_alone_for_a_while_and_comes_back(worker: WorkerCache) -> None:
    worker.log.down = True
    worker.called_twice(at(FINAL - 1))
    for _ in range(3):
        await worker.answers.tick()
    assert worker.log.turns == 1
    assert worker.count("failed", "", "") == 1
    worker.log.down = False
    worker.shelf.clock.now += RETRY_SECONDS
    worker.log.waiting = [answer(FINAL)]
    await worker.answers.tick()
    assert worker.shelf.get(at(FINAL)) == "0x7"
    assert [each.number for each in worker.log.sent] == [FINAL - 1], "what could not be sent before"


def test_method_of_a_key_is_its_beginning() -> None:
    assert method_of(key_of(LATEST)) == "eth_getBalance"
    assert method_of(key_of(CHAIN)) == "eth_chainId"
    assert method_of(b'starknet_call{"a"\0(1') == "starknet_call"
