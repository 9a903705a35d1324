"""The audit log over HTTP."""

from tests.control.api.caller import Api, reason
from tests.control.services.house import House


def test_every_change_stands_in_the_log_newest_first(api: Api, house: House) -> None:
    made = api.make("/teams/acme/tokens", {"name": "ci"})
    house.clock.advance(1)
    _, personal = house.program("developer", "deploy")
    api.ask("PATCH", f"/teams/acme/tokens/{made['id']}", token=personal, json={"active": False})
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
    assert (latest["details"], latest["via"]) == ({"active": False}, "personal:deploy")


def test_log_is_for_those_who_lead(api: Api) -> None:
    answer = api.ask("GET", "/teams/acme/audit", who="developer")
    assert reason(answer) == (403, "role_needed")
    assert (answer.json()["role"], answer.json()["roles"]) == ("developer", ["owner", "admin"])


def test_no_secret_stands_in_the_log(api: Api) -> None:
    made = api.make("/teams/acme/tokens", {"name": "ci"})
    link = api.make("/teams/acme/invitations", {"email": "a@b.example", "role": "viewer"})["link"]
    text = api.ask("GET", "/teams/acme/audit").text + api.ask("GET", "/me/audit").text
    for secret in (made["secret"], link.rpartition("/")[2], api.secrets("owner").access):
        assert secret not in text
