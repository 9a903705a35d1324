"""Invoices as JSON, CSV and a page: the same in all three, and safe to open."""

from __future__ import annotations

import base64
import csv
import hashlib
import html
import io
import re
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from tests.control.api.caller import Api, reason
from tests.control.metering import DOLLAR, Metering
from tests.control.services.harness import ACME, HOUR
from tests.store.account_rows import AFTER, BEFORE, MONTH

from tollgate.core.months import end_of, start_of
from tollgate.core.pricing import MILLION

PATH = f"/teams/acme/invoices/{MONTH}"
NUMBER = "TG-2026-11-acme000000000"


@pytest.fixture
def money(metering: Metering) -> Iterator[Api]:
    opened = Api(metering)
    yield opened
    opened.close()


@pytest.fixture
def final(metering: Metering, money: Api) -> dict[str, Any]:
    """The invoice of a month with late calls, a cap and an odd amount, when it is final."""
    metering.set_billing(spending_cap_micros=DOLLAR + 12_345)
    metering.charge(grace_hours=0)
    metering.do(metering.plane.invoices.close_due())
    metering.call(5, start_of(BEFORE))
    metering.call(2 * MILLION)
    metering.clock.now = end_of(MONTH) + HOUR
    metering.do(metering.plane.invoices.close_due())
    return money.get(PATH)


def test_json_has_everything_and_adds_up(final: dict[str, Any]) -> None:
    lines = final.pop("lines")
    assert final == {
        "number": NUMBER,
        "month": MONTH,
        "status": "final",
        "issued_at": "2026-12-01T01:00:00Z",
        "requests": 2 * MILLION + 5,
        "billable_requests": 2 * MILLION + 5,
        "cost_micros": DOLLAR + 12_345,
        "total_cents": 101,
        "total": "$1.01",
        "team_id": ACME.id,
        "team": "acme",
        "period_start": "2026-11-01T00:00:00Z",
        "period_end": "2026-12-01T00:00:00Z",
        "currency": "usd",
        "plan": "per_request",
        "free_requests": MILLION,
        "micros_per_million": 5 * DOLLAR,
        "spending_cap_micros": DOLLAR + 12_345,
    }
    shown = [(line["kind"], line["of_month"], line["requests"], line["amount_micros"]) for line in lines]
    assert shown == [
        ("free", BEFORE, 5, 0),
        ("free", None, MILLION - 5, 0),
        ("billed", None, MILLION + 5, 5_000_025),
        ("cap", None, None, -3_987_680),
        ("rounding", None, None, -2_345),
    ]
    assert sum(line["amount_micros"] for line in lines) == 101 * 10_000


@pytest.mark.parametrize("how", [{"path": "?format=csv"}, {"headers": {"Accept": "text/csv"}}])
def test_csv_has_the_same_lines_by_query_and_by_header(
    money: Api, final: dict[str, Any], how: dict[str, Any]
) -> None:
    answer = money.request("GET", PATH + how.get("path", ""), headers=how.get("headers"))
    assert answer.headers["Content-Type"].partition(";")[0] == "text/csv"
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{NUMBER}.csv"'
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.text.endswith("\r\n")
    assert answer.text.count("\n") == answer.text.count("\r\n")
    rows = list(csv.DictReader(io.StringIO(answer.text, newline="")))
    assert [(row["text"], int(row["amount_micros"])) for row in rows[:-1]] == [
        (line["text"], line["amount_micros"]) for line in final["lines"]
    ]
    assert (rows[-1]["kind"], int(rows[-1]["amount_micros"])) == ("total", final["total_cents"] * 10_000)
    assert {(row["number"], row["team"], row["currency"]) for row in rows} == {(NUMBER, "acme", "usd")}


@pytest.mark.parametrize("name", ["-2-3", "=1", "\uff1d1", "\uff0b1", "\uff0d1", "\uff20A1"])
def test_a_name_that_looks_like_a_formula_is_escaped_in_csv(metering: Metering, money: Api, name: str) -> None:
    metering.write(lambda records: records.teams.replace(replace(ACME, name=name)))
    rows = list(
        csv.DictReader(io.StringIO(money.request("GET", f"{PATH.replace('acme', ACME.id)}?format=csv").text))
    )
    assert {row["team"] for row in rows} == {f"'{name}"}


