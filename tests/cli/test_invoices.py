"""`tollgate invoices list` and `show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.cli.conftest import Api, Tool

HEAD: dict[str, Any] = {
    "number": "TG-2026-11-acme",
    "month": "2026-11",
    "status": "final",
    "issued_at": "2026-12-03T00:00:00Z",
    "requests": 2_000_000,
    "billable_requests": 2_000_000,
    "cost_micros": 5_000_000,
    "total_cents": 500,
    "total": "$5.00",
}
DRAFT = {**HEAD, "number": "TG-2026-12-acme", "month": "2026-12", "status": "draft", "issued_at": None}
INVOICE: dict[str, Any] = {
    **HEAD,
    "team_id": "team_1",
    "team": "acme",
    "period_start": "2026-11-01T00:00:00Z",
    "period_end": "2026-12-01T00:00:00Z",
    "currency": "usd",
    "plan": "per_request",
    "free_requests": 1_000_000,
    "micros_per_million": 5_000_000,
    "spending_cap_micros": None,
    "lines": [
        {
            "kind": "free",
            "text": "Free requests",
            "of_month": None,
            "requests": 1_000_000,
            "amount_micros": 0,
            "amount": "$0.00",
        },
        {
            "kind": "rounding",
            "text": "Rounding to cents",
            "of_month": None,
            "requests": None,
            "amount_micros": 5,
            "amount": "$0.000005",
        },
    ],
}
PATH = "teams/acme/invoices"


def test_list(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}?limit=2", {"items": [DRAFT, HEAD], "next": None})
    ran = acme.run("invoices", "list", "--limit", "2")
    assert ran.out.splitlines() == [
        "MONTH    NUMBER           STATUS  BILLABLE   TOTAL",
        "2026-12  TG-2026-12-acme  draft   2,000,000  $5.00",
        "2026-11  TG-2026-11-acme  final   2,000,000  $5.00",
    ]


def test_list_for_programs_and_its_next_page(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}?limit=100&after=c1", {"items": [HEAD], "next": "c2"})
    assert acme.run("invoices", "list", "--after", "c1", "--json").json == {"items": [HEAD], "next": "c2"}


def test_list_of_none(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}?limit=100", {"items": [], "next": None})
    ran = acme.run("invoices", "list")
    assert (ran.out, ran.err) == ("", "No invoices yet.\n")


def test_show(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}/2026-11", INVOICE)
    ran = acme.run("invoices", "show", "2026-11")
    assert ran.out.splitlines() == [
        "number  TG-2026-11-acme",
        "team    acme",
        "month   2026-11",
        "status  final",
        "issued  2026-12-03T00:00:00Z",
        "total   $5.00",
        "",
        "WHAT               REQUESTS   AMOUNT",
        "Free requests      1,000,000  $0.00",
        "Rounding to cents  -          $0.000005",
    ]


def test_show_as_json(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}/2026-11", INVOICE)
    assert acme.run("invoices", "show", "2026-11", "--json").json == INVOICE


def test_show_as_csv_is_printed_as_it_came(api: Api, acme: Tool) -> None:
    table = "number,text\r\nTG-1,Free requests\r\n"
    headers = {"Content-Type": "text/csv; charset=utf-8"}
    api.on("GET", f"{PATH}/2026-11?format=csv", body=table.encode(), headers=headers)
    ran = acme.run("invoices", "show", "2026-11", "--csv")
    assert (ran.code, ran.out, ran.err) == (0, table, "")


def test_an_answer_that_is_not_csv_is_refused(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}/2026-11?format=csv", body=b"<html>", headers={"Content-Type": "text/html"})
    ran = acme.run("invoices", "show", "2026-11", "--csv")
    assert (ran.code, ran.out) == (1, "")
    assert "is not the management API of a Tollgate" in ran.err


def test_csv_and_json_exclude_each_other(acme: Tool) -> None:
    ran = acme.run("invoices", "show", "2026-11", "--csv", "--json")
    assert (ran.code, "not both" in ran.err) == (2, True)


def test_a_month_without_an_invoice_is_not_found(api: Api, acme: Tool) -> None:
    for how in ([], ["--csv"]):
        query = "?format=csv" if how else ""
        api.problem("GET", f"{PATH}/2026-01{query}", 404, "not_found", "The team acme has no invoice for 2026-01.")
        ran = acme.run("invoices", "show", "2026-01", *how)
        assert (ran.code, ran.out) == (3, "")


def test_a_month_cannot_change_the_path(api: Api, acme: Tool) -> None:
    assert acme.run("invoices", "show", "../../me").code == 2
    assert api.requests == []
