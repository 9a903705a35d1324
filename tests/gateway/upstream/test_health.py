"""An upstream as one worker sees it: its breaker, its speed, its lists."""

from __future__ import annotations

import math
from bisect import bisect_left
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.fake_network import FakeNetwork

from tollgate.core.limits import Limit
from tollgate.gateway.upstream import health
from tollgate.gateway.upstream.health import FORGET_SECONDS, MAX_SAMPLES, QUOTA_SECONDS, Upstream
from tollgate.settings import model
from tollgate.shm import metrics
from tollgate.shm.metrics import BUCKETS_MICROSECONDS, Regions
from tollgate.shm.upstream_status import State, WorkerStats


def one(**settings: object) -> tuple[FakeNetwork, Upstream]:
    network = FakeNetwork(settings)
    return network, network["a"]


def openings(network: FakeNetwork, times: int) -> list[float]:
    """Fail each call that the breaker lets through; for how long it was open each time."""
    upstream, found = network["a"], []
    network.fail("a", 5)
    for _ in range(times):
        started = network.clock()
        while upstream.is_open(network.clock()):
            network.clock.advance(0.25)
        found.append(network.clock() - started)
        network.fail("a")
    return found


# --- The breaker -------------------------------------------------------------------------------------------


def test_breaker_opens_after_five_failures_in_a_row() -> None:
    network, upstream = one()
    network.fail("a", 4)
    assert upstream.in_rotation(network.clock())
    network.fail("a")
    assert not upstream.in_rotation(network.clock())


def test_answer_in_between_begins_the_row_anew() -> None:
    network, upstream = one()
    for _ in range(4):
        network.fail("a", 4)
        network.clock.advance(20)
        network.answer("a")
    assert upstream.in_rotation(network.clock())


def test_breaker_opens_when_half_of_twenty_calls_have_failed() -> None:
    network, upstream = one()
    network.fail("a")
    for number in range(30):
        assert upstream.in_rotation(network.clock()), number
        network.answer("a")
        network.fail("a")
        if number >= 9:
            break
    assert not upstream.in_rotation(network.clock())


def test_fewer_failures_than_half_leave_it_in_rotation() -> None:
    network, upstream = one()
    for _ in range(50):
        network.fail("a")
        network.answer("a", times=2)
    assert upstream.in_rotation(network.clock())


def test_failures_of_long_ago_are_forgotten() -> None:
    network, upstream = one()
    for _ in range(40):
        network.fail("a")
        network.answer("a")
        network.clock.advance(1.0)
    assert upstream.in_rotation(network.clock())


def test_one_call_is_let_through_when_the_time_is_over() -> None:
    network, upstream = one()
    network.fail("a", 5)
    network.clock.advance(0.99)
    assert upstream.is_open(network.clock())
    network.clock.advance(0.02)
    assert not upstream.is_open(network.clock())
    upstream.started()
    assert upstream.is_open(network.clock()), "one is under way"


def test_trial_that_is_answered_closes_the_breaker() -> None:
    network, upstream = one()
    network.fail("a", 5)
    network.clock.advance(1.01)
    network.answer("a")
    assert not upstream.is_open(network.clock())
    network.fail("a", 4)
    assert not upstream.is_open(network.clock()), "it takes five again"


def test_what_failed_before_the_breaker_opened_does_not_count_after_it_closed() -> None:
    network, upstream = one()
    for _ in range(10):
        network.fail("a")
        network.answer("a")
    network.fail("a", 5)
    network.clock.advance(1.01)
    network.answer("a")
    network.fail("a")
    assert not upstream.is_open(network.clock()), "though half of the last twenty have failed"


def test_trial_that_shows_nothing_of_the_upstream_is_tried_again() -> None:
    network, upstream = one()
    network.fail("a", 5)
    network.clock.advance(1.01)
    upstream.started()
    upstream.abandoned()
    assert not upstream.is_open(network.clock())


def test_back_off_grows_to_half_a_minute_and_stays_there() -> None:
    network, _ = one()
    assert openings(network, 8) == [1, 2, 4, 8, 16, 30, 30, 30]


def test_back_off_can_go_on_for_ever() -> None:
    network, _ = one()
    assert openings(network, 1_200)[-1] == 30


