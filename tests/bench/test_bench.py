"""The benchmark's own rules: what counts as reached, how slices are compared, what its stub can distinguish."""

import dataclasses
import math
import os
import random

import msgspec
import pytest
from bench.cache import is_full, odd
from bench.collector import Share
from bench.goals import goals, ratios_to_nginx, verdict
from bench.load import beside
from bench.plan import BODIES, HIT, MISS, PARTS, PROBES, BenchError, Plan
from bench.report import Report
from bench.rounds import Round, Row
from bench.slices import compared

from tollgate.chains import heads
from tollgate.chains.catalogue import Catalogue, Holds
from tollgate.core import jsonrpc
from tollgate.core.shapes import Call


def row(subject: str, body: str, connections: int, worker_us: float, *problems: str, workers: int = 1) -> Row:
    """A server that costs twice as much as its worker."""
    costs = (2 * worker_us, worker_us)
    rounds = (Round(1000.0, 1, 2, *costs, 1.0, 0.0, 0, problems),)
    return Row(subject, workers, body, connections, 1000.0, 1.0, 2.0, *costs, 0.0, 1.0, 0.0, 0, problems, rounds)


def in_rounds(subject: str, *worker_us: float) -> Row:
    """A server in the first case, in several rounds."""
    rows = [row(subject, "single", 32, each) for each in worker_us]
    return dataclasses.replace(rows[0], rounds=tuple(one for each in rows for one in each.rounds))


def goal(name: str, rows: list[Row]) -> tuple[float, float | None, str]:
    (goal,) = [goal for goal in goals(rows, None, None) if name in goal.name]
    return goal.bar, goal.value, goal.verdict


# --- Goals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "name", "bar"),
    [("single", "a call, 32", 1.7), ("miss", "a cache that misses", 2.3), ("hit", "from the cache", 1.0)],
)
def test_worker_is_held_against_nginx_at_32_connections(body: str, name: str, bar: float) -> None:
    others = [row("nginx", body, 256, 1.0), row("tollgate", body, 256, 90.0), row("nginx", "gzip", 32, 1.0)]
    nginx = row("nginx", body, 32, 20.0)
    for worker_us, expected in ((20.0 * bar - 1, "reached"), (20.0 * bar + 1, "missed")):
        found = goal(name, [*others, nginx, row("tollgate", body, 32, worker_us)])
        assert found == (bar, worker_us / 20.0, expected)


def test_rounds_are_compared_in_pairs() -> None:
    """A machine that is slow for a while is so for both."""
    nginx, tollgate = (10.0, 30.0, 10.0, 30.0, 20.0), (15.0, 45.0, 15.0, 45.0, 60.0)
    rows = [in_rounds("nginx", *nginx), in_rounds("tollgate", *tollgate)]
    assert goal("a call, 32", rows) == (1.7, 1.5, "reached")
    assert ratios_to_nginx(rows[1], rows) == (1.5, 1.5)


def test_rounds_that_differ_much_leave_it_unclear() -> None:
    rows = [in_rounds("nginx", *[10.0] * 5), in_rounds("tollgate", 13.0, 14.0, 16.0, 20.0, 21.0)]
    assert goal("a call, 32", rows) == (1.7, 1.6, "unclear")


def test_mix_with_failures_is_held_against_healthy_calls() -> None:
    costs = {"healthy": 20.0, "mixed": 24.0}
    rows = [row("tollgate", body, 32, cost) for body, cost in costs.items()]
    assert goal("reverts and", rows) == (1.25, 1.2, "reached")


def test_batch_is_held_against_a_call() -> None:
    costs = {"single": 20.0, "batch10": 44.0}
    rows = [row("nginx", "single", 32, 1.0), *(row("tollgate", body, 32, cost) for body, cost in costs.items())]
    assert goal("worker, batch of 10", rows) == (1.9, 2.2, "missed")


