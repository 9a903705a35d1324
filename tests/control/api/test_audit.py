"""The audit log over HTTP."""

import hashlib
import json

import pytest
from tests.control.api.caller import Api, reason
from tests.control.services.harness import Harness


def test_every_change_is_in_the_log_newest_first(api: Api, harness: Harness) -> None:
    made = api.make("/teams/acme/tokens", {"name": "ci"})
    harness.clock.advance(1)
    _, personal = harness.program("developer", "deploy")
    api.request("PATCH", f"/teams/acme/tokens/{made['id']}", token=personal, json={"active": False})
    latest, first = api.get("/teams/acme/audit")["items"]
    assert first == {
        "id": first["id"],
        "at": "2026-11-15T12:00:00Z",
        "actor": "owner@acme.example",
        "actor_id": "acc_owner",
        "action": "token.create",
        "target": made["id"],
        "name": "ci",
        "details": {"prefix": made["prefix"]},
        "address": "192.0.2.7",
        "via": "tool",
    }
    assert first["id"].startswith("aud_")
    assert (latest["action"], latest["actor"]) == ("token.update", "developer@acme.example")
    assert (latest["details"], latest["via"]) == (
        {"before": {"active": True}, "after": {"active": False}}, "personal:deploy"
    )  # fmt: skip


def test_log_is_filtered_by_who_what_to_what_and_when(api: Api, harness: Harness) -> None:
    made = api.make("/teams/acme/tokens", {"name": "ci"})
    harness.clock.advance(3_600)
    api.request("PATCH", f"/teams/acme/tokens/{made['id']}", who="developer", json={"name": "deploy"})
    harness.clock.advance(60)
    api.make("/teams/acme/tokens", {"name": "other"})
    for query, actions in (
        ("", ["token.create", "token.update", "token.create"]),
        ("actor=developer@acme.example", ["token.update"]),
        ("action=token.create", ["token.create", "token.create"]),
        (f"object={made['id']}", ["token.update", "token.create"]),
        ("object=deploy", ["token.update"]),
        ("object=nothing", []),
        ("since=2m", ["token.create", "token.update"]),
        ("until=2026-11-15T12:30:00Z", ["token.create"]),
        ("since=2m&until=2026-11-15T13:00:30Z&object=deploy&limit=1", ["token.update"]),
    ):
        assert [row["action"] for row in api.get(f"/teams/acme/audit?{query}")["items"]] == actions, query
    for query in ("since=yesterday", "until=noon", "until=2026-11-15T12:30:00"):
        assert reason(api.request("GET", f"/teams/acme/audit?{query}")) == (400, "invalid_request")


def test_log_is_for_owners_and_admins(api: Api) -> None:
    answer = api.request("GET", "/teams/acme/audit", who="developer")
    assert reason(answer) == (403, "role_needed")
    assert (answer.json()["role"], answer.json()["roles"]) == ("developer", ["owner", "admin"])


def test_log_contains_no_secret(api: Api) -> None:
    made = api.make("/teams/acme/tokens", {"name": "ci"})
    link = api.make("/teams/acme/invitations", {"email": "a@b.example", "role": "viewer"})["link"]
    text = api.request("GET", "/teams/acme/audit").text + api.request("GET", "/me/audit").text
    for secret in (made["secret"], link.rpartition("/")[2], api.secrets("owner").access):
        assert secret not in text


# --- The export ----------------------------------------------------------------------------------------


def test_export_can_be_checked_by_hand_and_continued(api: Api, harness: Harness) -> None:
    for name in ("a", "b", "c"):
        api.make("/teams/acme/tokens", {"name": name})
        harness.clock.advance(-5)
    answer = api.request("GET", "/teams/acme/audit/export?limit=2")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-ndjson")
    more = api.request("GET", "/teams/acme/audit/export?after=2")
    lines = [json.loads(line) for line in (answer.text + more.text).splitlines()]
    assert [(line["number"], line["name"], line["action"]) for line in lines] == [
        (1, "a", "token.create"), (2, "b", "token.create"), (3, "c", "token.create")
    ]  # fmt: skip
    before = "0" * 64
    for line in lines:
        given = line.pop("hash")
        assert line["previous"] == before
        text = json.dumps(line, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        before = hashlib.sha256(text.encode()).hexdigest()
        assert before == given
    assert api.request("GET", "/teams/acme/audit/export?after=3").text == ""


def test_export_is_for_owners_and_admins_and_of_their_team_alone(api: Api) -> None:
    assert reason(api.request("GET", "/teams/acme/audit/export", who="developer")) == (403, "role_needed")
    assert reason(api.request("GET", "/teams/acme/audit/export", who="outsider")) == (403, "no_such_team")


@pytest.mark.parametrize("query", ["after=-1", "after=x", "after=", "after=2147483648", "limit=0", "limit=1001"])
def test_export_refuses_an_invalid_number(api: Api, query: str) -> None:
    assert reason(api.request("GET", f"/teams/acme/audit/export?{query}")) == (400, "invalid_request")
