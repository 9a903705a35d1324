"""Coroutines without tasks: where they run, how they end, what they may wait for."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.gateway.fakes import turns

from tollgate.gateway.upstream.completion import Flight, Pending


class Tower:
    """Writes down how flights land."""

    def __init__(self) -> None:
        self.landed: list[tuple[Flight[str], str | None, BaseException | None]] = []

    def start(self, coroutine: Coroutine[Any, Any, str]) -> Flight[str]:
        flight = Flight(coroutine, lambda *how: self.landed.append(how))
        flight.step()
        return flight

    @property
    def results(self) -> list[str | BaseException | None]:
        return [error or value for _, value, error in self.landed]


def pending() -> Pending[str]:
    return Pending(asyncio.get_running_loop())


async def passed_on(awaited: Pending[str] | asyncio.Future[str]) -> str:
    return f"got {await awaited}"


def test_coroutine_that_never_waits_lands_at_once() -> None:
    async def at_once() -> str:
        return "here"

    tower = Tower()
    flight = tower.start(at_once())
    assert tower.landed == [(flight, "here", None)]


def test_error_is_handed_over() -> None:
    async def broken() -> str:
        raise ValueError("bad")

    tower = Tower()
    tower.start(broken())
    (error,) = tower.results
    assert isinstance(error, ValueError)


async def test_waiter_is_resumed_on_the_spot_when_a_pending_is_settled() -> None:
    tower, awaited = Tower(), pending()
    tower.start(passed_on(awaited))
    assert tower.landed == []
    awaited.settle("it")
    assert tower.results == ["got it"]


async def test_waiter_of_a_failed_pending_is_resumed_in_a_turn_of_its_own() -> None:
    tower, awaited, error = Tower(), pending(), OSError("gone")
    tower.start(passed_on(awaited))
    awaited.fail(error)
    assert tower.landed == []
    await turns(1)
    assert tower.results == [error]


async def test_pending_that_is_done_needs_no_wait() -> None:
    settled, failed = pending(), pending()
    settled.settle("it")
    failed.fail(OSError("gone"))
    tower = Tower()
    tower.start(passed_on(settled))
    tower.start(passed_on(failed))
    assert tower.results[0] == "got it"
    assert isinstance(tower.results[1], OSError)


async def test_flight_waits_for_futures_tasks_and_shields() -> None:
    tower, future = Tower(), asyncio.get_running_loop().create_future()
    tower.start(passed_on(future))
    task = asyncio.ensure_future(passed_on(future))
    tower.start(passed_on(task))
    tower.start(passed_on(asyncio.shield(task)))
    future.set_result("it")
    await turns()
    assert sorted(str(result) for result in tower.results) == ["got got it", "got got it", "got it"]


async def test_flight_sees_the_error_of_a_future() -> None:
    tower, future = Tower(), asyncio.get_running_loop().create_future()
    tower.start(passed_on(future))
    future.set_exception(OSError("gone"))
    await turns()
    assert isinstance(tower.results[0], OSError)


async def test_flight_that_waits_several_times_lands_once() -> None:
    first, second = pending(), pending()

    async def both() -> str:
        return await first + await second

    tower = Tower()
    tower.start(both())
    first.settle("a")
    assert tower.landed == []
    second.settle("b")
    assert tower.results == ["ab"]


async def test_cancelled_flight_lands_with_the_cancellation() -> None:
    tower = Tower()
    flight = tower.start(passed_on(pending()))
    flight.cancel()
    assert isinstance(tower.results[0], asyncio.CancelledError)


async def test_cancelled_flight_may_still_give_a_result() -> None:
    async def stubborn(awaited: Pending[str]) -> str:
        try:
            return await awaited
        except asyncio.CancelledError:
            return "saved"

    tower = Tower()
    tower.start(stubborn(pending())).cancel()
    assert tower.results == ["saved"]


@pytest.mark.parametrize("outcome", ["settle", "fail"])
async def test_cancelled_flight_does_not_land_again_when_what_it_waited_for_comes(outcome: str) -> None:
    tower, awaited = Tower(), pending()
    tower.start(passed_on(awaited)).cancel()
    if outcome == "settle":
        awaited.settle("late")
    else:
        awaited.fail(OSError("late"))
    await turns()
    assert len(tower.landed) == 1