def test_back_off_begins_anew_after_an_answer() -> None:
    network, _ = one()
    openings(network, 4)
    network.clock.advance(60)
    network.answer("a")
    assert openings(network, 2) == [1, 2]


def test_calls_that_were_under_way_when_it_opened_do_not_make_it_longer() -> None:
    network, upstream = one()
    for _ in range(50):
        upstream.started()
    for _ in range(50):
        upstream.failed(network.clock())
    network.clock.advance(1.01)
    assert not upstream.is_open(network.clock())
    assert upstream.in_flight == 0


def test_late_failure_during_a_trial_does_not_lock_the_breaker() -> None:
    network, upstream = one()
    upstream.started()
    network.fail("a", 5)
    network.clock.advance(1.01)
    upstream.started()
    upstream.failed(network.clock())
    network.clock.advance(2.01)
    upstream.failed(network.clock())
    network.clock.advance(4.01)
    assert not upstream.is_open(network.clock())


def test_last_resort_that_answers_closes_the_breaker_early() -> None:
    network, upstream = one()
    network.fail("a", 5)
    network.answer("a")
    assert upstream.in_rotation(network.clock())


# --- Quotas and states -------------------------------------------------------------------------------------


def test_upstream_whose_quota_is_used_up_is_spared_for_a_while() -> None:
    network, upstream = one()
    upstream.cool_down(network.clock())
    network.clock.advance(QUOTA_SECONDS - 0.01)
    assert not upstream.in_rotation(network.clock())
    network.clock.advance(0.02)
    assert upstream.in_rotation(network.clock())


@pytest.mark.parametrize("state", State)
def test_only_those_that_are_up_or_not_known_are_in_rotation(state: State) -> None:
    network, upstream = one()
    network.publish_state("a", state)
    assert upstream.in_rotation(network.clock()) is (state in {State.UP, State.UNKNOWN})
    assert upstream.available(network.clock())


# --- Speed -------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 40_000_000), min_size=1, max_size=8))
def test_answers_are_counted_in_the_bucket_of_their_time(took: list[int]) -> None:
    _, upstream = one()
    regions = Regions(1)
    writer = regions.writer(0)
    upstream.count_in(writer, "eth", "mainnet")
    histogram = writer.histogram(metrics.UPSTREAM_SECONDS, "eth", "mainnet", "a")
    expected = [0] * len(histogram)
    for micros in took:
        upstream.answered(-(micros + 0.5) / 1e6)
        expected[bisect_left(BUCKETS_MICROSECONDS, micros)] += 1
    expected[-1] = sum(took)
    upstream.count(0.0)
    upstream.report(0.0)
    assert [writer.cells[cell] for cell in histogram] == expected


def test_times_of_many_answers_are_sorted_before_the_second_ends() -> None:
    _, upstream = one()
    regions = Regions(1)
    writer = regions.writer(0)
    upstream.count_in(writer, "eth", "mainnet")
    total = writer.histogram(metrics.UPSTREAM_SECONDS, "eth", "mainnet", "a")[-1]
    for _ in range(MAX_SAMPLES):
        upstream.answered(-0.001)
    upstream.count(0.0)
    assert writer.cells[total] == 0
    upstream.answered(-0.001)
    upstream.count(0.0)
    assert writer.cells[total] == (MAX_SAMPLES + 1) * 1_000


def test_answers_of_a_turn_do_not_close_a_breaker_that_a_failure_after_them_has_opened() -> None:
    network, upstream = one()
    network.fail("a", 4)
    upstream.started()
    upstream.started()
    upstream.answered(network.clock() - 0.1)
    upstream.failed(network.clock())
    assert not upstream.in_doubt, "an answer came in between"
    network.fail("a", 4)
    assert upstream.is_open(network.clock())
    upstream.count(network.clock())
    assert upstream.is_open(network.clock())


def test_answers_of_a_turn_count_by_the_slowest_or_where_it_was_slower_before_by_their_mean() -> None:
    network, upstream = one()
    for seconds in (0.2, 0.4):
        upstream.started()
        upstream.answered(network.clock() - seconds)
    upstream.count(network.clock())
    assert upstream.ewma == pytest.approx(0.4)
    network.clock.advance(FORGET_SECONDS)
    for seconds in (0.01, 0.03):
        upstream.started()
        upstream.answered(network.clock() - seconds)
    upstream.count(network.clock())
    weight = math.exp(-1)
    assert upstream.ewma == pytest.approx(0.4 * weight + 0.02 * (1 - weight))


