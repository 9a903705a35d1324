"""Failures of a command: exit code, and a message that shows what to do next."""

from __future__ import annotations

import signal
import socket
import threading
from typing import TYPE_CHECKING

import pytest
from tests.samples import sample

from tollgate.api.me import Account, CurrentLogin
from tollgate.api.teams import Team

if TYPE_CHECKING:
    from tests.cli.conftest import Api, Tool

MANAGEMENT = [
    "rpc tokens create ci --team acme",
    "rpc tokens list --team acme",
    "rpc tokens show tok_1 --team acme",
    "rpc tokens update tok_1 --rps 1 --team acme",
    "rpc tokens rotate tok_1 --team acme",
    "rpc tokens disable tok_1 --team acme",
    "rpc tokens enable tok_1 --team acme",
    "rpc tokens delete tok_1 --team acme",
    "rpc whitelist add example.com --team acme",
    "rpc whitelist list --team acme",
    "rpc whitelist show dom_1 --team acme",
    "rpc whitelist remove dom_1 --team acme",
    "rpc whitelist verify dom_1 --team acme",
    "rpc whitelist check https://a.example.com --team acme",
    "rpc whitelist update dom_1 --inactive --team acme",
    "teams create acme",
    "teams list",
    "teams show --team acme",
    "teams rename new --team acme",
    "teams join tgi_x",
    "teams members list --team acme",
    "teams members invite a@example.com --role viewer --team acme",
    "teams members remove mem_1 --team acme",
    "teams members set-role mem_1 viewer --team acme",
    "teams invitations list --team acme",
    "teams invitations revoke inv_1 --team acme",
    "audit --team acme",
    "account show",
    "account password",
    "account tokens create ci",
    "account tokens list",
    "account tokens delete log_1",
    "auth status",
    "auth logout",
    "auth token",
]
LIST = "teams/acme/tokens?limit=100"


@pytest.mark.parametrize("arguments", MANAGEMENT)
def test_without_a_login_every_command_ends_with_4_and_shows_how_to_log_in(tool: Tool, arguments: str) -> None:
    ran = tool.run(*arguments.split())
    assert (ran.code, ran.out) == (4, "")
    assert ran.err == f"tollgate: You are not logged in to {tool.url}. Run: tollgate auth login\n"


def test_no_login_comes_before_no_team(tool: Tool) -> None:
    assert tool.run("rpc", "tokens", "list").code == 4


@pytest.mark.parametrize(
    ("status", "reason", "code"),
    [
        (400, "invalid_request", 1),
        (403, "no_such_team", 5),
        (403, "role_needed", 5),
        (403, "personal_token_refused", 5),
        (404, "not_found", 3),
        (405, "method_not_allowed", 1),
        (409, "name_taken", 1),
        (409, "limit_reached", 1),
        (409, "request_running", 1),
        (412, "changed_meanwhile", 1),
        (422, "key_reused", 1),
        (401, "wrong_password", 1),
    ],
)
def test_a_problem_is_its_detail_and_its_exit_code(
    api: Api, acme: Tool, status: int, reason: str, code: int
) -> None:
    api.problem("GET", LIST, status, reason, 'There is no team "acme". Did you mean "acne"?')
    ran = acme.run("rpc", "tokens", "list")
    assert (ran.code, ran.out) == (code, "")
    assert ran.err == 'tollgate: There is no team "acme". Did you mean "acne"?\n'


def test_too_many_attempts_show_how_long_to_wait(api: Api, acme: Tool) -> None:
    api.problem("GET", LIST, 429, "too_many_attempts", "Too many attempts.", retry_after=30)
    ran = acme.run("rpc", "tokens", "list")
    assert (ran.code, ran.err) == (1, "tollgate: Too many attempts. Try again in 30 s.\n")


