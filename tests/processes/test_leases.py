"""Limits over several nodes: three tables, three keepers, one book of leases; time is made up."""

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from tests.contract.backends import params
from tests.contract.lease_books import BOOKS, MemoryLeaseBook

import tollgate
from tollgate.core.leases import LeaseReply, LeaseReport
from tollgate.core.limits import Limit, take
from tollgate.processes.leases import HOLD_SECONDS, TURN_SECONDS, LeaseKeeper
from tollgate.shm import metrics
from tollgate.shm.leases import LeasedMeters, LeasedSlots
from tollgate.store.base import LeaseBook, SharedUnreachable
from tollgate.store.valkey import ALIVE_MILLISECONDS, DEADLINE_SECONDS

SECRET = b"pepper"
STEP = 0.005
KEY = "tok_1"


class Node:
    """One node: its table, its keeper and its own clock."""

    def __init__(self, number: int, book: LeaseBook, folder: Path, workers: int = 2) -> None:
        self.offset = 1_000.0 * (number + 1)
        self.now = self.offset
        self.meters = LeasedMeters(1_024, workers, folder / f"{number}.lock", SECRET)
        self.writer = metrics.Regions(1).writer(0)
        self.keeper = LeaseKeeper(self.meters, book, self.writer, f"node-{number}", lambda: self.now)
        self.turn_at = TURN_SECONDS * number / 3
        self._workers = workers
        self._owed = 0.0
        self._worker = 0
        self._slots: LeasedSlots | None = None
        self.passed: list[float] = []

    def send(self, rate: float, limit: Limit, at: float) -> None:
        """Send requests of `rate` for one step, to the workers in turn."""
        self.now = self.offset + at
        self._owed += rate * STEP
        while self._owed >= 1:
            self._owed -= 1
            self._worker = (self._worker + 1) % self._workers
            self.meters.attach(self._worker)
            if not self._slots or self.meters.moved(self._slots):
                self._slots = self.meters.slots([(KEY, limit)], self.now)
            if self.meters.take_all(self._slots, self.now):
                self.passed.append(at)

    def metric(self, spec: metrics.Spec) -> int:
        return self.writer.cells[self.writer.cell(spec)]


async def play(
    nodes: Sequence[Node], limit: Limit, rates: Callable[[int, float], float], seconds: float, start: float = 0.0
) -> None:
    """Let time go by: callers send, keepers take their turns."""
    for number in range(int(seconds / STEP)):
        at = start + number * STEP
        for index, node in enumerate(nodes):
            node.send(rates(index, at), limit, at)
            if at >= node.turn_at:
                await node.keeper.tick()
                node.turn_at += node.keeper.pause


