"""`tollgate usage`, its cap and its alerts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tollgate.api.usage import By

if TYPE_CHECKING:
    from tests.cli.conftest import Api, Tool

USAGE: dict[str, Any] = {
    "month": "2026-11",
    "plan": "per_request",
    "requests": 1_234_567,
    "billable_requests": 1_200_000,
    "free_requests": 1_000_000,
    "free_left": 0,
    "cost_micros": 1_000_000,
    "cost": "$1.00",
    "forecast_requests": 2_400_000,
    "forecast_cost_micros": 7_000_000,
    "spending_cap_micros": 25_000_000,
    "capped": False,
    "by": "token",
    "items": [
        {
            "key": "tok_1",
            "name": "ci",
            "requests": 1_234_560,
            "billable_requests": 1_199_993,
            "cost_micros": 1_000_000,
        },
        {"key": "", "name": "(domains)", "requests": 7, "billable_requests": 7, "cost_micros": 0},
    ],
}
BILLING: dict[str, Any] = {
    "spending_cap_micros": 25_500_000,
    "alert_webhook": None,
    "alert_emails": True,
    "buyer": "",
    "tax_number": "",
}
PATH = "teams/acme/usage"


def test_usage_is_listed_by_what_the_api_knows(acme: Tool) -> None:
    ran = acme.run("usage", "--by", "week")
    assert ran.code == 2
    assert all(f"'{by}'" in ran.err for by in By)


def test_usage_shows_the_month_and_its_items(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}?month=2026-11&by=token", USAGE)
    ran = acme.run("usage", "--month", "2026-11", "--by", "token")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        "month      2026-11",
        "requests   1,234,567",
        "billable   1,200,000",
        "free left  0 of 1,000,000",
        "cost       $1.00",
        "forecast   2,400,000 billable, $7.00",
        "cap        $25.00",
        "",
        "TOKEN  NAME       REQUESTS   BILLABLE   COST",
        "tok_1  ci         1,234,560  1,199,993  $1.00",
        "-      (domains)  7          7          $0.00",
    ]


def test_a_token_has_its_own_usage(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}?by=month&token=ci", {**USAGE, "by": "month"})
    assert acme.run("usage", "--token", "ci", "--by", "month").out.splitlines()[8].split() == [
        "MONTH", "REQUESTS", "BILLABLE", "COST"
    ]  # fmt: skip


def test_a_terminal_gets_bars_and_a_narrow_one_none(api: Api, acme: Tool) -> None:
    days = [("2026-11-01", 80), ("2026-11-02", 10), ("2026-11-03", 1), ("2026-11-04", 0)]
    rest = {"name": None, "billable_requests": 0, "cost_micros": 0}
    items = [{"key": day, "requests": count, **rest} for day, count in days]
    for columns in (80, 40):
        api.on("GET", f"{PATH}?by=day", {**USAGE, "by": "day", "items": items})
        with acme.terminal("usage", columns=columns, env={"NO_COLOR": "1"}) as terminal:
            assert terminal.end() == 0
        lines = [line.split() for line in terminal.seen.splitlines() if line.startswith("2026-11-0")]
        bars = [line[4] if len(line) > 4 else "" for line in lines]
        assert bars == (["█" * 20, "██▌", "▎", ""] if columns == 80 else [""] * 4)


def test_json_is_the_server_s_own_object(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}?by=day", USAGE)
    assert acme.run("usage", "--json").json == USAGE


def test_a_month_without_calls_has_no_table(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}?by=day", {**USAGE, "items": [], "spending_cap_micros": None})
    lines = acme.run("usage").out.splitlines()
    assert (len(lines), lines[-1]) == (7, "cap        -")


def test_a_reached_cap_shows_what_to_do(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}?by=day", {**USAGE, "capped": True})
    ran = acme.run("usage")
    assert "cap        $25.00, reached" in ran.out
    assert "tollgate usage cap AMOUNT" in ran.err


@pytest.mark.parametrize(
    ("typed", "micros"),
    [
        ("25.00", 25_000_000),
        ("25", 25_000_000),
        ("$25.5", 25_500_000),
        ("0", 0),
        ("0.000005", 5),
        ("none", None),
        ("999999999.999999", 999_999_999_999_999),
    ],
)
def test_cap_takes_dollars_or_none(api: Api, acme: Tool, typed: str, micros: int | None) -> None:
    api.on("PATCH", "teams/acme/billing", {**BILLING, "webhook_secret": None})
    ran = acme.run("usage", "cap", typed)
    assert (ran.code, ran.out) == (0, "cap      $25.50\nwebhook  -\nemails   yes\n")
    assert api.requests[0].json == {"spending_cap_micros": micros}


@pytest.mark.parametrize("typed", ["", "x", "1,000", "1e3", "25.1234567", "25 USD", "1000000000", ".5"])
def test_cap_refuses_an_invalid_amount(acme: Tool, typed: str) -> None:
    ran = acme.run("usage", "cap", typed)
    assert ran.code == 2
    assert "is neither an amount in US dollars (25.00) nor none" in ran.err


def test_a_negative_amount_is_not_read_as_an_option(acme: Tool) -> None:
    assert acme.run("usage", "cap", "-5").code == 2


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        (["--webhook", "https://x.example/h"], {"alert_webhook": "https://x.example/h"}),
        (["--webhook", "none"], {"alert_webhook": None}),
        (["--emails"], {"alert_emails": True}),
        (["--no-emails", "--webhook", "none"], {"alert_webhook": None, "alert_emails": False}),
    ],
)
def test_alerts_sends_what_was_given_and_no_more(
    api: Api, acme: Tool, arguments: list[str], body: dict[str, Any]
) -> None:
    api.on("PATCH", "teams/acme/billing", {**BILLING, "webhook_secret": None})
    ran = acme.run("usage", "alerts", *arguments)
    assert (ran.code, api.requests[0].json, ran.err) == (0, body, "")


def test_alerts_without_options_shows_and_changes_nothing(api: Api, acme: Tool) -> None:
    api.on("GET", "teams/acme/billing", BILLING)
    assert acme.run("usage", "alerts", "--json").json == BILLING


def test_the_secret_is_printed_to_stdout_once_with_a_note(api: Api, acme: Tool) -> None:
    answer = {**BILLING, "alert_webhook": "https://x.example/h", "webhook_secret": "tgw_secret"}
    api.on("PATCH", "teams/acme/billing", answer)
    ran = acme.run("usage", "alerts", "--webhook", "https://x.example/h")
    assert "secret   tgw_secret\n" in ran.out
    assert ("not shown again" in ran.err, "tgw_" in ran.err) == (True, False)


ROLLED = {"secret": "tgw_new", "previous_secret_until": "2026-11-16T12:00:00Z"}


@pytest.mark.parametrize(("arguments", "overlap"), [((), 86_400), (("--overlap", "0s"), 0)])
def test_roll_secret_prints_the_new_one_once(
    api: Api, acme: Tool, arguments: tuple[str, ...], overlap: int
) -> None:
    api.on("POST", "teams/acme/billing/roll", ROLLED)
    ran = acme.run("usage", "roll-secret", *arguments)
    assert (ran.code, api.requests[0].json) == (0, {"overlap_seconds": overlap})
    assert "secret           tgw_new\n" in ran.out
    assert ("not shown again" in ran.err, "tgw_" in ran.err) == (True, False)


def test_roll_secret_names_the_way_out_if_the_answer_was_lost(api: Api, acme: Tool) -> None:
    api.on("POST", "teams/acme/billing/roll", {**ROLLED, "secret": None})
    ran = acme.run("usage", "roll-secret")
    assert ran.code == 1
    assert "tollgate usage roll-secret --overlap 0s --team acme" in ran.err


def test_roll_secret_has_an_overlap_of_30_days_at_most(acme: Tool) -> None:
    ran = acme.run("usage", "roll-secret", "--overlap", "31d")
    assert (ran.code, "30d at most" in ran.err) == (2, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--team", "beta", "cap", "1"],
        ["cap", "1", "--team", "beta"],
        ["--team", "x", "cap", "1", "--team", "beta"],
    ],
)
def test_team_is_accepted_before_or_after_the_subcommand(api: Api, acme: Tool, arguments: list[str]) -> None:
    api.on("PATCH", "teams/beta/billing", {**BILLING, "webhook_secret": None})
    assert acme.run("usage", *arguments).code == 0


def test_json_is_accepted_before_the_subcommand(api: Api, acme: Tool) -> None:
    api.on("GET", "teams/acme/billing", BILLING)
    assert acme.run("usage", "--json", "alerts").json == BILLING


@pytest.mark.parametrize("option", [["--month", "2026-11"], ["--by", "day"]])
def test_options_of_the_report_do_not_go_with_a_subcommand(acme: Tool, option: list[str]) -> None:
    ran = acme.run("usage", *option, "alerts")
    assert ran.code == 2
    assert f"{option[0]} shows usage; it does not go with 'alerts'." in ran.err


@pytest.mark.parametrize(("status", "reason", "code"), [(403, "role_needed", 5), (403, "no_such_team", 5)])
def test_refusals_have_the_usual_codes(api: Api, acme: Tool, status: int, reason: str, code: int) -> None:
    api.problem("PATCH", "teams/acme/billing", status, reason, "No.")
    assert acme.run("usage", "cap", "1").code == code


def test_without_a_login_that_is_reported(tool: Tool) -> None:
    ran = tool.run("usage", "--team", "acme")
    assert (ran.code, "tollgate auth login" in ran.err) == (4, True)


def test_a_name_from_the_server_cannot_move_the_cursor(api: Api, acme: Tool) -> None:
    items = [{"key": "k\x1b[2J", "name": "n\x07", "requests": 1, "billable_requests": 0, "cost_micros": 0}]
    api.on("GET", f"{PATH}?by=day", {**USAGE, "items": items})
    out = acme.run("usage").out
    assert "\x1b" not in out
    assert "\x07" not in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("usage", "--month", "2026-13"),
        ("invoices", "show", "2026-00"),
        ("operator", "usage", "--month", "november"),
    ],
)
def test_month_that_is_none_is_wrong_usage(api: Api, acme: Tool, arguments: tuple[str, ...]) -> None:
    ran = acme.run(*arguments)
    assert (ran.code, "is not a month: write one such as 2026-11" in ran.err) == (2, True)
    assert api.requests == []
