"""Invitations: for one person, once, for some days."""

from __future__ import annotations

import pytest
from tests.control.services.house import (
    ACME,
    ALL,
    BASE_URL,
    DAY,
    ELSEWHERE,
    PEOPLE,
    House,
    details_of,
    member_id,
    words,
)

from tollgate.control.plane import ControlPlane
from tollgate.control.problems import (
    AlreadyMember,
    InvalidInput,
    InvitationForOther,
    LimitReached,
    NotFound,
)
from tollgate.control.service_context import OPERATOR, Actor, PageRequest
from tollgate.control.services.invitations import Invited
from tollgate.core import secrets

LONER = PEOPLE["loner"]
GONE = "This invitation was used, withdrawn or has expired: ask for another."


def invite(house: House, email: str = LONER, role: str = "developer", who: str = "owner") -> Invited:
    return house.do(house.plane.invitations.create(house.actor(who), "acme", email, role))


def test_invitation_has_a_link_that_is_shown_once(house: House, plane: ControlPlane) -> None:
    made = invite(house, " Loner@NOWHERE.example ")
    row = made.invitation
    assert (row.email, row.role, row.team_id, row.by_operator) == (LONER, "developer", ACME.id, False)
    assert (row.created_by, row.expires_at) == (PEOPLE["owner"], house.clock.now + 7 * DAY)
    prefix, _, secret = made.link.rpartition("/")
    assert prefix == f"{BASE_URL}/console/invitations"
    assert secrets.well_formed(secret, "tgi_")
    assert secret not in repr(made) + repr(row)
    assert house.do(plane.invitations.list(house.actor("owner"), "acme", ALL)).items == [row]
    [entry] = house.notes()
    assert (entry.action, entry.target, entry.name) == ("invitation.create", row.id, LONER)
    assert details_of(entry) == {"role": "developer"}


@pytest.mark.parametrize("form", ["{0}", "https://toll.example/console/invitations/{0}", "  {0}\n", "x/y/{0}"])
def test_whoever_it_is_for_joins_by_the_secret_or_the_whole_link(
    house: House, plane: ControlPlane, form: str
) -> None:
    secret = invite(house).link.rpartition("/")[2]
    membership = house.do(plane.invitations.accept(house.actor("loner", ELSEWHERE), form.format(secret)))
    assert membership is not None
    assert (membership.team.id, membership.role, membership.member.account_id) == (
        ACME.id,
        "developer",
        "acc_loner",
    )
    assert house.do(plane.teams.show(house.actor("loner"), "acme")) == membership
    entry = house.notes()[-1]
    assert (entry.action, entry.actor, entry.team_id, entry.address) == (
        "member.add", LONER, ACME.id, ELSEWHERE.address
    )  # fmt: skip
    assert details_of(entry) == {"role": "developer"}


def test_link_works_once(house: House, plane: ControlPlane) -> None:
    made = invite(house)
    house.do(plane.invitations.accept(house.actor("loner"), made.link))
    assert house.refused(NotFound, plane.invitations.accept(house.actor("loner"), made.link)).detail == GONE
    house.refused(NotFound, plane.invitations.look(made.link))


def test_two_who_accept_at_once_join_once(house: House, plane: ControlPlane) -> None:
    made = invite(house)
    results = house.at_once(*(plane.invitations.accept(house.actor("loner"), made.link) for _ in range(3)))
    assert sum(isinstance(result, NotFound) for result in results) == 2
    assert house.write(lambda records: records.members.count(account_id="acc_loner")) == 1


def test_link_is_for_nobody_else_and_stays_good(house: House, plane: ControlPlane) -> None:
    made = invite(house)
    problem = house.refused(InvitationForOther, plane.invitations.accept(house.actor("stranger"), made.link))
    assert words(problem)[:2] == (403, "invitation_for_other")
    assert problem.detail == (
        f"This invitation is for {LONER}, and you are logged in as {PEOPLE['stranger']}: "
        "log in as the one it is for."
    )
    house.refused(InvitationForOther, plane.invitations.accept(Actor(None), made.link))
    house.do(plane.invitations.accept(house.actor("loner"), made.link))


