"""`tollgate auth`: a personal access token as login, looking, logging out, printing the token, the keyring."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.samples import sample

from tollgate.api.me import Account, CurrentLogin
from tollgate.api.teams import Team

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Api, Tool

LOGIN = sample(CurrentLogin, kind="tool", name="ann@laptop", expires_at="2027-02-15T06:44:44Z")
ME = sample(Account, email="ann@example.com", login=LOGIN)
TEAMS = [sample(Team, name="acme", role="owner"), sample(Team, name="beta", role="viewer")]
TOKENS = {"access_token": "tga_new", "token_type": "Bearer", "expires_in": 3600, "refresh_token": "tgr_new"}
PERSONAL = "tgp_" + "a" * 38


def page(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {"items": items, "next": None}


# ---- login by token


def test_a_personal_token_is_checked_and_kept(api: Api, tool: Tool) -> None:
    api.on("GET", "me", {**ME, "login": {"id": "log_2", "kind": "personal", "name": "ci"}})
    api.on("GET", "teams", page(TEAMS))
    ran = tool.run("auth", "login", "--with-token", stdin=f"  {PERSONAL}\nmore\n")
    assert (ran.code, ran.out) == (0, "")
    kept = tool.keep.credential(api.url)
    assert kept is not None
    assert (kept.kind, kept.access, kept.refresh, kept.expires_at) == ("personal", PERSONAL, None, None)
    assert PERSONAL not in ran.err


@pytest.mark.parametrize(
    ("stdin", "words"),
    [
        ("tg_" + "a" * 38, "That is an API token for /x/. A personal access token starts with tgp_"),
        ("tgr_" + "a" * 38, "That is not a personal access token"),
        ("hello", "That is not a personal access token"),
        ("tgp_a b", "That is not a personal access token"),
        ("tgp_ü", "That is not a personal access token"),
        ("", "No token on standard input"),
        ("\n", "No token on standard input"),
    ],
)
def test_something_else_in_its_place_is_recognised_and_not_sent(tool: Tool, stdin: str, words: str) -> None:
    ran = tool.run("auth", "login", "--with-token", stdin=stdin)
    assert (ran.code, ran.out) == (1, "")
    assert words in ran.err
    assert "a" * 38 not in ran.err


def test_a_token_that_the_server_refuses_is_not_kept(api: Api, tool: Tool) -> None:
    api.problem("GET", "me", 401, "not_logged_in", "No.")
    ran = tool.run("auth", "login", "--with-token", stdin=PERSONAL)
    assert (ran.code, "refused this token" in ran.err) == (4, True)
    assert tool.keep.credential(api.url) is None


@pytest.mark.e2e
def test_on_a_terminal_the_token_is_requested_and_not_echoed(api: Api, tool: Tool) -> None:
    api.on("GET", "me", ME).on("GET", "teams", page(TEAMS))
    with tool.terminal("auth", "login", "--with-token") as terminal:
        terminal.until("Personal access token:")
        terminal.type(f"{PERSONAL}\n")
        assert terminal.end() == 0
        assert PERSONAL not in terminal.seen


# ---- status


def test_status_shows_server_account_login_and_teams(api: Api, acme: Tool) -> None:
    api.on("GET", "me", ME).on("GET", "teams", page(TEAMS))
    ran = acme.run("auth", "status")
    assert ran.code == 0
    assert ran.out.splitlines() == [
        f"server   {api.url}",
        "account  ann@example.com",
        "login    browser login of this tool",
        "name     ann@laptop",
        "expires  2027-02-15T06:44:44Z",
        f"kept in  {acme.home}/tollgate/credentials.json",
        "team     acme",
        "teams    acme (owner), beta (viewer)",
    ]


def test_status_as_json(api: Api, acme: Tool) -> None:
    api.on("GET", "me", ME).on("GET", "teams", page(TEAMS))
    assert acme.run("auth", "status", "--json", env={"TOLLGATE_TEAM": "beta"}).json == {
        "url": api.url,
        "account": ME,
        "kept_in": f"{acme.home}/tollgate/credentials.json",
        "team": "beta",
        "teams": TEAMS,
    }


def test_status_of_a_token_in_the_environment_reports_it(api: Api, tool: Tool) -> None:
    api.on("GET", "me", {**ME, "login": {"id": "log_2", "kind": "personal", "name": "ci", "expires_at": None}})
    api.on("GET", "teams", page([]))
    ran = tool.run("auth", "status", env={"TOLLGATE_TOKEN": PERSONAL})
    assert "login    personal access token\nname     ci\nexpires  never\nkept in  TOLLGATE_TOKEN\n" in ran.out


# ---- logout


def test_logout_revokes_at_the_server_and_forgets(api: Api, acme: Tool) -> None:
    api.on("POST", "oauth/revoke", {})
    ran = acme.run("auth", "logout")
    assert (ran.code, ran.out, ran.err) == (0, "", f"Logged out of {api.url}.\n")
    assert api.requests[0].form == {"token": "tgr_one"}
    assert acme.keep.credential(api.url) is None
    assert acme.run("auth", "logout").code == 4


def test_logout_forgets_even_when_the_server_is_away_and_reports_it(api: Api, acme: Tool) -> None:
    api.on("POST", "oauth/revoke", drop=True)
    ran = acme.run("auth", "logout", "--json")
    assert ran.code == 0
    assert "it stays valid on the server until it expires" in ran.err
    assert ran.json == {"url": api.url, "logged_out": True, "revoked": False}
    assert acme.keep.credential(api.url) is None


def test_logout_with_a_personal_token_only_forgets_and_reports_it(tool: Tool) -> None:
    tool.log_in(PERSONAL, kind="personal")
    ran = tool.run("auth", "logout")
    assert ran.code == 0
    assert "keeps working; to delete it: tollgate account tokens delete ID" in ran.err
    assert tool.keep.credential(tool.url) is None


def test_logout_warns_of_a_token_that_stays_in_the_environment(api: Api, acme: Tool) -> None:
    api.on("POST", "oauth/revoke", {})
    assert "TOLLGATE_TOKEN is still set" in acme.run("auth", "logout", env={"TOLLGATE_TOKEN": "tgp_x"}).err


# ---- token


def test_token_prints_the_access_token_alone(acme: Tool) -> None:
    ran = acme.run("auth", "token")
    assert (ran.code, ran.out, ran.err) == (0, "tga_one\n", "")


def test_token_renews_one_that_has_run_out(api: Api, tool: Tool) -> None:
    tool.log_in("tga_old", expires_at=time.time() - 1)
    api.on("POST", "oauth/token", TOKENS)
    assert tool.run("auth", "token").out == "tga_new\n"
    assert tool.run("auth", "token").out == "tga_new\n"


def test_token_of_the_environment_is_printed_as_it_is(tool: Tool) -> None:
    assert tool.run("auth", "token", env={"TOLLGATE_TOKEN": PERSONAL}).out == f"{PERSONAL}\n"


# ---- the keyring, as a process sees it

BACKEND = """
import json, os, pathlib
from keyring.backend import KeyringBackend
class Keyring(KeyringBackend):
    priority = 5
    file = pathlib.Path(os.environ["KEYRING_FILE"])
    def _all(self):
        return json.loads(self.file.read_text()) if self.file.exists() else {}
    def get_password(self, service, username):
        return self._all().get(f"{service} {username}")
    def set_password(self, service, username, password):
        if os.environ.get("KEYRING_FAILS"):
            raise RuntimeError("locked: " + password)
        self.file.write_text(json.dumps({**self._all(), f"{service} {username}": password}))
    def delete_password(self, service, username):
        self.file.write_text(json.dumps({k: v for k, v in self._all().items() if k != f"{service} {username}"}))