def test_p95_is_not_believed_before_twenty_answers() -> None:
    network, upstream = one()
    for _ in range(40):
        upstream.started()
    assert upstream.hedge_after == 0.5
    for _ in range(19):
        upstream.answered(network.clock() - 0.1)
        upstream.count(network.clock())
    assert upstream.hedge_after == 0.5
    upstream.answered(network.clock() - 0.1)
    upstream.count(network.clock())
    assert upstream.hedge_after == pytest.approx(0.1, rel=0.1)


def test_failures_do_not_make_the_p95_believed() -> None:
    network, upstream = one()
    for _ in range(19):
        network.answer("a", 0.1)
        network.fail("a")
    assert upstream.hedge_after == 0.5
    network.answer("a", 0.1)
    assert upstream.hedge_after == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("start", [0.001, 0.05, 5.0])
@given(st.integers(0, 2**32), st.floats(0.2, 1.2), st.floats(0.001, 1.0))
def test_p95_converges_from_wherever_it_starts(start: float, seed: int, spread: float, median: float) -> None:
    network, upstream = one()
    random = Random(seed)
    network.answer("a", start)
    for _ in range(3_000):
        network.answer("a", median * math.exp(random.gauss(0, spread)))
    true = median * math.exp(1.645 * spread)
    # Looked at for a while: it never quite rests.
    seen = []
    for _ in range(300):
        network.answer("a", median * math.exp(random.gauss(0, spread)))
        seen.append(upstream._p95)
    mean = math.exp(sum(map(math.log, seen)) / len(seen))
    assert true / 2 < mean < true * 2


def test_one_very_slow_answer_hardly_moves_the_p95() -> None:
    network, upstream = one()
    network.answer("a", 0.01, 200)
    before = upstream.hedge_after
    network.answer("a", 15.0)
    assert before < upstream.hedge_after < before * 1.1


def test_slow_answer_counts_at_once_and_is_forgotten() -> None:
    network, upstream = one()
    network.answer("a", 0.01, 100)
    usual = upstream.cost
    network.answer("a", 1.0)
    assert upstream.cost == pytest.approx(1.0, rel=0.01)
    network.clock.advance(10)
    network.answer("a", 0.01)
    assert 0.3 < upstream.cost < 0.4
    for _ in range(10):
        network.clock.advance(10)
        network.answer("a", 0.01)
    assert upstream.cost == pytest.approx(usual, rel=0.1)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 5)), min_size=1, max_size=30))
def test_cost_is_never_above_the_slowest_answer(answers: list[tuple[float, float]]) -> None:
    network, upstream = one()
    for seconds, pause in answers:
        network.clock.advance(pause)
        network.answer("a", seconds)
        assert upstream.cost >= seconds
    assert upstream.cost <= max(seconds for seconds, _ in answers) + 1e-5


def test_each_call_under_way_adds_to_the_cost_and_weight_divides_it() -> None:
    network = FakeNetwork({"weight": 1}, {"weight": 4})
    for name in "ab":
        network.answer(name, 0.1)
        network[name].started()
    assert network["a"].cost == pytest.approx(0.2, rel=0.01)
    assert network["b"].cost == pytest.approx(0.05, rel=0.01)


# --- Lists and settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lists", "takes"),
    [
        ({}, "eth_call trace_block"),
        ({"allow_methods": ("eth_*",)}, "eth_call"),
        ({"deny_methods": ("eth_*",)}, "trace_block"),
        ({"allow_methods": ("eth_*", "trace_*"), "deny_methods": ("eth_call",)}, "trace_block"),
    ],
)
def test_lists_decide_what_it_is_sent(lists: dict[str, tuple[str, ...]], takes: str) -> None:
    _, upstream = one(**lists)
    for _ in range(2):
        assert " ".join(method for method in ("eth_call", "trace_block") if upstream.takes(method)) == takes


