"""Usage: a month by five views that all add up to it, what is free and left, and where it is heading."""

from __future__ import annotations

import pytest
from tests.control.services.house import DAY, ROLES
from tests.control.till import DOLLAR, Till
from tests.store.account_rows import BEFORE, CD, CI, MONTH, RIVAL, WEB, calls

from tollgate.control.problems import InvalidInput, NoSuchTeam, NotFound
from tollgate.control.services import usage
from tollgate.control.services.billing import BillingUpdate
from tollgate.control.services.usage import MonthUsage, Share
from tollgate.core.months import start_of
from tollgate.core.pricing import MILLION
from tollgate.core.usage import By
from tollgate.store.base import StoreUnavailable


def report(
    till: Till, month: str | None = None, by: str = By.DAY, who: str = "owner", token: str | None = None
) -> MonthUsage:
    return till.do(till.plane.usage.of_team(till.actor(who), "acme", month, by, token=token))


def test_a_month_without_a_call(till: Till) -> None:
    found = report(till)
    assert (found.month, found.plan, found.by) == (MONTH, "per_request", By.DAY)
    assert (found.requests, found.billable, found.cost, found.items) == (0, 0, 0, [])
    assert (found.free_requests, found.free_left) == (MILLION, MILLION)
    assert (found.forecast_requests, found.forecast_cost) == (0, 0)
    assert (found.spending_cap, found.capped) == (None, False)


def test_free_requests_are_used_before_any_is_charged(till: Till) -> None:
    till.call(999_999)
    assert (report(till).free_left, report(till).cost) == (1, 0)
    till.call(1)
    assert (report(till).free_left, report(till).cost) == (0, 0)
    till.call(1)
    assert (report(till).free_left, report(till).cost) == (0, 5)


def test_refused_calls_are_counted_and_cost_nothing(till: Till) -> None:
    till.call(5)
    till.call(7, outcome="rate_limited")
    found = report(till)
    assert (found.requests, found.billable, found.free_left) == (12, 5, MILLION - 5)


def test_a_rotated_token_keeps_its_usage_by_its_name_and_every_id(till: Till) -> None:
    till.token(CI, "ci")
    till.token(CD, "cd")
    till.call(5, source=CI)
    till.clock.advance(1)
    new = till.do(till.plane.tokens.rotate(till.actor("owner"), "acme", CI, 0))[0].id
    till.call(3, source=new)
    till.call(2, source=CD)
    assert report(till, by="token").items == [Share(new, "ci", 8, 8, 0), Share(CD, "cd", 2, 2, 0)]
    for asked in ("ci", CI, new):
        found = report(till, token=asked)
        assert (found.requests, [item.requests for item in found.items], found.free_left) == (8, [8], MILLION - 10)
    till.do(till.plane.tokens.delete(till.actor("owner"), "acme", CI))
    assert report(till, token="ci").requests == report(till, token=CI).requests == 8
    till.do(till.plane.tokens.delete(till.actor("owner"), "acme", new))
    assert report(till, by="token").items[0] == Share(new, None, 8, 8, 0)
    assert report(till, token=CI).requests == 8
    with pytest.raises(NotFound, match="has no token 'ci'"):
        report(till, token="ci")


def test_a_tokens_forecast_is_its_part_of_the_month(till: Till) -> None:
    till.token(CI, "ci")
    till.token(CD, "cd")
    till.call(MILLION, source=CD)
    till.call(400, source=CI)
    found = report(till, token="ci")
    assert (found.requests, found.cost, found.free_left) == (400, 2_000, 0)
    assert found.forecast_cost == found.forecast_requests * 5


def test_tokens_have_the_names_that_they_have_now(till: Till) -> None:
    till.token(CI, "ci")
    till.call(5, source=CI)
    till.call(9, source=CD)  # deleted since
    till.call(2, source=WEB)
    assert report(till, by="token").items == [
        Share(CD, None, 9, 9, 0),
        Share(CI, "ci", 5, 5, 0),
        Share("", "(domains)", 2, 2, 0),
    ]
    assert [(each.key, each.name) for each in report(till, by="domain").items] == [
        ("", "(tokens)"),
        (WEB, None),
    ]