def test_what_the_collector_adds_is_held_against_its_own_bars() -> None:
    shares = [Share("single", 9_000, 5.1, ()), Share("batch10", 900, 19.9, ())]
    found = {goal.name: (goal.bar, goal.value, goal.verdict) for goal in goals([], None, None, shares)}
    assert found["collector, CPU that it adds to a call"] == (5.0, 5.1, "missed")
    assert found["collector, CPU that it adds to a batch of 10"] == (20.0, 19.9, "reached")
    (goal, *_) = [
        goal for goal in goals([], None, None, [Share("single", 9, 1.0, ("odd",))]) if "collector" in goal.name
    ]
    assert goal.verdict == "invalid"


def test_report_has_a_line_for_the_collector() -> None:
    shares = [Share("single", 9_000, 4.25, ("8,999 log rows where 9,000 were expected",))]
    about = dict.fromkeys(("cpu", "cores", "memory", "kernel", "python", "nginx", "wrk"), "x")
    report = Report(Plan(), {**about, "load_average": 0.0}, [], None, None, [], shares)
    assert "Collector: 4.2 µs of CPU for each of 9,000 requests (single)" in report.text()
    assert report.problems() == ["collector single: 8,999 log rows where 9,000 were expected"]


def test_ratios_are_to_nginx_in_the_same_case_with_as_many_workers() -> None:
    rows = [
        row("nginx", "single", 256, 20.0),
        row("nginx", "single", 256, 25.0, workers=2),
        row("tollgate", "single", 256, 50.0, workers=2),
        row("tollgate", "single", 256, 50.0, workers=4),
    ]
    assert ratios_to_nginx(rows[2], rows) == (2.0, 2.0)
    assert ratios_to_nginx(rows[3], rows) is None
    assert goal("a call, 32", rows) == (1.7, None, "not measured")


def test_figures_with_problems_are_neither_reached_nor_missed() -> None:
    rows = [row("nginx", "hit", 32, 20.0), row("tollgate", "hit", 32, 30.0, "3 of 4 calls were miss")]
    assert goal("from the cache", rows) == (1.0, 1.5, "invalid")


def test_parts_that_did_not_run_are_not_measured() -> None:
    found = goals([], None, None)
    assert {goal.verdict for goal in found} == {"not measured"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [(3.5, "reached"), (3.6, "unclear"), (4.5, "unclear"), (4.6, "missed"), (-1.0, "reached")],
)
def test_verdict_leaves_room_for_the_margin(value: float, expected: str) -> None:
    assert verdict(value, 4.0, 0.5) == expected


# --- Slices of time ----------------------------------------------------------------------------------------------


def lines(costs: list[float], requests: int = 1000) -> list[str]:
    return [f"{1 - i % 2} {requests} {cost * requests / 1e6:.9f}" for i, cost in enumerate(costs)]


def test_slices_are_compared_without_the_first_and_the_last() -> None:
    found = compared(lines([900.0, *[50.0, 56.0] * 10, 900.0]), ("a problem",))
    assert found.with_it == pytest.approx(56.0)
    assert found.without == pytest.approx(50.0)
    assert found.added == pytest.approx(6.0)
    assert found.margin == pytest.approx(0.0, abs=1e-3)
    assert (found.slices, found.problems) == (20, ("a problem",))


def test_drift_of_the_machine_cancels_out() -> None:
    found = compared(lines([50.0 + 0.5 * i + (6.0 if i % 2 == 0 else 0.0) for i in range(100)]), ())
    assert found.added == pytest.approx(6.0)


def test_outliers_weigh_little() -> None:
    costs = [50.0 if i % 2 else 56.0 for i in range(100)]
    costs[40] = costs[61] = 5000.0
    assert compared(lines(costs), ()).added == pytest.approx(6.0)


