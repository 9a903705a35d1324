"""`tollgate auth login` by code: what is shown, requested and kept, and the browser."""

from __future__ import annotations

import signal
import stat
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.samples import sample

from tollgate.api.me import Account, CurrentLogin
from tollgate.api.teams import Team
from tollgate.cli.credentials import Choices

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Api, Tool

LOGIN = sample(CurrentLogin, kind="tool", name="ann@laptop", expires_at="2027-02-15T06:44:44Z")
ME = sample(Account, email="ann@example.com", login=LOGIN)
TEAMS = [sample(Team, name="acme", role="owner"), sample(Team, name="beta", role="viewer")]
TOKENS = {"access_token": "tga_new", "token_type": "Bearer", "expires_in": 3600, "refresh_token": "tgr_new"}


def page(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {"items": items, "next": None}


def starts(api: Api, **members: Any) -> None:
    answer = {
        "device_code": "tgd_code",
        "user_code": "WDJB-MJHT",
        "verification_uri": "https://t.example.com/device",
        "verification_uri_complete": "https://t.example.com/device?code=WDJB-MJHT",
        "expires_in": 900,
        "interval": 0.01,
    }
    api.on("POST", "oauth/device_authorization", {**answer, **members})


def pending(api: Api, reason: str = "authorization_pending", status: int = 400) -> None:
    api.on("POST", "oauth/token", {"error": reason, "error_description": "words"}, status=status)


def approved(api: Api, teams: list[dict[str, Any]] = TEAMS) -> None:
    api.on("POST", "oauth/token", TOKENS).on("GET", "me", ME).on("GET", "teams", page(teams))


# ---- login by code


def test_login_shows_the_code_waits_and_keeps_the_login(api: Api, tool: Tool) -> None:
    starts(api)
    pending(api)
    approved(api)
    before = time.time()
    ran = tool.run("auth", "login")
    assert (ran.code, ran.out) == (0, "")
    assert "WDJB-MJHT" in ran.err
    assert "https://t.example.com/device?code=WDJB-MJHT" in ran.err
    assert "Waiting…" in ran.err
    file = tool.home / "tollgate" / "credentials.json"
    assert f"Logged in to {api.url} as ann@example.com. The login is stored in {file}.\n" in ran.err
    assert "Commands act for team acme unless --team is given." in ran.err
    kept = tool.keep.credential(api.url)
    assert kept is not None
    assert (kept.kind, kept.access, kept.refresh) == ("tool", "tga_new", "tgr_new")
    assert kept.expires_at is not None
    assert before + 3600 <= kept.expires_at <= time.time() + 3600
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert tool.keep.choices() == Choices(api.url, "acme")
    assert "@" in api.requests[0].form["machine"]
    assert api.requests[1].bearer == api.requests[2].bearer == ""
    assert api.requests[-1].bearer == "tga_new"
    for secret in ("tga_new", "tgr_new", "tgd_code"):
        assert secret not in ran.err


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("access_denied", "tollgate: The login was denied in the browser.\n"),
        ("expired_token", "tollgate: The code has expired. Run tollgate auth login again.\n"),
    ],
)
def test_a_login_that_is_refused_keeps_nothing(api: Api, tool: Tool, reason: str, words: str) -> None:
    starts(api)
    pending(api, reason)
    ran = tool.run("auth", "login")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.endswith(words)
    assert not (tool.home / "tollgate" / "credentials.json").exists()


def test_a_code_that_is_not_approved_expires(api: Api, tool: Tool) -> None:
    starts(api, expires_in=0.001)
    pending(api)
    ran = tool.run("auth", "login")
    assert (ran.code, ran.err.splitlines()[-1]) == (
        1,
        "tollgate: The code has expired. Run tollgate auth login again.",
    )


def test_a_connection_that_breaks_while_waiting_does_not_end_it(api: Api, tool: Tool) -> None:
    starts(api)
    api.on("POST", "oauth/token", drop=True)
    approved(api)
    assert tool.run("auth", "login").code == 0


def test_an_approved_login_is_kept_even_if_the_next_question_fails(api: Api, tool: Tool) -> None:
    starts(api)
    api.on("POST", "oauth/token", TOKENS).on("GET", "me", drop=True)
    assert tool.run("auth", "login").code == 1
    assert tool.run("auth", "token").out == "tga_new\n"


def test_too_many_logins_show_how_long_to_wait(api: Api, tool: Tool) -> None:
    api.problem("POST", "oauth/device_authorization", 429, "too_many_attempts", "Too many logins.", retry_after=60)
    ran = tool.run("auth", "login")
    assert (ran.code, ran.err) == (1, "tollgate: Too many logins. Try again in 60 s.\n")


