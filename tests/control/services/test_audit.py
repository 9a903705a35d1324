"""The audit log: every change leaves one entry that shows who, what, when and from where, and never a secret."""

from __future__ import annotations

import asyncio
import re
from inspect import getmembers, iscoroutinefunction

import pytest
from tests.control.services.everything import Everything
from tests.control.services.harness import ACME, ALL, ELSEWHERE, PEOPLE, VISIT, Harness

from tollgate.api.teams import NewTeam
from tollgate.api.tokens import NewToken
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import InvalidInput
from tollgate.control.service_context import Actor, ClientInfo, PageRequest
from tollgate.core.audit_chain import fault_of, shown
from tollgate.core.people import PERSONAL, Login

# What each step records: action, whose log, by whom, from where, by which way in.
OWNER, OUTSIDER = PEOPLE["owner"], PEOPLE["outsider"]
HERE, THERE, MACHINE = VISIT.address, ELSEWHERE.address, ""
NOTED: dict[str, tuple[str, str | None, str, str, str]] = {
    "admin.create_account": ("account.create", None, "operator", MACHINE, "operator"),
    "admin.mark": ("account.operator", None, "operator", MACHINE, "operator"),
    "operator.set_terms": ("team.terms", "acme", PEOPLE["admin"], HERE, "console"),
    "admin.switch": ("account.disable", None, "operator", MACHINE, "operator"),
    "accounts.sign_up": ("account.create", None, "up@x.example", HERE, "console"),
    "accounts.sign_up_invited": ("account.create", None, "in@x.example", HERE, "console"),
    "accounts.update": ("account.rename", None, PEOPLE["viewer"], HERE, "console"),
    "accounts.by_provider (known address)": ("account.link", None, PEOPLE["viewer"], HERE, "console"),
    "accounts.by_provider (new)": ("account.create", None, "idp@x.example", HERE, "console"),
    "accounts.delete": ("account.delete", None, PEOPLE["viewer"], HERE, "console"),
    "accounts.change_password": ("account.password", None, OWNER, HERE, "console"),
    "accounts.reset_link": ("account.reset_link", None, "operator", MACHINE, "operator"),
    "accounts.forgot": ("account.reset_link", None, OWNER, THERE, "console"),
    "accounts.reset": ("account.password", None, OWNER, HERE, "console"),
    "email_changes.request": ("account.email", None, "new@x.example", HERE, "console"),
    "email_changes.confirm": ("account.email", None, PEOPLE["billing"], HERE, "console"),
    "logins.open_session": ("login.open", None, OWNER, HERE, "console"),
    "logins.new_personal": ("personal_token.create", None, OWNER, HERE, "console"),
    "logins.end": ("login.end", None, OWNER, HERE, "console"),
    "logins.revoke": ("login.end", None, OWNER, THERE, "tool"),
    "devices.approve": ("login.approved", None, OWNER, HERE, "console"),
    "devices.deny": ("login.denied", None, OWNER, HERE, "console"),
    "devices.poll": ("login.open", None, OWNER, THERE, "tool"),
    "teams.create": ("team.create", "nova", OWNER, HERE, "console"),
    "teams.delete": ("team.delete", "nova", OWNER, HERE, "console"),
    "teams.update": ("team.rename", "acme", OWNER, HERE, "console"),
    "teams.set_role": ("member.role", "acme", OWNER, HERE, "console"),
    "teams.remove": ("member.remove", "acme", OWNER, HERE, "console"),
    "invitations.create": ("invitation.create", "acme", OWNER, HERE, "console"),
    "invitations.create_by_operator": ("invitation.create", None, "operator", MACHINE, "operator"),
    "invitations.revoke": ("invitation.revoke", "acme", OWNER, HERE, "console"),
    "invitations.accept (team)": ("member.add", "acme", PEOPLE["loner"], HERE, "console"),
    "invitations.accept (service)": ("invitation.accept", None, "in@x.example", HERE, "console"),
    "tokens.create": ("token.create", "acme", OWNER, HERE, "console"),
    "tokens.update": ("token.update", "acme", OWNER, HERE, "console"),
    "tokens.playground": ("playground.create", "acme", OWNER, HERE, "console"),
    "tokens.rotate": ("token.rotate", "acme", OWNER, HERE, "console"),
    "tokens.delete": ("token.delete", "acme", OWNER, HERE, "console"),
    "domains.add": ("domain.add", "acme", OWNER, HERE, "console"),
    "domains.update": ("domain.update", "acme", OWNER, HERE, "console"),
    "domains.verify": ("domain.verify", "acme", OWNER, HERE, "console"),
    "domains.remove": ("domain.remove", "acme", OWNER, HERE, "console"),
    "domains.add (take over)": ("domain.add", "acme", OWNER, HERE, "console"),
    "billing.change": ("billing.change", "acme", OWNER, HERE, "console"),
    "billing.roll": ("webhook.roll", "acme", OWNER, HERE, "console"),
}
# These change no resource: they read, count, or renew a credential.
SILENT = {
    "accounts.by_provider (known subject)", "accounts.check_password", "accounts.find",
    "email_changes.request (mailed)",
    "accounts.account_of_reset", "admin.accounts", "logins.actor", "logins.list", "logins.refresh",
    "devices.start", "devices.look", "teams.list", "teams.show", "teams.members",
    "invitations.request_link", "invitations.list", "invitations.look", "tokens.list", "tokens.show",
    "domains.list", "domains.show",
    "domains.check", "audit.of_team", "audit.chain", "audit.of_self", "replays.begin", "replays.finish",
    "replays.abandon", "sweep.run", "logs.page", "usage.of_team", "billing.show", "invoices.list", "invoices.show",
    "invoices.close_due",
    "logs.wanted", "logs.newest", "logs.fresh", "timelines.of_team", "timelines.within",
    "usage.within", "timelines.latency",
    "networks.list", "networks.status", "operator.upstreams", "operator.teams", "operator.history",
    "operator.processes", "operator.spool", "operator.nodes", "operator.team", "operator.usage",
    "operator.team_usage",
}  # fmt: skip
SERVICES = (
    "accounts", "admin", "logins", "devices", "teams", "invitations", "tokens", "domains", "audit", "replays",
    "sweep", "logs", "usage", "billing", "invoices", "timelines", "networks", "operator",
    "email_changes",
)  # fmt: skip
# Steps of others, inside a transaction of theirs.
INNER = {
    "accounts.add", "teams.add", "teams.add_member", "tokens.add", "logins.issue", "logins.add_personal",
    "billing.settings_of", "usage.of_any_team", "accounts.check_own_password",
    # By the seal of an entry: `tests/control/api/test_logs.py`.
    "logs.entry",
    # It needs a machine: `tests/processes/test_inspector.py`.
    "operator.examine",
}  # fmt: skip


