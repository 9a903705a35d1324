"""Who may do what, cell by cell. The table is written out here: it must not come from the code that it checks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from inspect import getmembers, iscoroutinefunction, signature
from typing import Any

import pytest
from tests.control.services.harness import ACME, ALL, PEOPLE, ROLES, Harness, member_id, words

from tollgate.api.billing import BillingChange, SecretRoll
from tollgate.api.domains import DomainChange, NewDomain
from tollgate.api.logs import LogQuery
from tollgate.api.members import NewInvitation, RoleChange
from tollgate.api.teams import NewTeam, TeamChange
from tollgate.api.tokens import NewToken, Rotation, TokenChange
from tollgate.api.usage import By, Split, TimelineQuery
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import NoSuchTeam, NotFound, RoleNeeded
from tollgate.control.service_context import Actor
from tollgate.control.services import (
    audit,
    billing,
    domains,
    invitations,
    invoices,
    logs,
    teams,
    timelines,
    tokens,
    usage,
)
from tollgate.control.services.timelines import window_of
from tollgate.core.alerts import BillingSettings
from tollgate.core.models import Domain, Token
from tollgate.core.people import Invitation

Deed = Callable[[ControlPlane, Actor, str], Coroutine[Any, Any, Any]]

# What the team has before each action.
TOKEN, DOMAIN, INVITATION = "tok_held", "dom_held", "inv_held"


async def _entry(plane: ControlPlane, who: Actor, team: str) -> None:
    """Request an entry that is not there: roles that may not read logs do not learn that."""
    with suppress(NotFound):
        await plane.logs.entry(who, team, "ent_x")


WINDOW = window_of(TimelineQuery(), 1_794_736_850.0)
DEEDS: dict[str, Deed] = {
    "teams.show": lambda plane, who, team: plane.teams.show(who, team),
    "teams.update": lambda plane, who, team: plane.teams.update(who, team, TeamChange("acme-two")),
    "teams.delete": lambda plane, who, team: plane.teams.delete(who, team),
    "teams.members": lambda plane, who, team: plane.teams.members(who, team, ALL),
    "teams.set_role": lambda plane, who, team: plane.teams.set_role(
        who, team, "mem_acme_loner", RoleChange("billing")
    ),
    "teams.remove": lambda plane, who, team: plane.teams.remove(who, team, "mem_acme_loner"),
    "invitations.create": lambda plane, who, team: plane.invitations.create(
        who, team, NewInvitation("new@x.example", "viewer")
    ),
    "invitations.list": lambda plane, who, team: plane.invitations.list(who, team, ALL),
    "invitations.revoke": lambda plane, who, team: plane.invitations.revoke(who, team, INVITATION),
    "tokens.create": lambda plane, who, team: plane.tokens.create(who, team, NewToken("new")),
    "tokens.list": lambda plane, who, team: plane.tokens.list(who, team, ALL),
    "tokens.show": lambda plane, who, team: plane.tokens.show(who, team, TOKEN),
    "tokens.update": lambda plane, who, team: plane.tokens.update(who, team, TOKEN, TokenChange(active=False)),
    "tokens.playground": lambda plane, who, team: plane.tokens.playground(who, team),
    "tokens.rotate": lambda plane, who, team: plane.tokens.rotate(who, team, TOKEN, Rotation(60)),
    "tokens.delete": lambda plane, who, team: plane.tokens.delete(who, team, TOKEN),
    "domains.add": lambda plane, who, team: plane.domains.add(who, team, NewDomain("example.org")),
    "domains.list": lambda plane, who, team: plane.domains.list(who, team, ALL),
    "domains.show": lambda plane, who, team: plane.domains.show(who, team, DOMAIN),
    "domains.update": lambda plane, who, team: plane.domains.update(who, team, DOMAIN, DomainChange(active=False)),
    "domains.remove": lambda plane, who, team: plane.domains.remove(who, team, DOMAIN),
    "domains.verify": lambda plane, who, team: plane.domains.verify(who, team, DOMAIN),
    "domains.check": lambda plane, who, team: plane.domains.check(who, team, "https://example.com"),
    "audit.of_team": lambda plane, who, team: plane.audit.of_team(who, team, ALL),
    "audit.chain": lambda plane, who, team: plane.audit.chain(who, team, 0, 10),
    "logs.page": lambda plane, who, team: plane.logs.page(who, team, LogQuery()),
    "logs.entry": _entry,
    "logs.wanted": lambda plane, who, team: plane.logs.wanted(who, team, LogQuery()),
    "timelines.of_team": lambda plane, who, team: plane.timelines.of_team(who, team),
    "timelines.within": lambda plane, who, team: plane.timelines.within(who, team, WINDOW, Split.NETWORK),
    "usage.within": lambda plane, who, team: plane.usage.within(who, team, WINDOW, By.METHOD),
    "timelines.latency": lambda plane, who, team: plane.timelines.latency(who, team),
    "usage.of_team": lambda plane, who, team: plane.usage.of_team(who, team),
    "billing.show": lambda plane, who, team: plane.billing.show(who, team),
    "billing.roll": lambda plane, who, team: plane.billing.roll(who, team, SecretRoll()),
    "billing.change": lambda plane, who, team: plane.billing.change(
        who, team, BillingChange(spending_cap_micros=5)
    ),
    "invoices.list": lambda plane, who, team: plane.invoices.list(who, team, ALL),
    "invoices.show": lambda plane, who, team: plane.invoices.show(who, team, "2026-11"),
}

# x: may; -: may not, and is shown which roles may.
TABLE = """
                     owner  admin  developer  billing  viewer