def test_a_name_of_a_token_never_gets_into_an_invoice(metering: Metering, money: Api) -> None:
    metering.call(1)
    assert "tok_" not in money.request("GET", PATH).text


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        ("*/*", "application/json"),
        ("application/json", "application/json"),
        ("text/csv;q=0.9, application/json", "application/json"),
        ("text/html", "application/json"),
        ("TEXT/CSV; charset=utf-8", "text/csv"),
    ],
)
def test_json_unless_only_csv_is_accepted(money: Api, accept: str, media_type: str) -> None:
    answer = money.request("GET", PATH, headers={"Accept": accept})
    assert answer.headers["Content-Type"].partition(";")[0] == media_type


def test_page_shows_every_line_and_loads_nothing(money: Api, final: dict[str, Any]) -> None:
    answer = money.request("GET", f"{PATH}?format=html")
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    text = html.unescape(re.sub(r"<[^>]+>", " ", answer.text))
    for line in final["lines"]:
        assert line["text"] in text
        assert line["amount"] in text
    for word in (NUMBER, "acme", "$1.01", "2,000,005", "2026-12-01"):
        assert word in text
    assert "Draft" not in text
    style = re.findall(r"<style>(.*?)</style>", answer.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style[0].encode()).digest()).decode()
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}';")
    for word in ("<script", "src=", "href=", "url(", "@import", "style=", "<link", "<img", "<iframe"):
        assert word not in answer.text.lower(), word


def test_a_draft_is_shown_as_one(money: Api) -> None:
    assert money.get(PATH)["status"] == "draft"
    page = money.request("GET", f"{PATH}?format=html").text
    assert ("Draft" in page, "Not yet" in page) == (True, True)


def test_list_has_drafts_and_final_ones_page_by_page(money: Api, final: dict[str, Any]) -> None:
    first = money.get("/teams/acme/invoices?limit=1")
    assert [(item["month"], item["status"]) for item in first["items"]] == [(AFTER, "draft")]
    second = money.get(f"/teams/acme/invoices?limit=1&after={first['next']}")
    assert second == {"items": [{name: final[name] for name in second["items"][0]}], "next": None}


def test_missing_invoices_and_unknown_formats_are_refused(money: Api) -> None:
    assert reason(money.request("GET", f"/teams/acme/invoices/{BEFORE}")) == (404, "not_found")
    answer = money.request("GET", f"{PATH}?format=xml")
    assert reason(answer) == (400, "invalid_request")
    assert answer.json()["detail"] == "`format` is one of json, csv, html."
    assert reason(money.request("GET", "/teams/acme/invoices?after=x")) == (400, "invalid_request")


@pytest.mark.parametrize("month", ["latest", "2026-13", "2026-1", "9999-12", "2026-11%0A", "%00"])
def test_invalid_month_is_refused_with_the_accepted_form(money: Api, month: str) -> None:
    answer = money.request("GET", f"/teams/acme/invoices/{month}")
    assert reason(answer) == (400, "invalid_request")
    assert answer.json()["field"] == "month"
    assert f"write one such as {MONTH}" in answer.json()["detail"]


@pytest.mark.parametrize("path", ["/teams/acme/invoices", PATH, f"{PATH}?format=csv", f"{PATH}?format=html"])
def test_only_owners_admins_and_billing_members_may_see(money: Api, path: str) -> None:
    assert money.request("GET", path, who="billing").status_code == 200
    for who in ("developer", "viewer"):
        answer = money.request("GET", path, who=who)
        assert reason(answer) == (403, "role_needed")
        assert answer.json()["roles"] == ["owner", "admin", "billing"]
    assert reason(money.request("GET", path, who="outsider")) == (403, "no_such_team")
    assert reason(money.request("GET", path, who=None)) == (401, "not_logged_in")
