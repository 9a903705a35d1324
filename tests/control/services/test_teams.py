"""Teams: names, lists, renaming. Who may do it is in test_roles.py, owners are in test_owners.py."""

from __future__ import annotations

import pytest
from tests.control.services.harness import ACME, ALL, PEOPLE, ROLES, Harness, details_of

from tollgate.api.teams import NewTeam, TeamChange
from tollgate.api.tokens import NewToken
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import (
    ChangedMeanwhile,
    InvalidInput,
    LimitReached,
    NameTaken,
    NoSuchTeam,
    PersonalTokenRefused,
)
from tollgate.control.service_context import PageRequest
from tollgate.control.versions import version_of


def test_creator_of_a_team_owns_it(harness: Harness, plane: ControlPlane) -> None:
    membership = harness.do(plane.teams.create(harness.actor("loner"), NewTeam("nova")))
    assert (membership.team.name, membership.role, membership.member.account_id) == ("nova", "owner", "acc_loner")
    assert membership.team.id.startswith("team_")
    assert harness.do(plane.teams.show(harness.actor("loner"), "nova")) == membership
    [entry] = harness.notes()
    assert (entry.action, entry.team_id, entry.target, entry.name) == (
        "team.create", membership.team.id, membership.team.id, "nova"
    )  # fmt: skip
    assert details_of(entry) == {"owner": PEOPLE["loner"]}


@pytest.mark.parametrize("name", ["ab", "a-b", "0x", "--", "x" * 40])
def test_valid_team_names_are_accepted(harness: Harness, plane: ControlPlane, name: str) -> None:
    assert harness.do(plane.teams.create(harness.actor("loner"), NewTeam(name))).team.name == name


@pytest.mark.parametrize("name", ["", "a", "Acme", "a b", "a_b", "x" * 41, "ä-b", "ab\n", " ab", "team_acme"])
def test_invalid_team_name_is_refused(harness: Harness, plane: ControlPlane, name: str) -> None:
    for deed in (
        plane.teams.create(harness.actor("loner"), NewTeam(name)),
        plane.teams.update(harness.actor("owner"), "acme", TeamChange(name)),
    ):
        problem = harness.refused(InvalidInput, deed)
        assert problem.extras == {"field": "name"}
        assert problem.detail == "`name` is 2 to 40 characters of a-z, 0-9 and hyphens."


def test_name_is_taken_once_even_at_once(harness: Harness, plane: ControlPlane) -> None:
    problem = harness.refused(NameTaken, plane.teams.create(harness.actor("loner"), NewTeam("acme")))
    assert (problem.status, problem.extras) == (409, {"field": "name"})
    actors = [harness.actor(who) for who in ("loner", "owner", "viewer")]
    results = harness.at_once(*(plane.teams.create(actor, NewTeam("nova")) for actor in actors))
    assert sum(isinstance(result, NameTaken) for result in results) == 2
    assert harness.actions() == ["team.create"]


def test_owned_teams_of_an_account_are_bounded(harness: Harness) -> None:
    plane = harness.choose(teams_per_account=2)
    actor = harness.actor("viewer")  # belongs to acme, but owns nothing
    for name in ("one", "two"):
        harness.do(plane.teams.create(actor, NewTeam(name)))
    problem = harness.refused(LimitReached, plane.teams.create(actor, NewTeam("three")))
    assert problem.extras == {"limit": 2}
    results = harness.at_once(*(plane.teams.create(harness.actor("loner"), NewTeam(f"n-{n}")) for n in range(5)))
    assert sum(isinstance(result, LimitReached) for result in results) == 3


