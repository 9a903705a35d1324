"""Invitations: for one person, once, for some days."""

from __future__ import annotations

import pytest
from tests.control.services.harness import (
    ACME,
    ALL,
    BASE_URL,
    DAY,
    ELSEWHERE,
    PEOPLE,
    Harness,
    details_of,
    member_id,
    words,
)

from tollgate.api.members import InvitationLink, NewInvitation, RoleChange
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import (
    AlreadyMember,
    InvalidInput,
    InvitationForOther,
    LimitReached,
    NotFound,
)
from tollgate.control.service_context import OPERATOR, Actor, PageRequest
from tollgate.control.services import throttle
from tollgate.control.services.invitations import Invited
from tollgate.core import secrets

LONER = PEOPLE["loner"]
GONE = "This invitation was used, withdrawn or has expired: ask for another."


def invite(harness: Harness, email: str = LONER, role: str = "developer", who: str = "owner") -> Invited:
    return harness.do(harness.plane.invitations.create(harness.actor(who), "acme", NewInvitation(email, role)))


def test_invitation_has_a_link_that_is_shown_once(harness: Harness, plane: ControlPlane) -> None:
    made = invite(harness, " Loner@NOWHERE.example ")
    row = made.invitation
    assert (row.email, row.role, row.team_id, row.by_operator) == (LONER, "developer", ACME.id, False)
    assert (row.created_by, row.expires_at) == (PEOPLE["owner"], harness.clock.now + 7 * DAY)
    prefix, _, secret = made.link.rpartition("/")
    assert prefix == f"{BASE_URL}/console/invitations"
    assert secrets.well_formed(secret, "tgi_")
    assert secret not in repr(made) + repr(row)
    assert harness.do(plane.invitations.list(harness.actor("owner"), "acme", ALL)).items == [row]
    [entry] = harness.notes()
    assert (entry.action, entry.target, entry.name) == ("invitation.create", row.id, LONER)
    assert details_of(entry) == {"role": "developer"}


@pytest.mark.parametrize("form", ["{0}", "https://toll.example/console/invitations/{0}", "  {0}\n", "x/y/{0}"])
def test_invited_person_joins_by_the_secret_or_the_whole_link(
    harness: Harness, plane: ControlPlane, form: str
) -> None:
    secret = invite(harness).link.rpartition("/")[2]
    membership = harness.do(
        plane.invitations.accept(harness.actor("loner", ELSEWHERE), InvitationLink(form.format(secret)))
    )
    assert membership is not None
    assert (membership.team.id, membership.role, membership.member.account_id) == (
        ACME.id,
        "developer",
        "acc_loner",
    )
    assert harness.do(plane.teams.show(harness.actor("loner"), "acme")) == membership
    entry = harness.notes()[-1]
    assert (entry.action, entry.actor, entry.team_id, entry.address) == (
        "member.add", LONER, ACME.id, ELSEWHERE.address
    )  # fmt: skip
    assert details_of(entry) == {"role": "developer"}


def test_link_works_once(harness: Harness, plane: ControlPlane) -> None:
    made = invite(harness)
    harness.do(plane.invitations.accept(harness.actor("loner"), InvitationLink(made.link)))
    assert (
        harness.refused(
            NotFound, plane.invitations.accept(harness.actor("loner"), InvitationLink(made.link))
        ).detail
        == GONE
    )
    harness.refused(NotFound, plane.invitations.look(made.link))


def test_two_who_accept_at_once_join_once(harness: Harness, plane: ControlPlane) -> None:
    made = invite(harness)
    results = harness.at_once(
        *(plane.invitations.accept(harness.actor("loner"), InvitationLink(made.link)) for _ in range(3))
    )
    assert sum(isinstance(result, NotFound) for result in results) == 2
    assert harness.write(lambda records: records.members.count(account_id="acc_loner")) == 1


def test_link_is_refused_for_another_person_and_stays_valid(harness: Harness, plane: ControlPlane) -> None:
    made = invite(harness)
    problem = harness.refused(
        InvitationForOther, plane.invitations.accept(harness.actor("outsider"), InvitationLink(made.link))
    )
    assert words(problem)[:2] == (403, "invitation_for_other")
    assert problem.detail == (
        f"This invitation is for {LONER}, and you are logged in as {PEOPLE['outsider']}: log in with that address."
    )
    harness.refused(InvitationForOther, plane.invitations.accept(Actor(None), InvitationLink(made.link)))
    harness.do(plane.invitations.accept(harness.actor("loner"), InvitationLink(made.link)))


def test_link_expires(harness: Harness) -> None:
    plane = harness.choose(invitation_days=2)
    made = invite(harness)
    harness.clock.advance(2 * DAY - 0.01)
    assert harness.do(plane.invitations.look(made.link)) == (made.invitation, ACME)
    harness.clock.advance(0.01)
    for deed in (
        plane.invitations.look(made.link),
        plane.invitations.accept(harness.actor("loner"), InvitationLink(made.link)),
    ):
        assert harness.refused(NotFound, deed).detail == GONE


