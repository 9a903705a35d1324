"""`tollgate teams`, its members and invitations, and `tollgate audit`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.samples import sample

from tollgate.api.members import Invitation, Member
from tollgate.api.teams import Team
from tollgate.cli.credentials import Choices
from tollgate.core.audit_chain import AuditChain, line_of, linked
from tollgate.core.people import AuditEntry

if TYPE_CHECKING:
    from tests.cli.conftest import Api, Tool

TEAM = sample(Team, id="team_1", name="acme", role="owner", suspended_at=None, suspended_reason="")
ANN = sample(Member, id="mem_1", email="ann@example.com", name="Ann", role="owner")
BOB = sample(Member, id="mem_2", email="Bob@example.com", name="Bob", role="viewer")
INVITATION = sample(
    Invitation,
    id="inv_1",
    email="eve@example.com",
    created_by="ann@example.com",
    expires_at="2026-11-22T06:44:44Z",
)
SERVICE = {"name": "tollgate", "version": "0.1.0", "sign_up": "invited"}
LINK = "https://t.example.com/invitation/tgi_secret"
MEMBERS = "teams/acme/members"


def page(*items: object, after: str | None = None) -> dict[str, Any]:
    return {"items": list(items), "next": after}


# ---- teams


def test_create_prints_the_team_and_makes_the_first_one_the_default(api: Api, tool: Tool) -> None:
    tool.log_in(team=None)
    api.on("POST", "teams", TEAM, status=201)
    ran = tool.run("teams", "create", "acme")
    assert ran.out == "id       team_1\nname     acme\nrole     owner\ncreated  2026-11-15T06:44:44Z\n"
    assert ran.err == "Commands act for team acme unless --team is given.\n"
    assert (api.requests[0].json, "idempotency-key" in api.requests[0].headers) == ({"name": "acme"}, True)
    assert tool.keep.choices() == Choices(tool.url, "acme")


def test_a_further_team_does_not_change_the_default(api: Api, acme: Tool) -> None:
    api.on("POST", "teams", {**TEAM, "name": "second"}, status=201)
    ran = acme.run("teams", "create", "second", "--json")
    assert (ran.json["name"], ran.err) == ("second", "")
    assert acme.keep.choices().team == "acme"


def test_a_token_of_the_environment_sets_no_default_team(api: Api, tool: Tool) -> None:
    api.on("POST", "teams", TEAM, status=201)
    assert tool.run("teams", "create", "acme", env={"TOLLGATE_TOKEN": "tgp_x"}).code == 0
    assert tool.keep.choices() == Choices()


def test_list(api: Api, acme: Tool) -> None:
    api.on("GET", "teams?limit=2&after=c1", page(TEAM))
    ran = acme.run("teams", "list", "--limit", "2", "--after", "c1")
    assert ran.out.splitlines()[1].split() == ["team_1", "acme", "owner", "2026-11-15T06:44:44Z"]


def test_list_of_none_shows_how_to_begin(api: Api, acme: Tool) -> None:
    api.on("GET", "teams?limit=100", page())
    ran = acme.run("teams", "list")
    assert (ran.out, ran.err) == ("", "You are in no team yet. Create one: tollgate teams create NAME\n")


def test_show(api: Api, acme: Tool) -> None:
    api.on("GET", "teams/acme", TEAM)
    assert acme.run("teams", "show", "--json").json == TEAM
    api.on("GET", "teams/acme", {**TEAM, "suspended_at": "2026-11-16T06:00:00Z", "suspended_reason": "unpaid"})
    assert "The operator has suspended acme (unpaid): its calls are refused." in acme.run("teams", "show").err


@pytest.mark.parametrize(("default", "after"), [("acme", "new"), ("beta", "beta")])
def test_rename_takes_the_default_along(api: Api, tool: Tool, default: str, after: str) -> None:
    tool.log_in(team=default)
    api.on("PATCH", "teams/acme", {**TEAM, "name": "new"})
    ran = tool.run("teams", "rename", "new", "--team", "acme")
    assert (ran.code, "name     new\n" in ran.out) == (0, True)
    assert api.requests[0].json == {"name": "new"}
    assert tool.keep.choices().team == after


def test_an_invitation_to_the_service_alone_is_accepted_with_a_message(api: Api, acme: Tool) -> None:
    api.on("POST", "invitations/accept", status=204)
    ran = acme.run("teams", "join", "tgi_x")
    assert (ran.code, ran.out) == (0, "")
    assert "tollgate teams create NAME" in ran.err


@pytest.mark.parametrize("link", [LINK, "tgi_secret"])
def test_join_sends_the_link_and_makes_the_first_team_the_default(api: Api, tool: Tool, link: str) -> None:
    tool.log_in(team=None)
    api.on("POST", "invitations/accept", {**TEAM, "role": "developer"})
    ran = tool.run("teams", "join", link)
    assert (ran.code, api.requests[0].json) == (0, {"link": link})
    assert tool.keep.choices().team == "acme"


def test_an_invitation_for_another_person_is_refused(api: Api, acme: Tool) -> None:
    api.problem("POST", "invitations/accept", 403, "invitation_for_other", "It is for eve@example.com.")
    ran = acme.run("teams", "join", "tgi_x")
    assert (ran.code, ran.err) == (5, "tollgate: It is for eve@example.com.\n")


# ---- members


def test_members_list(api: Api, acme: Tool) -> None:
    api.on("GET", f"{MEMBERS}?limit=100", page(ANN, BOB))
    ran = acme.run("teams", "members", "list")
    assert [line.split() for line in ran.out.splitlines()] == [
        ["ID", "EMAIL", "NAME", "ROLE", "SINCE"],
        ["mem_1", "ann@example.com", "Ann", "owner", "2026-11-15T06:44:44Z"],
        ["mem_2", "Bob@example.com", "Bob", "viewer", "2026-11-15T06:44:44Z"],
    ]


@pytest.mark.parametrize(
    ("mailed", "words"),
    [
        (False, "Send the link to eve@example.com: it was not mailed, and is shown only once.\n"),
        (True, "The link was mailed to eve@example.com.\n"),
    ],
)
def test_invite_prints_the_link_and_shows_whether_it_was_mailed(
    api: Api, acme: Tool, mailed: bool, words: str
) -> None:
    api.on("GET", "service", SERVICE)
    api.on("POST", "teams/acme/invitations", {**INVITATION, "link": LINK, "mailed": mailed}, status=201)
    ran = acme.run("teams", "members", "invite", "eve@example.com", "--role", "developer")
    assert (ran.code, ran.err) == (0, words)
    assert f"link     {LINK}\n" in ran.out
    assert api.requests[1].json == {"email": "eve@example.com", "role": "developer"}


def test_invite_warns_where_only_people_with_an_account_could_take_it(api: Api, acme: Tool) -> None:
    api.on("GET", "service", {**SERVICE, "sign_up": "closed"})
    api.on("POST", "teams/acme/invitations", {**INVITATION, "link": LINK, "mailed": False}, status=201)
    ran = acme.run("teams", "members", "invite", "eve@example.com", "--role", "developer")
    assert ran.code == 0
    assert "Warning: sign-up is closed" in ran.err
    assert "ask the operator to run `tollgate admin invite`" in ran.err


def test_a_replayed_invitation_without_its_link_shows_how_to_go_on(api: Api, acme: Tool) -> None:
    path = "teams/acme/invitations"
    api.on("GET", "service", SERVICE)
    api.on("POST", path, drop=True).on("POST", path, {**INVITATION, "link": None}, status=201)
    ran = acme.run("teams", "members", "invite", "eve@example.com", "--role", "developer")
    assert (ran.code, ran.out) == (1, "")
    assert "Run: tollgate teams invitations revoke inv_1 --team acme, then invite again." in ran.err


def test_remove_by_id_prompts_for_nothing_more(api: Api, acme: Tool) -> None:
    api.on("DELETE", f"{MEMBERS}/mem_2", status=204)
    ran = acme.run("teams", "members", "remove", "mem_2", "--json")
    assert (ran.code, ran.json) == (0, {"id": "mem_2", "deleted": True})


def test_remove_by_email_finds_the_member_on_any_page(api: Api, acme: Tool) -> None:
    api.on("GET", f"{MEMBERS}?limit=1000", page(ANN, after="c1"))
    api.on("GET", f"{MEMBERS}?limit=1000&after=c1", page(BOB))
    api.on("DELETE", f"{MEMBERS}/mem_2", status=204)
    ran = acme.run("teams", "members", "remove", "bob@example.com")
    assert (ran.code, ran.err) == (0, "Bob@example.com is no longer in team acme.\n")


@pytest.mark.parametrize(
    ("email", "words"),
    [
        ("anne@example.com", "anne@example.com is not in team acme. Did you mean ann@example.com?"),
        ("zoe@elsewhere.org", "zoe@elsewhere.org is not in team acme. See: tollgate teams members list"),
    ],
)
def test_an_email_that_is_not_in_the_team_is_not_found(api: Api, acme: Tool, email: str, words: str) -> None:
    api.on("GET", f"{MEMBERS}?limit=1000", page(ANN, BOB))
    ran = acme.run("teams", "members", "remove", email)
    assert (ran.code, ran.err) == (3, f"tollgate: {words}\n")


def test_removing_the_last_owner_shows_the_reason(api: Api, acme: Tool) -> None:
    api.problem("DELETE", f"{MEMBERS}/mem_1", 409, "last_owner", "Make another member an owner first.")
    assert acme.run("teams", "members", "remove", "mem_1").code == 1


@pytest.mark.e2e
def test_remove_on_a_terminal_prompts(api: Api, acme: Tool) -> None:
    api.on("GET", f"{MEMBERS}?limit=1000", page(ANN, BOB))
    with acme.terminal("teams", "members", "remove", "bob@example.com") as terminal:
        terminal.until("Remove Bob@example.com from team acme? [y/N]")
        terminal.type("n\n")
        assert terminal.end() == 1


def test_set_role(api: Api, acme: Tool) -> None:
    api.on("GET", f"{MEMBERS}?limit=1000", page(BOB))
    api.on("PATCH", f"{MEMBERS}/mem_2", {**BOB, "role": "admin"})
    ran = acme.run("teams", "members", "set-role", "BOB@EXAMPLE.COM", "admin")
    assert ran.out == "id     mem_2\nemail  Bob@example.com\nrole   admin\n"
    assert api.requests[1].json == {"role": "admin"}


# ---- invitations


def test_invitations_list(api: Api, acme: Tool) -> None:
    api.on("GET", "teams/acme/invitations?limit=100", page(INVITATION))
    ran = acme.run("teams", "invitations", "list")
    assert ran.out.splitlines()[1].split() == [
        "inv_1",
        "eve@example.com",
        "developer",
        "ann@example.com",
        "2026-11-22T06:44:44Z",
    ]


def test_invitations_revoke(api: Api, acme: Tool) -> None:
    api.on("DELETE", "teams/acme/invitations/inv_1", status=204)
    ran = acme.run("teams", "invitations", "revoke", "inv_1")
    assert (ran.code, ran.out, ran.err) == (0, "", "Invitation inv_1 is revoked.\n")


@pytest.mark.e2e
def test_invitations_revoke_on_a_terminal_prompts(api: Api, acme: Tool) -> None:
    with acme.terminal("teams", "invitations", "revoke", "inv_1") as terminal:
        terminal.until("Revoke invitation inv_1 of team acme? [y/N]")
        terminal.type("\n")
        assert terminal.end() == 1


# ---- audit

ENTRY = {
    "id": "aud_1",
    "at": "2026-11-15T06:44:44.5Z",
    "actor": "ann@example.com",
    "actor_id": "acc_1",
    "action": "token.create",
    "target": "tok_1",
    "name": "ci",
    "details": {"networks": ["eth/mainnet"]},
    "address": "192.0.2.1",
    "via": "tool",
}


def test_audit_lists_who_did_what(api: Api, acme: Tool) -> None:
    api.on("GET", "teams/acme/audit?limit=20&after=c1", page(ENTRY))
    ran = acme.run("audit", "--limit", "20", "--after", "c1")
    assert [line.split() for line in ran.out.splitlines()] == [
        ["TIME", "WHO", "ACTION", "NAME", "WHAT", "ID", "VIA", "ADDRESS"],
        [
            "2026-11-15T06:44:44Z", "ann@example.com", "token.create", "ci", "networks:", "eth/mainnet", "tok_1",
            "tool", "192.0.2.1",
        ],
    ]  # fmt: skip


def test_audit_shows_what_changed_from_what_to_what_and_is_filtered(api: Api, acme: Tool) -> None:
    details = {
        "before": {"expires_at": None, "requests_per_second": 5, "networks": [], "active": True, "cap_micros": 5},
        "after": {
            "expires_at": 1_763_189_084.5, "requests_per_second": None, "networks": ["eth/mainnet", "eth/sepolia"],
            "active": False, "cap_micros": 25_000_000,
        },
        "by": "dns",
    }  # fmt: skip
    query = (
        "limit=100&actor=ann%40example.com&action=token.update&object=ci&since=7d&until=2026-11-15T07%3A00%3A00Z"
    )
    api.on("GET", f"teams/acme/audit?{query}", page({**ENTRY, "action": "token.update", "details": details}))
    ran = acme.run(
        *("audit", "--actor", "ann@example.com", "--action", "token.update", "--object", "ci"),
        *("--since", "7d", "--until", "2026-11-15T07:00:00Z"),
    )
    assert (
        "expires: none → 2025-11-15T06:44:44Z; requests per second: 5 → none; "
        "networks: none → eth/mainnet, eth/sepolia; active: yes → no; cap: $0.000005 → $25.00; by: dns"
    ) in ran.out
    assert acme.run("audit", "--export", "--actor", "ann@example.com").code == 2


def test_audit_as_json_has_the_details(api: Api, acme: Tool) -> None:
    api.on("GET", "teams/acme/audit?limit=100", page(ENTRY, after="c2"))
    assert acme.run("audit", "--json").json == page(ENTRY, after="c2")


def test_audit_for_a_role_that_may_not_shows_which_may(api: Api, acme: Tool) -> None:
    detail = "The role developer may not read the audit log; owner and admin may."
    api.problem("GET", "teams/acme/audit?limit=100", 403, "role_needed", detail, role="developer")
    ran = acme.run("audit")
    assert (ran.code, ran.err) == (5, f"tollgate: {detail}\n")


def exported(count: int, actor: str = "ann@example.com") -> list[bytes]:
    chain, lines = AuditChain("team_1", 0.0), []
    for number in range(count):
        entry, chain = linked(AuditEntry(f"aud_{number}", 1.5, "token.create", actor), chain, b"")
        lines.append(line_of(entry))
    return lines


def on_export(api: Api, after: int, body: bytes) -> None:
    path = f"teams/acme/audit/export?after={after}&limit=1000"
    api.on("GET", path, body=body, headers={"Content-Type": "application/x-ndjson"})


def test_audit_export_prints_every_line_as_it_is(api: Api, acme: Tool) -> None:
    lines = exported(3)
    on_export(api, 0, lines[0] + lines[1])
    on_export(api, 2, lines[2])
    on_export(api, 3, b"")
    ran = acme.run("audit", "--export")
    assert (ran.code, ran.out.encode(), ran.err) == (0, b"".join(lines), "")


def test_audit_export_of_names_with_controls_is_exact_in_a_pipe_and_harmless_on_a_terminal(
    api: Api, acme: Tool
) -> None:
    lines = exported(2, "a\u2028b\x85c\x9b2J\u202ed\x1b[2J")
    on_export(api, 0, b"".join(lines))
    on_export(api, 2, b"")
    ran = acme.run("audit", "--export")
    assert (ran.code, ran.out.encode()) == (0, b"".join(lines))
    on_export(api, 0, b"".join(lines))
    on_export(api, 2, b"")
    with acme.terminal("audit", "--export") as terminal:
        assert terminal.end() == 0
    shown = terminal.seen
    assert [json.loads(line) for line in shown.splitlines()] == list(map(json.loads, lines))
    assert "a\\u2028b\\u0085c\\u009b2J\\u202ed\\u001b[2J" in shown


def test_audit_export_goes_on_after_a_number(api: Api, acme: Tool) -> None:
    lines = exported(3)
    on_export(api, 2, lines[2])
    on_export(api, 3, b"")
    assert acme.run("audit", "--export", "--after", "2").out.encode() == lines[2]
    assert acme.run("audit", "--export", "--after", "c1").code == 2


def test_audit_export_shows_where_the_chain_is_broken(api: Api, acme: Tool) -> None:
    lines = exported(3)
    on_export(api, 0, lines[0] + lines[1].replace(b"token.create", b"token.delete") + lines[2])
    ran = acme.run("audit", "--export")
    assert (ran.code, ran.out.count("\n")) == (1, 3)
    assert "entry 2: its content was changed" in ran.err