def test_a_defect_of_the_server_names_the_request(api: Api, acme: Tool) -> None:
    api.problem("GET", LIST, 500, "internal_error", "The service failed.", request_id="req_1")
    ran = acme.run("rpc", "tokens", "list")
    assert (ran.code, ran.err) == (1, "tollgate: The service failed. (request id req_1)\n")


def test_a_store_that_is_away_shows_when_to_try_again(api: Api, acme: Tool) -> None:
    api.problem("GET", LIST, 503, "store_unavailable", "The store is away.", retry_after=2)
    assert acme.run("rpc", "tokens", "list").err == "tollgate: The store is away. Try again in 2 s.\n"


def test_control_characters_of_a_server_are_stripped(api: Api, acme: Tool) -> None:
    api.problem("GET", LIST, 404, "not_found", "gone\x1b[2J\u202e\nsecond line")
    assert acme.run("rpc", "tokens", "list").err == "tollgate: gone\\x1b[2J\\u202e\nsecond line\n"


def test_a_missing_proof_lists_what_was_tried_and_what_to_publish(api: Api, acme: Tool) -> None:
    api.problem(
        "POST",
        "teams/acme/domains/dom_1/verify",
        409,
        "not_proven",
        "No proof was found for example.com.",
        dns_name="_tollgate.example.com",
        dns_value="tollgate-team=acme",
        well_known_url="https://example.com/.well-known/tollgate.txt",
        problems=["DNS: no such record"],
    )
    ran = acme.run("rpc", "whitelist", "verify", "dom_1")
    assert ran.code == 1
    assert ran.err.splitlines() == [
        "tollgate: No proof was found for example.com.",
        "  - DNS: no such record",
        "  DNS: _tollgate.example.com TXT tollgate-team=acme",
        "  or the same text at https://example.com/.well-known/tollgate.txt",
    ]


def test_what_the_detail_has_already_is_not_repeated(api: Api, acme: Tool) -> None:
    detail = "Publish tollgate-team=acme at _tollgate.example.com."
    api.problem(
        "POST", "teams/acme/domains", 409, "domain_taken", detail, dns_name="x", dns_value="tollgate-team=acme"
    )
    assert acme.run("rpc", "whitelist", "add", "example.com").err == f"tollgate: {detail}\n"


def test_several_wrong_members_are_shown_one_a_line(api: Api, acme: Tool) -> None:
    errors = [
        {"field": "name", "detail": "`name` is missing."},
        {"field": "x", "detail": "'x' is not known here."},
    ]
    detail = " ".join(each["detail"] for each in errors)
    api.problem("POST", "teams/acme/tokens", 400, "invalid_request", detail, field="name", errors=errors)
    ran = acme.run("rpc", "tokens", "create", "ci")
    assert (ran.code, ran.err) == (1, "tollgate: `name` is missing.\n'x' is not known here.\n")


# ---- the server is unavailable, or another service


def test_a_refused_connection_is_exit_1_and_names_the_address_and_how_to_change_it(acme: Tool) -> None:
    with socket.socket() as closed:
        closed.bind(
            ("127.0.0.1", 0)
        )  # bound and not listening: connections are refused, and no other process gets the port
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        ran = acme.run("teams", "list", env={"TOLLGATE_URL": url, "TOLLGATE_TOKEN": "tgp_x"})
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"tollgate: No Tollgate answers at {url}: is it running? Set TOLLGATE_URL or ")


def test_a_host_that_does_not_exist_is_exit_1(acme: Tool) -> None:
    env: dict[str, str | None] = {"TOLLGATE_URL": "https://nowhere.invalid", "TOLLGATE_TOKEN": "tgp_x"}
    ran = acme.run("teams", "list", env=env)
    assert ran.code == 1
    assert "The name of https://nowhere.invalid is not found: check TOLLGATE_URL" in ran.err