def test_a_login_without_a_team_shows_how_to_make_one(api: Api, tool: Tool) -> None:
    starts(api)
    approved(api, [])
    ran = tool.run("auth", "login")
    assert "You are in no team yet. Create one: tollgate teams create NAME\n" in ran.err
    assert tool.keep.choices() == Choices(api.url, None)


@pytest.mark.parametrize(("before", "after"), [("beta", "beta"), ("gone", "acme")])
def test_a_new_login_keeps_the_team_that_was_chosen_while_it_is_ones_own(
    api: Api, tool: Tool, before: str, after: str
) -> None:
    tool.keep.choose(api.url, before)
    starts(api)
    approved(api)
    assert tool.run("auth", "login").code == 0
    assert tool.keep.choices().team == after


def test_the_option_names_the_server_and_later_commands_go_there(api: Api, tool: Tool) -> None:
    starts(api)
    approved(api)
    elsewhere: dict[str, str | None] = {"TOLLGATE_URL": "https://other.invalid"}
    assert tool.run("auth", "login", "--url", f"{api.url}/", env=elsewhere).code == 0
    api.on("GET", "teams/acme", TEAMS[0])
    assert tool.run("teams", "show", env={"TOLLGATE_URL": None}).code == 0


def test_a_wrong_url_is_wrong_usage(tool: Tool) -> None:
    ran = tool.run("auth", "login", "--url", "example.com")
    assert (ran.code, ran.err.startswith("tollgate: --url must start with http")) == (2, True)


def test_a_token_of_the_environment_is_noted_to_go_first(api: Api, tool: Tool) -> None:
    starts(api)
    approved(api)
    ran = tool.run("auth", "login", env={"TOLLGATE_TOKEN": "tgp_x"})
    assert "TOLLGATE_TOKEN is set and takes precedence over this login" in ran.err
    assert api.requests[-1].bearer == "tga_new"


def test_plain_http_to_another_machine_is_warned_of(tool: Tool) -> None:
    ran = tool.run("auth", "login", "--url", "http://nowhere.invalid")
    assert ran.err.startswith("Warning: http://nowhere.invalid is plain http")


@pytest.mark.e2e
def test_ctrl_c_while_waiting_is_130_without_a_trace(api: Api, tool: Tool) -> None:
    starts(api, interval=600)
    with tool.started("auth", "login") as popen:
        assert popen.stderr is not None
        seen = b""
        while "Waiting…".encode() not in seen:
            seen += popen.stderr.readline()
        popen.send_signal(signal.SIGINT)
        assert popen.wait(30) == 130
        assert popen.stderr.read().strip() == b""
    assert not (tool.home / "tollgate" / "credentials.json").exists()


# ---- the browser


def browser(folder: Path) -> tuple[Path, str]:
    """A browser that writes down what it was given to open."""
    folder.mkdir(parents=True, exist_ok=True)
    opened, script = folder / "opened", folder / "browser"
    script.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}.new && mv {opened}.new {opened}\n')
    script.chmod(0o755)
    return opened, str(script)


@pytest.mark.e2e
def test_on_a_terminal_the_page_is_opened_with_the_code_in_it(api: Api, tool: Tool, tmp_path: Path) -> None:
    opened, script = browser(tmp_path / "bin")
    starts(api)
    approved(api)
    with tool.terminal("auth", "login", env={"BROWSER": script}) as terminal:
        terminal.until("Approve it on the page that opens now")
        assert terminal.end() == 0
    assert opened.read_text() == "https://t.example.com/device?code=WDJB-MJHT"


@pytest.mark.e2e
@pytest.mark.parametrize("arguments", [["--no-browser"], []])
def test_without_a_browser_or_against_it_the_page_is_only_shown(
    api: Api, tool: Tool, tmp_path: Path, arguments: list[str]
) -> None:
    opened, script = browser(tmp_path / "bin")
    starts(api)
    approved(api)
    env = {"BROWSER": script} if arguments else {}
    with tool.terminal("auth", "login", *arguments, env=env) as terminal:
        terminal.until("Approve it on\n  https://t.example.com/device?code=WDJB-MJHT\nor enter it on")
        assert terminal.end() == 0
    assert not opened.exists()


@pytest.mark.e2e
def test_without_a_terminal_no_browser_is_opened(api: Api, tool: Tool, tmp_path: Path) -> None:
    opened, script = browser(tmp_path / "bin")
    starts(api)
    approved(api)
    assert tool.process("auth", "login", env={"BROWSER": script, "DISPLAY": ":99"}).code == 0
    assert not opened.exists()
