"""Several attempts at once: who wins, who is heard, when a second one may begin."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.company import Company
from tests.gateway.fakes import Clock, ScriptedLoop, fly, scripted_loop, turns

from tollgate.chains.faults import Verdict
from tollgate.gateway.upstream.completion import Pending
from tollgate.gateway.upstream.connection import AttemptFailed
from tollgate.gateway.upstream.hedging import AttemptOutcome, Hedge, Hedges, Race, Relay, Together

PEERS = Company(*[{}] * 4).upstreams
FAILED = AttemptFailed("scripted", sent=True)


class Attempts:
    """Attempts that end when they are told to."""

    def __init__(self, count: int = 2) -> None:
        self.loop = asyncio.get_running_loop()
        self.ends: list[Pending[AttemptOutcome[str] | BaseException]] = [Pending(self.loop) for _ in range(count)]

    async def attempt(self, index: int) -> AttemptOutcome[str]:
        end = await self.ends[index]
        if isinstance(end, BaseException):
            raise end
        return end

    def answer(self, index: int, word: str = "yes", verdict: Verdict = Verdict.FINAL) -> None:
        self.ends[index].settle(AttemptOutcome(PEERS[index], word, verdict))

    def fail(self, index: int) -> None:
        self.ends[index].settle(AttemptOutcome(PEERS[index], failure=FAILED))


async def awaited(race: Race[str]) -> AttemptOutcome[str]:
    return await race


def race_of(count: int, attempts: Attempts) -> tuple[Race[str], asyncio.Future[AttemptOutcome[str]]]:
    race: Race[str] = Race(attempts.loop)
    race.start(*[attempts.attempt(index) for index in range(count)])
    return race, fly(awaited(race))


# --- A race ------------------------------------------------------------------------------------------------


async def test_first_good_answer_wins_and_late_ones_are_unheard() -> None:
    attempts = Attempts()
    race, outcome = race_of(2, attempts)
    attempts.answer(1, "quick")
    assert (await outcome).answer == "quick"
    attempts.answer(0, "late")
    await turns()
    assert (race.over, race.bad) == (True, [])


@pytest.mark.parametrize("end", ["failure", "error", "fault"])
async def test_bad_end_of_a_loser_harms_nothing(end: str) -> None:
    attempts = Attempts()
    race, outcome = race_of(2, attempts)
    attempts.answer(0)
    if end == "failure":
        attempts.fail(1)
    elif end == "fault":
        attempts.answer(1, "no", Verdict.LAGGING)
    else:
        attempts.ends[1].settle(RuntimeError("broken"))
    await turns()
    assert (await outcome).answer == "yes"
    assert race.bad == []


async def test_bad_ones_are_passed_over_while_somebody_is_left() -> None:
    attempts = Attempts(3)
    race, outcome = race_of(3, attempts)
    attempts.fail(0)
    attempts.answer(1, "not me", Verdict.LAGGING)
    assert not outcome.done()
    attempts.answer(2)
    assert (await outcome).answer == "yes"
    assert [bad.upstream for bad in race.bad] == PEERS[:2]


async def test_of_bad_ones_alone_the_last_speaks_and_all_are_known() -> None:
    attempts = Attempts()
    race, outcome = race_of(2, attempts)
    attempts.answer(1, "not me", Verdict.PRUNED)
    attempts.fail(0)
    assert (await outcome).failure is FAILED
    assert [bad.upstream for bad in race.bad] == [PEERS[1], PEERS[0]]


async def test_defect_in_an_attempt_is_not_swallowed() -> None:
    attempts = Attempts()
    _, outcome = race_of(2, attempts)
    attempts.ends[0].settle(RuntimeError("broken"))
    with pytest.raises(RuntimeError, match="broken"):
        await outcome
    attempts.answer(1)


async def test_those_that_begin_together_are_all_heard_even_if_the_first_fails_at_once() -> None:
    async def at_once() -> AttemptOutcome[str]:
        return AttemptOutcome(PEERS[0], failure=FAILED)

    attempts = Attempts()
    race: Race[str] = Race(attempts.loop)
    race.start(at_once(), attempts.attempt(1))
    assert not race.over
    outcome = fly(awaited(race))
    attempts.answer(1)
    assert (await outcome).answer == "yes"


async def test_what_is_good_can_be_said_otherwise() -> None:
    attempts = Attempts()
    race: Race[str] = Race(attempts.loop, lambda outcome: outcome.answer == "yes")
    race.start(attempts.attempt(0), attempts.attempt(1))
    outcome = fly(awaited(race))
    attempts.answer(0, "no")
    assert not outcome.done()
    attempts.answer(1, "yes")
    assert (await outcome).upstream is PEERS[1]


# --- A relay -----------------------------------------------------------------------------------------------


def relay_of(count: int, attempts: Attempts) -> Relay[str]:
    relay: Relay[str] = Relay(attempts.loop)
    for index in range(count):
        relay.start(attempts.attempt(index))
    return relay


async def test_outcomes_are_given_one_by_one_as_they_land() -> None:
    attempts = Attempts(3)
    relay = relay_of(2, attempts)
    first = fly(relay.next())
    assert not first.done()
    attempts.fail(1)
    bad = await first
    assert bad is not None
    assert (bad.upstream, bad.failure, relay.left) == (PEERS[1], FAILED, 1)
    relay.start(attempts.attempt(2))
    attempts.answer(2, "quick")
    attempts.answer(0, "late")
    assert relay.left == 2, "landed, but not taken"
    words = [await fly(relay.next()) for _ in range(2)]
    assert [each.answer for each in words if each is not None] == ["quick", "late"]
    assert relay.left == 0


async def test_relay_waits_no_longer_than_it_is_told_to() -> None:
    loop = scripted_loop()
    loop.clock = Clock()
    attempts = Attempts(1)
    relay = relay_of(1, attempts)
    asked = fly(relay.next(0.5))
    await loop.later(0.4)
    assert not asked.done()
    await loop.later(0.2)
    assert (await asked, relay.left) == (None, 1)
    asked = fly(relay.next(0.5))
    attempts.answer(0)
    landed = await asked
    assert landed is not None
    assert landed.answer == "yes"
    assert [timer for timer in loop.timers if not timer.cancelled()] == []


async def test_defect_in_an_attempt_of_a_relay_is_not_swallowed() -> None:
    attempts = Attempts(1)
    asked = fly(relay_of(1, attempts).next())
    attempts.ends[0].settle(RuntimeError("broken"))
    with pytest.raises(RuntimeError, match="broken"):
        await asked


async def test_relay_calls_off_the_hedge_of_the_attempt_before() -> None:
    relay: Relay[str] = Relay(scripted_loop())
    hedges = [Hedge(1.0, lambda: True) for _ in range(2)]
    relay.call_off()
    for hedge in hedges:
        relay.hedge(hedge)
    assert [hedge.start is None for hedge in hedges] == [True, False]
    relay.call_off()
    assert [hedge.start is None for hedge in hedges] == [True, True]


# --- Together ----------------------------------------------------------------------------------------------


async def all_of(parts: list[Coroutine[Any, Any, str]]) -> list[str]:
    return await Together(asyncio.get_running_loop(), parts)


async def passed_on(end: Pending[str]) -> str:
    return await end


@given(st.permutations(range(5)))
async def test_results_come_in_the_order_of_the_parts(order: list[int]) -> None:
    ends: list[Pending[str]] = [Pending(asyncio.get_running_loop()) for _ in order]
    results = fly(all_of([passed_on(end) for end in ends]))
    for index in order:
        assert not results.done()
        ends[index].settle(str(index))
    assert await results == ["0", "1", "2", "3", "4"]


async def test_first_error_ends_it_and_later_ends_are_unheard() -> None:
    ends: list[Pending[str]] = [Pending(asyncio.get_running_loop()) for _ in range(3)]
    results = fly(all_of([passed_on(end) for end in ends]))
    ends[0].fail(ValueError("first"))
    ends[1].fail(ValueError("second"))
    await turns()
    with pytest.raises(ValueError, match="first"):
        await results
    ends[2].settle("late")


# --- Hedges ------------------------------------------------------------------------------------------------


class Line:
    """Hedges on a manual clock, and what they started."""

    def __init__(self, earned: int = 0) -> None:
        self.loop: ScriptedLoop = scripted_loop()
        self.clock = self.loop.clock = Clock()
        self.hedges = Hedges(self.loop, self.clock)
        self.began: list[tuple[str, float]] = []
        for _ in range(earned):
            self.hedges.earn()

    def watch(self, name: str, seconds: float, slot: int = 0, found: bool = True) -> Any:
        def start() -> bool:
            self.began.append((name, round(self.clock() - 1_000, 3)))
            return found

        return self.hedges.watch(slot, self.clock() + seconds, start)


async def test_second_attempt_begins_when_it_is_due_and_not_before() -> None:
    line = Line(earned=100)
    line.watch("a", 0.1)
    await line.loop.later(0.09)
    line.watch("b", 0.1)
    assert line.began == []
    await line.loop.later(0.2)
    assert line.began == [("a", 0.1), ("b", 0.19)]
    assert line.hedges.started == 2


async def test_one_that_was_called_off_never_begins() -> None:
    line = Line(earned=100)
    hedges = [line.watch(str(number), 0.1) for number in range(3)]
    hedges[1].call_off()
    await line.loop.later(1.0)
    assert [name for name, _ in line.began] == ["0", "2"]


async def test_one_that_is_due_earlier_does_not_wait_for_those_that_are_over() -> None:
    line = Line(earned=100)
    line.watch("slow", 10.0).call_off()
    line.watch("quick", 0.01)
    await line.loop.later(0.05)
    assert line.began == [("quick", 0.01)]


async def test_lines_of_upstreams_do_not_wait_for_each_other() -> None:
    line = Line(earned=100)
    line.watch("slow", 5.0, slot=1)
    line.watch("quick", 0.01, slot=2)
    await line.loop.later(0.02)
    assert line.began == [("quick", 0.01)]
    await line.loop.later(5.0)
    assert line.began[1:] == [("slow", 5.0)]


async def test_calls_that_are_over_are_let_go_and_one_timer_serves_them_all() -> None:
    line = Line(earned=100)
    for _ in range(1_000):
        line.watch("x", 1.0).call_off()
    assert len(line.hedges._lines[0]) <= 1
    assert len(line.loop.timers) == 1
    await line.loop.later(2.0)
    assert not line.hedges._lines[0]
    assert not line.loop.timers


async def test_twenty_calls_pay_for_one_and_nobody_else_to_ask_costs_nothing() -> None:
    line = Line(earned=20)
    line.watch("nobody", 0.1, found=False)
    await line.loop.later(0.2)
    for name in "ab":
        line.watch(name, 0.1)
    await line.loop.later(0.2)
    # Where there was nobody else to ask, it is looked for again; that costs nothing.
    assert [name for name, _ in line.began if name != "nobody"] == ["a"]
    assert line.hedges.started == 1


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 0.2)), min_size=1, max_size=300))
async def test_no_more_than_one_in_twenty_and_what_was_saved(calls: list[tuple[bool, float]]) -> None:
    line = Line(earned=1_000)
    for slow, pause in calls:
        line.hedges.earn()
        hedge = line.watch("x", 0.05)
        if not slow:
            hedge.call_off()
        await line.loop.later(pause)
    await line.loop.later(1.0)
    slow_calls = sum(slow for slow, _ in calls)
    assert line.hedges.started <= min(slow_calls, 20 + 0.05 * len(calls))
    assert line.hedges.started >= min(slow_calls, 20)


async def test_thousand_slow_calls_get_fifty_and_what_was_saved() -> None:
    line = Line(earned=10_000)
    for _ in range(1_000):
        line.hedges.earn()
        line.watch("x", 0.01)
        await line.loop.later(0.02)
    assert line.hedges.started in range(60, 72)