@pytest.mark.parametrize(
    ("status", "body", "content_type"),
    [
        (200, b"<html>hello</html>", "text/html"),
        (404, b"<html>not found</html>", "text/html; charset=utf-8"),
        (401, b"Unauthorized", "text/plain"),
        (403, b"<html>Forbidden</html>", "text/html"),
        (200, b'{"hello": "world"}', "application/json"),
        (200, b'{"items": [{"name": 5}]}', "application/json"),
        (200, b'{"items": [], "next": 7}', "application/json"),
        (200, b"null", "application/json"),
        (200, b"\xff\xfe", "application/json"),
        (200, b"", "application/json"),
        (500, b'{"oops": true}', "application/json"),
    ],
)
def test_an_answer_of_another_service_is_reported_and_sets_no_exit_code_of_ours(
    api: Api, acme: Tool, status: int, body: bytes, content_type: str
) -> None:
    api.on("GET", LIST, body=body, status=status, headers={"Content-Type": content_type})
    ran = acme.run("rpc", "tokens", "list")
    assert (ran.code, ran.out) == (1, "")
    assert f"The server at {api.url} is not the management API of a Tollgate (HTTP {status} " in ran.err
    assert "TOLLGATE_URL" in ran.err


def test_a_redirect_is_named_and_not_followed(api: Api, acme: Tool) -> None:
    api.on("GET", LIST, status=302, headers={"Location": "https://elsewhere.example.com/login"}, body=b"")
    ran = acme.run("rpc", "tokens", "list")
    assert ran.code == 1
    assert "redirects to https://elsewhere.example.com/login. Set TOLLGATE_URL" in ran.err


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_proxy_whose_server_is_down_is_distinguished_from_another_service(
    api: Api, acme: Tool, status: int
) -> None:
    api.on("GET", LIST, status=status, body=b"<html>", headers={"Content-Type": "text/html"})
    ran = acme.run("rpc", "tokens", "list")
    assert ran.code == 1
    assert "is Tollgate running behind it?" in ran.err


def test_a_connection_that_breaks_is_exit_1(api: Api, acme: Tool) -> None:
    api.on("GET", LIST, drop=True)
    ran = acme.run("rpc", "tokens", "list")
    assert (ran.code, ran.out) == (1, "")
    assert f"The connection to {api.url} broke before its answer arrived." in ran.err


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("localhost:8402", "must start with http:// or https://"),
        ("ftp://example.com", "must start with http:// or https://"),
        ("https://", "must start with http:// or https://"),
        ("https://user@example.com", "neither user, query nor fragment"),
        ("https://example.com/?a=b", "neither user, query nor fragment"),
        ("https://example.com:port", "is not an address"),
        ("https://exa mple.com", "is not an address"),
        ("https://[::1", "is not an address"),
    ],
)
def test_an_invalid_address_is_wrong_usage(tool: Tool, url: str, words: str) -> None:
    ran = tool.run("teams", "list", env={"TOLLGATE_URL": url})
    assert ran.code == 2
    assert ran.err.startswith("tollgate: TOLLGATE_URL ")
    assert words in ran.err


# ---- which team


def test_without_a_team_it_shows_how_to_name_one_and_lists_ones_own(api: Api, tool: Tool) -> None:
    tool.log_in(team=None)
    api.on("GET", "teams", {"items": [sample(Team, name="acme"), sample(Team, name="b")]})
    ran = tool.run("rpc", "tokens", "list")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "tollgate: Which team? Add --team TEAM or set TOLLGATE_TEAM. Your teams: acme, b\n"


def test_the_only_team_need_not_be_named(api: Api, tool: Tool) -> None:
    tool.log_in(team=None)
    api.on("GET", "teams", {"items": [sample(Team, name="acme")], "next": None})
    api.on("GET", "teams/acme/tokens?limit=100", {"items": [], "next": None})
    assert tool.run("rpc", "tokens", "list").code == 0


def test_without_any_team_it_shows_how_to_make_one(api: Api, tool: Tool) -> None:
    tool.log_in(team=None)
    api.on("GET", "teams", {"items": [], "next": None})
    assert "You are in no team yet: tollgate teams create NAME" in tool.run("audit").err