def test_account_lists_its_own_teams_page_by_page(harness: Harness, plane: ControlPlane) -> None:
    actor = harness.actor("viewer")
    names = ["zeta", "beta", "eta"]
    for name in names:
        harness.clock.advance(1)
        harness.do(plane.teams.create(actor, NewTeam(name)))
    first = harness.do(plane.teams.list(actor, PageRequest(2)))
    rest = harness.do(plane.teams.list(actor, PageRequest(2, first.next)))
    listed = [(each.team.name, each.role) for each in first.items + rest.items]
    assert listed == [("acme", "viewer"), *((name, "owner") for name in names)]
    assert rest.next is None
    assert harness.do(plane.teams.list(harness.actor("loner"), ALL)).items == []


def test_renamed_team_is_found_by_its_new_name_alone(harness: Harness, plane: ControlPlane) -> None:
    owner = harness.actor("owner")
    membership = harness.do(plane.teams.update(owner, "acme", TeamChange("acme-two")))
    assert (membership.team.id, membership.team.name) == (ACME.id, "acme-two")
    assert harness.refused(NoSuchTeam, plane.teams.show(owner, "acme")).extras["suggestion"] == "acme-two"
    assert harness.do(plane.teams.show(owner, ACME.id)).team.name == "acme-two"
    [entry] = harness.notes()
    assert (entry.action, entry.name) == ("team.rename", "acme-two")
    assert details_of(entry) == {"before": {"name": "acme"}, "after": {"name": "acme-two"}}
    # The old name is free again.
    harness.do(plane.teams.create(harness.actor("loner"), NewTeam("acme")))


def test_team_is_not_renamed_to_a_name_that_is_taken(harness: Harness, plane: ControlPlane) -> None:
    harness.refused(NameTaken, plane.teams.update(harness.actor("owner"), "acme", TeamChange("rival")))
    assert harness.do(plane.teams.show(harness.actor("owner"), "acme")).team.name == "acme"
    assert harness.notes() == []


def test_rename_honours_the_version(harness: Harness, plane: ControlPlane) -> None:
    owner = harness.actor("owner")
    seen = version_of(harness.do(plane.teams.show(owner, "acme")).team)
    harness.do(plane.teams.update(owner, "acme", TeamChange("acme-two"), seen))
    problem = harness.refused(
        ChangedMeanwhile, plane.teams.update(owner, "acme-two", TeamChange("acme-three"), seen)
    )
    assert problem.status == 412
    harness.do(plane.teams.update(owner, "acme-two", TeamChange("acme-three"), "*"))


def test_members_are_listed_page_by_page_in_the_order_of_joining(harness: Harness, plane: ControlPlane) -> None:
    viewer = harness.actor("viewer")
    found, after = [], None
    while True:
        page = harness.do(plane.teams.members(viewer, "acme", PageRequest(2, after)))
        found += page.items
        if page.next is None:
            break
        after = page.next
    assert [person.account.email for person in found] == [PEOPLE[role] for role in ROLES]
    assert [person.member.role for person in found] == list(ROLES)
    harness.refused(InvalidInput, plane.teams.members(harness.actor("outsider"), "rival", PageRequest(2, after)))


def test_emptied_page_is_a_page(harness: Harness, plane: ControlPlane) -> None:
    page = harness.do(plane.tokens.list(harness.actor("viewer"), "acme", PageRequest(1)))
    assert (page.items, page.next) == ([], None)


def test_team_is_deleted_with_all_that_it_has_by_a_person_alone(harness: Harness, plane: ControlPlane) -> None:
    owner, (program, _) = harness.actor("owner"), harness.program("owner")
    harness.do(plane.tokens.create(owner, "acme", NewToken(name="web")))
    harness.refused(PersonalTokenRefused, plane.teams.delete(program, "acme"))
    harness.do(plane.teams.delete(owner, "acme"))
    harness.refused(NoSuchTeam, plane.teams.show(owner, "acme"))
    for rows in ("tokens", "members"):
        assert harness.write(lambda records, rows=rows: getattr(records, rows).count(team_id=ACME.id)) == 0  # type: ignore[misc]
    entry = harness.notes()[-1]
    assert (entry.action, entry.team_id, entry.name) == ("team.delete", ACME.id, "acme")
