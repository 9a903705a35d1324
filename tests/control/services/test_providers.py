"""Signing in through a provider: known by subject, linked by a verified address alone, new if sign-up is open."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.control.services.harness import PASSWORD, PEOPLE, VISIT, Harness, details_of

from tollgate.api.members import NewInvitation
from tollgate.control.oidc_rules import ProviderIdentity
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import InvalidInput, NameTaken, SignUpClosed, WrongPassword
from tollgate.control.service_context import OPERATOR
from tollgate.core.people import Invitation

ISSUER = "https://idp.example"
NEW = "new@x.example"


def claim(email: str, *, subject: str = "s-1", verified: bool = True, issuer: str = ISSUER) -> ProviderIdentity:
    return ProviderIdentity(issuer, subject, email, verified, "Nina")


def identities(harness: Harness) -> list[tuple[str, str]]:
    rows = harness.write(lambda records: records.identities.page(100))
    return [(row.account_id, row.subject) for row in rows]


def test_proven_address_links_the_account_and_from_then_on_the_subject_is_enough(
    harness: Harness, plane: ControlPlane
) -> None:
    account = harness.do(plane.accounts.by_provider(VISIT, claim("OWNER@acme.example")))
    assert account.id == "acc_owner"
    entry = harness.notes()[0]
    assert (entry.action, entry.actor, entry.address) == ("account.link", PEOPLE["owner"], VISIT.address)
    assert details_of(entry) == {"issuer": ISSUER}
    # Whatever the provider reports of the address later: it may have changed there, even into nonsense.
    for email in ("moved@elsewhere.example", PEOPLE["viewer"], "ä@x.example"):
        again = harness.do(plane.accounts.by_provider(VISIT, claim(email, verified=False)))
        assert again.id == "acc_owner"
    assert identities(harness) == [("acc_owner", "s-1")]
    assert len(harness.notes()) == 1


def test_same_subject_of_another_issuer_is_another_person(harness: Harness, plane: ControlPlane) -> None:
    harness.do(plane.accounts.by_provider(VISIT, claim(PEOPLE["owner"])))
    other = claim(PEOPLE["viewer"], issuer="https://other.example")
    assert harness.do(plane.accounts.by_provider(VISIT, other)).id == "acc_viewer"


def test_address_not_verified_by_the_provider_links_nothing(harness: Harness, plane: ControlPlane) -> None:
    work = plane.accounts.by_provider(VISIT, claim(PEOPLE["owner"], verified=False))
    problem = harness.refused(NameTaken, work)
    assert problem.extras == {"field": "email"}
    assert "sign in with its password" in problem.detail
    assert identities(harness) == []


def test_account_with_an_unverified_address_is_not_linked(harness: Harness) -> None:
    """Otherwise the first to sign up with another person's address keeps a password to that person's account."""
    plane, harness.post.open = harness.choose(sign_up="open"), False
    harness.do(plane.accounts.sign_up(VISIT, "victim@x.example", PASSWORD))
    harness.refused(NameTaken, plane.accounts.by_provider(VISIT, claim("victim@x.example")))
    assert identities(harness) == []


def test_account_created_by_the_inviter_with_the_link_is_not_linked(harness: Harness) -> None:
    """The inviter sees the link, and must not get a password for the invited person's later logins."""
    plane = harness.choose(sign_up="invited")
    made = harness.do(plane.invitations.create(harness.actor("owner"), "acme", NewInvitation(NEW, "viewer")))
    harness.do(plane.accounts.sign_up_invited(VISIT, made.invitation, "a password of the inviter"))
    harness.refused(NameTaken, plane.accounts.by_provider(VISIT, claim(NEW)))


def test_look_alike_of_an_address_links_nothing(harness: Harness, plane: ControlPlane) -> None:
    """The small form of the Kelvin sign is a plain k: another mailbox must not become this one."""
    harness.do(plane.admin.create_account("kate@x.example", PASSWORD))
    work = plane.accounts.by_provider(VISIT, claim("\N{KELVIN SIGN}ate@x.example"))
    harness.refused(InvalidInput, work)
    assert identities(harness) == []


