"""Owners: only an owner touches them, and a team is never without one."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest
from tests.control.services.harness import ACME, ALL, Harness, details_of, member_id

from tollgate.api.members import NewInvitation, RoleChange
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import InvalidInput, LastOwner, NoSuchTeam, NotFound, RoleNeeded
from tollgate.store import sqlite


def owners(harness: Harness) -> list[str]:
    members = harness.write(lambda records: records.members.page(100, team_id=ACME.id, role="owner"))
    return [member.account_id for member in members]


# --- Admins and owners ---------------------------------------------------------------------------------


def test_admin_cannot_invite_an_owner(harness: Harness, plane: ControlPlane) -> None:
    problem = harness.refused(
        RoleNeeded,
        plane.invitations.create(harness.actor("admin"), "acme", NewInvitation("new@x.example", "owner")),
    )
    assert problem.extras == {"role": "admin", "roles": ["owner"]}


def test_admin_cannot_make_an_owner(harness: Harness, plane: ControlPlane) -> None:
    admin = harness.actor("admin")
    for who in ("viewer", "admin"):
        problem = harness.refused(
            RoleNeeded, plane.teams.set_role(admin, "acme", member_id(who), RoleChange("owner"))
        )
        assert problem.extras["roles"] == ["owner"]
    assert owners(harness) == ["acc_owner"]


def test_admin_cannot_demote_or_remove_an_owner_even_where_there_are_two(
    harness: Harness, plane: ControlPlane
) -> None:
    admin = harness.actor("admin")
    harness.joins("loner", "owner")
    harness.refused(RoleNeeded, plane.teams.set_role(admin, "acme", member_id("owner"), RoleChange("viewer")))
    harness.refused(RoleNeeded, plane.teams.remove(admin, "acme", member_id("owner")))
    assert len(owners(harness)) == 2


def test_admin_cannot_withdraw_or_replace_the_invitation_of_an_owner(
    harness: Harness, plane: ControlPlane
) -> None:
    owner, admin = harness.actor("owner"), harness.actor("admin")
    made = harness.do(plane.invitations.create(owner, "acme", NewInvitation("new@x.example", "owner")))
    harness.refused(RoleNeeded, plane.invitations.revoke(admin, "acme", made.invitation.id))
    harness.refused(RoleNeeded, plane.invitations.create(admin, "acme", NewInvitation("new@x.example", "viewer")))
    assert harness.do(plane.invitations.look(made.link))[0].role == "owner"
    harness.do(plane.invitations.revoke(owner, "acme", made.invitation.id))


@pytest.mark.parametrize("role", ["admin", "developer", "billing", "viewer"])
def test_admin_gives_and_takes_all_other_roles(harness: Harness, plane: ControlPlane, role: str) -> None:
    admin = harness.actor("admin")
    harness.joins("loner", role)
    for new in ("admin", "developer", "billing", "viewer"):
        person = harness.do(plane.teams.set_role(admin, "acme", "mem_acme_loner", RoleChange(new)))
        assert (person.member.role, person.account.id) == (new, "acc_loner")
    harness.do(plane.teams.remove(admin, "acme", "mem_acme_loner"))


def test_admin_may_step_down_and_cannot_step_up_again(harness: Harness, plane: ControlPlane) -> None:
    admin = harness.actor("admin")
    harness.do(plane.teams.set_role(admin, "acme", member_id("admin"), RoleChange("viewer")))
    harness.refused(RoleNeeded, plane.teams.set_role(admin, "acme", member_id("admin"), RoleChange("admin")))


def test_owner_makes_owners_and_changes_them(harness: Harness, plane: ControlPlane) -> None:
    owner = harness.actor("owner")
    harness.do(plane.teams.set_role(owner, "acme", member_id("viewer"), RoleChange("owner")))
    assert set(owners(harness)) == {"acc_owner", "acc_viewer"}
    harness.do(plane.teams.set_role(harness.actor("viewer"), "acme", member_id("owner"), RoleChange("billing")))
    assert owners(harness) == ["acc_viewer"]
    last = harness.notes()[-1]
    assert (last.action, last.actor, last.name) == ("member.role", "viewer@acme.example", "owner@acme.example")
    assert details_of(last) == {"before": {"role": "owner"}, "after": {"role": "billing"}}


# --- The last one --------------------------------------------------------------------------------------


def test_last_owner_cannot_leave_be_removed_or_demoted(harness: Harness, plane: ControlPlane) -> None:
    owner = harness.actor("owner")
    problem = harness.refused(LastOwner, plane.teams.remove(owner, "acme", member_id("owner")))
    assert (problem.status, problem.detail) == (409, "A team needs an owner: make another member owner first.")
    for role in ("admin", "viewer"):
        harness.refused(LastOwner, plane.teams.set_role(owner, "acme", member_id("owner"), RoleChange(role)))
    assert owners(harness) == ["acc_owner"]
    assert harness.notes() == []


def test_last_owner_may_be_made_owner_again(harness: Harness, plane: ControlPlane) -> None:
    person = harness.do(
        plane.teams.set_role(harness.actor("owner"), "acme", member_id("owner"), RoleChange("owner"))
    )
    assert person.member.role == "owner"


def test_of_two_owners_one_may_leave(harness: Harness, plane: ControlPlane) -> None:
    other = harness.joins("loner", "owner")
    harness.do(plane.teams.remove(harness.actor("owner"), "acme", member_id("owner")))
    harness.refused(LastOwner, plane.teams.remove(harness.actor("loner"), "acme", other))
    assert owners(harness) == ["acc_loner"]


def test_of_two_owners_one_may_remove_or_demote_the_other(harness: Harness, plane: ControlPlane) -> None:
    other = harness.joins("loner", "owner")
    harness.do(plane.teams.set_role(harness.actor("owner"), "acme", other, RoleChange("viewer")))
    harness.do(plane.teams.set_role(harness.actor("owner"), "acme", other, RoleChange("owner")))
    harness.do(plane.teams.remove(harness.actor("owner"), "acme", other))
    assert owners(harness) == ["acc_owner"]


def test_owner_of_another_team_does_not_count(harness: Harness, plane: ControlPlane) -> None:
    harness.refused(LastOwner, plane.teams.remove(harness.actor("outsider"), "rival", member_id("outsider")))


@pytest.mark.parametrize("deed", ["step down", "leave", "remove each other"])
def test_two_owners_leaving_concurrently_leave_one(harness: Harness, plane: ControlPlane, deed: str) -> None:
    memberships = {"owner": member_id("owner"), "loner": harness.joins("loner", "owner")}
    works: list[Coroutine[Any, Any, object]] = []
    for who, other in (("owner", "loner"), ("loner", "owner")):
        actor = harness.actor(who)
        if deed == "step down":
            works.append(plane.teams.set_role(actor, "acme", memberships[who], RoleChange("viewer")))
        else:
            works.append(plane.teams.remove(actor, "acme", memberships[who if deed == "leave" else other]))
    results = harness.at_once(*works)
    assert len([result for result in results if isinstance(result, BaseException)]) == 1
    assert len(owners(harness)) == 1


def test_two_concurrent_demotions_leave_one_owner(harness: Harness, plane: ControlPlane) -> None:
    """Two processes, as the operator's command beside the service: the database decides, not a local lock."""
    second = harness.joins("loner", "owner")
    first_store, harness.store = harness.store, sqlite.open_store(sqlite.store_url("", harness.folder))
    another = harness.another(plane.settings)
    results = harness.at_once(
        plane.teams.set_role(harness.actor("owner"), "acme", member_id("owner"), RoleChange("viewer")),
        another.teams.set_role(harness.actor("loner"), "acme", second, RoleChange("viewer")),
    )
    assert [type(result) for result in results if isinstance(result, BaseException)] == [LastOwner]
    assert len(owners(harness)) == 1
    harness.do(first_store.close())
    harness.plane = another


