"""Changing the address of one's account, with a proof of the new one where mail can be sent."""

from __future__ import annotations

import pytest
from tests.control.services.house import ACME, BASE_URL, MINUTE, PASSWORD, PEOPLE, VISIT, House

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


def mailed(house: House, to: str = NEW) -> str:
    """The link of the last mail to an address."""
    text = next(text for address, _, text in reversed(house.post.posted) if address == to)
    link = next(line for line in text.splitlines() if line.startswith("https:"))
    assert link.startswith(f"{BASE_URL}/console/account/email/")
    return link


def asked(house: House) -> str:
    assert house.do(house.plane.email_changes.request(house.actor("owner"), NEW, PASSWORD)) is True
    return mailed(house)


def test_link_to_the_new_address_changes_it_and_the_old_one_is_told(house: House, plane: ControlPlane) -> None:
    link = asked(house)
    assert house.account("owner").email == PEOPLE["owner"]
    house.clock.advance(MINUTE)
    house.do(plane.email_changes.confirm(house.actor("owner"), link))
    account = house.account("owner")
    assert (account.email, account.verified_at) == (NEW, house.clock.now)
    assert NEW in next(text for to, _, text in house.post.posted if to == PEOPLE["owner"])
    house.do(plane.accounts.check_password(VISIT, NEW, PASSWORD))
    house.refused(WrongPassword, plane.accounts.check_password(VISIT, PEOPLE["owner"], PASSWORD))


def test_change_is_noted_for_oneself_and_in_every_team(house: House, plane: ControlPlane) -> None:
    house.do(plane.email_changes.confirm(house.actor("owner"), asked(house)))
    own, team = house.notes()[-2:]
    assert (own.action, own.team_id, own.actor) == ("account.email", None, PEOPLE["owner"])
    assert (team.action, team.team_id, team.name) == ("member.email", ACME.id, NEW)
    assert PEOPLE["owner"] in team.details


def test_link_works_once_for_its_account_in_its_time(house: House, plane: ControlPlane) -> None:
    link = asked(house)
    for who in ("admin", "stranger"):
        house.refused(NotFound, plane.email_changes.confirm(house.actor(who), link))
    for broken in ("", "x", link[:-1], link + "A", link.replace("email/", "email/A"), "\udcff" * 40):
        house.refused(NotFound, plane.email_changes.confirm(house.actor("owner"), broken))
    house.do(plane.email_changes.confirm(house.actor("owner"), link))
    house.refused(NotFound, plane.email_changes.confirm(house.actor("owner"), link))


def test_link_expires(house: House, plane: ControlPlane) -> None:
    link = asked(house)
    house.clock.advance(MINUTE * house.plane.settings.accounts.reset_minutes)
    house.refused(NotFound, plane.email_changes.confirm(house.actor("owner"), link))


def test_another_password_ends_a_link(house: House, plane: ControlPlane) -> None:
    link = asked(house)
    house.do(plane.accounts.change_password(house.actor("owner"), PASSWORD, "an even better password"))
    house.refused(NotFound, plane.email_changes.confirm(house.actor("owner"), link))


def test_links_to_a_new_password_end_with_the_old_address(house: House, plane: ControlPlane) -> None:
    house.do(plane.accounts.forgot(VISIT, PEOPLE["owner"]))
    text = next(text for to, _, text in house.post.posted if to == PEOPLE["owner"])
    secret = next(line for line in text.splitlines() if line.startswith("https:")).rpartition("/")[2]
    house.do(plane.email_changes.confirm(house.actor("owner"), asked(house)))
    house.refused(NotFound, plane.accounts.account_of_reset(secret))


def test_taken_address_is_told_to_nobody_but_its_owner(house: House, plane: ControlPlane) -> None:
    assert house.do(plane.email_changes.request(house.actor("owner"), PEOPLE["admin"], PASSWORD)) is True
    to, _, text = house.post.posted[-1]
    assert to == PEOPLE["admin"]
    assert "/console/account/email/" not in text


def test_address_that_was_taken_meanwhile_is_refused(house: House, plane: ControlPlane) -> None:
    link = asked(house)
    house.post.open = False
    house.do(plane.email_changes.request(house.actor("loner"), NEW, ""))
    house.refused(NameTaken, plane.email_changes.confirm(house.actor("owner"), link))
    assert house.account("owner").email == PEOPLE["owner"]


def test_without_mail_it_changes_at_once_and_is_not_verified(house: House, plane: ControlPlane) -> None:
    house.post.open = False
    assert house.do(plane.email_changes.request(house.actor("owner"), NEW, PASSWORD)) is False
    account = house.account("owner")
    assert (account.email, account.verified_at) == (NEW, None)
    house.refused(NameTaken, plane.email_changes.request(house.actor("loner"), NEW, ""))


def test_password_is_needed_and_a_program_is_refused(house: House, plane: ControlPlane) -> None:
    house.refused(WrongPassword, plane.email_changes.request(house.actor("owner"), NEW, "wrong"))
    program, _ = house.program("owner")
    house.refused(PersonalTokenRefused, plane.email_changes.request(program, NEW, PASSWORD))
    assert house.post.posted == []


@pytest.mark.parametrize("address", ["", "nonsense", PEOPLE["owner"], PEOPLE["owner"].upper()])
def test_no_address_and_ones_own_are_refused(house: House, plane: ControlPlane, address: str) -> None:
    refused = house.refused(InvalidInput, plane.email_changes.request(house.actor("owner"), address, PASSWORD))
    assert refused.extras["field"] == "email"


def test_mails_are_few(house: House, plane: ControlPlane) -> None:
    for _ in range(5):
        asked(house)
    house.refused(TooManyAttempts, plane.email_changes.request(house.actor("owner"), NEW, PASSWORD))
    assert len(house.post.posted) == 5