def test_methods_that_callers_invent_do_not_fill_the_memory() -> None:
    _, upstream = one(deny_methods=("eth_x*",))
    assert not any(upstream.takes(f"eth_x{number}") for number in range(10_000))
    assert len(upstream._refused) < 5_000
    assert not upstream.takes("eth_x" + "y" * 1_000)
    assert max(map(len, upstream._refused)) < 200, "four thousand names of a megabyte would be four gigabytes"
    assert upstream.takes("eth_call")
    assert "eth_call" in upstream._refused, "names that came later are remembered as well"


def test_other_settings_are_taken_over_and_what_is_known_stays() -> None:
    network, upstream = one(deny_methods=("eth_call",), requests_per_second=5)
    network.answer("a", 0.1, 25)
    assert not upstream.takes("eth_call")
    assert [limit.count for _, limit in upstream.limit] == [5]
    p95 = upstream.hedge_after
    upstream.change(model.UpstreamSettings(name="a", url="http://node", priority=7), "eth/mainnet")
    assert upstream.takes("eth_call")
    assert (upstream.priority, len(upstream.limit), upstream.hedge_after) == (7, 0, p95)


def test_how_calls_fared_is_reported_to_everybody() -> None:
    network, upstream = one()
    network.answer("a", 0.5, 3)
    network.fail("a", 5)
    upstream.started()
    upstream.report(network.clock())
    (fared,) = network.shared_status.upstream(0).worker_stats()
    assert fared == WorkerStats(9, 5, 500_000, fared.p95_micros, network.clock() + 1.0, 1)
    assert fared.p95_micros > 400_000


def test_latency_that_is_reported_is_forgotten_without_calls() -> None:
    network, upstream = one()
    network.answer("a", 0.5)
    latencies = []
    for seconds in (0, 10, 60):
        network.clock.advance(seconds)
        upstream.report(network.clock())
        latencies += [fared.ewma_micros for fared in network.shared_status.upstream(0).worker_stats()]
    assert latencies[0] == 500_000
    assert 100_000 < latencies[1] < 300_000
    assert latencies[2] < 1_000


# --- At the bounds -------------------------------------------------------------------------------------------


def test_nothing_is_known_of_a_new_one() -> None:
    network, upstream = one()
    now = network.clock()
    assert (upstream.in_doubt, upstream.counted, upstream.hedge_after, upstream.attempt_seconds) == (
        False,
        False,
        0.5,
        0.0,
    )
    assert (upstream.is_open(now), upstream.available(now)) == (False, True)
    upstream.report(now)
    assert upstream.status.worker_stats() == [WorkerStats(0, 0, 0, 0, 0.0, 0)]


def test_breaker_is_open_for_exactly_its_time() -> None:
    network, upstream = one()
    network.fail("a", 5)
    opened = network.clock()
    for seconds, is_open in ((0.0, True), (0.999, True), (1.0, False)):
        assert upstream.is_open(opened + seconds) is is_open
        assert upstream.available(opened + seconds) is not is_open


def test_one_that_is_spared_is_willing_again_at_the_end_of_its_time() -> None:
    network, upstream = one()
    started = network.clock()
    upstream.cool_down(started)
    assert not upstream.available(started + QUOTA_SECONDS - 0.001)
    assert upstream.in_doubt
    assert upstream.available(started + QUOTA_SECONDS)
    assert not upstream.in_doubt, "looked at no more"


def test_one_that_is_open_stays_in_doubt_until_it_has_answered() -> None:
    network, upstream = one()
    network.fail("a", 5)
    later = network.clock() + 2.0
    assert (upstream.available(later), upstream.in_doubt) == (True, True)
    network.clock.advance(2.0)
    network.answer("a")
    assert (upstream.available(later), upstream.in_doubt) == (True, False)


def test_one_that_is_open_and_spared_waits_for_both() -> None:
    network, upstream = one()
    started = network.clock()
    network.fail("a", 5)
    upstream.cool_down(started)
    assert not upstream.available(started + QUOTA_SECONDS - 0.001)
    assert upstream.available(started + QUOTA_SECONDS)
    upstream.started()
    assert not upstream.available(started + QUOTA_SECONDS), "one call is on trial"


def fare(network: FakeNetwork, how: str) -> None:
    """Calls are answered or fail, as these letters show."""
    for letter in how:
        if letter == "a":
            network.answer("a")
        else:
            network.fail("a")


