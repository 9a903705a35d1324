"""Owners: only an owner touches them, and a team is never without one."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest
from tests.control.services.house import ACME, ALL, House, details_of, member_id

from tollgate.control.plane import ControlPlane
from tollgate.control.problems import InvalidInput, LastOwner, NoSuchTeam, NotFound, RoleNeeded
from tollgate.store import sqlite


def owners(house: House) -> list[str]:
    members = house.write(lambda records: records.members.page(100, team_id=ACME.id, role="owner"))
    return [member.account_id for member in members]


# --- Admins and owners ---------------------------------------------------------------------------------


def test_admin_cannot_invite_an_owner(house: House, plane: ControlPlane) -> None:
    problem = house.refused(
        RoleNeeded, plane.invitations.create(house.actor("admin"), "acme", "new@x.example", "owner")
    )
    assert problem.extras == {"role": "admin", "roles": ["owner"]}


def test_admin_cannot_make_an_owner(house: House, plane: ControlPlane) -> None:
    admin = house.actor("admin")
    for who in ("viewer", "admin"):
        problem = house.refused(RoleNeeded, plane.teams.set_role(admin, "acme", member_id(who), "owner"))
        assert problem.extras["roles"] == ["owner"]
    assert owners(house) == ["acc_owner"]


def test_admin_cannot_demote_or_remove_an_owner_even_where_there_are_two(
    house: House, plane: ControlPlane
) -> None:
    admin = house.actor("admin")
    house.joins("loner", "owner")
    house.refused(RoleNeeded, plane.teams.set_role(admin, "acme", member_id("owner"), "viewer"))
    house.refused(RoleNeeded, plane.teams.remove(admin, "acme", member_id("owner")))
    assert len(owners(house)) == 2


def test_admin_cannot_withdraw_or_replace_the_invitation_of_an_owner(house: House, plane: ControlPlane) -> None:
    owner, admin = house.actor("owner"), house.actor("admin")
    made = house.do(plane.invitations.create(owner, "acme", "new@x.example", "owner"))
    house.refused(RoleNeeded, plane.invitations.revoke(admin, "acme", made.invitation.id))
    house.refused(RoleNeeded, plane.invitations.create(admin, "acme", "new@x.example", "viewer"))
    assert house.do(plane.invitations.look(made.link))[0].role == "owner"
    house.do(plane.invitations.revoke(owner, "acme", made.invitation.id))


@pytest.mark.parametrize("role", ["admin", "developer", "billing", "viewer"])
def test_admin_gives_and_takes_all_other_roles(house: House, plane: ControlPlane, role: str) -> None:
    admin = house.actor("admin")
    house.joins("loner", role)
    for new in ("admin", "developer", "billing", "viewer"):
        person = house.do(plane.teams.set_role(admin, "acme", "mem_acme_loner", new))
        assert (person.member.role, person.account.id) == (new, "acc_loner")
    house.do(plane.teams.remove(admin, "acme", "mem_acme_loner"))


def test_admin_may_step_down_and_cannot_step_up_again(house: House, plane: ControlPlane) -> None:
    admin = house.actor("admin")
    house.do(plane.teams.set_role(admin, "acme", member_id("admin"), "viewer"))
    house.refused(RoleNeeded, plane.teams.set_role(admin, "acme", member_id("admin"), "admin"))


def test_owner_makes_owners_and_changes_them(house: House, plane: ControlPlane) -> None:
    owner = house.actor("owner")
    house.do(plane.teams.set_role(owner, "acme", member_id("viewer"), "owner"))
    assert set(owners(house)) == {"acc_owner", "acc_viewer"}
    house.do(plane.teams.set_role(house.actor("viewer"), "acme", member_id("owner"), "billing"))
    assert owners(house) == ["acc_viewer"]
    last = house.notes()[-1]
    assert (last.action, last.actor, last.name) == ("member.role", "viewer@acme.example", "owner@acme.example")
    assert details_of(last) == {"before": {"role": "owner"}, "after": {"role": "billing"}}


# --- The last one --------------------------------------------------------------------------------------


def test_last_owner_cannot_leave_be_removed_or_demoted(house: House, plane: ControlPlane) -> None:
    owner = house.actor("owner")
    problem = house.refused(LastOwner, plane.teams.remove(owner, "acme", member_id("owner")))
    assert (problem.status, problem.detail) == (409, "A team needs an owner: make another member owner first.")
    for role in ("admin", "viewer"):
        house.refused(LastOwner, plane.teams.set_role(owner, "acme", member_id("owner"), role))
    assert owners(house) == ["acc_owner"]
    assert house.notes() == []


def test_last_owner_may_be_made_owner_again(house: House, plane: ControlPlane) -> None:
    person = house.do(plane.teams.set_role(house.actor("owner"), "acme", member_id("owner"), "owner"))
    assert person.member.role == "owner"


def test_of_two_owners_one_may_leave(house: House, plane: ControlPlane) -> None:
    other = house.joins("loner", "owner")
    house.do(plane.teams.remove(house.actor("owner"), "acme", member_id("owner")))
    house.refused(LastOwner, plane.teams.remove(house.actor("loner"), "acme", other))
    assert owners(house) == ["acc_loner"]


def test_of_two_owners_one_may_remove_or_demote_the_other(house: House, plane: ControlPlane) -> None:
    other = house.joins("loner", "owner")
    house.do(plane.teams.set_role(house.actor("owner"), "acme", other, "viewer"))
    house.do(plane.teams.set_role(house.actor("owner"), "acme", other, "owner"))
    house.do(plane.teams.remove(house.actor("owner"), "acme", other))
    assert owners(house) == ["acc_owner"]


def test_owner_of_another_team_does_not_count(house: House, plane: ControlPlane) -> None:
    house.refused(LastOwner, plane.teams.remove(house.actor("stranger"), "rival", member_id("stranger")))


@pytest.mark.parametrize("deed", ["step down", "leave", "remove each other"])
def test_two_owners_who_go_at_once_leave_one(house: House, plane: ControlPlane, deed: str) -> None:
    memberships = {"owner": member_id("owner"), "loner": house.joins("loner", "owner")}
    works: list[Coroutine[Any, Any, object]] = []
    for who, other in (("owner", "loner"), ("loner", "owner")):
        actor = house.actor(who)
        if deed == "step down":
            works.append(plane.teams.set_role(actor, "acme", memberships[who], "viewer"))
        else:
            works.append(plane.teams.remove(actor, "acme", memberships[who if deed == "leave" else other]))
    results = house.at_once(*works)
    assert len([result for result in results if isinstance(result, BaseException)]) == 1
    assert len(owners(house)) == 1


def test_two_stores_that_demote_at_once_leave_one(house: House, plane: ControlPlane) -> None:
    """Two processes, as the operator's command beside the service: the database decides, not a lock of ours."""
    second = house.joins("loner", "owner")
    first_store, house.store = house.store, sqlite.open_store(sqlite.store_url("", house.folder))
    another = house.another(plane.settings)
    results = house.at_once(
        plane.teams.set_role(house.actor("owner"), "acme", member_id("owner"), "viewer"),
        another.teams.set_role(house.actor("loner"), "acme", second, "viewer"),
    )
    assert [type(result) for result in results if isinstance(result, BaseException)] == [LastOwner]
    assert len(owners(house)) == 1
    house.do(first_store.close())
    house.plane = another


