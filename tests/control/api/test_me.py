"""One's own account, logins and personal access tokens, and which credentials are accepted."""

from typing import Any

from tests.control.api.caller import Api, reason
from tests.control.services.harness import DAY, MINUTE, PASSWORD, VISIT, Harness

from tollgate.core import secrets
from tollgate.core.people import CONSOLE


def test_caller_is_shown_with_the_login_of_the_request(api: Api) -> None:
    me = api.get("/me")
    assert me == {
        "id": "acc_owner",
        "email": "owner@acme.example",
        "name": "Owner",
        "created_at": "2026-11-14T12:00:00Z",
        "has_password": True,
        "login": {
            "id": me["login"]["id"],
            "kind": "tool",
            "name": "laptop",
            "expires_at": "2027-02-13T12:00:00Z",
        },
    }
    assert me["login"]["id"].startswith("log_")
    assert api.get("/me", who="viewer")["has_password"] is False


def test_scheme_is_known_in_any_case(api: Api) -> None:
    secret = api.secrets("owner").access
    for scheme in ("Bearer", "bearer", "BEARER"):
        answer = api.request("GET", "/me", who=None, headers={"Authorization": f"{scheme} {secret}"})
        assert answer.status_code == 200


def test_request_without_a_valid_credential_is_refused(api: Api) -> None:
    wrong = (b"", b"Bearer", b"Bearer ", b"Bearer nonsense", b"Basic b3duZXI6cHc=", b"tga_x", b"Bearer \xe9")
    for given in (*wrong, b"Bearer tga_" + b"0" * 38):
        answer = api.request("GET", "/me", who=None, headers={"Authorization": given})
        assert reason(answer) == (401, "not_logged_in"), given
        assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_cookie_of_the_console_is_refused(api: Api, harness: Harness) -> None:
    session = harness.do(harness.plane.logins.open_session(VISIT, harness.account("owner")))
    assert harness.do(harness.plane.logins.actor(VISIT, session, CONSOLE)).id == "acc_owner"
    cookies = {"Cookie": f"__Host-tollgate={session}; tollgate={session}"}
    assert reason(api.request("GET", "/me", who=None, headers=cookies)) == (401, "not_logged_in")
    assert reason(api.request("GET", "/me", token=session)) == (401, "not_logged_in")


def test_other_kinds_of_secrets_are_refused(api: Api) -> None:
    made = api.make("/teams/acme/tokens", {"name": "ci"})
    assert reason(api.request("GET", "/me", token=made["secret"])) == (401, "not_logged_in")
    assert reason(api.request("GET", "/me", token=api.secrets("owner").refresh)) == (401, "not_logged_in")
    unknown = secrets.new_token(secrets.ACCESS)
    answer = api.request("GET", "/me", token=unknown)
    assert reason(answer) == (401, "login_expired")
    assert answer.headers["WWW-Authenticate"] == 'Bearer error="invalid_token"'


def test_name_is_changed_and_an_empty_change_changes_nothing(api: Api) -> None:
    answer = api.request("PATCH", "/me", json={"name": "Ada Lovelace"})
    assert answer.status_code == 200
    assert answer.json()["name"] == "Ada Lovelace"
    assert api.request("PATCH", "/me", json={}).json() == api.get("/me") == answer.json()


def test_password_is_changed_and_all_other_logins_end(api: Api, harness: Harness) -> None:
    other = api.logged_in("owner")
    _, personal = harness.program("owner")
    answer = api.request("POST", "/me/password", json={"current": PASSWORD, "new": "another good one"})
    assert (answer.status_code, answer.content) == (204, b"")
    assert reason(api.request("GET", "/me", token=other.access)) == (401, "login_expired")
    assert reason(api.request("GET", "/me", token=personal)) == (401, "login_expired")
    assert api.get("/me")["id"] == "acc_owner"


def test_new_password_that_is_refused_is_named_as_the_body_names_it(api: Api) -> None:
    answer = api.request("POST", "/me/password", json={"current": PASSWORD, "new": "short"})
    assert reason(answer) == (400, "invalid_request")
    assert answer.json()["field"] == "new"


def test_logins_of_all_kinds_are_listed(api: Api, harness: Harness) -> None:
    harness.do(harness.plane.logins.open_session(VISIT, harness.account("owner")))
    harness.clock.advance(0.5)
    api.secrets("owner")
    harness.clock.advance(0.5)
    made = api.make("/me/tokens", {"name": "ci", "expires_in_days": 90})
    page = api.get("/me/logins")
    assert page["next"] is None
    assert [(row["kind"], row["name"], row["current"]) for row in page["items"]] == [
        ("console", "Firefox", False),
        ("tool", "laptop", True),
        ("personal", "ci", False),
    ]
    assert page["items"][-1] == {name: value for name, value in made.items() if name != "secret"}
    assert page["items"][-1] == {
        "id": made["id"],
        "kind": "personal",
        "name": "ci",
        "created_at": "2026-11-15T12:00:01Z",
        "last_used_at": None,
        "expires_at": "2027-02-13T12:00:01Z",
        "address": "192.0.2.7",
        "current": False,
        "team_id": None,
        "read_only": False,
    }


def test_personal_token_works_until_it_expires(api: Api, harness: Harness) -> None:
    made = api.make("/me/tokens", {"name": "ci", "expires_in_days": 1})
    assert made["secret"].startswith("tgp_")
    assert api.get("/me", token=made["secret"])["login"] == {
        "id": made["id"],
        "kind": "personal",
        "name": "ci",
        "expires_at": made["expires_at"],
    }
    harness.clock.advance(DAY)
    assert reason(api.request("GET", "/me", token=made["secret"])) == (401, "login_expired")