def test_walk_covers_every_method(everything: Everything) -> None:
    found = {
        f"{name}.{method}"
        for name in SERVICES
        for method, _ in getmembers(type(getattr(everything.plane, name)), iscoroutinefunction)
        if not method.startswith("_")
    }
    assert {name.partition(" ")[0] for name in everything.noted} == found - INNER
    assert set(everything.noted) == set(NOTED) | SILENT


def test_every_change_leaves_exactly_one_fitting_entry(everything: Everything) -> None:
    teams = {"acme": ACME.id, "nova": everything.noted["teams.create"][0].target, None: None}
    found = {}
    for name, entries in everything.noted.items():
        # A take-over is noted in both teams' logs, another address in those of all teams.
        mine = [entry for entry in entries if entry.action not in {"domain.lost", "member.email"}]
        assert len(mine) == (0 if name in SILENT else 1), (name, entries)
        for entry in mine:
            found[name] = (entry.action, entry.team_id, entry.actor, entry.address, entry.via)
    assert found == {
        name: (action, teams[team], actor, address, via)
        for name, (action, team, actor, address, via) in NOTED.items()
    }
    lost = everything.noted["domains.add (take over)"][0]
    assert (lost.action, lost.team_id) == ("domain.lost", "team_rival00000000")


def test_every_entry_shows_when_by_which_request_and_to_what(everything: Everything) -> None:
    entries = everything.harness.notes()
    assert len(entries) > 30
    times = [entry.created_at for entry in entries]
    assert times == sorted(times)
    by_address = {HERE: VISIT.request_id, THERE: ELSEWHERE.request_id, MACHINE: ""}
    for entry in entries:
        assert entry.request_id == by_address[entry.address]
        assert re.fullmatch(r"(acc|log|dev|team|mem|inv|tok|dom)_\w+", entry.target), entry
        assert entry.name
        assert (entry.actor_id is None) is (entry.actor in {"operator", "another team"})


def test_no_entry_holds_a_secret(everything: Everything) -> None:
    text = "\n".join(str(entry) for entry in everything.harness.notes())
    assert len(everything.secrets) >= 25
    assert [secret for secret in everything.secrets if secret in text] == []
    assert re.search(r"tg[a-z]?_\w{9}", text) is None
    assert "$argon2" not in text


# --- Reading it ----------------------------------------------------------------------------------------


def test_team_reads_its_own_entries_newest_first_page_by_page(harness: Harness, plane: ControlPlane) -> None:
    owner = harness.actor("owner")
    for number in range(5):
        harness.clock.advance(1)
        harness.do(plane.tokens.create(owner, "acme", NewToken(name=f"n{number}")))
    harness.do(plane.tokens.create(harness.actor("outsider"), "rival", NewToken(name="theirs")))
    found: list[str] = []
    after: str | None = None
    for _ in range(3):
        page = harness.do(plane.audit.of_team(harness.actor("admin"), "acme", PageRequest(2, after)))
        found += [entry.name for entry in page.items]
        after = page.next
    assert (found, after) == (["n4", "n3", "n2", "n1", "n0"], None)