@pytest.mark.parametrize("by", list(By))
def test_items_add_up_to_the_month_exactly(till: Till, by: By) -> None:
    for number in range(12):
        till.call(
            123_457,
            till.clock.now - number * DAY,
            source=(CI, CD, WEB)[number % 3],
            network=("eth/mainnet", "eth/sepolia")[number % 2],
            method=f"eth_{number}",
            outcome="ok" if number % 5 else "rate_limited",
        )
    found = report(till, by=by)
    assert found.cost == (9 * 123_457 - MILLION) * 5
    for name in ("requests", "billable", "cost"):
        assert sum(getattr(item, name) for item in found.items) == getattr(found, name)


def test_the_least_of_too_many_tokens_stand_together(till: Till) -> None:
    for start in range(0, 1_200, 100):
        some = range(start, start + 100)
        till.books.commit(*(calls(number + 1, source=f"tok_{number:016d}") for number in some))
    found = report(till, by="token")
    assert len(found.items) == usage.MAX_ITEMS
    assert found.items[0].requests == 1_200
    assert found.items[-1] == Share("", "(others)", sum(range(1, 202)), sum(range(1, 202)), 0)
    assert sum(item.requests for item in found.items) == found.requests == sum(range(1, 1_201))


def test_forecast_goes_on_like_this_and_obeys_the_cap(till: Till) -> None:
    till.clock.now = start_of(MONTH) + 10 * DAY
    till.call(MILLION)
    found = report(till)
    assert (found.forecast_requests, found.forecast_cost) == (3 * MILLION, 10 * DOLLAR)
    till.do(till.plane.billing.change(till.actor("owner"), "acme", BillingUpdate(spending_cap=4 * DOLLAR)))
    assert report(till).forecast_cost == 4 * DOLLAR


def test_a_past_month_is_its_final_figure_whatever_the_price_is_now(till: Till) -> None:
    till.clock.now = start_of(MONTH) + 3_600
    till.call(MILLION + 1_000)
    till.clock.now = start_of("2027-02")
    till.charge(micros_per_million=50 * DOLLAR)
    found = report(till, MONTH)
    assert (found.forecast_requests, found.forecast_cost, found.cost) == (MILLION + 1_000, 5_000, 5_000)
    assert report(till).requests == 0


def test_a_capped_team_is_told_so_for_the_current_month_alone(till: Till) -> None:
    till.call(10, start_of(BEFORE))
    till.do(till.plane.billing.change(till.actor("owner"), "acme", BillingUpdate(spending_cap=0)))
    assert not report(till).capped
    till.call(MILLION)
    assert report(till).capped
    assert not report(till, BEFORE).capped
    till.clock.now = start_of("2026-12") + 1
    assert not report(till).capped


def test_other_teams_are_not_counted(till: Till) -> None:
    till.call(7, team=RIVAL)
    assert report(till).requests == 0


@pytest.mark.parametrize("who", ROLES)
def test_every_member_may_see_usage(till: Till, who: str) -> None:
    assert report(till, who=who).requests == 0


def test_nobody_else_learns_that_the_team_exists(till: Till) -> None:
    till.refused(NoSuchTeam, till.plane.usage.of_team(till.actor("stranger"), "acme"))


@pytest.mark.parametrize("month", ["", "2026", "2026-13", "11-2026", "2026-11-15", "now"])
def test_a_bad_month_names_the_accepted_form(till: Till, month: str) -> None:
    refusal = till.refused(InvalidInput, till.plane.usage.of_team(till.actor("owner"), "acme", month))
    assert MONTH in refusal.detail
    assert refusal.extras == {"field": "month"}


def test_a_bad_view_names_the_five(till: Till) -> None:
    refusal = till.refused(InvalidInput, till.plane.usage.of_team(till.actor("owner"), "acme", None, "week"))
    assert "token, domain, network, method, day" in refusal.detail


def test_a_plane_without_a_ledger_says_that_it_is_away(till: Till) -> None:
    plain = usage.Usages(till.plane.context, None)
    till.refused(StoreUnavailable, plain.of_team(till.actor("owner"), "acme"))
