"""Changing a password, and getting back in without it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.control.services.house import (
    BASE_URL,
    ELSEWHERE,
    HOUR,
    MINUTE,
    PASSWORD,
    PEOPLE,
    VISIT,
    House,
)

from tollgate.control.plane import ControlPlane
from tollgate.control.problems import (
    InvalidInput,
    LoginExpired,
    NotFound,
    PersonalTokenRefused,
    TooManyAttempts,
    WrongPassword,
)
from tollgate.control.service_context import OPERATOR, Actor, ClientInfo
from tollgate.control.services.accounts import MAX_LINKS
from tollgate.control.services.devices import OAuthError
from tollgate.core.people import CONSOLE, PERSONAL, Identity

OWNER = PEOPLE["owner"]
NEW = "an even better password"


def signed_in(house: House, who: str = "owner") -> tuple[Actor, str]:
    """Somebody at a browser with a session, and its cookie."""
    cookie = house.do(house.plane.logins.open_session(VISIT, house.account(who)))
    return house.do(house.plane.logins.actor(VISIT, cookie, CONSOLE)), cookie


def secret_of(link: str) -> str:
    assert link.startswith(f"{BASE_URL}/console/reset/tgl_")
    return link.rpartition("/")[2]


# --- Changing it ---------------------------------------------------------------------------------------


def test_change_ends_all_other_logins_and_keeps_this_one(house: House, plane: ControlPlane) -> None:
    actor, cookie = signed_in(house)
    _, other = signed_in(house)
    _, token = house.program("owner")
    _, strangers = signed_in(house, "stranger")
    house.do(plane.accounts.change_password(actor, PASSWORD, NEW))
    house.do(plane.logins.actor(VISIT, cookie, CONSOLE))
    house.refused(LoginExpired, plane.logins.actor(VISIT, other, CONSOLE))
    house.refused(LoginExpired, plane.logins.actor(VISIT, token, PERSONAL))
    house.do(plane.logins.actor(VISIT, strangers, CONSOLE))
    entry = house.notes()[-1]
    house.refused(WrongPassword, plane.accounts.check_password(VISIT, OWNER, PASSWORD))
    house.do(plane.accounts.check_password(VISIT, OWNER, NEW))
    assert (entry.action, entry.actor, entry.target, entry.via) == (
        "account.password", OWNER, "acc_owner", "console"
    )  # fmt: skip


def test_change_sends_away_a_tool_that_was_approved_but_has_not_called_yet(
    house: House, plane: ControlPlane
) -> None:
    actor, _ = signed_in(house)
    thief = house.do(plane.devices.start(ELSEWHERE, "thief@laptop"))
    house.do(plane.devices.approve(actor, thief.user_code))
    house.do(plane.accounts.change_password(actor, PASSWORD, NEW))
    assert house.refused(OAuthError, plane.devices.poll(ELSEWHERE, thief.device_code)).code == "invalid_grant"


def test_change_needs_the_current_password_and_wrong_ones_are_slowed(house: House, plane: ControlPlane) -> None:
    actor, _ = signed_in(house)
    for _ in range(5):
        problem = house.refused(WrongPassword, plane.accounts.change_password(actor, "wrong", NEW))
        assert "current password" in problem.detail
    house.refused(TooManyAttempts, plane.accounts.change_password(actor, PASSWORD, NEW))
    house.clock.advance(2)
    house.refused(InvalidInput, plane.accounts.change_password(actor, PASSWORD, "short"))
    house.do(plane.accounts.check_password(VISIT, OWNER, PASSWORD))


def test_program_with_a_personal_token_may_not_change_the_password(house: House, plane: ControlPlane) -> None:
    program, _ = house.program("owner")
    problem = house.refused(PersonalTokenRefused, plane.accounts.change_password(program, PASSWORD, NEW))
    assert problem.status == 403
    assert "may not change the password" in problem.detail


def test_account_of_a_provider_sets_its_first_password_without_one(house: House, plane: ControlPlane) -> None:
    actor, _ = signed_in(house, "viewer")
    house.do(plane.accounts.change_password(actor, "", NEW))
    assert house.do(plane.accounts.check_password(VISIT, PEOPLE["viewer"], NEW)).id == "acc_viewer"


# --- Links of the operator -----------------------------------------------------------------------------


def test_link_sets_the_password_once_and_ends_all_logins(house: House, plane: ControlPlane) -> None:
    _, cookie = signed_in(house)
    secret = secret_of(house.do(plane.accounts.reset_link(OPERATOR, "Owner@ACME.example")))
    assert house.do(plane.accounts.account_of_reset(secret)).email == OWNER
    house.refused(InvalidInput, plane.accounts.reset(VISIT, secret, "short"))
    changed = house.do(plane.accounts.reset(ELSEWHERE, secret, NEW))
    assert changed == house.account("owner")
    house.refused(LoginExpired, plane.logins.actor(VISIT, cookie, CONSOLE))
    house.do(plane.accounts.check_password(VISIT, OWNER, NEW))
    problem = house.refused(NotFound, plane.accounts.reset(VISIT, secret, "once more, please"))
    assert problem.detail == "This link was used or has expired: ask for another."
    made, used = house.notes()[-2:]
    assert (made.action, made.actor, used.action, used.actor, used.address) == (
        "account.reset_link", "operator", "account.password", OWNER, ELSEWHERE.address
    )  # fmt: skip


def test_two_who_follow_a_link_at_once_set_one_password(house: House, plane: ControlPlane) -> None:
    secret = secret_of(house.do(plane.accounts.reset_link(OPERATOR, OWNER)))
    results = house.at_once(*(plane.accounts.reset(VISIT, secret, f"password of {n} here") for n in range(3)))
    assert sum(isinstance(result, NotFound) for result in results) == 2


def test_link_expires(house: House) -> None:
    plane = house.choose(reset_minutes=30)
    secret = secret_of(house.do(plane.accounts.reset_link(OPERATOR, OWNER)))
    house.clock.advance(30 * MINUTE - 0.01)
    house.do(plane.accounts.account_of_reset(secret))
    house.clock.advance(0.01)
    house.refused(NotFound, plane.accounts.account_of_reset(secret))
    house.refused(NotFound, plane.accounts.reset(VISIT, secret, NEW))


def test_newer_link_replaces_the_one_before(house: House, plane: ControlPlane) -> None:
    first, second = (secret_of(house.do(plane.accounts.reset_link(OPERATOR, OWNER))) for _ in range(2))
    house.refused(NotFound, plane.accounts.account_of_reset(first))
    house.do(plane.accounts.account_of_reset(second))


def test_change_of_the_password_ends_an_open_link(house: House, plane: ControlPlane) -> None:
    actor, _ = signed_in(house)
    secret = secret_of(house.do(plane.accounts.reset_link(OPERATOR, OWNER)))
    house.do(plane.accounts.change_password(actor, PASSWORD, NEW))
    house.refused(NotFound, plane.accounts.account_of_reset(secret))


def test_there_is_no_link_for_nobody(house: House, plane: ControlPlane) -> None:
    problem = house.refused(NotFound, plane.accounts.reset_link(OPERATOR, "nobody@x.example"))
    assert "nobody@x.example has no account" in problem.detail


def test_there_is_no_link_for_an_account_that_is_switched_off(house: House, plane: ControlPlane) -> None:
    house.do(plane.operator.switch(OWNER, active=False))
    problem = house.refused(InvalidInput, plane.accounts.reset_link(OPERATOR, OWNER))
    assert f"run `tollgate admin enable {OWNER}` first" in problem.detail


@pytest.mark.parametrize("secret", ["", "tgl_", "x" * 10_000, "\ud800", "tgl_" + "0" * 38])
def test_made_up_links_are_nobodys(house: House, plane: ControlPlane, secret: str) -> None:
    house.refused(NotFound, plane.accounts.account_of_reset(secret))


def test_reset_forgives_failures(house: House, plane: ControlPlane) -> None:
    for number in range(5):
        visit = ClientInfo(f"192.0.2.{number}")
        house.refused(WrongPassword, plane.accounts.check_password(visit, OWNER, "wrong"))
    secret = secret_of(house.do(plane.accounts.reset_link(OPERATOR, OWNER)))
    house.do(plane.accounts.reset(VISIT, secret, NEW))
    house.do(plane.accounts.check_password(VISIT, OWNER, NEW))


def test_link_proves_the_address_and_throws_out_whoever_took_it_first(house: House) -> None:
    """Someone signs up with a stranger's address and links a provider; the stranger resets the password."""
    plane, house.post.open = house.choose(sign_up="open"), False
    squatted = house.do(plane.accounts.sign_up(ELSEWHERE, "victim@x.example", PASSWORD))
    identity = Identity("idn_1", squatted.id, "https://idp.example", "attacker", house.clock.now)
    house.write(lambda records: records.identities.add(identity))
    secret = secret_of(house.do(plane.accounts.reset_link(OPERATOR, "victim@x.example")))
    assert house.do(plane.accounts.reset(VISIT, secret, NEW)).verified_at == house.clock.now
    assert house.write(lambda records: records.identities.count()) == 0


