"""A team's requests over time."""

from datetime import UTC, datetime

import pytest
from msgspec import UNSET, UnsetType
from tests.control.metering import Metering
from tests.control.services.harness import ACME

from tollgate.api.usage import By, Split, TimelineQuery
from tollgate.control.problems import InvalidInput
from tollgate.control.services.timelines import Latency, Timelines, UsageTimeline, window_of

HOUR, DAY = 3_600.0, 86_400.0


def read(metering: Metering, span: str, split: str = "network") -> UsageTimeline:
    service = Timelines(metering.plane.context, metering.book)
    return metering.do(service.of_team(metering.actor("owner"), ACME.name, TimelineQuery(span, split)))


def test_day_has_its_24_hours_and_what_was_called_in_each(metering: Metering) -> None:
    metering.call(5, metering.clock.now)
    metering.call(2, metering.clock.now - 3 * HOUR, network="eth/sepolia")
    metering.call(9, metering.clock.now - 30 * HOUR)
    found = read(metering, "24h")
    assert len(found.steps) == 24
    assert found.steps[-1].requests == {"eth/mainnet": 5}
    assert found.steps[-4].requests == {"eth/sepolia": 2}
    assert (found.total, found.keys) == (7, ["eth/mainnet", "eth/sepolia"])


def test_month_has_all_its_days_and_the_year_its_months(metering: Metering) -> None:
    metering.call(5, metering.clock.now)
    month, year = read(metering, "month", "outcome"), read(metering, "year")
    assert month.step == "day"
    assert month.of("ok") == 5
    assert (year.step, len(year.steps), year.steps[-1].total) == ("month", 12, 5)


@pytest.mark.parametrize(("span", "split", "field"), [("8d", "network", "range"), ("7d", "colour", "split")])
def test_unknown_period_is_refused(metering: Metering, span: str, split: str, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read(metering, span, split)
    assert refused.value.extras["field"] == field


def custom(metering: Metering, since: str, until: str | UnsetType = UNSET) -> UsageTimeline:
    service = Timelines(metering.plane.context, metering.book)
    query = TimelineQuery("custom", since=since, until=until)
    return metering.do(service.of_team(metering.actor("owner"), ACME.name, query))


def test_custom_range_has_its_days_and_a_short_one_its_hours(metering: Metering) -> None:
    metering.call(5, metering.clock.now - 3 * DAY)
    metering.call(2, metering.clock.now)
    found = custom(metering, "2026-11-10", "2026-11-12")
    assert (found.span, found.step, len(found.steps), found.total) == ("custom", "day", 3, 5)
    assert [step.total for step in found.steps] == [0, 0, 5]
    assert custom(metering, "2026-11-10").total == 7, "until today"
    hours = custom(metering, "2026-11-12", "2026-11-13")
    assert (hours.step, len(hours.steps), hours.total) == ("hour", 48, 5)


@pytest.mark.parametrize(
    ("since", "until", "field"),
    [
        ("2026-11-12", "2026-11-11", "until"),
        ("2026-02-30", "2026-03-01", "since"),
        ("2026-08-01", "2026-11-11", "since"),
        ("11/12/2026", UNSET, "since"),
        (UNSET, "2026-11-11", "since"),
    ],
)
def test_custom_range_that_cannot_be_shown_is_refused(
    metering: Metering, since: str, until: str, field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        custom(metering, since, until)
    assert refused.value.extras["field"] == field


@pytest.mark.parametrize(
    ("query", "before"),
    [
        # It is noon of 15 November: the same part of the period before.
        (TimelineQuery("24h"), ("2026-11-13T13:00", "2026-11-14T12:00")),
        (TimelineQuery("7d"), ("2026-11-02T00:00", "2026-11-08T12:00")),
        (TimelineQuery("month"), ("2026-10-01T00:00", "2026-10-15T12:00")),
        (TimelineQuery("year"), ("2024-12-01T00:00", "2025-11-15T12:00")),
        (
            TimelineQuery("custom", since="2026-11-01", until="2026-11-10"),
            ("2026-10-22T00:00", "2026-11-01T00:00"),
        ),
        (TimelineQuery("custom", since="2026-11-14"), ("2026-11-12T00:00", "2026-11-13T12:00")),
    ],
)
def test_range_is_compared_with_the_same_part_of_the_period_before(
    metering: Metering, query: TimelineQuery, before: tuple[str, str]
) -> None:
    window = window_of(query, metering.clock.now)
    assert tuple(f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M}" for at in window.before) == before


def test_one_window_has_the_same_requests_in_the_chart_in_lists_and_for_the_period_before(
    metering: Metering,
) -> None:
    service, owner = Timelines(metering.plane.context, metering.book), metering.actor("owner")
    for days, count in ((0, 5), (3, 7), (8, 11), (20, 13), (40, 17)):
        metering.call(count, metering.clock.now - days * DAY, method=f"eth_{days}")
    sums = {}
    for query in (TimelineQuery("24h"), TimelineQuery("7d"), TimelineQuery("month"), TimelineQuery("year")):
        window = window_of(query, metering.clock.now)
        chart = metering.do(service.within(owner, ACME.name, window, Split.OUTCOME)).total
        methods = metering.do(metering.plane.usage.within(owner, ACME.name, window, By.METHOD))
        before = metering.do(service.within(owner, ACME.name, window.previous, Split.OUTCOME)).total
        assert chart == sum(item.requests for item in methods)
        sums[query.range] = (chart, before)
    assert sums == {"24h": (5, 0), "7d": (12, 11), "month": (23, 17), "year": (53, 0)}


def test_latency_is_that_of_answered_calls(metering: Metering) -> None:
    service = Timelines(metering.plane.context, metering.book)
    assert metering.do(service.latency(metering.actor("owner"), ACME.name)) == Latency(None, None)
    for micros in (*[1_000] * 9, 90_000):
        metering.call(1, micros=micros)
        metering.call(1, micros=20, outcome="rate_limited")
    found = metering.do(service.latency(metering.actor("owner"), ACME.name))
    assert found.p50 is not None
    assert found.p95 is not None
    # Within the width of a bucket, a fifth.
    assert 1_000 <= found.p50 < 1_200
    assert 90_000 <= found.p95 < 108_000