# The first failure begins a window, and counts in it; its call does not.
@pytest.mark.parametrize(
    ("how", "opens"),
    [
        ("af" * 9 + "f", False),
        ("af" * 9 + "ff", True),
        ("aa" + "af" * 9, True),
        ("aaa" + "af" * 9, False),
        ("aaa" + "af" * 9 + "f", True),
    ],
    ids=["19 calls", "20 calls", "half", "less than half", "half again"],
)
def test_breaker_opens_at_half_of_at_least_twenty_calls(how: str, opens: bool) -> None:
    network, upstream = one()
    fare(network, "f" + how)
    assert upstream.in_doubt is opens


@pytest.mark.parametrize(("seconds", "opens"), [(10.0, True), (10.001, False)])
def test_window_begins_anew_after_ten_seconds(seconds: float, opens: bool) -> None:
    network, upstream = one()
    fare(network, "faa" + "af" * 8)
    network.clock.advance(seconds)
    fare(network, "af")
    assert upstream.in_doubt is opens
    if not opens:
        fare(network, "af" * 9 + "f")
        assert not upstream.in_doubt
        fare(network, "f")
        assert upstream.in_doubt, "the first failure counts"


def test_failures_of_the_window_before_do_not_count() -> None:
    network, upstream = one()
    fare(network, "faaf")
    network.clock.advance(10.001)
    fare(network, "f" + "aaaf" * 5)
    assert not upstream.in_doubt


def test_answers_are_added_to_the_metrics_once() -> None:
    network, upstream = one()
    regions = Regions(1)
    writer = regions.writer(0)
    upstream.count_in(writer, "eth", "mainnet")
    network.answer("a", 2**-12, 2)
    network.answer("a", 0.375)
    upstream.counted = True
    upstream.count(network.clock())
    upstream.report(network.clock())
    totals = regions.totals()
    assert totals[("tollgate_upstream_attempts", "eth", "mainnet", "a", "ok")] == 3
    assert not upstream.counted
    upstream.count(network.clock())
    upstream.report(network.clock())
    assert regions.totals() == totals
    took = {key[-1]: value for key, value in totals.items() if key[0] == "tollgate_upstream_seconds" and value}
    assert took == {"250": 2, "500000": 1, "sum": 375_488}


def test_what_is_reported_is_forgotten_over_time() -> None:
    network, upstream = one()
    network.answer("a", 0.5)
    network.fail("a", 5)
    upstream.started()
    now = network.clock()
    upstream.report(now)
    assert upstream.status.worker_stats() == [WorkerStats(7, 5, 500_000, 500_000, now + 1.0, 1)]
    upstream.report(now + FORGET_SECONDS)
    assert upstream.status.worker_stats()[0].ewma_micros == int(500_000 * math.exp(-1))


def test_limit_of_an_upstream_is_its_own_and_for_a_second() -> None:
    _, upstream = one(requests_per_second=5)
    assert list(upstream.limit) == [("up:eth/mainnet/a", Limit(5, 1.0))]


@pytest.mark.parametrize("lists", [{"allow_methods": ("eth_*",)}, {"deny_methods": ("eth_*",)}])
def test_upstream_with_one_list_is_picky(lists: dict[str, tuple[str, ...]]) -> None:
    assert one(**lists)[1].picky
    assert not one()[1].picky


def test_answer_moves_the_p95_up_nineteen_times_as_far_as_down() -> None:
    network, upstream = one()
    network.answer("a", 0.1)
    assert upstream._p95 == pytest.approx(0.1)
    network.answer("a", 0.1)
    assert upstream._p95 == pytest.approx(0.1 * 0.995), "as quick is no slower"
    network.answer("a", 1.0)
    assert upstream._p95 == pytest.approx(0.1 * 0.995 * 1.095)


def test_answers_of_an_upstream_that_no_network_has_are_counted_nowhere() -> None:
    network, upstream = one()
    network.answer("a", 0.3)
    upstream.count(network.clock())
    upstream.report(network.clock())
    assert upstream.ewma == pytest.approx(0.3)


def test_methods_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_MAX_METHODS", 2)
    _, upstream = one(deny_methods=("eth_a",))
    assert [upstream.takes(method) for method in ("eth_a", "eth_b", "eth_c")] == [False, True, True]
    assert upstream._refused == {"eth_c": False}