def test_link_leaves_the_provider_of_a_proven_address(house: House, plane: ControlPlane) -> None:
    identity = Identity("idn_1", "acc_owner", "https://idp.example", "owner", house.clock.now)
    house.write(lambda records: records.identities.add(identity))
    since = house.account("owner").verified_at
    secret = secret_of(house.do(plane.accounts.reset_link(OPERATOR, OWNER)))
    assert house.do(plane.accounts.reset(VISIT, secret, NEW)).verified_at == since
    assert house.write(lambda records: records.identities.count()) == 1


# --- Links by mail -------------------------------------------------------------------------------------


def test_forgotten_password_comes_back_by_mail(house: House, plane: ControlPlane) -> None:
    house.do(plane.accounts.forgot(VISIT, " Owner@acme.example"))
    [(to, subject, text)] = house.post.posted
    assert (to, subject) == (OWNER, "Reset your Tollgate password")
    assert "within 60 minutes" in text
    [link] = [line for line in text.splitlines() if line.startswith("https:")]
    house.do(plane.accounts.reset(VISIT, secret_of(link), NEW))
    assert house.actions() == ["account.reset_link", "account.password"]


def test_who_has_no_account_is_told_the_same_and_gets_no_mail(house: House, plane: ControlPlane) -> None:
    house.do(plane.operator.switch(PEOPLE["viewer"], active=False))
    for email in ("nobody@x.example", PEOPLE["viewer"]):
        house.do(plane.accounts.forgot(VISIT, email))
    assert house.post.posted == []
    house.refused(InvalidInput, plane.accounts.forgot(VISIT, "no address"))


