"""Whitelisted domains over HTTP."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.control.api.caller import Api, Json, reason
from tests.control.services.harness import ACME, RIVAL, Harness
from tests.samples import sample

from tollgate.api.domains import Domain, DomainSettings


def plain(**members: Any) -> Json:
    """An entry of which nothing was set, as it is shown."""
    at = datetime(2026, 11, 15, 12, tzinfo=UTC)
    shown = msgspec.json.encode(Domain("", "example.com", at, "owner@acme.example"))
    return msgspec.json.decode(shown, type=Json) | members


def test_domain_is_added_and_shown(api: Api) -> None:
    made = api.make("/teams/acme/domains", {"domain": "Example.COM"})
    assert made == plain(id=made["id"])
    assert made["id"].startswith("dom_")
    assert api.get(f"/teams/acme/domains/{made['id']}") == made
    assert api.get("/teams/acme/domains") == {"items": [made], "next": None}


def test_settings_are_changed_and_the_others_stay(api: Api) -> None:
    settings = sample(DomainSettings)
    made = api.make("/teams/acme/domains", {"domain": "example.com"} | settings)
    assert made == plain(id=made["id"]) | settings
    path = f"/teams/acme/domains/{made['id']}"
    for change in ({}, *({name: plain()[name]} for name in settings), settings):
        answer = api.request("PATCH", path, json=change)
        assert answer.status_code == 200, answer.text
        made |= change
        assert answer.json() == api.get(path) == made


def test_domain_is_removed_by_its_id(api: Api) -> None:
    made = api.make("/teams/acme/domains", {"domain": "example.com"})
    assert reason(api.request("DELETE", "/teams/acme/domains/example.com")) == (404, "not_found")
    assert api.request("DELETE", f"/teams/acme/domains/{made['id']}").status_code == 204
    assert api.get("/teams/acme/domains")["items"] == []


@pytest.mark.parametrize("body", [None, {}])
def test_proof_is_found(api: Api, harness: Harness, body: dict[str, str] | None) -> None:
    made = api.make("/teams/acme/domains", {"domain": "example.com"})
    harness.proofs.proven.add(("example.com", ACME.id))
    answer = api.request("POST", f"/teams/acme/domains/{made['id']}/verify", json=body)
    assert answer.status_code == 200
    assert answer.json() == made | {"verified_at": "2026-11-15T12:00:00Z"}


def test_missing_proof_is_reported_with_what_to_publish(api: Api) -> None:
    made = api.make("/teams/acme/domains", {"domain": "example.com"})
    answer = api.request("POST", f"/teams/acme/domains/{made['id']}/verify")
    assert reason(answer) == (409, "not_proven")
    body = answer.json()
    assert body["domain"] == "example.com"
    assert body["dns_name"] == "_tollgate.example.com"
    assert body["dns_value"] == f"tollgate-team={ACME.id}"
    assert body["well_known_url"].endswith("/.well-known/tollgate.txt")
    assert body["problems"] == ["Nothing was there", "Nor there."]


def test_domain_of_another_team_is_taken_over_by_proof(api: Api, harness: Harness) -> None:
    api.make("/teams/rival/domains", {"domain": "example.com"}, who="outsider")
    wanted = {"domain": "example.com"}
    taken = api.request("POST", "/teams/acme/domains", json=wanted)
    assert reason(taken) == (409, "domain_taken")
    assert taken.json()["dns_value"] == f"tollgate-team={ACME.id}"
    assert RIVAL.id not in taken.text
    harness.proofs.proven.add(("example.com", ACME.id))
    made = api.make("/teams/acme/domains", wanted | {"take_over": True})
    assert made["verified_at"] == "2026-11-15T12:00:00Z"
    assert api.get("/teams/rival/domains", who="outsider")["items"] == []


def test_root_to_use_instead_is_suggested(api: Api) -> None:
    answer = api.request("POST", "/teams/acme/domains", json={"domain": "app.example.com"})
    assert reason(answer) == (422, "not_a_root_domain")
    assert answer.json()["domain"] == "app.example.com"
    assert answer.json()["suggestion"] == "example.com"


def test_invalid_root_domain_is_refused(api: Api) -> None:
    for domain in ("com", "", "a b", "\0", "https://com", "💩.la" * 30, "xn--a", "1.2.3.4"):
        answer = api.request("POST", "/teams/acme/domains", json={"domain": domain})
        assert reason(answer) == (422, "not_a_root_domain"), domain
        assert "suggestion" not in answer.json()


WRONG: dict[str, list[object]] = {
    "domain": ["a" * 2_001, None],
    "take_over": ["yes", None],
    "address_per_minute": [0, "5"],
    "domain_per_minute": [10**12, False],
}


def test_wrong_member_is_refused_by_name(api: Api) -> None:
    for field, value in ((field, value) for field, values in WRONG.items() for value in values):
        answer = api.request("POST", "/teams/acme/domains", json={"domain": "example.com"} | {field: value})
        assert reason(answer) == (400, "invalid_request"), value
        assert answer.json()["field"] == field


def test_origin_is_checked(api: Api) -> None:
    made = api.make("/teams/acme/domains", {"domain": "example.com"})
    passed = api.get("/teams/acme/domains/check", params={"origin": "https://app.example.com"}, who="viewer")
    assert passed == {
        "origin": "https://app.example.com",
        "allowed": True,
        "why": f"The entry example.com ({made['id']}) covers app.example.com.",
        "domain_id": made["id"],
        "domain": "example.com",
    }
    for origin in ("https://other.com", "http://example.com", "\0", "example.com", "https://💩", "x" * 300):
        checked = api.get("/teams/acme/domains/check", params={"origin": origin})
        assert checked["allowed"] is False
        assert checked["origin"] == origin
        assert (checked["domain_id"], checked["domain"]) == (None, None)


def test_origin_must_be_given(api: Api) -> None:
    for query in ("", "?origin=", "?origin=" + "x" * 301, "?other=https://example.com"):
        answer = api.request("GET", f"/teams/acme/domains/check{query}")
        assert reason(answer) == (400, "invalid_request"), query
        assert answer.json()["field"] == "origin"
