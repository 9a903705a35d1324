"""`Idempotency-Key`: what is sent twice happens once, and the second answer has no secret in it."""

from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest
from tests.control.api.caller import Api, Json, reason
from tests.control.services.harness import ACME, DAY, MINUTE, NOON, Harness, member_id

from tollgate.core.people import Member

KEY = {"Idempotency-Key": "9b2d0e3a-key"}


def plain(path: str, body: Json) -> Callable[[Api], tuple[str, Json]]:
    return lambda _api: (path, body)


def rotation(api: Api) -> tuple[str, Json]:
    made = api.make("/teams/acme/tokens", {"name": "old"})
    return f"/teams/acme/tokens/{made['id']}/rotate", {"overlap_seconds": 60}


def roll(api: Api) -> tuple[str, Json]:
    api.request("PATCH", "/teams/acme/billing", json={"alert_webhook": "https://hooks.example/"})
    return "/teams/acme/billing/roll", {"overlap_seconds": 60}


CREATIONS: dict[str, Callable[[Api], tuple[str, Json]]] = {
    "createTeam": plain("/teams", {"name": "lovelace"}),
    "createToken": plain("/teams/acme/tokens", {"name": "ci"}),
    "rotateToken": rotation,
    "rollWebhookSecret": roll,
    "addDomain": plain("/teams/acme/domains", {"domain": "example.com"}),
    "createInvitation": plain("/teams/acme/invitations", {"email": "a@b.example", "role": "viewer"}),
    "createPersonalToken": plain("/me/tokens", {"name": "ci"}),
}


def send(api: Api, path: str, body: object, **more: Any) -> httpx.Response:
    return api.request("POST", path, json=body, headers=KEY, **more)


def test_every_creation_of_the_document_is_tried(api: Api) -> None:
    creating = {
        operation["operationId"]
        for methods in api.document["paths"].values()
        for operation in methods.values()
        if any(each["name"] == "Idempotency-Key" for each in operation.get("parameters", []))
    }
    assert creating == set(CREATIONS)


@pytest.mark.parametrize("name", CREATIONS)
def test_repeated_creation_answers_the_first_one_without_its_secret(api: Api, harness: Harness, name: str) -> None:
    path, body = CREATIONS[name](api)
    first = send(api, path, body)
    assert first.status_code == 201
    assert "Idempotency-Replayed" not in first.headers
    notes = len(harness.notes())
    again = send(api, path, body)
    assert again.status_code == 201
    assert again.headers["Idempotency-Replayed"] == "true"
    assert again.headers.get("ETag") == first.headers.get("ETag")
    hidden = {name: None for name in ("secret", "link") if name in first.json()}
    assert again.json() == first.json() | hidden
    assert len(harness.notes()) == notes


@pytest.mark.parametrize("name", CREATIONS)
def test_no_secret_is_kept_for_the_repetition(api: Api, harness: Harness, name: str) -> None:
    path, body = CREATIONS[name](api)
    made = send(api, path, body).json()
    [kept] = harness.write(lambda records: records.replays.page(10))
    for secret in (made.get("secret"), (made.get("link") or "").rpartition("/")[2]):
        assert not secret or secret.encode() not in msgspec.json.encode(kept.answer) + kept.answer


def test_key_with_another_body_is_refused(api: Api) -> None:
    send(api, "/teams/acme/tokens", {"name": "ci"})
    assert reason(send(api, "/teams/acme/tokens", {"name": "other"})) == (422, "key_reused")


def test_key_of_another_account_is_another_key(api: Api) -> None:
    send(api, "/teams/acme/domains", {"domain": "example.com"})
    answer = send(api, "/teams/acme/domains", {"domain": "example.org"}, who="developer")
    assert answer.status_code == 201
    assert "Idempotency-Replayed" not in answer.headers


