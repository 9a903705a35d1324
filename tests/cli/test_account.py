"""`tollgate account`: oneself, personal access tokens, the password."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.samples import sample

from tollgate.api.me import Account, CurrentLogin, Login

if TYPE_CHECKING:
    from tests.cli.conftest import Api, Tool

ME = sample(Account, id="acc_1", email="ann@example.com", name="Ann", login=sample(CurrentLogin))
PERSONAL = sample(Login, id="log_2", kind="personal", last_used_at=None, expires_at="2027-02-13T06:44:44Z")
TOOL = {**PERSONAL, "id": "log_1", "kind": "tool", "name": "ann@laptop", "current": True}
SECRET = "tgp_" + "a" * 38


def page(*items: object, after: str | None = None) -> dict[str, Any]:
    return {"items": list(items), "next": after}


def test_show(api: Api, acme: Tool) -> None:
    api.on("GET", "me", ME)
    ran = acme.run("account", "show")
    assert ran.out.splitlines() == [
        "id        acc_1",
        "email     ann@example.com",
        "name      Ann",
        "created   2026-11-15T06:44:44Z",
        "password  yes",
    ]


# ---- personal access tokens


@pytest.mark.parametrize(
    ("arguments", "body"),
    [([], {"name": "ci"}), (["--expires", "90d"], {"name": "ci", "expires_in_days": 90})],
)
def test_create_prints_the_secret_once(api: Api, acme: Tool, arguments: list[str], body: dict[str, Any]) -> None:
    api.on("POST", "me/tokens", {**PERSONAL, "secret": SECRET}, status=201)
    ran = acme.run("account", "tokens", "create", "ci", *arguments)
    assert (ran.code, ran.out) == (0, f"id      log_2\nname    ci\nsecret  {SECRET}\n")
    assert "shown only once" in ran.err
    assert SECRET not in ran.err
    assert api.requests[0].json == body
    assert "idempotency-key" in api.requests[0].headers


@pytest.mark.parametrize("expires", ["12h", "0d", "366d", "36h"])
def test_an_expiry_that_is_not_whole_days_of_a_year_is_wrong_usage(acme: Tool, expires: str) -> None:
    ran = acme.run("account", "tokens", "create", "ci", "--expires", expires)
    assert (ran.code, "whole days, 1d to 365d" in ran.err) == (2, True)


def test_a_replay_without_the_secret_shows_how_to_go_on(api: Api, acme: Tool) -> None:
    api.on("POST", "me/tokens", drop=True).on("POST", "me/tokens", {**PERSONAL, "secret": None}, status=201)
    ran = acme.run("account", "tokens", "create", "ci")
    assert (ran.code, ran.out) == (1, "")
    assert "Run: tollgate account tokens delete log_2, then create it again." in ran.err


def test_a_personal_token_cannot_make_another(api: Api, tool: Tool) -> None:
    api.problem("POST", "me/tokens", 403, "personal_token_refused", "Log in with a browser for that.")
    ran = tool.run("account", "tokens", "create", "ci", env={"TOLLGATE_TOKEN": SECRET})
    assert (ran.code, ran.err) == (5, "tollgate: Log in with a browser for that.\n")


def test_list_has_personal_tokens_alone(api: Api, acme: Tool) -> None:
    api.on("GET", "me/logins?limit=100", page(TOOL, PERSONAL))
    ran = acme.run("account", "tokens", "list")
    assert [line.split() for line in ran.out.splitlines()[1:]] == [
        ["log_2", "ci", "2026-11-15T06:44:44Z", "-", "2027-02-13T06:44:44Z"]
    ]


def test_list_as_json_has_personal_tokens_alone(api: Api, acme: Tool) -> None:
    api.on("GET", "me/logins?limit=2&after=c1", page(TOOL, PERSONAL, after="c2"))
    ran = acme.run("account", "tokens", "list", "--limit", "2", "--after", "c1", "--json")
    assert ran.json == page(PERSONAL, after="c2")


def test_list_of_none_shows_how_to_begin(api: Api, acme: Tool) -> None:
    api.on("GET", "me/logins?limit=100", page(TOOL))
    assert acme.run("account", "tokens", "list").err.startswith("No personal access tokens yet.")


def test_delete_finds_the_token_first(api: Api, acme: Tool) -> None:
    api.on("GET", "me/logins?limit=1000", page(TOOL, PERSONAL)).on("DELETE", "me/logins/log_2", status=204)
    ran = acme.run("account", "tokens", "delete", "log_2")
    assert (ran.code, ran.err) == (0, "Personal access token log_2 is deleted.\n")


@pytest.mark.parametrize("token_id", ["log_1", "log_9"])
def test_delete_never_ends_a_login_of_another_kind(api: Api, acme: Tool, token_id: str) -> None:
    api.on("GET", "me/logins?limit=1000", page(TOOL, PERSONAL))
    ran = acme.run("account", "tokens", "delete", token_id)
    assert ran.code == 3
    assert f"There is no personal access token {token_id}. See: tollgate account tokens list" in ran.err


@pytest.mark.e2e
def test_delete_on_a_terminal_prompts(api: Api, acme: Tool) -> None:
    api.on("GET", "me/logins?limit=1000", page(PERSONAL))
    with acme.terminal("account", "tokens", "delete", "log_2") as terminal:
        terminal.until('Delete personal access token "ci" (log_2)? [y/N]')
        terminal.type("n\n")
        assert terminal.end() == 1


# ---- the password

ENDING = {"end_sessions": True, "end_devices": True, "end_tokens": True, "end_passkeys": False}


def test_password_from_a_pipe_is_two_lines(api: Api, acme: Tool) -> None:
    api.on("POST", "me/password", status=204)
    ran = acme.run("account", "password", stdin="old one\r\n new one \n")
    assert (ran.code, ran.out) == (0, "")
    assert api.requests[0].json == {"current": "old one", "new": " new one ", **ENDING}
    assert "one" not in ran.err.replace("one.", "")


@pytest.mark.parametrize(
    ("option", "member"),
    [
        ("--keep-sessions", "end_sessions"),
        ("--keep-devices", "end_devices"),
        ("--keep-tokens", "end_tokens"),
        ("--end-passkeys", "end_passkeys"),
    ],
)
def test_options_choose_what_ends_with_the_old_password(api: Api, acme: Tool, option: str, member: str) -> None:
    api.on("POST", "me/password", status=204)
    ran = acme.run("account", "password", option, stdin="old one\nnew one\n")
    assert ran.code == 0
    assert api.requests[0].json == {"current": "old one", "new": "new one", **ENDING, member: not ENDING[member]}
    assert ("but for those that you keep" in ran.err) == option.startswith("--keep")


@pytest.mark.parametrize("stdin", ["", "old\n", "old\n\n"])
def test_a_password_without_its_two_lines_is_not_sent(acme: Tool, stdin: str) -> None:
    ran = acme.run("account", "password", stdin=stdin)
    assert (ran.code, "Standard input needs two lines" in ran.err) == (1, True)


@pytest.mark.e2e
def test_password_on_a_terminal_is_requested_and_not_echoed(api: Api, acme: Tool) -> None:
    api.on("POST", "me/password", status=204)
    with acme.terminal("account", "password") as terminal:
        for question, answer in (("Current", "hunter1"), ("New", "hunter2"), ("Repeat", "hunter2")):
            terminal.until(question)
            terminal.type(f"{answer}\n")
        assert terminal.end() == 0
        assert "hunter" not in terminal.seen
    assert api.requests[0].json == {"current": "hunter1", "new": "hunter2", **ENDING}


# ---- the address


def test_address_waits_for_the_link_where_one_was_mailed(api: Api, acme: Tool) -> None:
    api.on("POST", "me/email", {"email": "ann@example.com", "mailed_to": "ann@new.example"})
    ran = acme.run("account", "email", "ann@new.example", stdin="old one\n")
    assert (ran.code, ran.out) == (0, "")
    assert api.requests[0].json == {"email": "ann@new.example", "password": "old one"}
    assert "A link was sent to ann@new.example. Your address is ann@example.com until it is opened." in ran.err


def test_address_is_changed_at_once_or_by_its_link(api: Api, acme: Tool) -> None:
    api.on("POST", "me/email", {"email": "ann@new.example", "mailed_to": None})
    api.on("POST", "me/email/confirm", {"email": "ann@new.example", "mailed_to": None})
    for words in (("email", "ann@new.example"), ("confirm-email", "https://x/console/account/email/abc")):
        ran = acme.run("account", *words, stdin="old one\n")
        assert ran.code == 0
        assert "Your address is ann@new.example now." in ran.err
    assert api.requests[-1].json == {"link": "https://x/console/account/email/abc"}
