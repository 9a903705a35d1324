"""`tollgate rpc tokens` against a scripted server: what is sent, what is printed, how it ends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Api, Tool

SECRET = "tg_0123456789abcdefghijklmnopqrstuv012345"
TOKEN: dict[str, Any] = {
    "id": "tok_3kF9aQx72LmN0pRt",
    "name": "ci",
    "prefix": "tg_01234",
    "created_at": "2026-11-15T06:44:44Z",
    "created_by": "ann@example.com",
    "last_used_at": None,
    "expires_at": None,
    "active": True,
    "networks": [],
    "methods": [],
    "requests_per_second": None,
    "monthly_requests": None,
    "capped_until": None,
    "allow_in_url": False,
    "show_upstream": False,
    "addresses": [],
    "contracts": [],
    "replaces": "",
    "new_in_a_later_version": 1,
}
OTHER = {
    **TOKEN,
    "id": "tok_other",
    "name": "web",
    "active": False,
    "last_used_at": "2026-11-15T07:00:00.25Z",
    "expires_at": "2099-01-01T00:00:00Z",
}
PATH = "teams/acme/tokens"
ONE = f"{PATH}/{TOKEN['id']}"


def page(*items: object, after: str | None = None) -> dict[str, Any]:
    return {"items": list(items), "next": after}


# ---- list and show


def test_list_prints_aligned_columns_with_plain_times(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}?limit=100", page(TOKEN, OTHER))
    ran = acme.run("rpc", "tokens", "list", "--team", "acme")
    assert ran.code == 0
    assert ran.err == ""
    start = "tok_3kF9aQx72LmN0pRt  ci    tg_01234  2026-11-15T06:44:44Z"
    other = "tok_other             web   tg_01234  2026-11-15T06:44:44Z"
    title = "ID                    NAME  PREFIX    CREATED             "
    assert ran.out.splitlines() == [
        f"{title}  LAST USED             EXPIRES               STATE",
        f"{start}  -                     -                     active",
        f"{other}  2026-11-15T07:00:00Z  2099-01-01T00:00:00Z  disabled",
    ]


def test_list_as_json_is_items_and_next(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}?limit=2&after=c%2F1", page(TOKEN, OTHER, after="c2"))
    ran = acme.run("rpc", "tokens", "list", "--limit", "2", "--after", "c/1", "--json")
    assert ran.json == {"items": [TOKEN, OTHER], "next": "c2"}
    assert ran.err == ""


def test_an_empty_list_prints_no_data_and_shows_how_to_begin(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}?limit=100", page())
    ran = acme.run("rpc", "tokens", "list")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == "No tokens yet. Create one: tollgate rpc tokens create NAME\n"


def test_a_page_that_is_not_the_last_is_reported_to_people_alone(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}?limit=1", page(TOKEN, after="c2"))
    assert acme.run("rpc", "tokens", "list", "--limit", "1").err == ""


@pytest.mark.parametrize("limit", ["0", "1001", "x"])
def test_a_limit_out_of_bounds_is_wrong_usage(acme: Tool, limit: str) -> None:
    assert acme.run("rpc", "tokens", "list", "--limit", limit).code == 2


def test_show_prints_every_setting(api: Api, acme: Tool) -> None:
    full = {**TOKEN, "networks": ["eth/mainnet", "eth/sepolia"], "requests_per_second": 7, "replaces": "tok_old"}
    full["show_upstream"] = True
    api.on("GET", ONE, full)
    ran = acme.run("rpc", "tokens", "show", TOKEN["id"])
    shown = dict(line.split("  ", 1) for line in ran.out.splitlines())
    expected = {
        "id": TOKEN["id"],
        "name": "ci",
        "prefix": "tg_01234",
        "state": "active",
        "created": "2026-11-15T06:44:44Z",
        "created by": "ann@example.com",
        "last used": "never",
        "expires": "never",
        "networks": "eth/mainnet, eth/sepolia",
        "methods": "any",
        "addresses": "any",
        "contracts": "any",
        "requests per second": "7",
        "monthly requests": "no limit",
        "capped until": "-",
        "allow in url": "no",
        "show upstream": "yes",
        "replaces": "tok_old",
    }
    assert expected.items() <= {name: value.strip() for name, value in shown.items()}.items()


@pytest.mark.parametrize(
    ("members", "state"),
    [
        ({}, "active"),
        ({"active": False}, "disabled"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "expired"),
        ({"expires_at": "2020-01-01T00:00:00Z", "active": False}, "expired"),
        ({"capped_until": "2099-01-01T00:00:00Z"}, "capped"),
        ({"capped_until": "2020-01-01T00:00:00Z"}, "active"),
    ],
)
def test_the_state_is_why_a_token_works_or_not(api: Api, acme: Tool, members: dict[str, Any], state: str) -> None:
    api.on("GET", ONE, {**TOKEN, **members})
    assert f"state                {state}\n" in acme.run("rpc", "tokens", "show", TOKEN["id"]).out


def test_control_and_bidi_characters_of_a_name_are_stripped(api: Api, acme: Tool) -> None:
    evil = {**TOKEN, "name": "a\x1b[2Jb\nc\u202ed\x9be"}
    api.on("GET", f"{PATH}?limit=100", page(evil))
    assert r"a\x1b[2Jb\x0ac\u202ed\x9be" in acme.run("rpc", "tokens", "list").out
    api.on("GET", ONE, evil)
    ran = acme.run("rpc", "tokens", "show", TOKEN["id"], "--json")
    assert ran.json["name"] == evil["name"]
    assert not {"\x1b", "\u202e", "\x9b"} & set(ran.out)


def test_a_non_ascii_name_is_unescaped_in_json(api: Api, acme: Tool) -> None:
    api.on("GET", ONE, {**TOKEN, "name": "größe 令牌"})
    assert "größe 令牌" in acme.run("rpc", "tokens", "show", TOKEN["id"], "--json").out


# ---- update, disable, enable


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        (["--name", "new"], {"name": "new"}),
        (["--expires", "never"], {"expires_at": None}),
        (["--rps", "none"], {"requests_per_second": None}),
        (["--monthly-requests", "none"], {"monthly_requests": None}),
        (["--network", "any", "--method", "any"], {"networks": [], "methods": []}),
        (["--no-allow-in-url"], {"allow_in_url": False}),
        (["--show-upstream"], {"show_upstream": True}),
        (["--address", "192.0.2.0/24", "--address", "::1"], {"addresses": ["192.0.2.0/24", "::1"]}),
        (["--contract", "any"], {"contracts": []}),
        (["--no-show-upstream"], {"show_upstream": False}),
    ],
)
def test_update_sends_what_was_given_and_no_more(
    api: Api, acme: Tool, arguments: list[str], body: dict[str, Any]
) -> None:
    api.on("PATCH", ONE, TOKEN)
    ran = acme.run("rpc", "tokens", "update", TOKEN["id"], *arguments, "--json")
    assert (ran.code, ran.json) == (0, TOKEN)
    assert api.requests[0].json == body


@pytest.mark.parametrize(
    ("arguments", "words"),
    [([], "Nothing to change"), (["--network", "any", "--network", "eth/mainnet"], "give it alone")],
)
def test_an_update_that_changes_nothing_is_wrong_usage(acme: Tool, arguments: list[str], words: str) -> None:
    ran = acme.run("rpc", "tokens", "update", "tok_1", *arguments)
    assert ran.code == 2
    assert words in ran.err


@pytest.mark.parametrize(("command", "active"), [("disable", False), ("enable", True)])
def test_disable_and_enable_set_active(api: Api, acme: Tool, command: str, active: bool) -> None:
    api.on("PATCH", ONE, {**TOKEN, "active": active})
    ran = acme.run("rpc", "tokens", command, TOKEN["id"])
    assert (ran.code, api.requests[0].json) == (0, {"active": active})
    assert f"state                {'active' if active else 'disabled'}" in ran.out


# ---- rotate


def test_rotate_prints_the_successor_and_shows_how_long_the_old_one_lives(api: Api, acme: Tool) -> None:
    successor = {**TOKEN, "id": "tok_next", "replaces": TOKEN["id"], "secret": SECRET}
    api.on("POST", f"{ONE}/rotate", successor, status=201)
    ran = acme.run("rpc", "tokens", "rotate", TOKEN["id"])
    assert (ran.code, ran.out) == (0, f"id      tok_next\nname    ci\nsecret  {SECRET}\n")
    assert f"The old token {TOKEN['id']} works for another 1d." in ran.err
    assert api.requests[0].json == {"overlap_seconds": 86_400}
    assert "idempotency-key" in api.requests[0].headers


def test_rotate_without_overlap_shows_that_the_old_one_has_ended(api: Api, acme: Tool) -> None:
    api.on("POST", f"{ONE}/rotate", {**TOKEN, "id": "tok_next", "secret": SECRET}, status=201)
    ran = acme.run("rpc", "tokens", "rotate", TOKEN["id"], "--overlap", "0s")
    assert f"The old token {TOKEN['id']} no longer works." in ran.err
    assert api.requests[0].json == {"overlap_seconds": 0}


@pytest.mark.parametrize(("overlap", "words"), [("31d", "30d at most"), ("soon", "not a duration")])
def test_an_overlap_out_of_bounds_is_wrong_usage(acme: Tool, overlap: str, words: str) -> None:
    ran = acme.run("rpc", "tokens", "rotate", "tok_1", "--overlap", overlap)
    assert ran.code == 2
    assert words in " ".join(ran.err.split())


def test_a_replayed_rotation_advises_to_rotate_the_successor(api: Api, acme: Tool) -> None:
    api.on("POST", f"{ONE}/rotate", drop=True)
    api.on("POST", f"{ONE}/rotate", {**TOKEN, "id": "tok_next", "secret": None}, status=201)
    ran = acme.run("rpc", "tokens", "rotate", TOKEN["id"])
    assert (ran.code, ran.out) == (1, "")
    assert "Run: tollgate rpc tokens rotate tok_next --team acme --overlap 0s" in ran.err


# ---- delete


def test_delete_without_a_terminal_does_not_prompt(api: Api, acme: Tool) -> None:
    api.on("DELETE", ONE, status=204)
    ran = acme.run("rpc", "tokens", "delete", TOKEN["id"])
    assert (ran.code, ran.out, ran.err) == (0, "", f"Token {TOKEN['id']} is deleted.\n")


def test_delete_as_json_is_one_object(api: Api, acme: Tool) -> None:
    api.on("DELETE", ONE, status=204)
    assert acme.run("rpc", "tokens", "delete", TOKEN["id"], "--json").json == {"id": TOKEN["id"], "deleted": True}


@pytest.mark.e2e
@pytest.mark.parametrize(("answer", "code"), [("n", 1), ("", 1)])
def test_delete_on_a_terminal_prompts_and_accepts_no(api: Api, acme: Tool, answer: str, code: int) -> None:
    api.on("GET", ONE, TOKEN)
    with acme.terminal("rpc", "tokens", "delete", TOKEN["id"]) as terminal:
        terminal.until(f'Delete token "ci" ({TOKEN["id"]})? [y/N]')
        terminal.type(f"{answer}\n")
        assert terminal.end() == code
        assert "Nothing was changed." in terminal.seen


@pytest.mark.e2e
def test_delete_on_a_terminal_goes_on_after_a_yes(api: Api, acme: Tool) -> None:
    api.on("GET", ONE, TOKEN).on("DELETE", ONE, status=204)
    with acme.terminal("rpc", "tokens", "delete", TOKEN["id"]) as terminal:
        terminal.until("[y/N]")
        terminal.type("y\n")
        assert terminal.end() == 0


@pytest.mark.e2e
def test_delete_with_yes_does_not_prompt_on_a_terminal(api: Api, acme: Tool) -> None:
    api.on("DELETE", ONE, status=204)
    with acme.terminal("rpc", "tokens", "delete", TOKEN["id"], "--yes") as terminal:
        assert terminal.end() == 0


@pytest.mark.e2e
def test_ctrl_c_at_the_question_deletes_nothing(api: Api, acme: Tool) -> None:
    api.on("GET", ONE, TOKEN)
    with acme.terminal("rpc", "tokens", "delete", TOKEN["id"]) as terminal:
        terminal.until("[y/N]")
        assert terminal.interrupt() == 130
        assert "Traceback" not in terminal.seen


# ---- ids that are no ids


@pytest.mark.parametrize(
    ("token_id", "path"),
    [("tok_/..", "tok_%2F.."), ("tok_a/b", "tok_a%2Fb"), ("tok_a?b#c", "tok_a%3Fb%23c"), ("tok_ü", "tok_%C3%BC")],
)
def test_an_id_is_escaped_in_the_path(api: Api, acme: Tool, token_id: str, path: str) -> None:
    api.problem("GET", f"{PATH}/{path}", 404, "not_found", "There is no such token.")
    assert acme.run("rpc", "tokens", "show", token_id).code == 3


def test_an_empty_id_is_wrong_usage(acme: Tool) -> None:
    assert acme.run("rpc", "tokens", "show", "").code == 2


@pytest.mark.e2e
def test_the_json_of_a_list_can_be_fed_to_a_program(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}?limit=100", page(TOKEN))
    ran = acme.process("rpc", "tokens", "list", "--json")
    assert (ran.code, json.loads(ran.out), ran.err) == (0, page(TOKEN), "")


# ---- names


@pytest.mark.parametrize(
    ("arguments", "method", "body"),
    [
        (("show", "ci"), "GET", None),
        (("update", "ci", "--rps", "5"), "PATCH", {"requests_per_second": 5}),
        (("disable", "ci"), "PATCH", {"active": False}),
    ],
)
def test_a_name_works_wherever_an_id_does(
    api: Api, acme: Tool, arguments: tuple[str, ...], method: str, body: dict[str, Any] | None
) -> None:
    api.on("GET", f"{PATH}?limit=1000", page({**TOKEN, "id": "tok_9", "name": "other"}, {**TOKEN, "name": "ci"}))
    api.on(method, f"{PATH}/{TOKEN['id']}", {**TOKEN, "name": "ci"})
    assert acme.run("rpc", "tokens", *arguments).code == 0
    if body is not None:
        assert api.requests[1].json == body


def test_a_name_that_no_token_has_is_not_found(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}?limit=1000", page(TOKEN))
    ran = acme.run("rpc", "tokens", "delete", "unknown", "--yes")
    assert (ran.code, "has no token called 'unknown'" in ran.err) == (3, True)