"""


@pytest.fixture
def keyring(tool: Tool, tmp_path: Path) -> Path:
    (tmp_path / "ring.py").write_text(BACKEND)
    tool.env |= {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])),
        "PYTHON_KEYRING_BACKEND": "ring.Keyring",
        "KEYRING_FILE": str(tmp_path / "ring.json"),
    }
    return tmp_path / "ring.json"


def logs_in(api: Api) -> None:
    api.on("GET", "me", ME).on("GET", "teams", page(TEAMS))


@pytest.mark.e2e
def test_a_keyring_that_works_has_the_login_and_no_file_has_a_secret(api: Api, tool: Tool, keyring: Path) -> None:
    logs_in(api)
    ran = tool.process("auth", "login", "--with-token", stdin=PERSONAL)
    assert "The login is stored in the system keyring." in ran.err
    assert set(json.loads(keyring.read_text())) == {f"tollgate {api.url}"}
    assert PERSONAL not in (tool.home / "tollgate" / "credentials.json").read_text()
    assert tool.process("auth", "token").out == f"{PERSONAL}\n"
    assert tool.process("auth", "logout").code == 0
    assert json.loads(keyring.read_text()) == {}
    assert tool.process("auth", "token").code == 4


@pytest.mark.e2e
def test_a_keyring_that_fails_is_reported_and_the_file_takes_its_place(
    api: Api, tool: Tool, keyring: Path
) -> None:
    logs_in(api)
    ran = tool.process("auth", "login", "--with-token", stdin=PERSONAL, env={"KEYRING_FAILS": "1"})
    assert ran.code == 0
    assert "The system keyring did not accept the login (RuntimeError): it is stored in a file instead." in ran.err
    assert PERSONAL not in ran.err
    assert tool.process("auth", "token").out == f"{PERSONAL}\n"
