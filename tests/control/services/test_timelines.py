"""A team's requests over time."""

import pytest
from tests.control.metering import Metering
from tests.control.services.harness import ACME

from tollgate.api.usage import TimelineQuery
from tollgate.control.problems import InvalidInput
from tollgate.control.services.timelines import Latency, Timelines, UsageTimeline

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
