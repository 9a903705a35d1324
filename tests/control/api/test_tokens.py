"""API tokens over HTTP."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.control.api.caller import Api, Json, reason
from tests.control.services.harness import DAY, HOUR, Harness
from tests.samples import sample

from tollgate.api.tokens import NewToken, Token
from tollgate.core import secrets

SETTINGS = sample(NewToken, name="deploy", expires_at="2027-01-01T00:00:00Z", active=True)


def plain(**members: Any) -> Json:
    """A token of which nothing was set, as it is shown."""
    at = datetime(2026, 11, 15, 12, tzinfo=UTC)
    shown = msgspec.json.encode(Token("", "ci", "", at, "owner@acme.example"))
    return msgspec.json.decode(shown, type=Json) | members


def test_token_is_made_and_its_secret_shown_once(api: Api) -> None:
    made = api.make("/teams/acme/tokens", {"name": "ci"})
    secret = made.pop("secret")
    assert secrets.well_formed(secret)
    assert made["id"].startswith("tok_")
    assert made == plain(id=made["id"], prefix=secret[:8])
    assert api.get(f"/teams/acme/tokens/{made['id']}") == made
    assert api.get("/teams/acme/tokens") == {"items": [made], "next": None}


def test_every_setting_is_kept_as_given(api: Api) -> None:
    made = api.make("/teams/acme/tokens", SETTINGS)
    assert made == made | SETTINGS


def test_settings_are_changed_and_the_others_stay(api: Api) -> None:
    made = api.make("/teams/acme/tokens", SETTINGS)
    path = f"/teams/acme/tokens/{made['id']}"
    del made["secret"]
    changes = [{name: plain(active=False)[name]} for name in SETTINGS] + [
        {"methods": ["eth_call", "eth_get*"]},
        {},
    ]
    for change in changes:
        answer = api.request("PATCH", path, json=change)
        assert answer.status_code == 200, answer.text
        made |= change
        assert answer.json() == api.get(path) == made


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("2027-01-01T01:00:00+01:00", "2027-01-01T00:00:00Z"),
        ("2027-01-01T00:00:00.25Z", "2027-01-01T00:00:00.250000Z"),
    ],
)
def test_time_in_any_zone_is_kept_in_utc(api: Api, given: str, kept: str) -> None:
    assert api.make("/teams/acme/tokens", {"name": "ci", "expires_at": given})["expires_at"] == kept


def test_time_without_a_zone_is_refused_with_an_example(api: Api) -> None:
    for given in ("2027-01-01T00:00:00", "2027-01-01", "tomorrow", "", 1_800_000_000, "2027-02-30T00:00:00Z"):
        answer = api.request("POST", "/teams/acme/tokens", json={"name": "ci", "expires_at": given})
        assert reason(answer) == (400, "invalid_request"), given
        assert answer.json()["field"] == "expires_at"
        assert "2026-11-15T06:44:44Z" in answer.json()["detail"]


def test_time_out_of_bounds_is_refused(api: Api) -> None:
    ends = ("0001-01-01T00:00:00+23:59", "1969-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59")
    for given in (*ends, "2026-11-15T12:00:00Z"):
        answer = api.request("POST", "/teams/acme/tokens", json={"name": "ci", "expires_at": given})
        assert reason(answer) == (400, "invalid_request"), given
        assert answer.json()["field"] == "expires_at"


WRONG: dict[str, list[object]] = {
    "name": ["", "a" * 101, "a\0b", None, 5],
    "networks": [["eth/none"], None, "eth/mainnet", [1]],
    "methods": [["admin_*"], ["a b"], ["eth_*"] * 101, [None]],
    "requests_per_second": [0, 10**30, 1.5, "5", True],
    "monthly_requests": [-1, 10**13],
    "allow_in_url": ["true", None, 1],
    "show_upstream": ["true", None, 1],
}


@pytest.mark.parametrize("field", WRONG)
def test_wrong_setting_is_refused_by_name(api: Api, field: str) -> None:
    for value in WRONG[field]:
        answer = api.request("POST", "/teams/acme/tokens", json={"name": "ci"} | {field: value})
        assert reason(answer) == (400, "invalid_request"), value
        assert answer.json()["field"] == field
    assert api.get("/teams/acme/tokens")["items"] == []


def test_token_is_rotated_with_an_overlap(api: Api, harness: Harness) -> None:
    old = api.make("/teams/acme/tokens", SETTINGS)
    harness.clock.advance(DAY)
    new = api.make(f"/teams/acme/tokens/{old['id']}/rotate", {"overlap_seconds": 3_600})
    assert secrets.well_formed(new["secret"])
    assert new["secret"] != old["secret"]
    assert new["replaces"] == old["id"]
    assert new["name"] == "deploy"
    kept = {name: value for name, value in SETTINGS.items() if name != "expires_at"}
    assert new == new | kept
    replaced = api.get(f"/teams/acme/tokens/{old['id']}")
    assert replaced["expires_at"] == "2026-11-16T13:00:00Z"
    assert replaced["name"].startswith("deploy-until-2026-11-16")
    harness.clock.advance(2 * HOUR)
    assert reason(api.request("POST", f"/teams/acme/tokens/{old['id']}/rotate")) == (400, "invalid_request")


@pytest.mark.parametrize("body", [None, {}])
def test_default_overlap_is_a_day(api: Api, body: dict[str, Any] | None) -> None:
    old = api.make("/teams/acme/tokens", {"name": "ci"})
    api.make(f"/teams/acme/tokens/{old['id']}/rotate", body)
    assert api.get(f"/teams/acme/tokens/{old['id']}")["expires_at"] == "2026-11-16T12:00:00Z"


def test_overlap_out_of_bounds_is_refused(api: Api) -> None:
    old = api.make("/teams/acme/tokens", {"name": "ci"})
    for overlap in (-1, 2_592_001, None, "1h", 10**25):
        answer = api.request("POST", f"/teams/acme/tokens/{old['id']}/rotate", json={"overlap_seconds": overlap})
        assert reason(answer) == (400, "invalid_request"), overlap
        assert answer.json()["field"] == "overlap_seconds"


def test_token_is_deleted(api: Api) -> None:
    made = api.make("/teams/acme/tokens", {"name": "ci"})
    path = f"/teams/acme/tokens/{made['id']}"
    answer = api.request("DELETE", path)
    assert (answer.status_code, answer.content) == (204, b"")
    for method in ("GET", "DELETE"):
        answer = api.request(method, path)
        assert reason(answer) == (404, "not_found")
        assert "tollgate rpc tokens list" in answer.json()["detail"]
