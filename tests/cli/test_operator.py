"""`tollgate operator`, `usage timeline` and `account factors`: what pages of the console do, typed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.cli.test_usage import USAGE

if TYPE_CHECKING:
    from tests.cli.conftest import Api, Tool

TEAM: dict[str, Any] = {
    "id": "team_1", "name": "acme", "created_at": "2026-11-01T00:00:00Z", "suspended_at": None,
    "requests_per_second": 50, "billable_requests": 1_200, "cost_micros": 1_500_000,
    "usual_free_requests": 1_000_000, "usual_micros_per_million": 5_000_000,
}  # fmt: skip
AT = "2026-11-15T06:00:00Z"


def test_teams_are_listed_with_what_they_used(api: Api, acme: Tool) -> None:
    api.on("GET", "operator/teams?limit=100", {"items": [TEAM, {**TEAM, "suspended_at": AT}], "next": None})
    output = acme.run("operator", "teams").out
    assert "1.50" in output
    assert "active" in output
    assert "suspended" in output


def test_teams_in_one_state_are_listed(api: Api, acme: Tool) -> None:
    api.on("GET", "operator/teams?limit=7&state=capped", {"items": [{**TEAM, "capped": True}], "next": None})
    assert "capped" in acme.run("operator", "teams", "--state", "capped", "--limit", "7").out
    assert acme.run("operator", "teams", "--state", "asleep").code == 2


def test_team_is_suspended_and_resumed(api: Api, acme: Tool) -> None:
    api.on("PATCH", "operator/teams/acme", {**TEAM, "suspended_at": AT, "suspended_reason": "unpaid"})
    ran = acme.run("operator", "suspend", "acme", "--reason", "unpaid")
    assert "unpaid" in ran.out
    assert json.loads(api.requests[-1].body) == {"suspended": True, "suspended_reason": "unpaid"}
    api.on("PATCH", "operator/teams/acme", TEAM)
    assert acme.run("operator", "unsuspend", "acme").code == 0
    assert json.loads(api.requests[-1].body) == {"suspended": False}


@pytest.mark.parametrize(
    ("options", "body"),
    [
        (("--price", "3.00"), {"micros_per_million": 3_000_000}),
        (("--price", "default", "--free", "0"), {"micros_per_million": None, "free_requests": 0}),
        (("--free", "default", "--limit", "none"), {"free_requests": None, "requests_per_second": None}),
        (("--limit", "500", "--cap", "0"), {"requests_per_second": 500, "operator_cap_micros": 0}),
        (("--cap", "none"), {"operator_cap_micros": None}),
        (
            ("--reset",),
            dict.fromkeys(("micros_per_million", "free_requests", "requests_per_second", "operator_cap_micros")),
        ),
    ],
)
def test_plan_of_a_team_is_set(api: Api, acme: Tool, options: tuple[str, ...], body: dict[str, Any]) -> None:
    api.on("PATCH", "operator/teams/acme", {**TEAM, "micros_per_million": 3_000_000})
    ran = acme.run("operator", "plan", "acme", *options)
    assert "$3.00 (default $5.00)" in ran.out
    assert json.loads(api.requests[-1].body) == body


def test_plan_without_options_is_shown(api: Api, acme: Tool) -> None:
    api.on("GET", "operator/teams/acme", TEAM)
    output = acme.run("operator", "plan", "acme").out
    assert "$5.00 (default)" in output
    assert "1,000,000 (default)" in output


@pytest.mark.parametrize(
    "options",
    [("--reset", "--free", "1"), ("--price", "none"), ("--free", "-1"), ("--limit", "0"), ("--cap", "x")],
)
def test_invalid_plan_is_refused_before_anything_is_sent(api: Api, acme: Tool, options: tuple[str, ...]) -> None:
    assert acme.run("operator", "plan", "acme", *options).code == 2
    assert api.requests == []


def test_usage_of_all_teams_and_of_one_is_shown(api: Api, acme: Tool) -> None:
    items = [{"id": "team_1", "name": "acme", "billable_requests": 1_200, "cost_micros": 1_500_000}]
    total = {"month": "2026-11", "teams": 3, "billable_requests": 9_000, "cost_micros": 7_000_000}
    api.on("GET", "operator/usage?limit=1&month=2026-11", {**total, "items": items})
    ran = acme.run("operator", "usage", "--month", "2026-11", "--limit", "1")
    assert "$7.00" in ran.out
    assert ran.out.splitlines()[-1].split() == ["acme", "1,200", "$1.50"]
    assert "2 more teams with lower cost" in ran.err
    one = {**USAGE, "by": "method", "items": []}
    api.on("GET", "operator/teams/acme/usage?by=method", one)
    assert "2026-11" in acme.run("operator", "usage", "--team", "acme", "--by", "method").out


def test_processes_and_the_lag_of_the_collector_are_shown(api: Api, acme: Tool) -> None:
    each = {
        "name": "worker-0", "pid": 7, "started_at": AT, "cpu_seconds": 1.25, "memory_bytes": 80_000_000,
        "restarts": 3,
    }  # fmt: skip
    api.on("GET", "operator/processes", {"processes": [each], "spool_segments": 2, "spool_waiting_bytes": 4_096})
    ran = acme.run("operator", "processes")
    assert ran.out.splitlines()[1].split()[0] == "worker-0"
    assert "RESTARTS" in ran.out
    assert " 3 " in ran.out
    assert "4,096 bytes in 2 segments" in ran.err


def test_only_faults_of_the_last_day_are_listed(api: Api, acme: Tool) -> None:
    steps = [
        {"start": AT, "state": "up", "calls": 9, "failures": 0, "behind": 0},
        {"start": AT, "state": "down", "calls": 9, "failures": 9, "behind": 0},
    ]
    items = [{"network": "eth/mainnet", "upstream": "node-1", "steps": steps}]
    api.on("GET", "operator/upstreams/history", {"items": items, "next": None})
    output = acme.run("operator", "history").out
    assert output.count("node-1") == 1
    assert "down" in output


def test_check_that_finds_something_fails(api: Api, acme: Tool) -> None:
    bad = {"name": "logs", "ok": False, "looked_at": "1 month", "differences": ["acme 2026-11: 1 is missing"]}
    api.on("POST", "operator/checks", {"ok": False, "checks": [bad]})
    ran = acme.run("operator", "check")
    assert ran.code == 1
    assert "1 is missing" in ran.out


def test_timeline_has_a_row_for_each_step(api: Api, acme: Tool) -> None:
    found = {
        "range": "7d", "split": "outcome", "step": "day", "p50_us": 3_400, "p95_us": 156_000,
        "steps": [{"start": "2026-11-15T00:00:00Z", "requests": 7, "by": {"ok": 5, "rate_limited": 2}}],
    }  # fmt: skip
    api.on("GET", "teams/acme/usage/timeline?range=7d&split=outcome", found)
    ran = acme.run("usage", "timeline", "--range", "7d", "--split", "outcome")
    assert ran.out.splitlines()[-1].split() == ["2026-11-15", "7", "5", "2"]
    assert "3.4 ms at the median, 156.0 ms at p95" in ran.err


def test_codes_are_switched_on_by_a_first_one(api: Api, acme: Tool) -> None:
    api.on("POST", "me/factors/totp", {"secret": "JBSW", "uri": "otpauth://totp/x"})
    api.on("POST", "me/factors/totp/confirm", {"recovery_codes": ["aaaaa-bbbbb"]})
    ran = acme.run("account", "codes", "on", stdin="123456\n")
    assert "JBSW" in ran.err
    assert ran.out == "aaaaa-bbbbb\n"
    assert json.loads(api.requests[-1].body) == {"code": "123456"}