def test_newer_invitation_of_the_same_person_replaces_the_one_before(
    harness: Harness, plane: ControlPlane
) -> None:
    first, second = invite(harness), invite(harness, "LONER@nowhere.example", "viewer")
    harness.refused(NotFound, plane.invitations.look(first.link))
    assert harness.do(plane.invitations.list(harness.actor("owner"), "acme", ALL)).items == [second.invitation]
    membership = harness.do(plane.invitations.accept(harness.actor("loner"), InvitationLink(second.link)))
    assert membership is not None
    assert membership.role == "viewer"


def test_invitations_of_two_teams_coexist(harness: Harness, plane: ControlPlane) -> None:
    ours = invite(harness)
    theirs = harness.do(
        plane.invitations.create(harness.actor("outsider"), "rival", NewInvitation(LONER, "admin"))
    )
    for made in (ours, theirs):
        harness.do(plane.invitations.accept(harness.actor("loner"), InvitationLink(made.link)))
    joined = harness.do(plane.teams.list(harness.actor("loner"), ALL)).items
    assert sorted(each.role for each in joined) == ["admin", "developer"]


def test_withdrawn_link_is_refused(harness: Harness, plane: ControlPlane) -> None:
    made = invite(harness)
    harness.do(plane.invitations.revoke(harness.actor("admin"), "acme", made.invitation.id))
    harness.refused(NotFound, plane.invitations.accept(harness.actor("loner"), InvitationLink(made.link)))
    problem = harness.refused(
        NotFound, plane.invitations.revoke(harness.actor("admin"), "acme", made.invitation.id)
    )
    assert f"The team acme has no invitation {made.invitation.id}" in problem.detail
    assert harness.actions() == ["invitation.create", "invitation.revoke"]


def test_member_is_not_invited_again(harness: Harness, plane: ControlPlane) -> None:
    problem = harness.refused(
        AlreadyMember,
        plane.invitations.create(harness.actor("owner"), "acme", NewInvitation(PEOPLE["viewer"], "admin")),
    )
    assert problem.detail == f"{PEOPLE['viewer']} belongs to acme already."


def test_person_who_joined_meanwhile_keeps_the_role(harness: Harness, plane: ControlPlane) -> None:
    made = invite(harness, role="admin")
    harness.joins("loner", "viewer")
    harness.refused(AlreadyMember, plane.invitations.accept(harness.actor("loner"), InvitationLink(made.link)))
    assert harness.do(plane.teams.show(harness.actor("loner"), ACME.id)).role == "viewer"


def test_members_and_invitations_together_are_bounded(harness: Harness) -> None:
    plane = harness.choose(members_per_team=7)  # five are in
    invite(harness, "a@x.example")
    invite(harness, "b@x.example")
    problem = harness.refused(
        LimitReached,
        plane.invitations.create(harness.actor("owner"), "acme", NewInvitation("c@x.example", "viewer")),
    )
    assert problem.extras == {"limit": 7}
    invite(harness, "b@x.example", "billing")  # takes the place of the one before
    results = harness.at_once(
        *(
            plane.invitations.create(
                harness.actor("outsider"), "rival", NewInvitation(f"n{n}@x.example", "viewer")
            )
            for n in range(9)
        )
    )
    assert sum(isinstance(result, LimitReached) for result in results) == 3


@pytest.mark.parametrize("email", ["", "no address", "a@b", "x,y@x.example"])
def test_invitations_need_an_address(harness: Harness, plane: ControlPlane, email: str) -> None:
    problem = harness.refused(
        InvalidInput, plane.invitations.create(harness.actor("owner"), "acme", NewInvitation(email, "viewer"))
    )
    assert problem.extras == {"field": "email"}


@pytest.mark.parametrize("link", ["", "/", "tgi_x", "\ud800", "x" * 1_000, secrets.new_token("tgi_")])
def test_made_up_links_are_reported_like_used_ones(harness: Harness, plane: ControlPlane, link: str) -> None:
    assert harness.refused(NotFound, plane.invitations.look(link)).detail == GONE
    problem = harness.refused(NotFound, plane.invitations.accept(harness.actor("loner"), InvitationLink(link)))
    assert problem.detail == GONE


def test_link_that_is_too_long_is_refused(harness: Harness, plane: ControlPlane) -> None:
    wanted = InvitationLink("x" * 1_001)
    problem = harness.refused(InvalidInput, plane.invitations.accept(harness.actor("loner"), wanted))
    assert problem.detail == "`link` is a text of 0 to 1000 characters."


def test_invitations_are_listed_page_by_page(harness: Harness, plane: ControlPlane) -> None:
    for number in range(3):
        harness.clock.advance(1)
        invite(harness, f"n{number}@x.example")
    first = harness.do(plane.invitations.list(harness.actor("admin"), "acme", PageRequest(2)))
    rest = harness.do(plane.invitations.list(harness.actor("admin"), "acme", PageRequest(2, first.next)))
    assert [row.email for row in first.items + rest.items] == [f"n{number}@x.example" for number in range(3)]