def excess(nodes: Sequence[Node], limit: Limit) -> float:
    """How far over the limit the nodes were together, in the worst of all spans of time; 1: not at all."""
    times = sorted(itertools.chain.from_iterable(node.passed for node in nodes))
    worst = 0.0
    stride = max(1, len(times) // 400)
    for first in range(0, len(times), stride):
        for last in range(first, len(times), stride):
            allowed = limit.count * (1 + (times[last] - times[first]) / limit.seconds)
            worst = max(worst, (last - first + 1) / allowed)
    return worst


@pytest.fixture(params=params(BOOKS))
async def book(request: pytest.FixtureRequest) -> AsyncIterator[LeaseBook]:
    made = BOOKS[request.param]()
    yield made
    await made.close()


def make(book: LeaseBook, folder: Path, count: int = 3) -> list[Node]:
    return [Node(number, book, folder) for number in range(count)]


LOADS: dict[str, Callable[[int, float], float]] = {
    "all flooded": lambda node, at: 10.0,
    "one flooded": lambda node, at: 10.0 if node == 0 else 0.0,
    "one flooded, others busy": lambda node, at: (5.0, 0.3, 0.1)[node],
    "uneven": lambda node, at: (0.7, 0.3, 0.1)[node],
    "one after the other": lambda node, at: 10.0 if int(at / 3) % 3 == node else 0.0,
    "one after the other, each second": lambda node, at: 10.0 if int(at) % 3 == node else 0.0,
    "one after the other, at its limit": lambda node, at: 1.0 if int(at / 3) % 3 == node else 0.0,
    "most of it moves": lambda node, at: 0.9 if int(at / 3) % 3 == node else 0.1,
    "slowly from one to another": lambda node, at: 1.1 * (at / 12, 1 - at / 12, 0.0)[node],
    "bursts together": lambda node, at: 30.0 if at % 4 < 0.2 else 0.0,
    "each within its part": lambda node, at: 0.3,
}
"""Requests of each node, in parts of the limit's own rate; twenty times that where the window is a minute."""


class OneNode:
    """The same limit kept by one node that gets all calls: what several nodes should let pass together."""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self._arrival = 0.0
        self._owed = [0.0] * 3
        self.passed = 0

    def send(self, node: int, rate: float, at: float) -> None:
        self._owed[node] += rate * STEP
        while self._owed[node] >= 1:
            self._owed[node] -= 1
            taken = take(self._limit, self._arrival, at)
            self._arrival = taken.arrival
            self.passed += taken.allowed


@pytest.mark.parametrize("load", LOADS)
async def test_three_nodes_leave_at_most_5_percent_unused_and_are_never_more_than_5_percent_over(
    book: LeaseBook, tmp_path: Path, load: str
) -> None:
    limit, nodes = Limit(50, 1.0), make(book, tmp_path)
    await settle(nodes)
    one = OneNode(limit)

    def rates(node: int, at: float) -> float:
        rate = LOADS[load](node, at) * limit.count
        one.send(node, rate, at)
        return rate

    await play(nodes, limit, rates, 12.0, 0.2)
    assert sum(len(node.passed) for node in nodes) >= 0.95 * one.passed
    assert excess(nodes, limit) <= 1.05 + 0.01 / limit.count


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("limit", [Limit(600, 60.0), Limit(20, 60.0)], ids=["600 a minute", "20 a minute"])
async def test_limits_by_the_minute_are_never_more_than_5_percent_over(
    tmp_path: Path, limit: Limit, load: str
) -> None:
    nodes = make(MemoryLeaseBook(), tmp_path)
    await settle(nodes)
    pace = 20 * limit.count / limit.seconds
    await play(nodes, limit, lambda node, at: LOADS[load](node, at) * pace, 12.0, 0.2)
    assert excess(nodes, limit) <= 1.05 + 0.01 / limit.count


async def settle(nodes: Sequence[Node]) -> None:
    """Let every node know of all the others before the first call."""
    for _ in range(2):
        for node in nodes:
            await node.keeper.tick()


async def test_one_busy_node_gets_the_whole_limit(book: LeaseBook, tmp_path: Path) -> None:
    nodes = make(book, tmp_path)
    await settle(nodes)
    limit = Limit(50, 1.0)
    await play(nodes, limit, lambda node, at: 500.0 if node == 0 else 0.0, 6.0)
    passed = len(nodes[0].passed)
    assert passed >= 0.95 * limit.count * 6.0
    assert nodes[0].metric(metrics.SHARED_LEASES) == 1


@pytest.mark.parametrize("count", [600, 20])
async def test_burst_moves_to_the_node_that_needs_it(book: LeaseBook, tmp_path: Path, count: int) -> None:
    nodes = make(book, tmp_path)
    await settle(nodes)
    limit = Limit(count, 60.0)
    await play(nodes, limit, lambda node, at: 5.0 * count if node == 0 else 0.0, 1.0)
    assert len(nodes[0].passed) >= 0.95 * count


async def test_all_busy_nodes_together_use_the_whole_limit(book: LeaseBook, tmp_path: Path) -> None:
    nodes = make(book, tmp_path)
    await settle(nodes)
    limit = Limit(50, 1.0)
    await play(nodes, limit, lambda node, at: (500.0, 40.0, 3.0)[node], 6.0)
    assert sum(len(node.passed) for node in nodes) >= 0.95 * limit.count * 6.0
    assert len(nodes[2].passed) >= 0.9 * 3.0 * 6.0, "who wants little gets it"


async def test_caller_below_its_limit_is_refused_nowhere(book: LeaseBook, tmp_path: Path) -> None:
    nodes = make(book, tmp_path)
    await settle(nodes)
    await play(nodes, Limit(100, 1.0), lambda node, at: 28.0, 4.0)
    assert [len(node.passed) for node in nodes] == pytest.approx([112, 112, 112], abs=2)
    assert nodes[0].metric(metrics.SHARED_LEASES) == 0, "and Valkey has nothing to do"


# --- What goes wrong ---------------------------------------------------------------------------------------


class Flaky:
    """A book in memory that can be lost and emptied."""

    def __init__(self) -> None:
        self.inner = MemoryLeaseBook()
        self.down = False
        self.heard = False
        self.silent = False

    async def exchange(self, node: str, reports: Sequence[LeaseReport]) -> LeaseReply:
        if self.silent:
            await asyncio.Event().wait()
        return await self._up(self.inner.exchange(node, reports))

    async def _up(self, answer: Awaitable[LeaseReply]) -> LeaseReply:
        if self.down:
            if self.heard:
                await answer
            else:
                answer.close()  # type: ignore[attr-defined]
            raise SharedUnreachable("gone")
        return await answer

    async def leave(self, node: str) -> None:
        if self.down:
            raise SharedUnreachable("gone")

    async def close(self) -> None:
        """Nothing to release."""


def flood(node: int, at: float) -> float:
    return 500.0


async def test_lost_book_leaves_each_node_its_own_limit_and_it_comes_back(tmp_path: Path) -> None:
    book = Flaky()
    nodes = make(book, tmp_path)
    await settle(nodes)
    limit = Limit(50, 1.0)
    await play(nodes, limit, flood, 3.0)
    book.down = True
    await play(nodes, limit, flood, HOLD_SECONDS + 3.0, 3.0)
    alone = [sum(at >= HOLD_SECONDS + 4.0 for at in node.passed) for node in nodes]
    assert alone == pytest.approx([100, 100, 100], abs=5), "each has the whole limit, as without Valkey"
    assert [node.metric(metrics.SHARED_UP) for node in nodes] == [0, 0, 0]
    assert [node.metric(metrics.SHARED_LOST) for node in nodes] == [1, 1, 1]
    book.down = False
    await play(nodes, limit, flood, 4.0, HOLD_SECONDS + 6.0)
    together = sum(at >= HOLD_SECONDS + 7.0 for node in nodes for at in node.passed)
    assert together == pytest.approx(150, rel=0.06)
    assert [node.metric(metrics.SHARED_NODES) for node in nodes] == [3, 3, 3]


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("heard", [False, True], ids=["not heard", "heard without an answer"])
@pytest.mark.parametrize("which", [(0,), (0, 1, 2)], ids=["one node", "all nodes"])
async def test_book_that_is_away_for_a_moment_lets_nothing_pass_that_is_over_a_limit(
    tmp_path: Path, which: tuple[int, ...], heard: bool, load: str
) -> None:
    """Valkey keeps what a node holds from the others for longer than that."""
    flaky = Flaky()
    flaky.heard = heard
    nodes = [Node(number, flaky if number in which else flaky.inner, tmp_path) for number in range(3)]
    await settle(nodes)
    limit = Limit(50, 1.0)
    up, down = 1.1, HOLD_SECONDS - 0.1
    for number in range(6):
        start = number * (up + down)
        flaky.down = False
        await play(nodes, limit, lambda node, at: LOADS[load](node, at) * 50, up, start)
        flaky.down = True
        await play(nodes, limit, lambda node, at: LOADS[load](node, at) * 50, down, start + up)
    assert excess(nodes, limit) <= 1.05 + 0.01 / limit.count
    assert [node.metric(metrics.SHARED_LOST) for node in nodes] == [0, 0, 0]
    assert [node.metric(metrics.SHARED_UP) for node in nodes] == [1, 1, 1]


def test_leases_are_used_for_less_time_than_they_are_kept_from_others() -> None:
    assert HOLD_SECONDS < ALIVE_MILLISECONDS / 1000 - DEADLINE_SECONDS


async def test_book_that_never_answers_keeps_no_call_waiting(tmp_path: Path) -> None:
    book = Flaky()
    node, *others = make(book, tmp_path)
    await settle([node, *others])
    book.silent = True
    turn = asyncio.create_task(node.keeper.tick())
    await asyncio.sleep(0)
    # A plain function, that finds in shared memory what the node may use: there is nothing to wait for.
    node.send(17 / STEP, Limit(50, 1.0), 0.1)
    assert len(node.passed) == 17, "its part of the burst"
    assert not turn.done()
    turn.cancel()


def test_only_background_jobs_know_what_valkey_is_behind() -> None:
    source = Path(tollgate.__file__).parent
    users = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if re.search(r"LeaseBook|AnswerLog", path.read_text())
    }
    assert users == {
        "gateway/call/shared_answers.py",  # a background job of workers
        "processes/leases.py",  # a process of its own
        "processes/worker.py",  # starts the job
        "store/base.py",
        "store/valkey.py",
    }