def test_personal_token_without_an_end_has_none(api: Api) -> None:
    assert api.make("/me/tokens", {"name": "b", "expires_in_days": None})["expires_at"] is None


def test_personal_token_may_not_do_what_only_a_person_may(api: Api, harness: Harness) -> None:
    _, personal = harness.program("owner")
    password = {"current": PASSWORD, "new": "another good one"}
    for path, body in (("/me/tokens", {"name": "more"}), ("/me/password", password)):
        answer = api.request("POST", path, token=personal, json=body)
        assert reason(answer) == (403, "personal_token_refused")


def test_login_of_any_kind_is_ended(api: Api, harness: Harness) -> None:
    harness.do(harness.plane.logins.open_session(VISIT, harness.account("owner")))
    harness.program("owner")
    own = api.login_id("owner")
    for row in api.get("/me/logins")["items"]:
        if row["id"] != own:
            answer = api.request("DELETE", f"/me/logins/{row['id']}")
            assert (answer.status_code, answer.content) == (204, b"")
    assert [row["id"] for row in api.get("/me/logins")["items"]] == [own]
    assert api.request("DELETE", f"/me/logins/{own}").status_code == 204
    assert reason(api.request("GET", "/me")) == (401, "login_expired")


def test_login_of_another_person_is_not_found(api: Api) -> None:
    assert reason(api.request("DELETE", f"/me/logins/{api.login_id('admin')}")) == (404, "not_found")
    assert api.get("/me", who="admin")["email"] == "admin@acme.example"


def test_own_actions_are_listed_newest_first(api: Api, harness: Harness) -> None:
    api.secrets("owner")
    harness.clock.advance(MINUTE)
    api.request("PATCH", "/me", json={"name": "Ada"})
    harness.clock.advance(MINUTE)
    api.make("/teams/acme/tokens", {"name": "ci"})
    items = api.get("/me/audit")["items"]
    assert [item["action"] for item in items] == ["token.create", "account.rename", "login.open"]
    assert {item["actor_id"] for item in items} == {"acc_owner"}
    assert api.get("/me/audit", who="loner")["items"][0]["actor"] == "loner@nowhere.example"


# --- Personal tokens for one team, and for reading --------------------------------------------------------


def personal(api: Api, **wanted: object) -> dict[str, Any]:
    answer = api.request("POST", "/me/tokens", json={"name": "ci", **wanted})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def test_personal_token_expires_by_default(api: Api) -> None:
    assert personal(api)["expires_at"] is not None
    assert personal(api, expires_in_days=None)["expires_at"] is None


def test_personal_token_for_reading_changes_nothing(api: Api) -> None:
    token = personal(api, read_only=True)["secret"]
    assert api.request("GET", "/teams/acme/tokens", token=token).status_code == 200
    for method, path, body in (
        ("POST", "/teams/acme/tokens", {"name": "x"}),
        ("POST", "/teams", {"name": "another"}),
        ("DELETE", "/me/logins/log_x", None),
    ):
        more: dict[str, Any] = {"json": body} if body else {}
        answer = api.request(method, path, token=token, **more)
        assert reason(answer) == (403, "personal_token_refused"), path


def test_personal_token_for_one_team_is_refused_by_others(api: Api) -> None:
    made = personal(api, team="acme")
    token = made["secret"]
    assert made["team_id"].startswith("team_")
    assert api.request("GET", "/me", token=token).status_code == 200
    assert api.request("GET", "/teams/acme/tokens", token=token).status_code == 200
    assert api.request("POST", "/teams/acme/tokens", token=token, json={"name": "x"}).status_code == 201
    api.request("POST", "/teams", json={"name": "another"})
    assert reason(api.request("GET", "/teams/another/tokens", token=token)) == (403, "no_such_team")
    for method, path in (("GET", "/teams"), ("POST", "/teams"), ("GET", "/me/audit"), ("PATCH", "/me")):
        more: dict[str, Any] = {} if method == "GET" else {"json": {"name": "third"}}
        answer = api.request(method, path, token=token, **more)
        assert reason(answer) == (403, "personal_token_refused"), path
    assert reason(api.request("POST", "/me/tokens", json={"name": "ci", "team": "rival"}))[1] == "no_such_team"


def test_address_changes_by_the_link_that_was_mailed_to_it(api: Api, harness: Harness) -> None:
    body = {"email": " New@Acme.example", "password": PASSWORD}
    changed = api.request("POST", "/me/email", json=body).json()
    assert changed == {"email": "owner@acme.example", "mailed_to": "new@acme.example"}
    link = next(line for line in harness.post.posted[-1][2].splitlines() if line.startswith("https:"))
    done = api.request("POST", "/me/email/confirm", json={"link": link}).json()
    assert done == {"email": "new@acme.example", "mailed_to": None}
    assert api.get("/me")["email"] == "new@acme.example"
    assert reason(api.request("POST", "/me/email/confirm", json={"link": link})) == (404, "not_found")


def test_address_changes_at_once_where_no_mail_is_sent(api: Api, harness: Harness) -> None:
    harness.post.open = False
    body = {"email": "new@acme.example", "password": "wrong"}
    assert reason(api.request("POST", "/me/email", json=body))[1] == "wrong_password"
    answer = api.request("POST", "/me/email", json={**body, "password": PASSWORD}).json()
    assert answer == {"email": "new@acme.example", "mailed_to": None}
