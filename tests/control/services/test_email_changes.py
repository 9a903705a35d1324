"""Changing the address of one's account, with a proof of the new one where mail can be sent."""

from __future__ import annotations

import pytest
from tests.control.services.harness import ACME, BASE_URL, MINUTE, PASSWORD, PEOPLE, VISIT, Harness

from tollgate.api.me import EmailChange, EmailLink, NewEmail, PasswordChange
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import (
    InvalidInput,
    NameTaken,
    NotFound,
    PersonalTokenRefused,
    TooManyAttempts,
    WrongPassword,
)

NEW = "owner@new.example"


def mailed(harness: Harness, to: str = NEW) -> str:
    """The link of the last mail to an address."""
    text = next(text for address, _, text in reversed(harness.post.posted) if address == to)
    link = next(line for line in text.splitlines() if line.startswith("https:"))
    assert link.startswith(f"{BASE_URL}/console/account/email/")
    return link


def requested_link(harness: Harness) -> str:
    changed = harness.do(harness.plane.email_changes.request(harness.actor("owner"), NewEmail(NEW, PASSWORD)))
    assert changed == EmailChange(PEOPLE["owner"], NEW)
    return mailed(harness)


def test_link_to_the_new_address_changes_it_and_the_old_one_is_informed(
    harness: Harness, plane: ControlPlane
) -> None:
    link = requested_link(harness)
    assert harness.account("owner").email == PEOPLE["owner"]
    harness.clock.advance(MINUTE)
    harness.do(plane.email_changes.confirm(harness.actor("owner"), EmailLink(link)))
    account = harness.account("owner")
    assert (account.email, account.verified_at) == (NEW, harness.clock.now)
    assert NEW in next(text for to, _, text in harness.post.posted if to == PEOPLE["owner"])
    harness.do(plane.accounts.check_password(VISIT, NEW, PASSWORD))
    harness.refused(WrongPassword, plane.accounts.check_password(VISIT, PEOPLE["owner"], PASSWORD))


def test_change_is_noted_for_oneself_and_in_every_team(harness: Harness, plane: ControlPlane) -> None:
    harness.do(plane.email_changes.confirm(harness.actor("owner"), EmailLink(requested_link(harness))))
    own, team = harness.notes()[-2:]
    assert (own.action, own.team_id, own.actor) == ("account.email", None, PEOPLE["owner"])
    assert (team.action, team.team_id, team.name) == ("member.email", ACME.id, NEW)
    assert PEOPLE["owner"] in team.details


def test_link_works_once_for_its_account_in_its_time(harness: Harness, plane: ControlPlane) -> None:
    link = requested_link(harness)
    for who in ("admin", "outsider"):
        harness.refused(NotFound, plane.email_changes.confirm(harness.actor(who), EmailLink(link)))
    for broken in ("", "x", link[:-1], link + "A", link.replace("email/", "email/A"), "\udcff" * 40):
        harness.refused(NotFound, plane.email_changes.confirm(harness.actor("owner"), EmailLink(broken)))
    harness.do(plane.email_changes.confirm(harness.actor("owner"), EmailLink(link)))
    harness.refused(NotFound, plane.email_changes.confirm(harness.actor("owner"), EmailLink(link)))


def test_link_expires(harness: Harness, plane: ControlPlane) -> None:
    link = requested_link(harness)
    harness.clock.advance(MINUTE * harness.plane.settings.accounts.reset_minutes)
    harness.refused(NotFound, plane.email_changes.confirm(harness.actor("owner"), EmailLink(link)))


def test_another_password_ends_a_link(harness: Harness, plane: ControlPlane) -> None:
    link = requested_link(harness)
    harness.do(
        plane.accounts.change_password(harness.actor("owner"), PasswordChange(PASSWORD, "an even better password"))
    )
    harness.refused(NotFound, plane.email_changes.confirm(harness.actor("owner"), EmailLink(link)))


def test_links_to_a_new_password_end_with_the_old_address(harness: Harness, plane: ControlPlane) -> None:
    harness.do(plane.accounts.forgot(VISIT, PEOPLE["owner"]))
    text = next(text for to, _, text in harness.post.posted if to == PEOPLE["owner"])
    secret = next(line for line in text.splitlines() if line.startswith("https:")).rpartition("/")[2]
    harness.do(plane.email_changes.confirm(harness.actor("owner"), EmailLink(requested_link(harness))))
    harness.refused(NotFound, plane.accounts.account_of_reset(secret))


def test_taken_address_is_reported_to_its_owner_alone(harness: Harness, plane: ControlPlane) -> None:
    wanted = NewEmail(PEOPLE["admin"], PASSWORD)
    changed = harness.do(plane.email_changes.request(harness.actor("owner"), wanted))
    assert changed == EmailChange(PEOPLE["owner"], PEOPLE["admin"])
    to, _, text = harness.post.posted[-1]
    assert to == PEOPLE["admin"]
    assert "/console/account/email/" not in text


def test_address_that_was_taken_meanwhile_is_refused(harness: Harness, plane: ControlPlane) -> None:
    link = requested_link(harness)
    harness.post.open = False
    harness.do(plane.email_changes.request(harness.actor("loner"), NewEmail(NEW, "")))
    harness.refused(NameTaken, plane.email_changes.confirm(harness.actor("owner"), EmailLink(link)))
    assert harness.account("owner").email == PEOPLE["owner"]


def test_without_mail_it_changes_at_once_and_is_not_verified(harness: Harness, plane: ControlPlane) -> None:
    harness.post.open = False
    changed = harness.do(plane.email_changes.request(harness.actor("owner"), NewEmail(NEW, PASSWORD)))
    assert changed == EmailChange(NEW)
    account = harness.account("owner")
    assert (account.email, account.verified_at) == (NEW, None)
    harness.refused(NameTaken, plane.email_changes.request(harness.actor("loner"), NewEmail(NEW, "")))


def test_password_is_needed_and_a_program_is_refused(harness: Harness, plane: ControlPlane) -> None:
    harness.refused(WrongPassword, plane.email_changes.request(harness.actor("owner"), NewEmail(NEW, "wrong")))
    program, _ = harness.program("owner")
    harness.refused(PersonalTokenRefused, plane.email_changes.request(program, NewEmail(NEW, PASSWORD)))
    assert harness.post.posted == []


@pytest.mark.parametrize("address", ["", "nonsense", PEOPLE["owner"], PEOPLE["owner"].upper()])
def test_no_address_and_ones_own_are_refused(harness: Harness, plane: ControlPlane, address: str) -> None:
    refused = harness.refused(
        InvalidInput, plane.email_changes.request(harness.actor("owner"), NewEmail(address, PASSWORD))
    )
    assert refused.extras["field"] == "email"


def test_mails_are_rate_limited(harness: Harness, plane: ControlPlane) -> None:
    for _ in range(5):
        requested_link(harness)
    harness.refused(TooManyAttempts, plane.email_changes.request(harness.actor("owner"), NewEmail(NEW, PASSWORD)))
    assert len(harness.post.posted) == 5