def test_margin_is_two_standard_errors_of_what_is_added() -> None:
    """Many runs with noise of their own spread as each of them predicts."""
    chance = random.Random(6)
    runs = [
        compared(lines([chance.gauss(50.0, 3.0) + (6.0 if i % 2 == 0 else 0.0) for i in range(200)]), ())
        for _ in range(300)
    ]
    spread = math.sqrt(sum((run.added - 6.0) ** 2 for run in runs) / len(runs))
    margin = sum(run.margin for run in runs) / len(runs)
    assert margin / 2 == pytest.approx(spread, rel=0.25)


def test_too_few_slices_are_no_figure() -> None:
    with pytest.raises(BenchError, match="measure for longer"):
        compared(lines([50.0] * 7), ())


# --- The way that calls took -------------------------------------------------------------------------------------


def test_calls_that_went_as_wanted_are_no_problem() -> None:
    assert odd({"hit": 5, "miss": 1}, {"hit": 5_000, "miss": 2}, {"hit"}) == ()


def test_calls_that_went_astray_are() -> None:
    assert odd({}, {"hit": 90, "miss": 10}, {"hit"}) == ("10 of 100 calls were miss",)
    assert odd({"miss": 7}, {"miss": 7, "bypass": 100}, {"miss", "bypass"}) == ("no miss in 100 calls",)


def test_cache_is_full_when_it_does_not_grow() -> None:
    assert is_full([5_000_000, 9_000_000, 9_000_300, 9_000_000])
    assert not is_full([5_000_000, 5_000_000, 5_500_000])
    assert not is_full([9_000_000, 9_000_000])
    assert not is_full([0, 0, 0])


# --- Servers that already run ------------------------------------------------------------------------------------


def test_server_beside_is_measured_with_single_calls() -> None:
    found = beside(f"proxyd,{os.getpid()},http://127.0.0.1:8080/rpc")
    assert (found.name, found.port, found.paths) == ("proxyd", 8080, {"single": "/rpc"})
    assert found.workers == (os.getpid(),)


@pytest.mark.parametrize(
    "text",
    ["proxyd", "proxyd,1,http://example.com:8080/", "proxyd,x,http://127.0.0.1:80/", "proxyd,1,http://127.0.0.1/"],
)
def test_server_beside_must_be_named_whole_and_be_on_this_machine(text: str) -> None:
    with pytest.raises(BenchError, match="NAME,PID,URL is needed"):
        beside(text)


# --- What is requested -------------------------------------------------------------------------------------------


def test_stub_knows_what_the_prober_requests() -> None:
    calls = (heads.CALLS["eth"].head, heads.CALLS["eth"].finalized)
    probes = [msgspec.json.decode(probe) for probe in PROBES]
    assert [(each["method"], each["params"]) for each in probes] == [(call.method, call.params) for call in calls]


def test_no_call_is_as_long_as_a_probe() -> None:
    lengths = {len(probe) for probe in PROBES}
    sent = [len(jsonrpc.encode_call(call)) for body in BODIES for call in calls_of(body.text)]
    assert not lengths & {*sent, *(len(body.text) for body in BODIES)}


def test_answers_of_hit_and_miss_are_valid_for_ever() -> None:
    catalogue = Catalogue("eth")
    for body in (HIT, MISS):
        (call,) = calls_of(body.text)
        scope = catalogue.scope(call.method, call.params)
        assert catalogue.keep(scope, b'"0x1234"', head=1, finalized=1).holds is Holds.FOREVER


def test_digits_that_count_stand_in_the_body_once() -> None:
    assert MISS.text.count(MISS.counted) == 1
    assert {body.counted for body in BODIES if body is not MISS} == {""}


def test_time_is_reckoned_for_every_part() -> None:
    whole = Plan().estimate_seconds()
    for part in PARTS:
        others = tuple(other for other in PARTS if other != part)
        shorter = dataclasses.replace(Plan(), parts=others).estimate_seconds()
        assert shorter <= whole if part in ("tokens", "memory") else shorter < whole


def calls_of(text: str) -> list[Call]:
    found = jsonrpc.parse(text.encode(), 100)
    return list(found) if isinstance(found, list) else [found]
