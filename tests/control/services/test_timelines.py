"""A team's requests over time."""

import pytest
from tests.control.services.house import ACME
from tests.control.till import Till

from tollgate.control.problems import InvalidInput
from tollgate.control.services.timelines import Latency, Timeline, Timelines

HOUR, DAY = 3_600.0, 86_400.0


def read(till: Till, span: str, split: str = "network") -> Timeline:
    service = Timelines(till.plane.context, till.book)
    return till.do(service.of_team(till.actor("owner"), ACME.name, span, split))


def test_day_has_its_24_hours_and_what_was_called_in_each(till: Till) -> None:
    till.call(5, till.clock.now)
    till.call(2, till.clock.now - 3 * HOUR, network="eth/sepolia")
    till.call(9, till.clock.now - 30 * HOUR)
    found = read(till, "24h")
    assert len(found.steps) == 24
    assert found.steps[-1].requests == {"eth/mainnet": 5}
    assert found.steps[-4].requests == {"eth/sepolia": 2}
    assert (found.total, found.keys) == (7, ["eth/mainnet", "eth/sepolia"])


def test_month_has_all_its_days_and_the_year_its_months(till: Till) -> None:
    till.call(5, till.clock.now)
    month, year = read(till, "month", "outcome"), read(till, "year")
    assert month.step == "day"
    assert month.of("ok") == 5
    assert (year.step, len(year.steps), year.steps[-1].total) == ("month", 12, 5)


@pytest.mark.parametrize(("span", "split", "field"), [("8d", "network", "range"), ("7d", "colour", "split")])
def test_other_words_are_refused(till: Till, span: str, split: str, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read(till, span, split)
    assert refused.value.extras["field"] == field


def test_latency_is_that_of_answered_calls(till: Till) -> None:
    service = Timelines(till.plane.context, till.book)
    assert till.do(service.latency(till.actor("owner"), ACME.name)) == Latency(None, None)
    for micros in (*[1_000] * 9, 90_000):
        till.call(1, micros=micros)
        till.call(1, micros=20, outcome="rate_limited")
    found = till.do(service.latency(till.actor("owner"), ACME.name))
    assert found.p50 is not None
    assert found.p95 is not None
    # Within the width of a bucket, a fifth.
    assert 1_000 <= found.p50 < 1_200
    assert 90_000 <= found.p95 < 108_000
