"""The way of uses to the store: when they were, each told exactly once, bounded, and the end."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, MutableMapping
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.gateway.calls import call, say
from tests.gateway.fakes import Clock, ScriptedBook, turns
from tests.gateway.worker import Worker, with_worker

from tollgate.gateway.uses import CLOSE_SECONDS, FLUSH_SECONDS, MOST_AT_ONCE, Uses
from tollgate.store.base import StoreUnavailable, Use

NOON = 1_700_000_000.0

Lines = list[MutableMapping[str, Any]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    """What was logged so far."""
    with capture_logs() as captured:
        yield captured


class Loop(asyncio.SelectorEventLoop):
    """A loop whose time the test puts forward."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


class Desk:
    """Uses on a clock and a book, without a gateway."""

    def __init__(self, most: int) -> None:
        self.clock = Clock(NOON)
        self.book = ScriptedBook()
        self.uses = Uses(self.book, most=most, time=self.clock)

    def use(self, *names: str, calls: int = 1) -> None:
        for name in names:
            self.uses.used(name, calls)

    async def skip(self, seconds: float) -> None:
        """Let deadlines of so many seconds pass."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        loop.ahead += seconds
        await turns()


def at_desk(test: Callable[[Desk], Coroutine[Any, Any, None]], most: int = 10_000) -> None:
    async def inside() -> None:
        await test(Desk(most))

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(inside())


# --- When it was -------------------------------------------------------------------------------------------


def test_use_is_dated_to_the_flush_that_collects_it() -> None:
    async def test(desk: Desk) -> None:
        desk.use("a", "b")
        desk.clock.advance(5)
        await desk.uses.flush()
        desk.use("b")
        desk.clock.advance(5)
        await desk.uses.flush()
        assert desk.book.last() == {"a": NOON + 5, "b": NOON + 10}

    at_desk(test)


def test_use_keeps_its_date_through_an_outage() -> None:
    async def test(desk: Desk) -> None:
        desk.book.down = True
        desk.use("early", "often")
        await desk.uses.flush()
        desk.clock.advance(300)
        desk.use("often")
        await desk.uses.flush()
        desk.clock.advance(300)
        desk.book.down = False
        await desk.uses.flush()
        assert desk.book.told == [(Use("early", 1, NOON), Use("often", 2, NOON + 300))]

    at_desk(test)


def test_use_is_dated_also_while_the_store_hangs() -> None:
    async def test(desk: Desk) -> None:
        desk.book.gate = asyncio.Event()
        desk.use("a")
        flushes = [asyncio.ensure_future(desk.uses.flush())]
        await turns()
        desk.use("b")
        flushes.append(asyncio.ensure_future(desk.uses.flush()))
        await turns()
        desk.clock.advance(300)
        desk.book.gate.set()
        await asyncio.gather(*flushes)
        assert desk.book.last() == {"a": NOON, "b": NOON}

    at_desk(test)


# --- Each thing once ---------------------------------------------------------------------------------------


def test_nothing_to_tell_does_not_bother_the_store() -> None:
    async def test(desk: Desk) -> None:
        desk.use("a")
        for _ in range(3):
            await desk.uses.flush()
        assert len(desk.book.told) == 1

    at_desk(test)


def test_many_tokens_are_told_in_parts() -> None:
    async def test(desk: Desk) -> None:
        names = [f"tok_{number}" for number in range(2 * MOST_AT_ONCE + 1)]
        desk.use(*names)
        await desk.uses.flush()
        assert [len(uses) for uses in desk.book.told] == [MOST_AT_ONCE, MOST_AT_ONCE, 1]
        assert desk.book.calls() == dict.fromkeys(names, 1)

    at_desk(test)


def test_outage_loses_nothing_and_doubles_nothing() -> None:
    async def test(worker: Worker) -> None:
        await say(worker, [call(1)] * 3)
        worker.book.down = True
        for _ in range(3):
            await worker.uses.flush()
            await say(worker, call(1))
        assert worker.book.told == []
        worker.book.down = False
        for _ in range(2):
            await worker.uses.flush()
        assert worker.book.told == [(Use("tok_1", 6, NOON),)]

    with_worker(test)


def test_failure_in_the_middle_repeats_only_what_was_not_taken() -> None:
    async def test(desk: Desk) -> None:
        names = [f"tok_{number}" for number in range(3 * MOST_AT_ONCE)]
        desk.use(*names)
        desk.book.failures.extend([None, StoreUnavailable("the script says so")])
        await desk.uses.flush()
        assert len(desk.book.told) == 1
        desk.use(*names)
        await desk.uses.flush()
        assert desk.book.calls() == dict.fromkeys(names, 2)

    at_desk(test)


def test_flush_that_overlaps_another_waits_for_it_and_tells_nothing_twice() -> None:
    async def test(desk: Desk) -> None:
        desk.book.gate = asyncio.Event()
        desk.use("a")
        first = asyncio.ensure_future(desk.uses.flush())
        await turns()
        desk.use("a", "b")
        second = asyncio.ensure_future(desk.uses.flush())
        await turns()
        assert not first.done()
        assert not second.done()
        desk.book.gate.set()
        await asyncio.gather(first, second)
        assert desk.book.calls() == {"a": 2, "b": 1}

    at_desk(test)


def test_cancelled_flush_is_finished_by_the_next() -> None:
    """The background job is cancelled at the end, wherever it stands; then `close` is called."""

    async def test(desk: Desk) -> None:
        desk.book.gate = asyncio.Event()
        desk.use("a")
        cancelled = asyncio.ensure_future(desk.uses.flush())
        await turns()
        cancelled.cancel()
        await turns()
        assert cancelled.cancelled()
        desk.use("a", "b")
        closed = asyncio.ensure_future(desk.uses.close())
        await turns()
        desk.book.gate.set()
        await closed
        assert desk.book.calls() == {"a": 2, "b": 1}

    at_desk(test)


def test_flush_that_takes_too_long_goes_on_without_its_caller() -> None:
    async def test(desk: Desk) -> None:
        desk.book.gate = asyncio.Event()
        desk.use("a")
        for _ in range(2):
            flushed = asyncio.ensure_future(desk.uses.flush())
            await turns()
            assert not flushed.done()
            await desk.skip(FLUSH_SECONDS)
            assert flushed.done()
        desk.book.gate.set()
        await turns()
        await desk.uses.flush()
        assert desk.book.told == [(Use("a", 1, NOON),)]

    at_desk(test)


def test_defect_of_the_store_is_told_to_whoever_flushes_and_loses_nothing() -> None:
    async def test(desk: Desk) -> None:
        desk.use("a")
        desk.book.failures.append(ValueError("a defect"))
        with pytest.raises(ValueError, match="a defect"):
            await desk.uses.flush()
        await desk.uses.flush()
        assert desk.book.calls() == {"a": 1}

    at_desk(test)


# --- Bounds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "left"),
    [
        (5, {"many": 9, "few": 1, "more": 7, "seen late": 0, "seen early": 0}),
        (4, {"many": 9, "few": 1, "more": 7, "seen late": 0}),
        (3, {"many": 9, "few": 1, "more": 7}),
        (2, {"many": 9, "more": 7}),
        (1, {"many": 9}),
    ],
)
def test_times_without_calls_are_forgotten_first_and_then_the_fewest_calls(
    most: int, left: dict[str, int]
) -> None:
    async def test(desk: Desk) -> None:
        desk.book.down = True
        for name, calls in (("many", 9), ("few", 1), ("seen early", 0), ("seen late", 0), ("more", 7)):
            desk.use(name, calls=calls)
            desk.clock.advance(60)
            await desk.uses.flush()
        desk.book.down = False
        await desk.uses.flush()
        assert desk.book.calls() == left

    at_desk(test, most=most)


def test_forgetting_is_logged_once_for_each_outage(lines: Lines) -> None:
    async def test(desk: Desk) -> None:
        for outage in range(2):
            desk.book.down = True
            for number in range(5):
                desk.use(f"{outage} {number}")
                await desk.uses.flush()
            desk.book.down = False
            await desk.uses.flush()
        assert len(lines) == 2
        assert all(line["log_level"] == "error" and line["calls"] == 1 for line in lines)

    at_desk(test, most=2)


def test_memory_is_bounded_also_when_nobody_flushes() -> None:
    """What is full is dated early, and then the same rule chooses what to forget."""

    async def test(desk: Desk) -> None:
        desk.use("a", "b", calls=5)
        desk.clock.advance(60)
        desk.use("c")
        desk.clock.advance(60)
        await desk.uses.flush()
        assert desk.book.told == [(Use("a", 5, NOON + 60), Use("b", 5, NOON + 60))]

    at_desk(test, most=2)


def test_what_comes_back_from_a_failed_flush_is_bounded_too() -> None:
    async def test(desk: Desk) -> None:
        desk.book.gate = asyncio.Event()
        desk.book.down = True
        desk.use("a", "b", calls=5)
        first = asyncio.ensure_future(desk.uses.flush())
        await turns()
        desk.use("c", "d", calls=1)
        second = asyncio.ensure_future(desk.uses.flush())
        await turns()
        desk.book.gate.set()
        await asyncio.gather(first, second)
        desk.book.down = False
        await desk.uses.flush()
        assert desk.book.calls() == {"a": 5, "b": 5}

    at_desk(test, most=2)


# --- The end -----------------------------------------------------------------------------------------------


def test_close_tells_the_rest(lines: Lines) -> None:
    async def test(worker: Worker) -> None:
        await say(worker, call(1))
        await worker.uses.close()
        assert worker.book.calls() == {"tok_1": 1}
        assert lines == []

    with_worker(test)


@pytest.mark.parametrize("failure", [StoreUnavailable("the script says so"), ValueError("a defect")])
def test_close_says_what_is_lost(failure: Exception, lines: Lines) -> None:
    async def test(desk: Desk) -> None:
        desk.use("a", calls=3)
        desk.use("b", calls=0)
        desk.book.failures.append(failure)
        await desk.uses.close()
        assert (lines[-1]["tokens"], lines[-1]["calls"]) == (2, 3)
        assert "lost" in lines[-1]["event"]

    at_desk(test)


def test_close_does_not_wait_for_ever(lines: Lines) -> None:
    async def test(desk: Desk) -> None:
        desk.book.gate = asyncio.Event()
        desk.use("a")
        closed = asyncio.ensure_future(desk.uses.close())
        await turns()
        await desk.skip(CLOSE_SECONDS)
        assert closed.done()
        await closed
        assert [(line["tokens"], line["calls"]) for line in lines] == [(1, 1)]
        desk.book.gate.set()
        await turns()
        assert desk.book.told == []

    at_desk(test)