# --- Mail ----------------------------------------------------------------------------------------------


def test_link_goes_out_by_mail_where_there_is_mail(harness: Harness) -> None:
    made = invite(harness)
    assert made.mailed
    [(to, subject, text)] = harness.post.posted
    assert (to, subject) == (LONER, "You are invited to join the team acme")
    assert made.link in text
    assert f"{PEOPLE['owner']} invites you" in text
    assert "7 days, once" in text


def test_mails_to_one_address_are_limited_across_inviters(harness: Harness) -> None:
    mailed = [invite(harness, who=who).mailed for who in ("owner", "admin") * (throttle.LINK.free + 1)]
    assert mailed.count(True) == len(harness.post.posted) == throttle.LINK.free + 1
    assert invite(harness, "another@x.example").mailed
    harness.clock.advance(throttle.LINK.first_wait)
    assert invite(harness).mailed


def test_without_mail_it_is_reported(harness: Harness) -> None:
    harness.post.open = False
    assert not invite(harness).mailed


def test_nothing_is_mailed_for_what_was_refused(harness: Harness, plane: ControlPlane) -> None:
    harness.refused(
        AlreadyMember,
        plane.invitations.create(harness.actor("owner"), "acme", NewInvitation(PEOPLE["viewer"], "admin")),
    )
    assert harness.post.posted == []


# --- The operator's ------------------------------------------------------------------------------------


def test_operator_invites_to_the_service_alone(harness: Harness, plane: ControlPlane) -> None:
    made = harness.do(plane.invitations.create_by_operator(OPERATOR, NewInvitation(LONER, "viewer")))
    assert harness.do(plane.invitations.look(made.link)) == (made.invitation, None)
    assert (made.invitation.team_id, made.invitation.by_operator, made.invitation.created_by) == (
        None, True, "operator"
    )  # fmt: skip
    assert harness.do(plane.invitations.accept(harness.actor("loner"), InvitationLink(made.link))) is None
    harness.refused(NotFound, plane.invitations.look(made.link))
    assert harness.actions() == ["invitation.create", "invitation.accept"]
    assert harness.post.posted[0][1] == "You are invited to use Tollgate"


def test_operator_invites_to_a_team_in_any_role(harness: Harness, plane: ControlPlane) -> None:
    made = harness.do(plane.invitations.create_by_operator(OPERATOR, NewInvitation(LONER, "owner"), "acme"))
    membership = harness.do(plane.invitations.accept(harness.actor("loner"), InvitationLink(made.link)))
    assert membership is not None
    assert (membership.team.name, membership.role) == ("acme", "owner")


def test_operator_learns_of_a_mistyped_team_and_role(harness: Harness, plane: ControlPlane) -> None:
    problem = harness.refused(
        NotFound, plane.invitations.create_by_operator(OPERATOR, NewInvitation(LONER, "viewer"), "acne")
    )
    assert "There is no team acne" in problem.detail
    harness.refused(InvalidInput, plane.invitations.create_by_operator(OPERATOR, NewInvitation(LONER, "boss")))


def test_operators_newer_invitation_replaces_the_one_before(harness: Harness, plane: ControlPlane) -> None:
    for team in (None, "acme"):
        first, second = (
            harness.do(plane.invitations.create_by_operator(OPERATOR, NewInvitation(LONER, "viewer"), team))
            for _ in range(2)
        )
        harness.refused(NotFound, plane.invitations.look(first.link))
        harness.do(plane.invitations.look(second.link))
    assert harness.write(lambda records: records.invitations.count()) == 2


# --- When the inviter loses rights -----------------------------------------------------------------------


@pytest.mark.parametrize("how", ["removed", "demoted", "switched off"])
def test_links_end_when_their_creator_loses_the_right_to_invite(
    harness: Harness, plane: ControlPlane, how: str
) -> None:
    made, others = invite(harness, who="admin"), invite(harness, "another@x.example", who="owner")
    if how == "removed":
        harness.do(plane.teams.remove(harness.actor("owner"), "acme", member_id("admin")))
    elif how == "demoted":
        harness.do(plane.teams.set_role(harness.actor("owner"), "acme", member_id("admin"), RoleChange("viewer")))
    else:
        harness.do(plane.admin.switch(PEOPLE["admin"], active=False))
    harness.refused(NotFound, plane.invitations.accept(harness.actor("loner"), InvitationLink(made.link)))
    left = harness.write(lambda records: records.invitations.page(10))
    assert [row.id for row in left] == [others.invitation.id]


def test_demoted_owner_loses_only_invitations_of_owners(harness: Harness, plane: ControlPlane) -> None:
    seat = harness.joins("loner", "owner")
    kept, lost = invite(harness, "a@x.example", "admin", "loner"), invite(harness, "b@x.example", "owner", "loner")
    harness.do(plane.teams.set_role(harness.actor("owner"), "acme", seat, RoleChange("admin")))
    harness.do(plane.invitations.look(kept.link))
    harness.refused(NotFound, plane.invitations.look(lost.link))