def test_without_mail_nothing_is_made(house: House, plane: ControlPlane) -> None:
    house.post.open = False
    house.do(plane.accounts.forgot(VISIT, OWNER))
    assert house.write(lambda records: records.reset_links.count()) == 0


def test_links_are_mailed_in_moderation_and_nobody_is_told(house: House, plane: ControlPlane) -> None:
    for email in (OWNER, "nobody@x.example"):
        for place in range(50):
            house.do(plane.accounts.forgot(ClientInfo(f"192.0.2.{place}"), email))
    assert len(house.post.posted) == 5
    house.clock.advance(10 * MINUTE)
    house.do(plane.accounts.forgot(VISIT, OWNER))
    assert len(house.post.posted) == 6


def test_stranger_who_asks_again_and_again_cannot_spoil_the_owners_link(house: House, plane: ControlPlane) -> None:
    house.do(plane.accounts.forgot(VISIT, OWNER))
    link = house.post.posted[0][2]
    for place in range(30):
        house.do(plane.accounts.forgot(ClientInfo(f"192.0.2.{place}"), OWNER))
    secret = link.partition("/console/reset/")[2].split()[0]
    house.do(plane.accounts.reset(VISIT, secret, NEW))
    house.do(plane.accounts.check_password(VISIT, OWNER, NEW))
    assert house.write(lambda records: records.reset_links.count()) == 0


def test_links_of_one_account_are_bounded(house: House, plane: ControlPlane) -> None:
    plane = house.choose(reset_minutes=10_080)
    for _ in range(3 * MAX_LINKS):
        house.do(plane.accounts.forgot(VISIT, OWNER))
        house.clock.advance(HOUR)
    assert house.write(lambda records: records.reset_links.count()) == MAX_LINKS


def test_one_place_cannot_have_mail_sent_to_everybody(house: House, plane: ControlPlane) -> None:
    for number in range(21):
        house.do(plane.accounts.forgot(ClientInfo(f"2001:db8::{number:x}"), f"n{number}@x.example"))
    house.refused(TooManyAttempts, plane.accounts.forgot(ClientInfo("2001:db8::ffff"), OWNER))
    house.clock.advance(HOUR)
    house.do(plane.accounts.forgot(ClientInfo("2001:db8::ffff"), OWNER))


def test_unverified_account_may_ask_as_well(house: House, plane: ControlPlane) -> None:
    account = replace(house.account("owner"), verified_at=None)
    house.write(lambda records: records.accounts.replace(account))
    house.do(plane.accounts.forgot(VISIT, OWNER))
    assert len(house.post.posted) == 1