def test_switched_off_account_is_refused_and_not_linked(harness: Harness, plane: ControlPlane) -> None:
    harness.do(plane.admin.switch(PEOPLE["owner"], active=False))
    problem = harness.refused(WrongPassword, plane.accounts.by_provider(VISIT, claim(PEOPLE["owner"])))
    assert "disabled" in problem.detail
    assert identities(harness) == []
    assert harness.actions() == ["account.disable"]


def test_switched_off_account_is_refused_when_it_was_linked_before(harness: Harness, plane: ControlPlane) -> None:
    harness.do(plane.accounts.by_provider(VISIT, claim(PEOPLE["owner"])))
    harness.do(plane.admin.switch(PEOPLE["owner"], active=False))
    harness.refused(WrongPassword, plane.accounts.by_provider(VISIT, claim(PEOPLE["owner"])))


# --- New accounts --------------------------------------------------------------------------------------


def invited(harness: Harness, email: str, *, by_operator: bool) -> Invitation:
    invitations = harness.plane.invitations
    if by_operator:
        return harness.do(invitations.create_by_operator(OPERATOR, NewInvitation(email, "viewer"))).invitation
    return harness.do(
        invitations.create(harness.actor("owner"), "acme", NewInvitation(email, "viewer"))
    ).invitation


@pytest.mark.parametrize("verified", [True, False])
def test_open_sign_up_makes_an_account_which_is_as_proven_as_the_claim(harness: Harness, verified: bool) -> None:
    plane = harness.choose(sign_up="open")
    account = harness.do(plane.accounts.by_provider(VISIT, claim(NEW, verified=verified)))
    assert (account.email, account.name, account.password_hash) == (NEW, "Nina", "")
    assert account.verified_at == (harness.clock.now if verified else None)
    assert identities(harness) == [(account.id, "s-1")]
    [entry] = harness.notes()
    assert (entry.action, entry.actor, details_of(entry)) == ("account.create", NEW, {"issuer": ISSUER})
    assert harness.do(plane.accounts.by_provider(VISIT, claim(NEW, verified=False))) == account


@pytest.mark.parametrize(
    ("setting", "invitation", "allowed"),
    [
        ("closed", None, False),
        ("closed", "team", False),
        ("closed", "operator", True),
        ("invited", None, False),
        ("invited", "team", True),
        ("invited", "operator", True),
    ],
)
def test_closed_sign_up_requires_an_invitation(
    harness: Harness, setting: str, invitation: str | None, allowed: bool
) -> None:
    plane = harness.choose(sign_up=setting)
    held = invited(harness, NEW, by_operator=invitation == "operator") if invitation else None
    work = plane.accounts.by_provider(VISIT, claim(NEW), held)
    if allowed:
        assert harness.do(work).email == NEW
    else:
        problem = harness.refused(SignUpClosed, work)
        assert problem.detail.startswith(f"{NEW} has no account here. ")
        assert harness.do(plane.accounts.find(NEW)) is None


def test_invitation_of_another_person_or_without_a_verified_address_is_refused(harness: Harness) -> None:
    plane = harness.choose(sign_up="invited")
    others = invited(harness, "other@x.example", by_operator=True)
    mine = invited(harness, NEW, by_operator=True)
    harness.refused(SignUpClosed, plane.accounts.by_provider(VISIT, claim(NEW), others))
    harness.refused(SignUpClosed, plane.accounts.by_provider(VISIT, claim(NEW, verified=False), mine))


def test_two_first_sign_ins_at_once_make_one_account(harness: Harness) -> None:
    plane = harness.choose(sign_up="open")
    results = harness.at_once(*(plane.accounts.by_provider(VISIT, claim(NEW)) for _ in range(4)))
    assert {getattr(result, "email", result) for result in results} == {NEW}
    assert len(identities(harness)) == 1


def test_long_names_are_cut(harness: Harness) -> None:
    plane = harness.choose(sign_up="open")
    account = harness.do(plane.accounts.by_provider(VISIT, replace(claim(NEW), name="n" * 500)))
    assert account.name == "n" * 100
