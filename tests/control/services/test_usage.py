"""Usage: a month by five views that all add up to it, what is free and left, and a forecast."""

from __future__ import annotations

import pytest
from msgspec import UNSET
from tests.control.metering import DOLLAR, Metering
from tests.control.services.harness import DAY, ROLES
from tests.store.account_rows import BEFORE, CD, CI, MONTH, RIVAL, WEB, calls

from tollgate.api.tokens import Rotation
from tollgate.api.usage import By, Usage, UsageItem, UsageQuery
from tollgate.control.problems import InvalidInput, NoSuchTeam, NotFound
from tollgate.control.services import usage
from tollgate.core.months import start_of
from tollgate.core.pricing import MILLION
from tollgate.store.base import StoreUnavailable


def report(
    metering: Metering, month: str | None = None, by: str = By.DAY, who: str = "owner", token: str | None = None
) -> Usage:
    query = UsageQuery(month or UNSET, by, token or UNSET)
    return metering.do(metering.plane.usage.of_team(metering.actor(who), "acme", query))


def test_a_month_without_a_call(metering: Metering) -> None:
    found = report(metering)
    assert (found.month, found.plan, found.by) == (MONTH, "per_request", By.DAY)
    assert (found.requests, found.billable_requests, found.cost_micros, found.items) == (0, 0, 0, [])
    assert (found.free_requests, found.free_left) == (MILLION, MILLION)
    assert (found.forecast_requests, found.forecast_cost_micros) == (0, 0)
    assert (found.spending_cap_micros, found.capped) == (None, False)


def test_free_requests_are_used_before_any_is_charged(metering: Metering) -> None:
    metering.call(999_999)
    assert (report(metering).free_left, report(metering).cost_micros) == (1, 0)
    metering.call(1)
    assert (report(metering).free_left, report(metering).cost_micros) == (0, 0)
    metering.call(1)
    assert (report(metering).free_left, report(metering).cost_micros) == (0, 5)


def test_refused_calls_are_counted_and_cost_nothing(metering: Metering) -> None:
    metering.call(5)
    metering.call(7, outcome="rate_limited")
    found = report(metering)
    assert (found.requests, found.billable_requests, found.free_left) == (12, 5, MILLION - 5)


def test_a_rotated_token_keeps_its_usage_by_its_name_and_every_id(metering: Metering) -> None:
    metering.token(CI, "ci")
    metering.token(CD, "cd")
    metering.call(5, source=CI)
    metering.clock.advance(1)
    new = metering.do(metering.plane.tokens.rotate(metering.actor("owner"), "acme", CI, Rotation(0)))[0].id
    metering.call(3, source=new)
    metering.call(2, source=CD)
    assert report(metering, by="token").items == [UsageItem(new, "ci", 8, 8, 0), UsageItem(CD, "cd", 2, 2, 0)]
    for given in ("ci", CI, new):
        found = report(metering, token=given)
        assert (found.requests, [item.requests for item in found.items], found.free_left) == (8, [8], MILLION - 10)
    metering.do(metering.plane.tokens.delete(metering.actor("owner"), "acme", CI))
    assert report(metering, token="ci").requests == report(metering, token=CI).requests == 8
    metering.do(metering.plane.tokens.delete(metering.actor("owner"), "acme", new))
    assert report(metering, by="token").items[0] == UsageItem(new, None, 8, 8, 0)
    assert report(metering, token=CI).requests == 8
    with pytest.raises(NotFound, match="has no token 'ci'"):
        report(metering, token="ci")


def test_a_tokens_forecast_is_its_part_of_the_month(metering: Metering) -> None:
    metering.token(CI, "ci")
    metering.token(CD, "cd")
    metering.call(MILLION, source=CD)
    metering.call(400, source=CI)
    found = report(metering, token="ci")
    assert (found.requests, found.cost_micros, found.free_left) == (400, 2_000, 0)
    assert found.forecast_cost_micros == found.forecast_requests * 5


def test_tokens_have_the_names_that_they_have_now(metering: Metering) -> None:
    metering.token(CI, "ci")
    metering.call(5, source=CI)
    metering.call(9, source=CD)  # deleted since
    metering.call(2, source=WEB)
    assert report(metering, by="token").items == [
        UsageItem(CD, None, 9, 9, 0),
        UsageItem(CI, "ci", 5, 5, 0),
        UsageItem("", "(domains)", 2, 2, 0),
    ]
    assert [(each.key, each.name) for each in report(metering, by="domain").items] == [
        ("", "(tokens)"),
        (WEB, None),
    ]


