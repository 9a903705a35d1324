"""The exchange as a whole: any upstreams, answers, prober reports and concurrent calls, on a manual clock.

`test_failover.py` drives the failover policy alone. Here calls are sent as the pipeline sends them, nodes answer
over scripted connections, and a model checks what is returned.
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
from tests.gateway.upstream.exchange_model import (
    BALANCE,
    BEHAVIOURS,
    BLOCK,
    CHAIN,
    CHAIN_VIEWS,
    IMMEDIATE,
    NUMBER,
    QUICK,
    RECEIPT,
    SILENT,
    UNKNOWN,
    ExchangeModel,
    Slow,
)

from tollgate.shm.upstream_status import State

which = st.integers(0, 3)
nothing = st.none()
passing = st.tuples(st.just("advance"), st.sampled_from([0.03, 0.1, 0.3, 0.6, 1.0, 2.2, 7.0]), nothing)
repeat = st.tuples(st.just("repeat"), st.integers(1, 2), nothing)
grow = st.tuples(st.just("grow"), which, st.integers(1, 3))
probe = st.tuples(st.just("probe"), which, st.integers(0, 2))
publish_state = st.tuples(st.just("publish_state"), which, st.sampled_from([State.UP, State.UP, *State]))
reorganise = st.tuples(st.just("reorganise"), st.integers(0, 8), nothing)
silence_prober = st.tuples(st.just("silence_prober"), st.booleans(), nothing)
transact = st.tuples(st.just("transact"), nothing, nothing)
disconnect = st.tuples(st.just("disconnect"), which, nothing)
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
"""Methods and their params; an integer is a block, relative to the head."""

Event = tuple[str, Any, Any]


def scripts(behaviours: list[Any], calls: list[Any], *happenings: Any) -> Any:
    """Calls, with events before and after their answers; several times."""
    set_behaviour = st.tuples(st.just("set_behaviour"), which, st.sampled_from(behaviours))
    calls_made = st.tuples(st.just("call_all"), st.sampled_from(calls), st.sampled_from([1, 1, 1, 1, 2, 3, 3, 21]))
    happening = st.one_of(set_behaviour, calls_made, passing, repeat, *happenings)
    act = st.tuples(
        set_behaviour,
        calls_made,
        st.lists(happening, max_size=2),
        passing,
        st.sampled_from([[], [("repeat", 1, None)]]),
        st.lists(happening, max_size=1),
    ).map(lambda act: [act[0], act[1], *act[2], act[3], *act[4], *act[5]])
    return st.lists(act, min_size=2, max_size=8)


def upstream_lists(behaviours: list[Any], **settings: Any) -> Any:
    """Upstreams with these settings, and their first behaviour."""
    each = st.tuples(
        st.fixed_dictionaries({"priority": st.integers(0, 2), **settings}), st.sampled_from(behaviours)
    )
    return st.integers(1, 4).flatmap(lambda count: st.lists(each, min_size=count, max_size=count))


async def run_script(
    made: list[tuple[dict[str, Any], Any]], script: list[list[Event]], saved: float, **options: Any
) -> None:
    """Run a script of events, and check after each."""
    gateway = await open_gateway(*[each for each, _ in made], **options)
    model = ExchangeModel(gateway, [behaviour for _, behaviour in made], saved)
    for what, first, second in chain.from_iterable(script):
        done = getattr(model, what)(first, second)
        if done is not None:
            await done
        await run_pending()
        model.check()
        model.check_books()
    await model.close()


@given(
    upstream_lists(
        BEHAVIOURS,
        timeout_seconds=st.sampled_from([1.0, 2.0, 15.0]),
        requests_per_second=st.sampled_from([0, 0, 0, 0, 0, 2]),
        archive=st.sampled_from([True, True, False]),
        connections=st.sampled_from([256, 256, 256, 2]),
    ),
    scripts(BEHAVIOURS, [*TIPS, *OTHERS], probe, publish_state, disconnect, disconnect, refuse),
    st.sampled_from([0.0, 0.9, 1.0, 5.0, 5.0]),
    st.sampled_from([0, 1_000_000]),
    st.sampled_from([True, True, True, False]),
)
@settings(max_examples=2 * settings().max_examples)
async def test_every_call_is_answered_once_in_time_and_with_the_best_available_answer(
    made: list[tuple[dict[str, Any], Any]],
    script: list[list[Event]],
    saved: float,
    cache_bytes: int,
    hedge: bool,
) -> None:
    await run_script(made, script, saved, cache_bytes=cache_bytes, network={"hedge": hedge})


@given(
    upstream_lists(CHAIN_VIEWS),
    scripts(
        CHAIN_VIEWS,
        [*TIPS, *TIPS, *BLOCKS],
        repeat,
        grow,
        probe,
        probe,
        probe,
        publish_state,
        reorganise,
        silence_prober,
        transact,
    ),
    st.sampled_from([0.0, 5.0]),
    st.sampled_from([0, 1_000_000, 1_000_000]),
)
@settings(max_examples=2 * settings().max_examples)
async def test_no_caller_sees_state_from_before_a_block_or_reorganisation(
    made: list[tuple[dict[str, Any], Any]], script: list[list[Event]], saved: float, cache_bytes: int
) -> None:
    await run_script(made, script, saved, cache_bytes=cache_bytes)


# --- Regressions of hedging ------------------------------------------------------------------------------------


async def test_hedge_that_starts_late_has_its_own_timeout() -> None:
    """Even if the budget allowed it only just before the first upstream timed out."""
    gateway = await open_gateway({"timeout_seconds": 1.0}, {})
    model = ExchangeModel(gateway, [SILENT, QUICK], 0.9)
    model.call_all((CHAIN, ()), 1)
    await model.advance(0.9)
    model.call_all((UNKNOWN, ()), 1)
    await model.close()
    assert summary(model.calls[0].given) == {"serial": 1}


async def test_hedge_has_the_timeout_of_its_upstream() -> None:
    gateway = await open_gateway({}, {"timeout_seconds": 1.0})
    model = ExchangeModel(gateway, [SILENT, SILENT], 1.0)
    model.call_all((CHAIN, ()), 1)
    await model.advance(0.6)
    assert gateway["up1"].in_flight == 1
    await model.advance(1.2)
    assert [each.in_flight for each in gateway.upstreams] == [1, 0]
    await model.close()


async def test_attempt_that_has_ended_is_not_hedged() -> None:
    """Broken upstreams rest for a moment, and there is no hedge of an attempt that is over."""
    gateway = await open_gateway({"priority": 0}, {"priority": 0})
    model = ExchangeModel(gateway, [Slow(0.02), Slow(0.02)], 0.0)
    model.call_all((UNKNOWN, ()), 50)
    await model.advance(0.1)
    assert [each.hedge_after for each in gateway.upstreams] == [pytest.approx(0.02, rel=0.1)] * 2
    model.behaviours = [DROP, DROP]
    gateway.save_hedges(5.0)
    model.call_all((CHAIN, ()), 1)
    await run_pending()
    assert model.calls[-1].trace.attempts == 2
    await gateway.loop.advance(0.045)
    assert model.calls[-1].trace.attempts == 2
    model.saved = 5.0
    await model.close()


async def test_upstream_that_was_at_its_rate_for_a_hedge_is_called_after_the_first_timed_out() -> None:
    gateway = await open_gateway({"timeout_seconds": 2.0}, {"requests_per_second": 1})
    model = ExchangeModel(gateway, [DROP, IMMEDIATE], 1.0)
    model.call_all((CHAIN, ()), 1)
    await run_pending()
    assert model.calls[0].trace.upstream == "up1"
    model.behaviours[0] = SILENT
    await model.advance(0.3)
    model.call_all((CHAIN, ()), 1)
    await model.close()
    assert summary(model.calls[1].given) == {"serial": 2}