teams.show             x      x        x         x       x
teams.update           x      x        -         -       -
teams.delete           x      -        -         -       -
teams.members          x      x        x         x       x
teams.set_role         x      x        -         -       -
teams.remove           x      x        -         -       -
invitations.create     x      x        -         -       -
invitations.list       x      x        -         -       -
invitations.revoke     x      x        -         -       -
tokens.create          x      x        x         -       -
tokens.list            x      x        x         x       x
tokens.show            x      x        x         x       x
tokens.update          x      x        x         -       -
tokens.playground      x      x        x         -       -
tokens.rotate          x      x        x         -       -
tokens.delete          x      x        x         -       -
domains.add            x      x        x         -       -
domains.list           x      x        x         x       x
domains.show           x      x        x         x       x
domains.update         x      x        x         -       -
domains.remove         x      x        x         -       -
domains.verify         x      x        x         -       -
domains.check          x      x        x         x       x
audit.of_team          x      x        -         -       -
audit.chain            x      x        -         -       -
logs.page              x      x        x         -       x
logs.entry             x      x        x         -       x
logs.wanted            x      x        x         -       x
timelines.of_team      x      x        x         x       x
timelines.latency      x      x        x         x       x
timelines.within       x      x        x         x       x
usage.within           x      x        x         x       x
usage.of_team          x      x        x         x       x
billing.show           x      x        -         x       -
billing.roll           x      x        -         x       -
billing.change         x      x        -         x       -
invoices.list          x      x        -         x       -
invoices.show          x      x        -         x       -
"""
ROWS = [line.split() for line in TABLE.strip().splitlines()]
MARKS = {name: dict(zip(ROWS[0], marks, strict=True)) for name, *marks in ROWS[1:]}
CELLS = [(name, role) for name in MARKS for role in ROLES]


@pytest.fixture(autouse=True)
def things(harness: Harness) -> None:
    """What acme has, and a member whom all roles that change members may change."""
    harness.joins("loner", "viewer")
    harness.proofs.proven.add(("example.com", ACME.id))

    async def add() -> None:
        now = harness.clock.now
        async with harness.store.changing() as records:
            await records.tokens.add(Token(TOKEN, ACME.id, "held", "tg_abcde", now), digest=b"t" * 32)
            await records.domains.add(Domain(DOMAIN, ACME.id, "example.com", now))
            await records.billing.add(BillingSettings(ACME.id, now, "https://hooks.example/", "salt"))
            await records.invitations.add(
                Invitation(INVITATION, "held@x.example", b"i" * 32, now, now + 60, team_id=ACME.id, role="viewer")
            )

    harness.do(add())


def test_table_and_actions_name_the_same_methods() -> None:
    assert set(MARKS) == set(DEEDS)


def test_every_method_with_a_team_is_in_the_table() -> None:
    services = {
        "teams": teams.Teams, "invitations": invitations.Invitations, "tokens": tokens.TokenService,
        "domains": domains.Domains, "audit": audit.Audit, "logs": logs.LogService, "usage": usage.Usages,
        "billing": billing.BillingService, "invoices": invoices.Invoices, "timelines": timelines.Timelines,
    }  # fmt: skip
    found = {
        f"{name}.{method}"
        for name, service in services.items()
        for method, function in getmembers(service, iscoroutinefunction)
        if not method.startswith("_") and "actor" in signature(function).parameters
        and signature(function).parameters.get("team") is not None
        and "records" not in signature(function).parameters
    }  # fmt: skip
    # The operator's own: it is not served over HTTP.
    assert found - {"invitations.create_by_operator"} == set(DEEDS)


@pytest.mark.parametrize(("name", "role"), CELLS)
def test_role(harness: Harness, plane: ControlPlane, name: str, role: str) -> None:
    deed = DEEDS[name](plane, harness.actor(role), "acme")
    if MARKS[name][role] == "x":
        harness.do(deed)
        return
    problem = harness.refused(RoleNeeded, deed)
    holders = [each for each in ROLES if MARKS[name][each] == "x"]
    assert problem.extras == {"role": role, "roles": holders}
    assert problem.status == 403
    assert problem.detail.endswith(f"you are {role}.")
    assert all(holder in problem.detail for holder in holders)
    assert harness.notes() == []


@pytest.mark.parametrize("who", ["outsider", "loner"])
@pytest.mark.parametrize("name", DEEDS)
def test_unknown_and_foreign_teams_get_the_same_error(
    harness: Harness, plane: ControlPlane, name: str, who: str
) -> None:
    harness.write(lambda records: records.members.remove(id="mem_acme_loner"))
    actor = harness.actor(who)
    foreign = harness.refused(NoSuchTeam, DEEDS[name](plane, actor, "acme"))
    unknown = harness.refused(NoSuchTeam, DEEDS[name](plane, actor, "acne"))
    assert words(foreign)[2].replace("acme", "acne") == words(unknown)[2]
    assert foreign.extras | {"team": "acne"} == unknown.extras
    by_id = harness.refused(NoSuchTeam, DEEDS[name](plane, actor, ACME.id))
    unknown_id = harness.refused(NoSuchTeam, DEEDS[name](plane, actor, "team_acme000000001"))
    assert by_id.detail.replace(ACME.id, "team_acme000000001") == unknown_id.detail
    assert harness.notes() == []
    assert harness.proofs.looks == []


def test_refusal_of_a_team_reveals_nothing_about_it(harness: Harness, plane: ControlPlane) -> None:
    problem = harness.refused(NoSuchTeam, plane.teams.show(harness.actor("outsider"), "acme"))
    assert words(problem) == (
        403,
        "no_such_team",
        'There is no team "acme" that you belong to. List yours with: tollgate teams list',
        {"team": "acme"},
    )


def test_suggestion_comes_from_ones_own_teams_alone(harness: Harness, plane: ControlPlane) -> None:
    member, outsider = harness.actor("viewer"), harness.actor("outsider")
    assert harness.refused(NoSuchTeam, plane.teams.show(member, "acmee")).extras["suggestion"] == "acme"
    assert harness.refused(NoSuchTeam, plane.teams.show(member, "ACME")).extras["suggestion"] == "acme"
    assert "suggestion" not in harness.refused(NoSuchTeam, plane.teams.show(outsider, "acmee")).extras
    # The nearest of one's own, though another's fits better.
    harness.do(plane.teams.create(outsider, NewTeam("acmes-rival")))
    problem = harness.refused(NoSuchTeam, plane.teams.show(outsider, "acmes-riva"))
    assert problem.detail == 'There is no team "acmes-riva" that you belong to. Did you mean "acmes-rival"?'


def test_teams_are_found_by_name_and_by_id(harness: Harness, plane: ControlPlane) -> None:
    viewer = harness.actor("viewer")
    assert harness.do(plane.teams.show(viewer, "acme")) == harness.do(plane.teams.show(viewer, ACME.id))


def test_person_without_an_account_is_no_member(harness: Harness, plane: ControlPlane) -> None:
    harness.refused(NoSuchTeam, plane.teams.show(Actor(None), "acme"))


@pytest.mark.parametrize("team", ["", "_", "x" * 10_000, "acme'--", "\x00", "ä", "\N{ZERO WIDTH SPACE}acme"])
def test_malformed_team_names_are_unknown_teams(harness: Harness, plane: ControlPlane, team: str) -> None:
    problem = harness.refused(NoSuchTeam, plane.teams.show(harness.actor("owner"), team))
    assert len(problem.detail) < 200


@pytest.mark.parametrize(("deed", "held"), [("tokens", TOKEN), ("domains", DOMAIN)])
def test_things_of_another_team_are_not_found_in_ones_own(
    harness: Harness, plane: ControlPlane, deed: str, held: str
) -> None:
    outsider = harness.actor("outsider")
    service = getattr(plane, deed)
    mine = harness.refused(NotFound, service.show(outsider, "rival", held))
    missing = harness.refused(NotFound, service.show(outsider, "rival", held + "x"))
    assert mine.detail.replace(held, held + "x") == missing.detail
    changes = {"tokens": TokenChange(active=False), "domains": DomainChange(active=False)}[deed]
    harness.refused(NotFound, service.update(outsider, "rival", held, changes))
    remove = plane.tokens.delete if deed == "tokens" else plane.domains.remove
    harness.refused(NotFound, remove(outsider, "rival", held))
    harness.refused(NotFound, plane.invitations.revoke(outsider, "rival", INVITATION))
    harness.refused(NotFound, plane.teams.remove(outsider, "rival", member_id("viewer")))
    harness.refused(NotFound, plane.teams.set_role(outsider, "rival", member_id("viewer"), RoleChange("owner")))
    assert harness.notes() == []


def test_emails_of_people_are_for_members_alone(harness: Harness, plane: ControlPlane) -> None:
    page = harness.do(plane.teams.members(harness.actor("viewer"), "acme", ALL))
    assert [person.account.email for person in page.items] == [PEOPLE[who] for who in (*ROLES, "loner")]
    rivals = harness.do(plane.teams.members(harness.actor("outsider"), "rival", ALL))
    assert [person.account.email for person in rivals.items] == [PEOPLE["outsider"]]
