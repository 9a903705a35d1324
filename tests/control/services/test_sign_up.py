"""Creating accounts: the operator's command, sign-up, invitations; and how the operator changes them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.control.services.harness import ELSEWHERE, HOUR, PASSWORD, PEOPLE, VISIT, Harness, details_of, settings

from tollgate.api.me import SelfChange
from tollgate.api.members import NewInvitation
from tollgate.api.teams import NewTeam
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import (
    AddressUnproved,
    InvalidInput,
    LoginExpired,
    NameTaken,
    NotFound,
    SignUpClosed,
    TooManyAttempts,
    WrongPassword,
)
from tollgate.control.service_context import OPERATOR, Actor, ClientInfo, email_of, name_of
from tollgate.control.services.invitations import MAX_OWN
from tollgate.core.people import CONSOLE
from tollgate.settings.model import MailSettings

NEW = "new@x.example"


# --- The operator --------------------------------------------------------------------------------------


def test_operator_makes_an_account_that_can_sign_in(harness: Harness, plane: ControlPlane) -> None:
    made = harness.do(plane.admin.create_account("  New@X.Example ", PASSWORD, name=" Nina "))
    assert (made.email, made.name, made.active, made.verified_at) == (NEW, "Nina", True, harness.clock.now)
    assert harness.do(plane.accounts.check_password(VISIT, "NEW@x.example", PASSWORD)) == made
    assert harness.do(plane.accounts.find("New@x.example")) == made
    entry = harness.notes()[0]
    assert (entry.action, entry.actor, entry.actor_id, entry.via) == (
        "account.create", "operator", None, "operator"
    )  # fmt: skip
    assert (entry.target, entry.name, entry.address) == (made.id, NEW, "")


def test_operator_makes_an_account_with_a_team_that_it_owns(harness: Harness, plane: ControlPlane) -> None:
    made = harness.do(plane.admin.create_account(NEW, PASSWORD, team="nova"))
    member = harness.write(lambda records: records.members.find(account_id=made.id))
    assert member is not None
    assert member.role == "owner"
    assert harness.actions() == ["account.create", "team.create"]
    assert details_of(harness.notes()[1]) == {"owner": NEW}


@pytest.mark.parametrize(("team", "kind"), [("acme", NameTaken), ("A Team", InvalidInput)])
def test_account_and_team_are_made_both_or_neither(
    harness: Harness, plane: ControlPlane, team: str, kind: type[Exception]
) -> None:
    harness.refused(kind, plane.admin.create_account(NEW, PASSWORD, team=team))
    assert harness.do(plane.accounts.find(NEW)) is None
    assert harness.notes() == []


def test_address_has_one_account_whatever_its_case(harness: Harness, plane: ControlPlane) -> None:
    problem = harness.refused(NameTaken, plane.admin.create_account("OWNER@Acme.Example", PASSWORD))
    assert problem.extras == {"field": "email"}
    assert "owner@acme.example has an account already" in problem.detail


def test_accounts_are_listed_oldest_first(harness: Harness, plane: ControlPlane) -> None:
    assert [account.email for account in harness.do(plane.admin.accounts(3))] == list(PEOPLE.values())[:3]


def test_disabled_account_loses_access_at_once_and_can_be_enabled(harness: Harness, plane: ControlPlane) -> None:
    cookie = harness.do(plane.logins.open_session(VISIT, harness.account("owner")))
    _, token = harness.program("owner")
    link = harness.do(plane.accounts.reset_link(OPERATOR, PEOPLE["owner"]))
    assert not harness.do(plane.admin.switch("Owner@acme.example", active=False)).active
    harness.refused(LoginExpired, plane.logins.actor(VISIT, cookie, CONSOLE))
    harness.refused(LoginExpired, plane.logins.actor(VISIT, token, "personal"))
    harness.refused(WrongPassword, plane.accounts.check_password(VISIT, PEOPLE["owner"], PASSWORD))
    harness.refused(NotFound, plane.accounts.account_of_reset(link.rpartition("/")[2]))
    assert harness.do(plane.admin.switch("owner@acme.example", active=True)).active
    harness.do(plane.accounts.check_password(VISIT, PEOPLE["owner"], PASSWORD))
    # What was ended stays ended.
    harness.refused(LoginExpired, plane.logins.actor(VISIT, cookie, CONSOLE))
    assert harness.actions()[-3:] == ["account.disable", "login.failed", "account.enable"]
    harness.refused(NotFound, plane.admin.switch("unknown@x.example", active=False))


# --- Sign-up -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["closed", "invited"])
def test_sign_up_is_refused_unless_it_is_open(harness: Harness, setting: str) -> None:
    plane = harness.choose(sign_up=setting)
    problem = harness.refused(SignUpClosed, plane.accounts.sign_up(VISIT, NEW, PASSWORD))
    assert (problem.status, problem.detail) == (
        403, "Accounts are created by the operator here: ask for an invitation."
    )  # fmt: skip


def without_mail(harness: Harness) -> ControlPlane:
    harness.post.open = False
    return harness.choose(sign_up="open")


def test_open_sign_up_creates_an_account_with_an_unverified_address(harness: Harness) -> None:
    plane = without_mail(harness)
    made = harness.do(plane.accounts.sign_up(VISIT, NEW, PASSWORD, name="Nina"))
    assert (made.email, made.name, made.verified_at) == (NEW, "Nina", None)
    entry = harness.notes()[0]
    assert (entry.actor, entry.actor_id, entry.address, entry.via) == (NEW, made.id, VISIT.address, "console")
    harness.refused(NameTaken, plane.accounts.sign_up(VISIT, "NEW@X.example", PASSWORD))


def test_two_who_sign_up_at_once_with_one_address_make_one_account(harness: Harness) -> None:
    plane = without_mail(harness)
    results = harness.at_once(*(plane.accounts.sign_up(VISIT, NEW, PASSWORD) for _ in range(4)))
    assert sum(isinstance(result, NameTaken) for result in results) == 3


def test_sign_ups_from_one_address_are_limited(harness: Harness) -> None:
    plane = without_mail(harness)

    def sign_up(number: int, address: str) -> None:
        harness.do(plane.accounts.sign_up(ClientInfo(address), f"n{number}@x.example", PASSWORD))

    # The addresses of one /64 are one customer's.
    for number in range(21):
        sign_up(number, f"2001:db8::{number:x}")
    with pytest.raises(TooManyAttempts) as caught:
        sign_up(99, "2001:db8::99")
    assert "new accounts from this address" in caught.value.detail
    sign_up(50, "2001:db8:0:1::1")
    harness.clock.advance(HOUR)
    sign_up(51, "2001:db8::99")


@pytest.mark.parametrize("password", ["short-one", "x" * 257, NEW, "N1n2N3n4n5@x.example", "\ud800" * 12])
def test_poor_passwords_are_refused(harness: Harness, password: str) -> None:
    plane = without_mail(harness)
    email = "n1n2n3n4n5@x.example" if password.startswith("N1") else NEW
    problem = harness.refused(InvalidInput, plane.accounts.sign_up(VISIT, email, password))
    assert problem.extras == {"field": "password"}
    assert password not in problem.detail


# --- Sign-up by mail -----------------------------------------------------------------------------------


def link_to(harness: Harness, email: str) -> str:
    """The link in the last mail to an address."""
    text = next(text for to, _, text in reversed(harness.post.posted) if to == email)
    return next(line for line in text.splitlines() if "/console/invitations/" in line)


def test_account_is_made_by_the_mailed_link_alone_and_its_address_is_proved(harness: Harness) -> None:
    plane = harness.choose(sign_up="open")
    harness.refused(SignUpClosed, plane.accounts.sign_up(VISIT, NEW, PASSWORD))
    harness.do(plane.invitations.request_link(VISIT, "NEW@x.example"))
    assert harness.do(plane.accounts.find(NEW)) is None
    invitation, team = harness.do(plane.invitations.look(link_to(harness, NEW)))
    assert (invitation.email, invitation.by_oneself, team) == (NEW, True, None)
    made = harness.do(plane.accounts.sign_up_invited(VISIT, invitation, PASSWORD, name="Nina"))
    assert (made.email, made.verified_at) == (NEW, harness.clock.now)
    assert harness.actions() == ["account.create"]


def test_existing_account_is_revealed_by_mail_alone(harness: Harness) -> None:
    plane = harness.choose(sign_up="open")
    harness.do(plane.invitations.request_link(VISIT, PEOPLE["owner"]))
    [(to, subject, text)] = harness.post.posted
    assert (to, subject) == (PEOPLE["owner"], "Your Tollgate account")
    assert "You already have an account" in text
    assert "/console/invitations/" not in text
    assert harness.write(lambda records: records.invitations.count()) == 0


@pytest.mark.parametrize("setting", ["closed", "invited"])
def test_links_are_mailed_only_where_sign_up_is_open(harness: Harness, setting: str) -> None:
    plane = harness.choose(sign_up="open")
    harness.do(plane.invitations.request_link(VISIT, NEW))
    invitation, _ = harness.do(plane.invitations.look(link_to(harness, NEW)))
    plane = harness.choose(sign_up=setting)
    harness.refused(SignUpClosed, plane.invitations.request_link(VISIT, NEW))
    # Nor is one good that was mailed before.
    harness.refused(SignUpClosed, plane.accounts.sign_up_invited(VISIT, invitation, PASSWORD))


def test_repeated_requests_neither_flood_a_mailbox_nor_invalidate_the_first_link(
    harness: Harness,
) -> None:
    plane = harness.choose(sign_up="open")
    for email in (NEW, PEOPLE["owner"]):
        harness.post.posted.clear()
        for number in range(60):
            harness.do(plane.invitations.request_link(ClientInfo(f"192.0.2.{number}"), email))
        assert len(harness.post.posted) == 5
    assert harness.write(lambda records: records.invitations.count(email=NEW)) == 5
    for hour in range(30):
        harness.clock.advance(2 * HOUR)
        harness.do(plane.invitations.request_link(ClientInfo(f"198.51.100.{hour}"), NEW))
    assert harness.write(lambda records: records.invitations.count(email=NEW)) == MAX_OWN


def test_requests_from_one_address_are_limited(harness: Harness) -> None:
    plane = harness.choose(sign_up="open")
    for number in range(21):
        harness.do(plane.invitations.request_link(VISIT, f"n{number}@x.example"))
    harness.refused(TooManyAttempts, plane.invitations.request_link(VISIT, "one.more@x.example"))


def test_guest_of_a_team_owns_no_team_before_the_address_is_proved(harness: Harness) -> None:
    chosen = replace(settings(sign_up="open"), mail=MailSettings(host="mail.example"))
    plane = harness.plane = harness.another(chosen)
    made = harness.do(plane.invitations.create(harness.actor("owner"), "acme", NewInvitation(NEW, "viewer")))
    guest = harness.do(plane.accounts.sign_up_invited(VISIT, made.invitation, PASSWORD))
    problem = harness.refused(AddressUnproved, plane.teams.create(Actor(guest, None, VISIT), NewTeam("mine")))
    assert (problem.status, "/console/forgot" in problem.detail) == (403, True)
    harness.do(plane.accounts.forgot(VISIT, NEW))
    link = next(line for line in harness.post.posted[-1][2].splitlines() if line.startswith("https:"))
    proved = harness.do(plane.accounts.reset(VISIT, link.rpartition("/")[2], PASSWORD))
    assert harness.do(plane.teams.create(Actor(proved, None, VISIT), NewTeam("mine"))).team.name == "mine"


def test_without_mail_or_by_a_provider_no_address_verification_is_needed(harness: Harness) -> None:
    plane = without_mail(harness)
    made = harness.do(plane.accounts.sign_up(VISIT, NEW, PASSWORD))
    harness.do(plane.teams.create(Actor(made, None, VISIT), NewTeam("mine")))
    plane = harness.plane = harness.another(
        replace(settings(sign_up="open"), mail=MailSettings(host="mail.example"))
    )
    harness.do(plane.teams.create(Actor(replace(made, password_hash=""), None, VISIT), NewTeam("other")))


# --- Invitations ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "by_team"), [("closed", False), ("invited", True), ("open", True)]
)  # fmt: skip
def test_invitations_of_teams_let_accounts_be_made_unless_closed(
    harness: Harness, setting: str, by_team: bool
) -> None:
    plane = harness.choose(sign_up=setting)
    made = harness.do(plane.invitations.create(harness.actor("owner"), "acme", NewInvitation(NEW, "viewer")))
    sign_up = plane.accounts.sign_up_invited(VISIT, made.invitation, PASSWORD, name="Nina")
    if not by_team:
        harness.refused(SignUpClosed, sign_up)
        return
    account = harness.do(sign_up)
    assert (account.email, account.name, account.verified_at) == (NEW, "Nina", None)


@pytest.mark.parametrize("setting", ["closed", "invited", "open"])
def test_invitations_of_the_operator_let_accounts_be_made_always(harness: Harness, setting: str) -> None:
    plane = harness.choose(sign_up=setting)
    made = harness.do(plane.invitations.create_by_operator(OPERATOR, NewInvitation(NEW, "viewer"), "acme"))
    assert made.invitation.by_operator
    assert harness.do(plane.accounts.sign_up_invited(VISIT, made.invitation, PASSWORD)).email == NEW


def test_invited_account_needs_a_good_password_and_no_account(harness: Harness) -> None:
    plane = harness.choose(sign_up="invited")
    made = harness.do(plane.invitations.create_by_operator(OPERATOR, NewInvitation(PEOPLE["loner"], "viewer")))
    harness.refused(InvalidInput, plane.accounts.sign_up_invited(VISIT, made.invitation, "short"))
    harness.refused(NameTaken, plane.accounts.sign_up_invited(VISIT, made.invitation, PASSWORD))


def test_withdrawn_used_or_expired_invitation_makes_no_account(harness: Harness) -> None:
    plane = harness.choose(sign_up="invited")
    owner = harness.actor("owner")
    made = harness.do(plane.invitations.create(owner, "acme", NewInvitation(NEW, "viewer")))
    harness.do(plane.invitations.revoke(owner, "acme", made.invitation.id))
    harness.refused(NotFound, plane.accounts.sign_up_invited(VISIT, made.invitation, PASSWORD))
    made = harness.do(plane.invitations.create(owner, "acme", NewInvitation(NEW, "viewer")))
    harness.clock.now = made.invitation.expires_at
    harness.refused(NotFound, plane.accounts.sign_up_invited(VISIT, made.invitation, PASSWORD))
    assert harness.do(plane.accounts.find(NEW)) is None


# --- Names and addresses -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "email",
    ["", "a", "@x.example", "a@", "a@b", "a b@x.example", "a@x..example", "a@x.example.", "a@b@x.example",
     "x,y@x.example", "<y@x.example", '"y"@x.example', "a\n@x.example", "a@x.example\nb", "ä@x.example",
     "a@ä.example", "\N{KELVIN SIGN}@x.example", "a@[192.0.2.1]", f"{'a' * 65}@x.example",
     f"a@{'x.' * 130}example", "a;b@x.example", "a:b@x.example", "(a)@x.example", "a\\b@x.example",
     "=?utf-8?q?victim=40x.example=3e=20?=@x.example"],
)  # fmt: skip
def test_invalid_address_is_refused(email: str) -> None:
    with pytest.raises(InvalidInput, match="is not an email address") as caught:
        email_of(email)
    assert caught.value.extras == {"field": "email"}
    assert len(caught.value.detail) < 200


@pytest.mark.parametrize("email", ["a@b.cd", "A.b+c@X-y.example", "o'neil@x.example", "a_b%c=d?@x.example"])
def test_addresses_are_stored_in_lower_case(email: str) -> None:
    assert email_of(f" {email}\t") == email.lower()


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "x" * 101,
        "a\nb",
        "a\x00",
        "\x7f",
        "a\u2028b",
        "a\u202eb",
        "a\u061cb",
        "a\u200bb",
        "\ufeffa",
        "a\U000e0041",
        "\ud800",
    ],
)
def test_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"`name` has 1 to 100 printable characters"):
        name_of(name)


@pytest.mark.parametrize("name", ["a", "Zoë Ø", "李小龍", "👩\u200d💻 x", "x" * 100])
def test_names_are_kept_as_written_but_for_space_around(name: str) -> None:
    assert name_of(f"  {name} ") == name


def test_account_renames_itself_alone(harness: Harness, plane: ControlPlane) -> None:
    renamed = harness.do(plane.accounts.update(harness.actor("viewer", ELSEWHERE), SelfChange(" Vera ")))
    assert (renamed.name, harness.account("viewer").name) == ("Vera", "Vera")
    assert harness.do(plane.accounts.update(harness.actor("viewer"), SelfChange(""))).name == ""
    harness.refused(InvalidInput, plane.accounts.update(harness.actor("viewer"), SelfChange("a\nb")))
    assert [entry.address for entry in harness.notes()] == [ELSEWHERE.address, VISIT.address]