def test_key_in_another_team_or_route_is_another_key(api: Api) -> None:
    api.make("/teams", {"name": "lovelace"})
    first = send(api, "/teams/acme/tokens", {"name": "ci"}).json()
    second = send(api, "/teams/lovelace/tokens", {"name": "ci"}).json()
    third = send(api, "/me/tokens", {"name": "ci"}).json()
    assert len({first["id"], second["id"], third["id"]}) == 3


def test_request_that_still_runs_is_reported(api: Api, harness: Harness) -> None:
    body = {"domain": "example.com", "take_over": True}
    api.make("/teams/rival/domains", {"domain": "example.com"}, who="outsider")
    harness.proofs.proven.add(("example.com", ACME.id))
    seen: list[httpx.Response] = []
    token = api.secrets("owner").access

    async def meanwhile() -> None:
        seen.append(await api.send("POST", "/teams/acme/domains", token=token, json=body, headers=KEY))

    harness.proofs.meanwhile = meanwhile
    assert send(api, "/teams/acme/domains", body).status_code == 201
    [during] = seen
    assert reason(during) == (409, "request_running")


def test_failed_creation_is_forgotten(api: Api) -> None:
    api.make("/teams/acme/tokens", {"name": "ci"})
    for _ in range(2):
        assert reason(send(api, "/teams/acme/tokens", {"name": "ci"})) == (409, "name_taken")
    [row] = api.get("/teams/acme/tokens")["items"]
    api.request("DELETE", f"/teams/acme/tokens/{row['id']}")
    assert send(api, "/teams/acme/tokens", {"name": "ci"}).status_code == 201


def test_malformed_body_does_not_use_up_the_key(api: Api) -> None:
    assert reason(send(api, "/teams/acme/tokens", {"nome": "ci"})) == (400, "invalid_request")
    assert send(api, "/teams/acme/tokens", {"name": "ci"}).status_code == 201


def test_defect_within_a_creation_is_forgotten_as_well(api: Api, harness: Harness) -> None:
    tokens, harness.plane.tokens = harness.plane.tokens, None  # type: ignore[assignment]
    assert reason(send(api, "/teams/acme/tokens", {"name": "ci"})) == (500, "internal_error")
    harness.plane.tokens = tokens
    assert send(api, "/teams/acme/tokens", {"name": "ci"}).status_code == 201


def test_key_is_kept_for_a_day(api: Api, harness: Harness) -> None:
    send(api, "/teams/acme/tokens", {"name": "ci"})
    harness.clock.advance(DAY - MINUTE)
    assert send(api, "/teams/acme/tokens", {"name": "ci"}).headers["Idempotency-Replayed"] == "true"
    harness.clock.advance(MINUTE)
    assert reason(send(api, "/teams/acme/tokens", {"name": "ci"})) == (409, "name_taken")


def test_malformed_key_is_refused(api: Api) -> None:
    for key in (b"", b" ", b"a b", b"\xe9", b"x" * 256):
        answer = api.request("POST", "/teams", json={"name": "lovelace"}, headers={"Idempotency-Key": key})
        assert reason(answer) == (400, "invalid_request"), key
        assert answer.json()["field"] == "Idempotency-Key"


def test_without_a_key_nothing_is_kept(api: Api, harness: Harness) -> None:
    api.make("/teams/acme/tokens", {"name": "ci"})
    assert harness.write(lambda records: records.replays.count()) == 0


@pytest.mark.parametrize(
    "name", ["createToken", "rotateToken", "rollWebhookSecret", "addDomain", "createInvitation"]
)
def test_earlier_answer_is_only_for_those_who_may_still_create(api: Api, harness: Harness, name: str) -> None:
    path, body = CREATIONS[name](api)
    assert send(api, path, body).status_code == 201
    member = member_id("owner")
    harness.write(
        lambda records: records.members.replace(Member(member, ACME.id, "acc_owner", "viewer", NOON - DAY))
    )
    assert reason(send(api, path, body)) == (403, "role_needed")
    harness.write(lambda records: records.members.remove(id=member))
    status, why = reason(send(api, path, body))
    assert (status, why != "role_needed") == (403, True)