def test_link_expires(house: House) -> None:
    plane = house.choose(invitation_days=2)
    made = invite(house)
    house.clock.advance(2 * DAY - 0.01)
    assert house.do(plane.invitations.look(made.link)) == (made.invitation, ACME)
    house.clock.advance(0.01)
    for deed in (plane.invitations.look(made.link), plane.invitations.accept(house.actor("loner"), made.link)):
        assert house.refused(NotFound, deed).detail == GONE


def test_newer_invitation_of_the_same_person_replaces_the_one_before(house: House, plane: ControlPlane) -> None:
    first, second = invite(house), invite(house, "LONER@nowhere.example", "viewer")
    house.refused(NotFound, plane.invitations.look(first.link))
    assert house.do(plane.invitations.list(house.actor("owner"), "acme", ALL)).items == [second.invitation]
    membership = house.do(plane.invitations.accept(house.actor("loner"), second.link))
    assert membership is not None
    assert membership.role == "viewer"


def test_invitations_of_two_teams_stand_beside_each_other(house: House, plane: ControlPlane) -> None:
    ours = invite(house)
    theirs = house.do(plane.invitations.create(house.actor("stranger"), "rival", LONER, "admin"))
    for made in (ours, theirs):
        house.do(plane.invitations.accept(house.actor("loner"), made.link))
    assert sorted(house.do(plane.teams.roles(house.actor("loner"))).values()) == ["admin", "developer"]


def test_withdrawn_link_is_dead(house: House, plane: ControlPlane) -> None:
    made = invite(house)
    house.do(plane.invitations.revoke(house.actor("admin"), "acme", made.invitation.id))
    house.refused(NotFound, plane.invitations.accept(house.actor("loner"), made.link))
    problem = house.refused(NotFound, plane.invitations.revoke(house.actor("admin"), "acme", made.invitation.id))
    assert f"The team acme has no invitation {made.invitation.id}" in problem.detail
    assert house.actions() == ["invitation.create", "invitation.revoke"]


def test_member_is_not_invited_again(house: House, plane: ControlPlane) -> None:
    problem = house.refused(
        AlreadyMember, plane.invitations.create(house.actor("owner"), "acme", PEOPLE["viewer"], "admin")
    )
    assert problem.detail == f"{PEOPLE['viewer']} belongs to acme already."


def test_who_became_a_member_meanwhile_keeps_the_role(house: House, plane: ControlPlane) -> None:
    made = invite(house, role="admin")
    house.joins("loner", "viewer")
    house.refused(AlreadyMember, plane.invitations.accept(house.actor("loner"), made.link))
    assert house.do(plane.teams.roles(house.actor("loner"))) == {ACME.id: "viewer"}


def test_members_and_invitations_together_are_bounded(house: House) -> None:
    plane = house.choose(members_per_team=7)  # five are in
    invite(house, "a@x.example")
    invite(house, "b@x.example")
    problem = house.refused(
        LimitReached, plane.invitations.create(house.actor("owner"), "acme", "c@x.example", "viewer")
    )
    assert problem.extras == {"limit": 7}
    invite(house, "b@x.example", "billing")  # takes the place of the one before
    results = house.at_once(
        *(
            plane.invitations.create(house.actor("stranger"), "rival", f"n{n}@x.example", "viewer")
            for n in range(9)
        )
    )
    assert sum(isinstance(result, LimitReached) for result in results) == 3


@pytest.mark.parametrize("email", ["", "no address", "a@b", "x,y@x.example"])
def test_invitations_need_an_address(house: House, plane: ControlPlane, email: str) -> None:
    problem = house.refused(InvalidInput, plane.invitations.create(house.actor("owner"), "acme", email, "viewer"))
    assert problem.extras == {"field": "email"}


@pytest.mark.parametrize("link", ["", "/", "tgi_x", "\ud800", "x" * 10_000, secrets.new_token("tgi_")])
def test_made_up_links_are_told_like_used_ones(house: House, plane: ControlPlane, link: str) -> None:
    assert house.refused(NotFound, plane.invitations.look(link)).detail == GONE
    assert house.refused(NotFound, plane.invitations.accept(house.actor("loner"), link)).detail == GONE