# --- Leaving -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["admin", "developer", "billing", "viewer"])
def test_every_other_role_may_leave(harness: Harness, plane: ControlPlane, role: str) -> None:
    harness.do(plane.teams.remove(harness.actor(role), "acme", member_id(role)))
    members = harness.do(plane.teams.members(harness.actor("owner"), "acme", ALL)).items
    assert role not in {person.member.role for person in members}
    assert harness.actions() == ["member.remove"]


def test_member_who_left_is_an_outsider(harness: Harness, plane: ControlPlane) -> None:
    viewer = harness.actor("viewer")
    harness.do(plane.teams.remove(viewer, "acme", member_id("viewer")))
    harness.refused(NoSuchTeam, plane.teams.show(viewer, "acme"))


def test_unknown_members_are_not_found(harness: Harness, plane: ControlPlane) -> None:
    owner = harness.actor("owner")
    problem = harness.refused(NotFound, plane.teams.remove(owner, "acme", "mem_unknown"))
    assert "The team acme has no member mem_unknown" in problem.detail
    harness.refused(NotFound, plane.teams.set_role(owner, "acme", "mem_unknown", RoleChange("viewer")))


def test_unknown_roles_are_reported_with_the_known_ones(harness: Harness, plane: ControlPlane) -> None:
    owner = harness.actor("owner")
    for deed in (
        plane.teams.set_role(owner, "acme", member_id("viewer"), RoleChange("boss")),
        plane.invitations.create(owner, "acme", NewInvitation("new@x.example", "boss")),
    ):
        problem = harness.refused(InvalidInput, deed)
        assert problem.extras == {"field": "role"}
        assert problem.detail == "`role` is one of owner, admin, developer, billing, viewer."


# --- Owners who delete their accounts ------------------------------------------------------------------


def test_last_owner_of_a_team_keeps_the_account_until_there_is_another(
    harness: Harness, plane: ControlPlane
) -> None:
    owner = harness.actor("owner")
    problem = harness.refused(LastOwner, plane.accounts.delete(owner))
    assert "the last owner of acme" in problem.detail
    harness.joins("loner", "owner")
    made = harness.do(plane.invitations.create(owner, "acme", NewInvitation("new@x.example", "viewer")))
    harness.do(plane.accounts.delete(owner))
    assert owners(harness) == ["acc_loner"]
    assert harness.write(lambda records: records.accounts.get("acc_owner")) is None
    harness.refused(NotFound, plane.invitations.look(made.link))
    assert harness.actions()[-1] == "account.delete"
