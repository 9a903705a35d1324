"""Teams, their members and invitations over HTTP."""

import pytest
from tests.control.api.caller import Api, reason
from tests.control.services.harness import BASE_URL, RIVAL, ROLES, Harness, member_id

from tollgate.api.members import NewInvitation
from tollgate.core.people import Invitation


def test_team_is_made_and_shown_by_name_and_by_id(api: Api) -> None:
    made = api.make("/teams", {"name": "lovelace"}, who="loner")
    assert made == {
        "id": made["id"],
        "name": "lovelace",
        "role": "owner",
        "created_at": "2026-11-15T12:00:00Z",
        "suspended_at": None,
        "suspended_reason": "",
    }
    assert made["id"].startswith("team_")
    assert api.get("/teams/lovelace", who="loner") == made
    assert api.get(f"/teams/{made['id']}", who="loner") == made
    assert api.get("/teams", who="loner") == {"items": [made], "next": None}


@pytest.mark.parametrize("who", ROLES)
def test_team_shows_one_s_own_role(api: Api, who: str) -> None:
    assert api.get("/teams/acme", who=who)["role"] == who
    assert [team["role"] for team in api.get("/teams", who=who)["items"]] == [who]


def test_team_is_renamed(api: Api) -> None:
    answer = api.request("PATCH", "/teams/acme", json={"name": "acme-two"})
    assert answer.status_code == 200
    assert answer.json() == api.get("/teams/acme-two")
    assert reason(api.request("GET", "/teams/acme")) == (403, "no_such_team")


@pytest.mark.parametrize("team", [RIVAL.name, RIVAL.id, "unknown", "team_unknown"])
def test_foreign_and_unknown_team_answer_alike(api: Api, team: str) -> None:
    answer = api.request("GET", f"/teams/{team}", who="loner")
    assert reason(answer) == (403, "no_such_team")
    body = answer.json()
    assert body["team"] == team
    assert body["detail"] == f'There is no team "{team}" that you belong to. List yours with: tollgate teams list'


def test_mistyped_team_gets_a_suggestion_from_ones_own(api: Api) -> None:
    body = api.request("GET", "/teams/acne").json()
    assert body["suggestion"] == "acme"
    assert body["detail"] == 'There is no team "acne" that you belong to. Did you mean "acme"?'


def test_members_are_listed_oldest_first(api: Api) -> None:
    page = api.get("/teams/acme/members")
    assert [row["role"] for row in page["items"]] == list(ROLES)
    assert page["items"][0] == {
        "id": member_id("owner"),
        "account_id": "acc_owner",
        "email": "owner@acme.example",
        "name": "Owner",
        "role": "owner",
        "created_at": "2026-11-14T12:00:00Z",
    }


def test_role_is_set_and_member_removed(api: Api) -> None:
    path = f"/teams/acme/members/{member_id('viewer')}"
    answer = api.request("PATCH", path, json={"role": "developer"})
    assert answer.status_code == 200
    assert answer.json()["role"] == api.get("/teams/acme", who="viewer")["role"] == "developer"
    assert api.request("DELETE", path).status_code == 204
    assert reason(api.request("GET", "/teams/acme", who="viewer")) == (403, "no_such_team")
    assert reason(api.request("DELETE", path)) == (404, "not_found")


def test_member_removes_itself(api: Api) -> None:
    assert api.request("DELETE", f"/teams/acme/members/{member_id('viewer')}", who="viewer").status_code == 204


def test_unknown_role_is_refused_with_the_known_ones(api: Api) -> None:
    answer = api.request("PATCH", f"/teams/acme/members/{member_id('viewer')}", json={"role": "king"})
    assert reason(answer) == (400, "invalid_request")
    assert answer.json()["field"] == "role"
    assert "owner, admin, developer, billing, viewer" in answer.json()["detail"]


def test_invitation_is_made_listed_and_accepted(api: Api) -> None:
    made = api.make("/teams/acme/invitations", {"email": "loner@nowhere.example", "role": "developer"})
    assert made == {
        "id": made["id"],
        "email": "loner@nowhere.example",
        "role": "developer",
        "created_at": "2026-11-15T12:00:00Z",
        "created_by": "owner@acme.example",
        "expires_at": "2026-11-22T12:00:00Z",
        "link": made["link"],
        "mailed": True,
    }
    assert made["link"].startswith(f"{BASE_URL}/console/invitations/tgi_")
    [listed] = api.get("/teams/acme/invitations")["items"]
    assert listed == {name: value for name, value in made.items() if name not in {"link", "mailed"}}
    answer = api.request("POST", "/invitations/accept", who="loner", json={"link": made["link"]})
    assert answer.status_code == 200
    assert answer.json() == api.get("/teams/acme", who="loner")
    assert answer.json()["role"] == "developer"
    assert api.get("/teams/acme/invitations")["items"] == []


def test_last_part_of_a_link_is_enough(api: Api) -> None:
    link = api.make("/teams/acme/invitations", {"email": "loner@nowhere.example", "role": "viewer"})["link"]
    secret = link.rpartition("/")[2]
    assert api.request("POST", "/invitations/accept", who="loner", json={"link": secret}).status_code == 200


def test_invitation_to_the_service_alone_has_no_team_to_show(api: Api, harness: Harness) -> None:
    invited = harness.do(
        harness.plane.invitations.create_by_operator(
            harness.actor("owner"), NewInvitation("loner@nowhere.example", "viewer")
        )
    )
    answer = api.request("POST", "/invitations/accept", who="loner", json={"link": invited.link})
    assert (answer.status_code, answer.content) == (204, b"")


def test_invitation_is_withdrawn(api: Api) -> None:
    made = api.make("/teams/acme/invitations", {"email": "loner@nowhere.example", "role": "viewer"})
    path = f"/teams/acme/invitations/{made['id']}"
    assert api.request("DELETE", path).status_code == 204
    assert reason(api.request("DELETE", path)) == (404, "not_found")
    answer = api.request("POST", "/invitations/accept", who="loner", json={"link": made["link"]})
    assert reason(answer) == (404, "not_found")


def test_link_of_any_text_is_not_found(api: Api) -> None:
    for link in ("", "\0", "x" * 1_000, "tgi_" + "0" * 38, "💩", "https://toll.example/console/invitations/"):
        answer = api.request("POST", "/invitations/accept", json={"link": link})
        assert reason(answer) == (404, "not_found"), link


def test_digests_are_in_no_answer(api: Api, harness: Harness) -> None:
    api.make("/teams/acme/invitations", {"email": "loner@nowhere.example", "role": "viewer"})
    [row] = harness.write(lambda records: records.invitations.page(10))
    assert isinstance(row, Invitation)
    assert row.digest.hex() not in api.request("GET", "/teams/acme/invitations").text