def test_new_entries_do_not_shift_the_pages(harness: Harness, plane: ControlPlane) -> None:
    owner = harness.actor("owner")
    for name in ("a", "b", "c"):
        harness.clock.advance(1)
        harness.do(plane.tokens.create(owner, "acme", NewToken(name=name)))
    first = harness.do(plane.audit.of_team(owner, "acme", PageRequest(1)))
    harness.clock.advance(1)
    harness.do(plane.tokens.create(owner, "acme", NewToken(name="d")))
    rest = harness.do(plane.audit.of_team(owner, "acme", PageRequest(10, first.next)))
    assert [entry.name for entry in first.items + rest.items] == ["c", "b", "a"]


def test_account_reads_its_own_actions_and_no_others(harness: Harness, plane: ControlPlane) -> None:
    for who, name in (("owner", "a"), ("admin", "b"), ("owner", "c")):
        harness.clock.advance(1)
        harness.do(plane.tokens.create(harness.actor(who), "acme", NewToken(name=name)))
    owner = harness.actor("owner")
    first = harness.do(plane.audit.of_self(owner, PageRequest(1)))
    rest = harness.do(plane.audit.of_self(owner, PageRequest(1, first.next)))
    assert [entry.name for entry in first.items + rest.items] == ["c", "a"]
    assert rest.next is None
    assert harness.do(plane.audit.of_self(harness.actor("viewer"), ALL)).items == []
    harness.refused(InvalidInput, plane.audit.of_self(harness.actor("admin"), PageRequest(1, first.next)))


@pytest.mark.parametrize("after", ["", "x", "ä", "e30", "W10", "x" * 1_000])
def test_made_up_cursors_are_refused(harness: Harness, plane: ControlPlane, after: str) -> None:
    problem = harness.refused(
        InvalidInput, plane.audit.of_team(harness.actor("owner"), "acme", PageRequest(10, after))
    )
    assert problem.extras == {"field": "after"}
    assert "Give the `next` of an earlier page" in problem.detail


def test_program_is_recorded_by_the_name_of_its_token(harness: Harness, plane: ControlPlane) -> None:
    account = harness.account("owner")
    login = Login("log_1", account.id, PERSONAL, "deploy bot", 0.0, b"d" * 32)
    actor = Actor(account, login, ClientInfo("2001:db8::1", "", "req-9"))
    harness.do(plane.tokens.create(actor, "acme", NewToken(name="ci")))
    [entry] = harness.do(plane.audit.of_team(actor, "acme", ALL)).items
    assert (entry.actor, entry.via, entry.address, entry.request_id) == (
        OWNER, "personal:deploy bot", "2001:db8::1", "req-9"
    )  # fmt: skip


def test_refused_action_is_not_recorded(harness: Harness, plane: ControlPlane) -> None:
    harness.refused(InvalidInput, plane.tokens.create(harness.actor("owner"), "acme", NewToken(name="")))
    harness.refused(InvalidInput, plane.teams.create(harness.actor("owner"), NewTeam("A")))
    assert harness.notes() == []


# --- The chain -----------------------------------------------------------------------------------------


def test_every_entry_is_chained_to_the_one_before_of_its_team(everything: Everything) -> None:
    entries = everything.harness.notes()
    ends = {}
    for chain in {entry.chain for entry in entries}:
        before = None
        mine = sorted((entry for entry in entries if entry.chain == chain), key=lambda entry: entry.number)
        assert [entry.number for entry in mine] == list(range(1, len(mine) + 1))
        assert {entry.team_id for entry in mine} == {None if chain == "service" else chain}
        for line in map(shown, mine):
            assert fault_of(line, before) is None
            before = line
        ends[chain] = (len(mine), mine[-1].hash)
    assert {"service", ACME.id} < set(ends)
    chains = everything.harness.write(lambda records: records.audit_chains.page(100))
    assert {each.id: (each.count, each.hash) for each in chains} == ends


def test_writers_at_the_same_time_make_one_chain(harness: Harness, plane: ControlPlane) -> None:
    owner = harness.actor("owner")

    async def together() -> None:
        settings = [NewToken(name=f"n{number}") for number in range(20)]
        await asyncio.gather(*(plane.tokens.create(owner, "acme", each) for each in settings))

    harness.do(together())
    entries = harness.do(plane.audit.chain(harness.actor("owner"), "acme", 0, 100))
    assert [entry.number for entry in entries] == list(range(1, 21))


def test_chain_goes_on_after_its_entries_were_swept(harness: Harness, plane: ControlPlane) -> None:
    owner = harness.actor("owner")
    harness.do(plane.tokens.create(owner, "acme", NewToken(name="a")))
    harness.do(plane.tokens.create(owner, "acme", NewToken(name="b")))
    first = harness.do(plane.audit.chain(owner, "acme", 0, 100))
    harness.clock.advance(401 * 86_400)
    harness.do(plane.sweep.run())
    assert harness.do(plane.audit.chain(owner, "acme", 0, 100)) == []
    harness.do(plane.tokens.create(owner, "acme", NewToken(name="c")))
    [entry] = harness.do(plane.audit.chain(owner, "acme", 0, 100))
    assert (entry.number, entry.previous) == (3, first[1].hash)