# --- Leaving -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["admin", "developer", "billing", "viewer"])
def test_everybody_else_may_leave(house: House, plane: ControlPlane, role: str) -> None:
    house.do(plane.teams.remove(house.actor(role), "acme", member_id(role)))
    members = house.do(plane.teams.members(house.actor("owner"), "acme", ALL)).items
    assert role not in {person.member.role for person in members}
    assert house.actions() == ["member.remove"]


def test_who_left_is_a_stranger(house: House, plane: ControlPlane) -> None:
    viewer = house.actor("viewer")
    house.do(plane.teams.remove(viewer, "acme", member_id("viewer")))
    house.refused(NoSuchTeam, plane.teams.show(viewer, "acme"))


def test_unknown_members_are_not_found(house: House, plane: ControlPlane) -> None:
    owner = house.actor("owner")
    problem = house.refused(NotFound, plane.teams.remove(owner, "acme", "mem_nobody"))
    assert "The team acme has no member mem_nobody" in problem.detail
    house.refused(NotFound, plane.teams.set_role(owner, "acme", "mem_nobody", "viewer"))


def test_unknown_roles_are_told_with_the_known_ones(house: House, plane: ControlPlane) -> None:
    owner = house.actor("owner")
    for deed in (
        plane.teams.set_role(owner, "acme", member_id("viewer"), "boss"),
        plane.invitations.create(owner, "acme", "new@x.example", "boss"),
    ):
        problem = house.refused(InvalidInput, deed)
        assert problem.extras == {"field": "role"}
        assert problem.detail == "'boss' is no role: give one of owner, admin, developer, billing, viewer."