def test_invitations_are_listed_page_by_page(house: House, plane: ControlPlane) -> None:
    for number in range(3):
        house.clock.advance(1)
        invite(house, f"n{number}@x.example")
    first = house.do(plane.invitations.list(house.actor("admin"), "acme", PageRequest(2)))
    rest = house.do(plane.invitations.list(house.actor("admin"), "acme", PageRequest(2, first.next)))
    assert [row.email for row in first.items + rest.items] == [f"n{number}@x.example" for number in range(3)]


# --- Mail ----------------------------------------------------------------------------------------------


def test_link_goes_out_by_mail_where_there_is_mail(house: House) -> None:
    made = invite(house)
    assert made.mailed
    [(to, subject, text)] = house.post.posted
    assert (to, subject) == (LONER, "You are invited to join the team acme")
    assert made.link in text
    assert f"{PEOPLE['owner']} invites you" in text
    assert "7 days, once" in text


def test_without_mail_it_is_said_so(house: House) -> None:
    house.post.open = False
    assert not invite(house).mailed


def test_nothing_is_mailed_for_what_was_refused(house: House, plane: ControlPlane) -> None:
    house.refused(AlreadyMember, plane.invitations.create(house.actor("owner"), "acme", PEOPLE["viewer"], "admin"))
    assert house.post.posted == []


# --- The operator's ------------------------------------------------------------------------------------


def test_operator_invites_to_the_service_alone(house: House, plane: ControlPlane) -> None:
    made = house.do(plane.invitations.create_by_operator(OPERATOR, LONER, None, "viewer"))
    assert house.do(plane.invitations.look(made.link)) == (made.invitation, None)
    assert (made.invitation.team_id, made.invitation.by_operator, made.invitation.created_by) == (
        None, True, "operator"
    )  # fmt: skip
    assert house.do(plane.invitations.accept(house.actor("loner"), made.link)) is None
    house.refused(NotFound, plane.invitations.look(made.link))
    assert house.actions() == ["invitation.create", "invitation.accept"]
    assert house.post.posted[0][1] == "You are invited to use Tollgate"


def test_operator_invites_to_a_team_in_any_role(house: House, plane: ControlPlane) -> None:
    made = house.do(plane.invitations.create_by_operator(OPERATOR, LONER, "acme", "owner"))
    membership = house.do(plane.invitations.accept(house.actor("loner"), made.link))
    assert membership is not None
    assert (membership.team.name, membership.role) == ("acme", "owner")


def test_operator_hears_of_a_mistyped_team_and_role(house: House, plane: ControlPlane) -> None:
    problem = house.refused(NotFound, plane.invitations.create_by_operator(OPERATOR, LONER, "acne", "viewer"))
    assert "There is no team acne" in problem.detail
    house.refused(InvalidInput, plane.invitations.create_by_operator(OPERATOR, LONER, None, "boss"))


def test_operators_newer_invitation_replaces_the_one_before(house: House, plane: ControlPlane) -> None:
    for team in (None, "acme"):
        first, second = (
            house.do(plane.invitations.create_by_operator(OPERATOR, LONER, team, "viewer")) for _ in range(2)
        )
        house.refused(NotFound, plane.invitations.look(first.link))
        house.do(plane.invitations.look(second.link))
    assert house.write(lambda records: records.invitations.count()) == 2


# --- The end of who invited ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["removed", "demoted", "switched off"])
def test_links_end_with_the_right_of_their_maker_to_make_them(house: House, plane: ControlPlane, how: str) -> None:
    made, others = invite(house, who="admin"), invite(house, "another@x.example", who="owner")
    if how == "removed":
        house.do(plane.teams.remove(house.actor("owner"), "acme", member_id("admin")))
    elif how == "demoted":
        house.do(plane.teams.set_role(house.actor("owner"), "acme", member_id("admin"), "viewer"))
    else:
        house.do(plane.operator.switch(PEOPLE["admin"], active=False))
    house.refused(NotFound, plane.invitations.accept(house.actor("loner"), made.link))
    left = house.write(lambda records: records.invitations.page(10))
    assert [row.id for row in left] == [others.invitation.id]
