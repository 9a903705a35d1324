"""Metrics: counts of several processes on one page, which survive the processes."""

import os
import re
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tollgate.processes.metrics_page import render
from tollgate.shm import metrics
from tollgate.shm.metrics import ALL, BUCKETS_MICROSECONDS, MetricKind, Regions

LabelSet = tuple[tuple[str, str], ...]


def page(regions: Regions) -> dict[tuple[str, LabelSet], float]:
    """Read the page as Prometheus does."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(render(regions).decode())
        for sample in family.samples
    }


def test_counters_of_all_regions_are_added_up() -> None:
    regions = Regions(3)
    for number, amount in enumerate((1, 20, 300)):
        writer = regions.writer(number)
        writer.add(writer.cell(metrics.REFUSALS, "rate_limited"), amount)
    writer.add(writer.cell(metrics.REFUSALS, "token_invalid"))
    assert page(regions) == {
        ("tollgate_refusals_total", (("reason", "rate_limited"),)): 321,
        ("tollgate_refusals_total", (("reason", "token_invalid"),)): 1,
    }


def test_gauges_of_all_regions_are_added_up() -> None:
    regions = Regions(2)
    for number in range(2):
        writer = regions.writer(number)
        writer.set(writer.cell(metrics.CONNECTIONS), 7 + number)
    assert page(regions) == {("tollgate_connections", ()): 15}


def test_counters_go_on_after_a_restart_and_gauges_begin_anew() -> None:
    regions = Regions(1)
    before = regions.writer(0)
    before.add(before.cell(metrics.REFUSALS, "overloaded"), 5)
    before.set(before.cell(metrics.IN_FLIGHT), 9)
    before.observe(before.histogram(metrics.UPSTREAM_SECONDS, "eth", "mainnet", "a"), [1_000])
    after = regions.writer(0)
    after.add(after.cell(metrics.REFUSALS, "overloaded"))
    after.observe(after.histogram(metrics.UPSTREAM_SECONDS, "eth", "mainnet", "a"), [1_000])
    found = page(regions)
    network = (("family", "eth"), ("network", "mainnet"), ("upstream", "a"))
    assert found["tollgate_refusals_total", (("reason", "overloaded"),)] == 6
    assert found["tollgate_in_flight", ()] == 0
    assert found["tollgate_upstream_seconds_count", network] == 2


def test_counts_of_a_process_that_was_killed_stay_on_the_page() -> None:
    regions = Regions(2)
    pid = os.fork()
    if pid == 0:
        writer = regions.writer(1)
        writer.add(writer.cell(metrics.REFUSALS, "overloaded"), 3)
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    assert page(regions) == {("tollgate_refusals_total", (("reason", "overloaded"),)): 3}


def test_region_of_one_process_is_not_touched_by_the_restart_of_another() -> None:
    regions = Regions(2)
    writer = regions.writer(0)
    writer.set(writer.cell(metrics.CONNECTIONS), 4)
    regions.writer(1)
    assert page(regions) == {("tollgate_connections", ()): 4}


# --- Histograms --------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 30), max_size=30))
@settings(max_examples=30)
def test_histogram_counts_what_was_observed(durations: list[float]) -> None:
    regions = Regions(2)
    writers = [regions.writer(0), regions.writer(1)]
    for number, seconds in enumerate(durations):
        writer = writers[number % 2]
        writer.observe(writer.histogram(metrics.UPSTREAM_SECONDS, "eth", "mainnet", "a"), [int(seconds * 1e6)])
    found = page(regions)
    labels = (("family", "eth"), ("network", "mainnet"), ("upstream", "a"))
    if not durations:
        assert found == {}
        return
    microseconds = [int(seconds * 1e6) for seconds in durations]
    assert found["tollgate_upstream_seconds_count", labels] == len(durations)
    total = found["tollgate_upstream_seconds_sum", labels]
    assert total == pytest.approx(sum(durations), abs=2e-6 * len(durations))
    for bound in BUCKETS_MICROSECONDS:
        bucket = (("family", "eth"), ("le", str(bound / 1e6)), *labels[1:])
        expected = sum(value <= bound for value in microseconds)
        assert found["tollgate_upstream_seconds_bucket", bucket] == expected
    infinite = (("family", "eth"), ("le", "+Inf"), *labels[1:])
    assert found["tollgate_upstream_seconds_bucket", infinite] == len(durations)


def test_duration_on_a_bound_falls_below_it() -> None:
    regions = Regions(1)
    writer = regions.writer(0)
    writer.observe(writer.histogram(metrics.UPSTREAM_SECONDS, "eth", "mainnet", "a"), [2_500])
    found = page(regions)
    labels = (("family", "eth"), ("le", "0.0025"), ("network", "mainnet"), ("upstream", "a"))
    assert found["tollgate_upstream_seconds_bucket", labels] == 1


def test_durations_may_come_in_any_order() -> None:
    regions = Regions(1)
    writer = regions.writer(0)
    writer.observe(
        writer.histogram(metrics.UPSTREAM_SECONDS, "eth", "mainnet", "a"), [9_000_000, 2_500, 1, 70_000]
    )
    found = page(regions)
    counts = [value for (name, _), value in found.items() if name.endswith("_bucket")]
    assert counts == sorted(counts)
    labels = (("family", "eth"), ("le", "0.0025"), ("network", "mainnet"), ("upstream", "a"))
    assert found["tollgate_upstream_seconds_bucket", labels] == 2


# --- Labels ------------------------------------------------------------------------------------------------


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
@settings(max_examples=50)
def test_any_label_comes_back_as_it_was(label: str) -> None:
    regions = Regions(1)
    writer = regions.writer(0)
    writer.add(writer.cell(metrics.REFUSALS, label))
    (family,) = [family for family in _families(regions) if family]
    assert family == {label: 1.0}


def _families(regions: Regions) -> list[dict[str, float]]:
    # The parser splits lines at "\n" alone, as Prometheus does.
    families = text_string_to_metric_families(render(regions).decode())
    return [{sample.labels["reason"]: sample.value for sample in family.samples} for family in families]


@pytest.mark.parametrize("label", ['a"b', "a\\b", "a\nb", 'x"} 1\ntollgate_connections 99'])
def test_label_cannot_write_lines_of_its_own(label: str) -> None:
    regions = Regions(1)
    writer = regions.writer(0)
    writer.add(writer.cell(metrics.REFUSALS, label), 2)
    assert page(regions) == {("tollgate_refusals_total", (("reason", label),)): 2}


def test_same_labels_are_the_same_cell() -> None:
    writer = Regions(1).writer(0)
    first = writer.cell(metrics.REFUSALS, "a")
    assert writer.cell(metrics.REFUSALS, "b") != first
    assert writer.cell(metrics.REFUSALS, "a") == first


def test_too_many_labels_are_counted_as_dropped_and_take_no_more_room() -> None:
    regions = Regions(1)
    writer = regions.writer(0)
    invented = 20_000
    for number in range(invented):
        writer.add(writer.cell(metrics.REFUSALS, f"invented {number}"))
    totals = regions.totals()
    dropped = totals[metrics.DROPPED_LABELS.name,]
    assert dropped > 0
    assert len(totals) - 1 + dropped == invented == sum(totals.values())
    assert len(totals) == metrics._CELLS, "every cell is used"
    for number in range(invented, invented + 500):
        writer.add(writer.cell(metrics.REFUSALS, f"invented {number}"))
    assert len(regions.totals()) == len(totals)
    assert page(regions)["tollgate_metrics_dropped_total", ()] == dropped + 500


def test_labels_beyond_the_room_are_not_remembered_by_the_process_either() -> None:
    regions = Regions(1)
    writer = regions.writer(0)
    for number in range(20_000):
        writer.cell(metrics.REFUSALS, f"invented {number}")
    tracemalloc.start()
    for number in range(2_000):
        writer.cell(metrics.REFUSALS, f"another {number}")
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 50_000


def test_dropped_samples_are_still_counted_after_a_restart() -> None:
    regions = Regions(1)
    for _ in range(2):
        writer = regions.writer(0)
        writer.add(writer.cell(metrics.REFUSALS, "x" * 1_000))
    assert regions.totals() == {(metrics.DROPPED_LABELS.name,): 2}


def test_gauge_without_a_cell_does_not_wipe_out_the_count_of_dropped_samples() -> None:
    regions = Regions(1)
    writer = regions.writer(0)
    writer.add(writer.cell(metrics.REFUSALS, "x" * 1_000), 5)
    writer.set(writer.cell(metrics.UPSTREAM_CONNECTIONS, "eth", "mainnet", "x" * 1_000), 1)
    assert regions.totals()[metrics.DROPPED_LABELS.name,] >= 5


# --- The table ---------------------------------------------------------------------------------------------


def test_metrics_have_names_and_help_as_prometheus_wants_them() -> None:
    assert len({spec.name for spec in ALL}) == len(ALL)
    for spec in ALL:
        assert re.fullmatch(r"tollgate_[a-z_]+", spec.name)
        assert spec.help.endswith(".")
        assert not spec.name.endswith("_total")
        assert spec.kind is not MetricKind.HISTOGRAM or spec.name.endswith("_seconds")


def test_every_metric_defined_is_on_the_page() -> None:
    defined = {value for value in vars(metrics).values() if isinstance(value, metrics.Spec)}
    assert defined == set(ALL)


def test_empty_page_names_every_metric() -> None:
    text = render(Regions(1)).decode()
    for spec in ALL:
        assert f"# HELP {spec.name}" in text


def test_of_some_gauges_the_greatest_value_counts_and_not_the_sum() -> None:
    regions = Regions(3)
    for number, seconds in enumerate((7, 40, 0)):
        writer = regions.writer(number)
        writer.set(writer.cell(metrics.DIRECTORY_STALE_SECONDS), seconds)
    assert page(regions) == {("tollgate_directory_stale_seconds", ()): 40}


def test_gauges_that_are_the_same_for_all_processes_are_not_added_up() -> None:
    """What one process of a node sets, or every node alike."""
    assert {spec.name.removeprefix("tollgate_") for spec in ALL if spec.greatest} == {
        "upstream_state",
        "upstream_head",
        "network_head",
        "network_finalized",
        "directory_stale_seconds",
        "ledger_clock_doubted",
        "nodes",
        "shared_nodes",
        "shared_leases",
    }


def test_gauge_whose_subject_is_gone_is_not_shown() -> None:
    regions = Regions(1)
    writer = regions.writer(0)
    writer.set(writer.cell(metrics.UPSTREAM_CONNECTIONS, "eth", "mainnet", "a"), metrics.GONE)
    writer.set(writer.cell(metrics.UPSTREAM_CONNECTIONS, "eth", "mainnet", "b"), 0)
    assert [dict(labels)["upstream"] for _, labels in page(regions)] == ["b"]


def test_names_on_the_page_are_those_of_alerts() -> None:
    text = render(Regions(1)).decode()
    for spec in ALL:
        assert f"# TYPE {spec.page_name} " in text


def test_cells_are_integers_and_the_page_may_show_fractions() -> None:
    regions = Regions(1)
    writer = regions.writer(0)
    writer.add(writer.cell(metrics.PROCESS_CPU, "worker-0"), 1_250)
    assert page(regions) == {("tollgate_process_cpu_seconds_total", (("process", "worker-0"),)): 1.25}


@pytest.mark.parametrize(("spare", "fits"), [(0, True), (-1, False)])
def test_label_may_fill_its_cell_and_touches_no_other(spare: int, fits: bool) -> None:
    regions = Regions(1)
    writer = regions.writer(0)
    room = 496 - len(f'["{metrics.REFUSALS.name}",""]') - spare
    for label in ("before", "x" * room, "after"):
        writer.add(writer.cell(metrics.REFUSALS, label), 7)
    totals = regions.totals()
    assert {totals[metrics.REFUSALS.name, label] for label in ("before", "after")} == {7}
    assert ((metrics.REFUSALS.name, "x" * room) in totals) is fits
    assert ((metrics.DROPPED_LABELS.name,) in totals) is not fits


def test_one_region_is_read_by_its_label() -> None:
    regions = Regions(2)
    for number in range(2):
        writer = regions.writer(number)
        writer.add(writer.cell(metrics.REFUSALS, "rate_limited"), number + 1)
        writer.add(writer.cell(metrics.WS_CUT, "slow"), 9)
    assert regions.by_label(0, metrics.REFUSALS) == {"rate_limited": 1}
    assert regions.by_label(1, metrics.REFUSALS) == {"rate_limited": 2}