async def test_emptied_book_is_noticed_and_joined_again(tmp_path: Path) -> None:
    book = Flaky()
    nodes = make(book, tmp_path)
    await settle(nodes)
    book.inner = MemoryLeaseBook()
    await nodes[0].keeper.tick()
    assert nodes[0].metric(metrics.SHARED_UP) == 0
    for node in (*nodes, *nodes):
        await node.keeper.tick()
    assert [node.metric(metrics.SHARED_UP) for node in nodes] == [1, 1, 1]
    assert [node.metric(metrics.SHARED_NODES) for node in nodes] == [3, 3, 3]


async def test_keeper_that_is_replaced_takes_up_its_leases(tmp_path: Path) -> None:
    book = MemoryLeaseBook()
    nodes = make(book, tmp_path)
    await settle(nodes)
    limit = Limit(50, 1.0)
    await play(nodes, limit, lambda node, at: 500.0 if node == 0 else 0.0, 3.0)
    idle = nodes[1]
    idle.keeper = LeaseKeeper(idle.meters, book, idle.writer, "node-1", lambda: idle.now)
    await idle.keeper.tick()
    slot = idle.meters.slots([(KEY, limit)], idle.now)[0][0]
    assert idle.meters.read(slot, idle.now).fraction < 0.05


async def test_book_that_is_away_at_the_start_counts_as_lost(tmp_path: Path) -> None:
    book = Flaky()
    book.down = True
    [node] = make(book, tmp_path, 1)
    assert not await node.keeper.tick()
    assert not await node.keeper.tick()
    assert node.metric(metrics.SHARED_LOST) == 1
    await node.keeper.leave()
