"""The exchange as a whole: any upstreams, any answers, any word of the prober, any calls at once; a manual clock.

`test_failover.py` drives the course alone. Here calls are sent as the pipeline sends them, nodes answer over
scripted connections, and a model beside them knows what may be returned.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.callers import summary
from tests.gateway.fake_gateway import open_gateway
from tests.gateway.fake_node import DROP
from tests.gateway.fakes import run_pending
from tests.gateway.play import (
    AT_ONCE,
    BALANCE,
    BLOCK,
    CHAIN,
    FARING,
    NUMBER,
    QUICK,
    RECEIPT,
    SILENT,
    TELLING,
    UNKNOWN,
    Play,
    Slow,
)

from tollgate.shm.upstream_status import State

which = st.integers(0, 3)
nothing = st.none()
passing = st.tuples(st.just("advance"), st.sampled_from([0.03, 0.1, 0.3, 0.6, 1.0, 2.2, 7.0]), nothing)
again = st.tuples(st.just("again"), st.integers(1, 2), nothing)
grow = st.tuples(st.just("grow"), which, st.integers(1, 3))
probe = st.tuples(st.just("probe"), which, st.integers(0, 2))
find = st.tuples(st.just("find"), which, st.sampled_from([State.UP, State.UP, *State]))
reorganise = st.tuples(st.just("reorganise"), st.integers(0, 8), nothing)
hush = st.tuples(st.just("hush"), st.booleans(), nothing)
transact = st.tuples(st.just("transact"), nothing, nothing)
hang_up = st.tuples(st.just("hang_up"), which, nothing)
refuse = st.tuples(st.just("refuse"), st.sampled_from([False, False, True]), nothing)

TIPS = [(NUMBER, ()), (BLOCK, ("latest", False)), (BALANCE, ("0xa", "latest"))]
BLOCKS = [
    (BLOCK, (0, False)),
    (BLOCK, (-2, False)),
    (BALANCE, ("0xa", 0)),
    (BALANCE, ("0xa", 1)),
    (RECEIPT, ("0xb",)),
]
OTHERS = [(BALANCE, ("0xa", -500)), (CHAIN, ()), (CHAIN, ()), (UNKNOWN, ()), (UNKNOWN, ())]
"""Methods and their params; an integer stands for the block so far from the head."""

Event = tuple[str, Any, Any]


def scripts(hows: list[Any], calls: list[Any], *happenings: Any) -> Any:
    """Something is called, and something happens before it is answered, and after; a few times."""
    turn = st.tuples(st.just("turn"), which, st.sampled_from(hows))
    calls_made = st.tuples(st.just("call_all"), st.sampled_from(calls), st.sampled_from([1, 1, 1, 1, 2, 3, 3, 21]))
    happening = st.one_of(turn, calls_made, passing, again, *happenings)
    act = st.tuples(
        turn,
        calls_made,
        st.lists(happening, max_size=2),
        passing,
        st.sampled_from([[], [("again", 1, None)]]),
        st.lists(happening, max_size=1),
    ).map(lambda act: [act[0], act[1], *act[2], act[3], *act[4], *act[5]])
    return st.lists(act, min_size=2, max_size=8)


def casts(hows: list[Any], **settings: Any) -> Any:
    """Upstreams with these settings, and how they begin."""
    each = st.tuples(st.fixed_dictionaries({"priority": st.integers(0, 2), **settings}), st.sampled_from(hows))
    return st.integers(1, 4).flatmap(lambda count: st.lists(each, min_size=count, max_size=count))


async def perform(
    made: list[tuple[dict[str, Any], Any]], script: list[list[Event]], saved: float, **options: Any
) -> None:
    """Let a script happen to upstreams, and look after each event."""
    gateway = await open_gateway(*[each for each, _ in made], **options)
    play = Play(gateway, [how for _, how in made], saved)
    for what, first, second in chain.from_iterable(script):
        done = getattr(play, what)(first, second)
        if done is not None:
            await done
        await run_pending()
        play.check()
        play.check_books()
    await play.close()


@given(
    casts(
        FARING,
        timeout_seconds=st.sampled_from([1.0, 2.0, 15.0]),
        requests_per_second=st.sampled_from([0, 0, 0, 0, 0, 2]),
        archive=st.sampled_from([True, True, False]),
        connections=st.sampled_from([256, 256, 256, 2]),
    ),
    scripts(FARING, [*TIPS, *OTHERS], probe, find, hang_up, hang_up, refuse),
    st.sampled_from([0.0, 0.9, 1.0, 5.0, 5.0]),
    st.sampled_from([0, 1_000_000]),
    st.sampled_from([True, True, True, False]),
)
@settings(max_examples=2 * settings().max_examples)
async def test_every_call_ends_once_in_time_and_with_the_best_that_could_be_had(
    made: list[tuple[dict[str, Any], Any]],
    script: list[list[Event]],
    saved: float,
    cache_bytes: int,
    hedge: bool,
) -> None:
    await perform(made, script, saved, cache_bytes=cache_bytes, network={"hedge": hedge})


@given(
    casts(TELLING),
    scripts(TELLING, [*TIPS, *TIPS, *BLOCKS], again, grow, probe, probe, probe, find, reorganise, hush, transact),
    st.sampled_from([0.0, 5.0]),
    st.sampled_from([0, 1_000_000, 1_000_000]),
)
@settings(max_examples=2 * settings().max_examples)
async def test_nobody_is_shown_what_a_block_or_a_reorganisation_has_ended(
    made: list[tuple[dict[str, Any], Any]], script: list[list[Event]], saved: float, cache_bytes: int
) -> None:
    await perform(made, script, saved, cache_bytes=cache_bytes)


# --- Hedges that did harm ------------------------------------------------------------------------------------


async def test_hedge_that_begins_late_has_time_of_its_own() -> None:
    """What could be paid for only just before the first upstream gave up is no shorter for that."""
    gateway = await open_gateway({"timeout_seconds": 1.0}, {})
    play = Play(gateway, [SILENT, QUICK], 0.9)
    play.call_all((CHAIN, ()), 1)
    await play.advance(0.9)
    play.call_all((UNKNOWN, ()), 1)
    await play.close()
    assert summary(play.played[0].given) == {"serial": 1}


async def test_hedge_takes_no_longer_than_the_upstream_that_it_calls_may() -> None:
    gateway = await open_gateway({}, {"timeout_seconds": 1.0})
    play = Play(gateway, [SILENT, SILENT], 1.0)
    play.call_all((CHAIN, ()), 1)
    await play.advance(0.6)
    assert gateway["up1"].in_flight == 1
    await play.advance(1.2)
    assert [each.in_flight for each in gateway.upstreams] == [1, 0]
    await play.close()


async def test_hedge_of_an_attempt_that_has_ended_is_not_begun() -> None:
    """Those that broke off are left alone for a moment, and nobody is called beside an attempt that is over."""
    gateway = await open_gateway({"priority": 0}, {"priority": 0})
    play = Play(gateway, [Slow(0.02), Slow(0.02)], 0.0)
    play.call_all((UNKNOWN, ()), 50)
    await play.advance(0.1)
    assert [each.p95 for each in gateway.upstreams] == [pytest.approx(0.02, rel=0.1)] * 2
    play.hows = [DROP, DROP]
    gateway.save_hedges(5.0)
    play.call_all((CHAIN, ()), 1)
    await run_pending()
    assert play.played[-1].trace.attempts == 2
    await gateway.loop.advance(0.045)
    assert play.played[-1].trace.attempts == 2
    play.saved = 5.0
    await play.close()


async def test_upstream_at_its_rate_when_a_hedge_looked_is_called_when_the_first_has_given_up() -> None:
    gateway = await open_gateway({"timeout_seconds": 2.0}, {"requests_per_second": 1})
    play = Play(gateway, [DROP, AT_ONCE], 1.0)
    play.call_all((CHAIN, ()), 1)
    await run_pending()
    assert play.played[0].trace.upstream == "up1"
    play.hows[0] = SILENT
    await play.advance(0.3)
    play.call_all((CHAIN, ()), 1)
    await play.close()
    assert summary(play.played[1].given) == {"serial": 2}