def test_without_a_team_and_an_answer_it_still_shows_how_to_name_one(api: Api, tool: Tool) -> None:
    tool.log_in(team=None)
    api.on("GET", "teams", drop=True)
    ran = tool.run("audit")
    assert (ran.code, ran.err) == (2, "tollgate: Which team? Add --team TEAM or set TOLLGATE_TEAM.\n")


@pytest.mark.parametrize(
    ("option", "variable", "kept", "used"),
    [
        ("one", "two", "three", "one"),
        (None, "two", "three", "two"),
        (None, "", "three", "three"),
        (None, None, "three", "three"),
        ("team_9", None, None, "team_9"),
    ],
)
def test_the_option_goes_before_the_variable_and_that_before_what_was_kept(
    api: Api, tool: Tool, option: str | None, variable: str | None, kept: str | None, used: str
) -> None:
    tool.log_in(team=kept)
    api.on("GET", f"teams/{used}", sample(Team, name=used))
    arguments = ["teams", "show"] + (["--team", option] if option else [])
    assert tool.run(*arguments, env={"TOLLGATE_TEAM": variable}).code == 0


def test_the_team_kept_for_one_server_is_not_used_at_another(api: Api, tool: Tool) -> None:
    tool.log_in()
    tool.keep.choose("https://other.example.com", "theirs")
    api.on("GET", "teams", {"items": []})
    assert tool.run("teams", "show").code == 2


# ---- the login is refused


@pytest.mark.parametrize("reason", ["not_logged_in", "login_expired"])
def test_a_refused_token_of_the_environment_is_named(api: Api, tool: Tool, reason: str) -> None:
    api.problem("GET", "me", 401, reason, "No.")
    ran = tool.run("account", "show", env={"TOLLGATE_TOKEN": "tgp_secret"})
    assert ran.code == 4
    assert f"{api.url} refused the token in TOLLGATE_TOKEN" in ran.err
    assert "tgp_secret" not in ran.err
    assert api.requests[0].bearer == "tgp_secret"


@pytest.mark.parametrize("token", ["two words", "a\nb", "tgp_ü", "a\x01b"])
def test_a_variable_that_cannot_hold_a_token_is_named_before_anything_is_sent(tool: Tool, token: str) -> None:
    ran = tool.run("account", "show", env={"TOLLGATE_TOKEN": token})
    assert ran.code == 4
    assert "TOLLGATE_TOKEN is not a token" in ran.err


def test_the_token_of_the_environment_goes_before_the_kept_login(api: Api, acme: Tool) -> None:
    api.on("GET", "me", sample(Account, email="ci@example.com", login=sample(CurrentLogin)))
    assert acme.run("account", "show", env={"TOLLGATE_TOKEN": " tgp_ci\n"}).code == 0
    assert api.requests[0].bearer == "tgp_ci"


def test_an_expired_personal_token_is_an_expired_login(api: Api, tool: Tool) -> None:
    tool.log_in("tgp_old", kind="personal")
    api.problem("GET", "me", 401, "login_expired", "It has run out.")
    ran = tool.run("account", "show")
    assert (ran.code, ran.err) == (4, "tollgate: Your login has expired. Run: tollgate auth login\n")


# ---- interrupted


@pytest.mark.e2e
def test_ctrl_c_while_waiting_for_an_answer_is_130_without_a_trace(api: Api, acme: Tool) -> None:
    came, gone = threading.Event(), threading.Event()

    def hold() -> None:
        came.set()
        gone.wait(30)

    api.on("GET", LIST, {"items": []}, before=hold)
    with acme.started("rpc", "tokens", "list") as popen:
        assert came.wait(30)
        popen.send_signal(signal.SIGINT)
        assert popen.wait(30) == 130
        gone.set()
        assert popen.stderr is not None
        assert popen.stderr.read().strip() == b""