@pytest.mark.parametrize("by", list(By))
def test_items_add_up_to_the_month_exactly(metering: Metering, by: By) -> None:
    for number in range(12):
        metering.call(
            123_457,
            metering.clock.now - number * DAY,
            source=(CI, CD, WEB)[number % 3],
            network=("eth/mainnet", "eth/sepolia")[number % 2],
            method=f"eth_{number}",
            outcome="ok" if number % 5 else "rate_limited",
        )
    found = report(metering, by=by)
    assert found.cost_micros == (9 * 123_457 - MILLION) * 5
    for name in ("requests", "billable_requests", "cost_micros"):
        assert sum(getattr(item, name) for item in found.items) == getattr(found, name)


def test_the_smallest_of_too_many_tokens_are_added_up(metering: Metering) -> None:
    for start in range(0, 1_200, 100):
        some = range(start, start + 100)
        metering.books.commit(*(calls(number + 1, source=f"tok_{number:016d}") for number in some))
    found = report(metering, by="token")
    assert len(found.items) == usage.MAX_ITEMS
    assert found.items[0].requests == 1_200
    assert found.items[-1] == UsageItem("", "(others)", sum(range(1, 202)), sum(range(1, 202)), 0)
    assert sum(item.requests for item in found.items) == found.requests == sum(range(1, 1_201))


def test_forecast_goes_on_like_this_and_obeys_the_cap(metering: Metering) -> None:
    metering.clock.now = start_of(MONTH) + 10 * DAY
    metering.call(MILLION)
    found = report(metering)
    assert (found.forecast_requests, found.forecast_cost_micros) == (3 * MILLION, 10 * DOLLAR)
    metering.set_billing(spending_cap_micros=4 * DOLLAR)
    assert report(metering).forecast_cost_micros == 4 * DOLLAR


def test_a_past_month_keeps_its_cost_when_the_price_changes(metering: Metering) -> None:
    metering.clock.now = start_of(MONTH) + 3_600
    metering.call(MILLION + 1_000)
    metering.clock.now = start_of("2027-02")
    metering.charge(micros_per_million=50 * DOLLAR)
    found = report(metering, MONTH)
    assert (found.forecast_requests, found.forecast_cost_micros, found.cost_micros) == (
        MILLION + 1_000,
        5_000,
        5_000,
    )
    assert report(metering).requests == 0


def test_a_reached_cap_is_shown_for_the_current_month_only(metering: Metering) -> None:
    metering.call(10, start_of(BEFORE))
    metering.set_billing(spending_cap_micros=0)
    assert not report(metering).capped
    metering.call(MILLION)
    assert report(metering).capped
    assert not report(metering, BEFORE).capped
    metering.clock.now = start_of("2026-12") + 1
    assert not report(metering).capped


def test_other_teams_are_not_counted(metering: Metering) -> None:
    metering.call(7, team=RIVAL)
    assert report(metering).requests == 0


@pytest.mark.parametrize("who", ROLES)
def test_every_member_may_see_usage(metering: Metering, who: str) -> None:
    assert report(metering, who=who).requests == 0


def test_the_team_does_not_exist_for_others(metering: Metering) -> None:
    metering.refused(NoSuchTeam, metering.plane.usage.of_team(metering.actor("outsider"), "acme"))


@pytest.mark.parametrize("month", ["", "2026", "2026-13", "11-2026", "2026-11-15", "now"])
def test_a_bad_month_names_the_accepted_form(metering: Metering, month: str) -> None:
    refusal = metering.refused(
        InvalidInput, metering.plane.usage.of_team(metering.actor("owner"), "acme", UsageQuery(month))
    )
    assert MONTH in refusal.detail
    assert refusal.extras == {"field": "month"}


def test_a_bad_view_names_the_five(metering: Metering) -> None:
    refusal = metering.refused(
        InvalidInput, metering.plane.usage.of_team(metering.actor("owner"), "acme", UsageQuery(by="week"))
    )
    assert "token, domain, network, method, day" in refusal.detail


def test_without_a_ledger_usage_is_unavailable(metering: Metering) -> None:
    plain = usage.Usages(metering.plane.context, None)
    metering.refused(StoreUnavailable, plain.of_team(metering.actor("owner"), "acme"))
