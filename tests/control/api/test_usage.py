"""GET /teams/{team}/usage; every answer is checked against the OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.control.api.caller import Api, reason
from tests.control.metering import Metering
from tests.control.services.harness import ROLES
from tests.store.account_rows import BEFORE, CI, MONTH, WEB

from tollgate.core.months import start_of
from tollgate.core.pricing import MILLION

NO_MONTHS = (
    *("", "2026-1", "2026-00", "2026-13", "november", "1969-12", "0000-01", "3000-01", "9999-12", "2026-11-01"),
    *("%32%30%32%36-%D9%A1%D9%A1", "2026-11%0A", "2026-11%00"),
)


@pytest.fixture
def money(metering: Metering) -> Iterator[Api]:
    opened = Api(metering)
    yield opened
    opened.close()


def test_a_month_with_all_members(metering: Metering, money: Api) -> None:
    metering.token(CI, "ci")
    metering.call(MILLION + 2, start_of(MONTH) + 7 * 86_400)
    metering.call(1, source=WEB, outcome="rate_limited")
    assert money.get("/teams/acme/usage?by=token") == {
        "month": MONTH,
        "plan": "per_request",
        "requests": MILLION + 3,
        "billable_requests": MILLION + 2,
        "free_requests": MILLION,
        "free_left": 0,
        "cost_micros": 10,
        "cost": "$0.00001",
        "forecast_requests": 2_068_969,
        "forecast_cost_micros": 5_344_845,
        "spending_cap_micros": None,
        "capped": False,
        "by": "token",
        "items": [
            {
                "key": CI,
                "name": "ci",
                "requests": MILLION + 2,
                "billable_requests": MILLION + 2,
                "cost_micros": 10,
            },
            {"key": "", "name": "(domains)", "requests": 1, "billable_requests": 0, "cost_micros": 0},
        ],
    }


def test_days_of_the_current_month_by_default(metering: Metering, money: Api) -> None:
    metering.call(3)
    metering.call(4, start_of(BEFORE))
    found = money.get("/teams/acme/usage")
    assert (found["month"], found["by"], [item["key"] for item in found["items"]]) == (
        MONTH,
        "day",
        ["2026-11-15"],
    )
    assert money.get(f"/teams/acme/usage?month={BEFORE}")["requests"] == 4


@pytest.mark.parametrize(
    ("query", "accepted"),
    [
        *((f"month={text}", f"such as {MONTH}") for text in NO_MONTHS),
        *((f"by={text}", "one of token, domain, network, method, day, month") for text in ("", "hour", "Token")),
    ],
)
def test_a_bad_query_names_what_is_accepted(money: Api, query: str, accepted: str) -> None:
    answer = money.request("GET", f"/teams/acme/usage?{query}")
    assert reason(answer) == (400, "invalid_request")
    assert answer.json()["field"] == query.partition("=")[0]
    assert accepted in answer.json()["detail"]


@pytest.mark.parametrize("month", ["1970-01", "2999-12"])
def test_the_first_and_the_last_valid_month_are_empty(money: Api, month: str) -> None:
    found = money.get(f"/teams/acme/usage?month={month}")
    assert (found["month"], found["requests"], found["items"]) == (month, 0, [])


@pytest.mark.parametrize("who", ROLES)
def test_every_member_may_see_it(money: Api, who: str) -> None:
    assert money.get("/teams/acme/usage", who=who)["month"] == MONTH


def test_usage_needs_a_login_and_membership(money: Api) -> None:
    assert reason(money.request("GET", "/teams/acme/usage", who=None)) == (401, "not_logged_in")
    assert reason(money.request("GET", "/teams/acme/usage", who="outsider")) == (403, "no_such_team")


@pytest.mark.parametrize("path", ["usage", "invoices", f"invoices/{MONTH}"])
def test_without_a_ledger_it_is_unavailable(metering: Metering, money: Api, path: str) -> None:
    metering.do(metering.book.close())
    metering.books.close()
    for file in metering.folder.glob("ledger.db*"):
        file.unlink()
    answer = money.request("GET", f"/teams/acme/{path}")
    assert reason(answer) == (503, "store_unavailable")
    assert "Retry-After" in answer.headers
