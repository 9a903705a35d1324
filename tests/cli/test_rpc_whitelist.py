"""`tollgate rpc whitelist` against a scripted server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Api, Tool

ENTRY: dict[str, Any] = {
    "id": "dom_1",
    "domain": "example.com",
    "created_at": "2026-11-15T06:44:44Z",
    "created_by": "ann@example.com",
    "verified_at": None,
    "address_per_minute": None,
    "domain_per_minute": 6000,
    "active": True,
}
PATH = "teams/acme/domains"
FIELDS = """\
id               dom_1
domain           example.com
state            active
added            2026-11-15T06:44:44Z
added by         ann@example.com
verified         no
per address/min  default
per domain/min   6000
"""


def page(*items: object, after: str | None = None) -> dict[str, Any]:
    return {"items": list(items), "next": after}


def test_add_prints_the_entry_and_shows_how_to_prove_it(api: Api, acme: Tool) -> None:
    api.on("POST", PATH, ENTRY, status=201)
    ran = acme.run("rpc", "whitelist", "add", "example.com", "--team", "acme")
    assert (ran.code, ran.out) == (0, FIELDS)
    assert "tollgate rpc whitelist verify dom_1 --team acme" in ran.err
    assert api.requests[0].json == {"domain": "example.com"}
    assert "idempotency-key" in api.requests[0].headers


def test_add_takes_a_domain_over_only_on_request(api: Api, acme: Tool) -> None:
    api.on("POST", PATH, {**ENTRY, "verified_at": "2026-11-15T06:44:44Z"}, status=201)
    ran = acme.run("rpc", "whitelist", "add", "example.com", "--take-over")
    assert (ran.code, ran.err) == (0, "")
    assert api.requests[0].json == {"domain": "example.com", "take_over": True}


def test_add_sends_the_limits_that_were_given(api: Api, acme: Tool) -> None:
    api.on("POST", PATH, ENTRY, status=201)
    assert acme.run("rpc", "whitelist", "add", "example.com", "--domain-per-minute", "6000").code == 0
    assert api.requests[0].json == {"domain": "example.com", "domain_per_minute": 6000}


def test_a_subdomain_is_refused_with_the_root_to_use(api: Api, acme: Tool) -> None:
    detail = "app.example.com is not a root domain: use example.com."
    api.problem("POST", PATH, 422, "not_a_root_domain", detail, suggestion="example.com")
    ran = acme.run("rpc", "whitelist", "add", "app.example.com")
    assert (ran.code, ran.err) == (1, f"tollgate: {detail}\n")


def test_list(api: Api, acme: Tool) -> None:
    verified = {**ENTRY, "id": "dom_2", "verified_at": "2026-11-16T00:00:00Z", "active": False}
    api.on("GET", f"{PATH}?limit=100", page(ENTRY, verified))
    ran = acme.run("rpc", "whitelist", "list")
    assert [line.split() for line in ran.out.splitlines()] == [
        ["ID", "DOMAIN", "ADDED", "VERIFIED", "STATE"],
        ["dom_1", "example.com", "2026-11-15T06:44:44Z", "no", "active"],
        ["dom_2", "example.com", "2026-11-15T06:44:44Z", "2026-11-16T00:00:00Z", "inactive"],
    ]


def test_list_of_none_shows_how_to_begin(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}?limit=100", page())
    assert (
        acme.run("rpc", "whitelist", "list").err == "No domains yet. Add one: tollgate rpc whitelist add DOMAIN\n"
    )


def test_list_as_json(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}?limit=100", page(ENTRY, after="c2"))
    assert acme.run("rpc", "whitelist", "list", "--json").json == page(ENTRY, after="c2")


def test_show(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}/dom_1", ENTRY)
    assert acme.run("rpc", "whitelist", "show", "dom_1").out == FIELDS


def test_remove_takes_the_id_of_an_entry(api: Api, acme: Tool) -> None:
    api.on("DELETE", f"{PATH}/dom_1", status=204)
    ran = acme.run("rpc", "whitelist", "remove", "dom_1")
    assert (ran.code, ran.out, ran.err) == (0, "", "Entry dom_1 is removed.\n")


@pytest.mark.e2e
def test_remove_on_a_terminal_names_the_domain_and_prompts(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}/dom_1", ENTRY).on("DELETE", f"{PATH}/dom_1", status=204)
    with acme.terminal("rpc", "whitelist", "remove", "dom_1") as terminal:
        terminal.until("Remove example.com (dom_1)? [y/N]")
        terminal.type("yes\n")
        assert terminal.end() == 0


def test_verify(api: Api, acme: Tool) -> None:
    api.on("POST", f"{PATH}/dom_1/verify", {**ENTRY, "verified_at": "2026-11-16T00:00:00Z"})
    ran = acme.run("rpc", "whitelist", "verify", "dom_1")
    assert (ran.code, ran.err) == (0, "example.com is verified.\n")
    assert "verified         2026-11-16T00:00:00Z\n" in ran.out


@pytest.mark.parametrize(("allowed", "word"), [(True, "yes"), (False, "no")])
def test_check_shows_whether_and_why(api: Api, acme: Tool, allowed: bool, word: str) -> None:
    found = {"origin": "https://app.example.com", "allowed": allowed, "why": "because", "domain_id": "dom_1"}
    api.on("GET", f"{PATH}/check?origin=https%3A%2F%2Fapp.example.com", found)
    ran = acme.run("rpc", "whitelist", "check", "https://app.example.com")
    assert ran.code == (0 if allowed else 1)
    assert f"allowed  {word}\nwhy      because\nentry    dom_1\n" in ran.out


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        (["--address-per-minute", "60"], {"address_per_minute": 60}),
        (["--domain-per-minute", "600", "--active"], {"domain_per_minute": 600, "active": True}),
        (["--inactive"], {"active": False}),
        (["--address-per-minute", "none"], {"address_per_minute": None}),
    ],
)
def test_update_sends_what_was_given(api: Api, acme: Tool, arguments: list[str], body: dict[str, Any]) -> None:
    api.on("PATCH", f"{PATH}/dom_1", ENTRY)
    assert acme.run("rpc", "whitelist", "update", "dom_1", *arguments).code == 0
    assert api.requests[0].json == body


def test_an_update_that_changes_nothing_is_wrong_usage(acme: Tool) -> None:
    ran = acme.run("rpc", "whitelist", "update", "dom_1")
    assert (ran.code, "Nothing to change" in ran.err) == (2, True)


def test_what_was_taken_from_a_pasted_address_is_shown(api: Api, acme: Tool) -> None:
    api.on("POST", PATH, ENTRY)
    ran = acme.run("rpc", "whitelist", "add", "https://app.example.com/pricing")
    assert (ran.code, api.requests[0].json["domain"]) == (0, "https://app.example.com/pricing")
    assert (
        "Whitelisted example.com, taken from https://app.example.com/pricing. Its subdomains are included."
        in ran.err
    )


@pytest.mark.parametrize(
    ("arguments", "method", "path"),
    [
        (["show", "Example.com"], "GET", f"{PATH}/dom_1"),
        (["verify", "example.com"], "POST", f"{PATH}/dom_1/verify"),
        (["update", "example.com", "--inactive"], "PATCH", f"{PATH}/dom_1"),
    ],
)
def test_entry_is_named_by_its_domain_too(
    api: Api, acme: Tool, arguments: list[str], method: str, path: str
) -> None:
    api.on("GET", f"{PATH}?limit=1000", {"items": [ENTRY], "next": None}).on(method, path, ENTRY)
    ran = acme.run("rpc", "whitelist", *arguments)
    assert (ran.code, "dom_1" in ran.out) == (0, True)


def test_domain_that_is_not_on_the_list_is_not_found(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}?limit=1000", {"items": [ENTRY], "next": None})
    ran = acme.run("rpc", "whitelist", "show", "other.com")
    assert (ran.code, "has no entry for other.com" in ran.err) == (3, True)


def test_remove_by_domain_prints_the_id(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}?limit=1000", {"items": [ENTRY], "next": None})
    ran = acme.run("rpc", "whitelist", "remove", "example.com", "--yes")
    assert ran.code == 2
    assert f"Run: tollgate rpc whitelist remove {ENTRY['id']} --team acme" in ran.err
