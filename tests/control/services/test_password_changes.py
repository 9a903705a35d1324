"""Changing a password, and getting back in without it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.control.services.harness import (
    BASE_URL,
    ELSEWHERE,
    HOUR,
    MINUTE,
    PASSWORD,
    PEOPLE,
    VISIT,
    Harness,
)

from tollgate.api.me import NewPersonalToken, PasswordChange
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import (
    InvalidInput,
    LogInAgain,
    LoginExpired,
    NotFound,
    PersonalTokenRefused,
    TooManyAttempts,
    WrongPassword,
)
from tollgate.control.service_context import OPERATOR, RECENT_SECONDS, Actor, ClientInfo
from tollgate.control.services.accounts import MAX_LINKS
from tollgate.control.services.devices import OAuthError
from tollgate.core.people import CONSOLE, PASSKEY, PERSONAL, TOOL, Factor, Identity

OWNER = PEOPLE["owner"]
NEW = "an even better password"


def signed_in(harness: Harness, who: str = "owner") -> tuple[Actor, str]:
    """A person at a browser with a session, and its cookie."""
    cookie = harness.do(harness.plane.logins.open_session(VISIT, harness.account(who)))
    return harness.do(harness.plane.logins.actor(VISIT, cookie, CONSOLE)), cookie


def secret_of(link: str) -> str:
    assert link.startswith(f"{BASE_URL}/console/reset/tgl_")
    return link.rpartition("/")[2]


# --- Changing it ---------------------------------------------------------------------------------------


def test_change_ends_all_other_logins_and_keeps_this_one(harness: Harness, plane: ControlPlane) -> None:
    actor, cookie = signed_in(harness)
    _, other = signed_in(harness)
    _, token = harness.program("owner")
    _, outsiders = signed_in(harness, "outsider")
    harness.do(plane.accounts.change_password(actor, PasswordChange(PASSWORD, NEW)))
    harness.do(plane.logins.actor(VISIT, cookie, CONSOLE))
    harness.refused(LoginExpired, plane.logins.actor(VISIT, other, CONSOLE))
    harness.refused(LoginExpired, plane.logins.actor(VISIT, token, PERSONAL))
    harness.do(plane.logins.actor(VISIT, outsiders, CONSOLE))
    entry = harness.notes()[-1]
    harness.refused(WrongPassword, plane.accounts.check_password(VISIT, OWNER, PASSWORD))
    harness.do(plane.accounts.check_password(VISIT, OWNER, NEW))
    assert (entry.action, entry.actor, entry.target, entry.via) == (
        "account.password", OWNER, "acc_owner", "console"
    )  # fmt: skip


def test_change_sends_away_a_tool_that_was_approved_but_has_not_called_yet(
    harness: Harness, plane: ControlPlane
) -> None:
    actor, _ = signed_in(harness)
    thief = harness.do(plane.devices.start(ELSEWHERE, "thief@laptop"))
    harness.do(plane.devices.approve(actor, thief.user_code))
    harness.do(plane.accounts.change_password(actor, PasswordChange(PASSWORD, NEW)))
    assert harness.refused(OAuthError, plane.devices.poll(ELSEWHERE, thief.device_code)).code == "invalid_grant"


@pytest.mark.parametrize("kept", ["end_sessions", "end_devices", "end_tokens"])
def test_change_ends_what_is_chosen(harness: Harness, plane: ControlPlane, kept: str) -> None:
    actor, _ = signed_in(harness)
    _, other = signed_in(harness)
    _, token = harness.program("owner")
    started = harness.do(plane.devices.start(VISIT, "laptop"))
    harness.do(plane.devices.approve(actor, started.user_code))
    tool = harness.do(plane.devices.poll(VISIT, started.device_code)).access
    passkey = Factor("fac_1", "acc_owner", PASSKEY, "Key", harness.clock.now, b"key", b"credential")
    harness.write(lambda records: records.factors.add(passkey))
    wanted = PasswordChange(PASSWORD, NEW, **{kept: False})
    harness.do(plane.accounts.change_password(actor, wanted))
    ways = {"end_sessions": (other, CONSOLE), "end_devices": (tool, TOOL), "end_tokens": (token, PERSONAL)}
    for name, (secret, kind) in ways.items():
        if name == kept:
            harness.do(plane.logins.actor(VISIT, secret, kind))
        else:
            harness.refused(LoginExpired, plane.logins.actor(VISIT, secret, kind))
    assert harness.do(plane.factors.list(actor)).passkeys == [passkey]


def test_change_removes_passkeys_where_that_is_chosen(harness: Harness, plane: ControlPlane) -> None:
    actor, _ = signed_in(harness)
    passkey = Factor("fac_1", "acc_owner", PASSKEY, "Key", harness.clock.now, b"key", b"credential")
    harness.write(lambda records: records.factors.add(passkey))
    harness.do(plane.accounts.change_password(actor, PasswordChange(PASSWORD, NEW, end_passkeys=True)))
    assert harness.do(plane.factors.list(actor)).passkeys == []
    assert [entry.action for entry in harness.notes()[-2:]] == ["account.password", "passkey.remove"]


def test_password_that_was_just_given_counts_as_authentication(harness: Harness, plane: ControlPlane) -> None:
    actor, cookie = signed_in(harness)
    harness.clock.advance(RECENT_SECONDS + 1)
    harness.refused(LogInAgain, plane.factors.begin_passkey(actor))
    harness.do(plane.accounts.change_password(actor, PasswordChange(PASSWORD, NEW)))
    harness.do(plane.factors.begin_passkey(harness.do(plane.logins.actor(VISIT, cookie, CONSOLE))))


@pytest.mark.parametrize("age", [0, RECENT_SECONDS - 10])
def test_device_login_inherits_the_time_of_authentication(
    harness: Harness, plane: ControlPlane, age: float
) -> None:
    actor, _ = signed_in(harness)
    harness.clock.advance(age)
    started = harness.do(plane.devices.start(VISIT, "laptop"))
    harness.do(plane.devices.approve(actor, started.user_code))
    given = harness.do(plane.devices.poll(VISIT, started.device_code))
    harness.do(plane.factors.begin_passkey(harness.do(plane.logins.actor(VISIT, given.access, TOOL))))
    harness.clock.advance(RECENT_SECONDS + 1 - age)
    given = harness.do(plane.logins.refresh(given.refresh))
    tool = harness.do(plane.logins.actor(VISIT, given.access, TOOL))
    for deed in (
        plane.factors.begin_passkey(tool),
        plane.factors.begin_totp(tool),
        plane.factors.remove(tool, "fac_1"),
        plane.logins.new_personal(tool, NewPersonalToken("ci")),
        plane.devices.approve(tool, "ABCD-EFGH"),
    ):
        harness.refused(LogInAgain, deed)


def test_first_password_requires_a_recent_login(harness: Harness, plane: ControlPlane) -> None:
    actor, _ = signed_in(harness, "loner")
    harness.clock.advance(RECENT_SECONDS + 1)
    harness.refused(LogInAgain, plane.accounts.change_password(actor, PasswordChange("", NEW)))
    assert harness.account("loner").password_hash == ""
    actor, _ = signed_in(harness, "loner")
    harness.do(plane.accounts.change_password(actor, PasswordChange("", NEW)))
    harness.do(plane.accounts.check_password(VISIT, PEOPLE["loner"], NEW))


def test_change_by_a_signed_in_person_verifies_no_address(harness: Harness, plane: ControlPlane) -> None:
    """Otherwise the person who signed up with another person's address would own that person's login."""
    unproved = replace(harness.account("owner"), verified_at=None)
    identity = Identity("idn_1", "acc_owner", "https://idp.example", "owner", harness.clock.now)
    harness.write(lambda records: records.accounts.replace(unproved))
    harness.write(lambda records: records.identities.add(identity))
    actor, _ = signed_in(harness)
    harness.do(plane.accounts.change_password(actor, PasswordChange(PASSWORD, NEW)))
    assert harness.account("owner").verified_at is None
    assert harness.write(lambda records: records.identities.get("idn_1")) == identity


def test_change_needs_the_current_password_and_wrong_ones_are_slowed(
    harness: Harness, plane: ControlPlane
) -> None:
    actor, _ = signed_in(harness)
    for _ in range(5):
        problem = harness.refused(
            WrongPassword, plane.accounts.change_password(actor, PasswordChange("wrong", NEW))
        )
        assert "current password" in problem.detail
    harness.refused(TooManyAttempts, plane.accounts.change_password(actor, PasswordChange(PASSWORD, NEW)))
    harness.clock.advance(2)
    harness.refused(InvalidInput, plane.accounts.change_password(actor, PasswordChange(PASSWORD, "short")))
    harness.do(plane.accounts.check_password(VISIT, OWNER, PASSWORD))


def test_program_with_a_personal_token_may_not_change_the_password(harness: Harness, plane: ControlPlane) -> None:
    program, _ = harness.program("owner")
    problem = harness.refused(
        PersonalTokenRefused, plane.accounts.change_password(program, PasswordChange(PASSWORD, NEW))
    )
    assert problem.status == 403
    assert "may not change the password" in problem.detail


def test_account_of_a_provider_sets_its_first_password_without_one(harness: Harness, plane: ControlPlane) -> None:
    actor, _ = signed_in(harness, "viewer")
    harness.do(plane.accounts.change_password(actor, PasswordChange("", NEW)))
    assert harness.do(plane.accounts.check_password(VISIT, PEOPLE["viewer"], NEW)).id == "acc_viewer"


# --- Links of the operator -----------------------------------------------------------------------------


def test_link_sets_the_password_once_and_ends_all_logins(harness: Harness, plane: ControlPlane) -> None:
    _, cookie = signed_in(harness)
    secret = secret_of(harness.do(plane.accounts.reset_link(OPERATOR, "Owner@ACME.example")))
    assert harness.do(plane.accounts.account_of_reset(secret)).email == OWNER
    harness.refused(InvalidInput, plane.accounts.reset(VISIT, secret, "short"))
    changed = harness.do(plane.accounts.reset(ELSEWHERE, secret, NEW))
    assert changed == harness.account("owner")
    harness.refused(LoginExpired, plane.logins.actor(VISIT, cookie, CONSOLE))
    harness.do(plane.accounts.check_password(VISIT, OWNER, NEW))
    problem = harness.refused(NotFound, plane.accounts.reset(VISIT, secret, "once more, please"))
    assert problem.detail == "This link was used or has expired: ask for another."
    made, used = harness.notes()[-2:]
    assert (made.action, made.actor, used.action, used.actor, used.address) == (
        "account.reset_link", "operator", "account.password", OWNER, ELSEWHERE.address
    )  # fmt: skip


def test_link_of_the_operator_is_mailed_too(harness: Harness, plane: ControlPlane) -> None:
    link = harness.do(plane.accounts.reset_link(OPERATOR, OWNER))
    [(to, _, text)] = harness.post.posted
    assert (to, link in text) == (OWNER, True)


def test_two_who_follow_a_link_at_once_set_one_password(harness: Harness, plane: ControlPlane) -> None:
    secret = secret_of(harness.do(plane.accounts.reset_link(OPERATOR, OWNER)))
    results = harness.at_once(*(plane.accounts.reset(VISIT, secret, f"password of {n} here") for n in range(3)))
    assert sum(isinstance(result, NotFound) for result in results) == 2


def test_link_expires(harness: Harness) -> None:
    plane = harness.choose(reset_minutes=30)
    secret = secret_of(harness.do(plane.accounts.reset_link(OPERATOR, OWNER)))
    harness.clock.advance(30 * MINUTE - 0.01)
    harness.do(plane.accounts.account_of_reset(secret))
    harness.clock.advance(0.01)
    harness.refused(NotFound, plane.accounts.account_of_reset(secret))
    harness.refused(NotFound, plane.accounts.reset(VISIT, secret, NEW))


def test_newer_link_replaces_the_one_before(harness: Harness, plane: ControlPlane) -> None:
    first, second = (secret_of(harness.do(plane.accounts.reset_link(OPERATOR, OWNER))) for _ in range(2))
    harness.refused(NotFound, plane.accounts.account_of_reset(first))
    harness.do(plane.accounts.account_of_reset(second))


def test_change_of_the_password_ends_an_open_link(harness: Harness, plane: ControlPlane) -> None:
    actor, _ = signed_in(harness)
    secret = secret_of(harness.do(plane.accounts.reset_link(OPERATOR, OWNER)))
    harness.do(plane.accounts.change_password(actor, PasswordChange(PASSWORD, NEW)))
    harness.refused(NotFound, plane.accounts.account_of_reset(secret))


def test_unknown_address_gets_no_link(harness: Harness, plane: ControlPlane) -> None:
    problem = harness.refused(NotFound, plane.accounts.reset_link(OPERATOR, "unknown@x.example"))
    assert "unknown@x.example has no account" in problem.detail


def test_there_is_no_link_for_an_account_that_is_switched_off(harness: Harness, plane: ControlPlane) -> None:
    harness.do(plane.admin.switch(OWNER, active=False))
    problem = harness.refused(InvalidInput, plane.accounts.reset_link(OPERATOR, OWNER))
    assert f"run `tollgate admin enable {OWNER}` first" in problem.detail


@pytest.mark.parametrize("secret", ["", "tgl_", "x" * 10_000, "\ud800", "tgl_" + "0" * 38])
def test_invented_links_are_refused(harness: Harness, plane: ControlPlane, secret: str) -> None:
    harness.refused(NotFound, plane.accounts.account_of_reset(secret))


def test_reset_forgives_failures(harness: Harness, plane: ControlPlane) -> None:
    for _ in range(5):
        harness.refused(WrongPassword, plane.accounts.check_password(VISIT, OWNER, "wrong"))
    harness.refused(TooManyAttempts, plane.accounts.check_password(VISIT, OWNER, PASSWORD))
    secret = secret_of(harness.do(plane.accounts.reset_link(OPERATOR, OWNER)))
    harness.do(plane.accounts.reset(VISIT, secret, NEW))
    harness.do(plane.accounts.check_password(VISIT, OWNER, NEW))


def test_link_verifies_the_address_and_ends_the_access_of_a_squatter(harness: Harness) -> None:
    """An attacker signs up with a person's address, links a provider, adds a passkey; the person resets it."""
    plane, harness.post.open = harness.choose(sign_up="open"), False
    squatted = harness.do(plane.accounts.sign_up(ELSEWHERE, "victim@x.example", PASSWORD))
    identity = Identity("idn_1", squatted.id, "https://idp.example", "attacker", harness.clock.now)
    harness.write(lambda records: records.identities.add(identity))
    passkey = Factor("fac_1", squatted.id, PASSKEY, "Laptop", harness.clock.now, b"key", b"credential")
    harness.write(lambda records: records.factors.add(passkey))
    secret = secret_of(harness.do(plane.accounts.reset_link(OPERATOR, "victim@x.example")))
    assert harness.do(plane.accounts.reset(VISIT, secret, NEW)).verified_at == harness.clock.now
    assert harness.write(lambda records: records.identities.count()) == 0
    assert harness.write(lambda records: records.factors.count()) == 0


def test_link_leaves_the_provider_of_a_proven_address(harness: Harness, plane: ControlPlane) -> None:
    identity = Identity("idn_1", "acc_owner", "https://idp.example", "owner", harness.clock.now)
    harness.write(lambda records: records.identities.add(identity))
    since = harness.account("owner").verified_at
    secret = secret_of(harness.do(plane.accounts.reset_link(OPERATOR, OWNER)))
    assert harness.do(plane.accounts.reset(VISIT, secret, NEW)).verified_at == since
    assert harness.write(lambda records: records.identities.count()) == 1


# --- Links by mail -------------------------------------------------------------------------------------


def test_forgotten_password_comes_back_by_mail(harness: Harness, plane: ControlPlane) -> None:
    harness.do(plane.accounts.forgot(VISIT, " Owner@acme.example"))
    [(to, subject, text)] = harness.post.posted
    assert (to, subject) == (OWNER, "Reset your Tollgate password")
    assert "within 60 minutes" in text
    [link] = [line for line in text.splitlines() if line.startswith("https:")]
    harness.do(plane.accounts.reset(VISIT, secret_of(link), NEW))
    assert harness.actions() == ["account.reset_link", "account.password"]


def test_person_without_an_account_sees_the_same_and_gets_no_mail(harness: Harness, plane: ControlPlane) -> None:
    harness.do(plane.admin.switch(PEOPLE["viewer"], active=False))
    for email in ("unknown@x.example", PEOPLE["viewer"]):
        harness.do(plane.accounts.forgot(VISIT, email))
    assert harness.post.posted == []
    harness.refused(InvalidInput, plane.accounts.forgot(VISIT, "no address"))


def test_without_mail_nothing_is_made(harness: Harness, plane: ControlPlane) -> None:
    harness.post.open = False
    harness.do(plane.accounts.forgot(VISIT, OWNER))
    assert harness.write(lambda records: records.reset_links.count()) == 0


def test_links_are_rate_limited_without_a_visible_difference(harness: Harness, plane: ControlPlane) -> None:
    for email in (OWNER, "unknown@x.example"):
        for place in range(50):
            harness.do(plane.accounts.forgot(ClientInfo(f"192.0.2.{place}"), email))
    assert len(harness.post.posted) == 5
    harness.clock.advance(10 * MINUTE)
    harness.do(plane.accounts.forgot(VISIT, OWNER))
    assert len(harness.post.posted) == 6


def test_repeated_requests_of_another_person_do_not_invalidate_the_owners_link(
    harness: Harness, plane: ControlPlane
) -> None:
    harness.do(plane.accounts.forgot(VISIT, OWNER))
    link = harness.post.posted[0][2]
    for place in range(30):
        harness.do(plane.accounts.forgot(ClientInfo(f"192.0.2.{place}"), OWNER))
    secret = link.partition("/console/reset/")[2].split()[0]
    harness.do(plane.accounts.reset(VISIT, secret, NEW))
    harness.do(plane.accounts.check_password(VISIT, OWNER, NEW))
    assert harness.write(lambda records: records.reset_links.count()) == 0


def test_links_of_one_account_are_bounded(harness: Harness, plane: ControlPlane) -> None:
    plane = harness.choose(reset_minutes=10_080)
    for _ in range(3 * MAX_LINKS):
        harness.do(plane.accounts.forgot(VISIT, OWNER))
        harness.clock.advance(HOUR)
    left = harness.write(lambda records: records.reset_links.page(100))
    assert len(left) == MAX_LINKS
    assert min(link.created_at for link in left) == harness.clock.now - MAX_LINKS * HOUR, "the newest stay"


def test_mails_requested_from_one_address_are_limited(harness: Harness, plane: ControlPlane) -> None:
    for number in range(21):
        harness.do(plane.accounts.forgot(ClientInfo(f"2001:db8::{number:x}"), f"n{number}@x.example"))
    harness.refused(TooManyAttempts, plane.accounts.forgot(ClientInfo("2001:db8::ffff"), OWNER))
    harness.clock.advance(HOUR)
    harness.do(plane.accounts.forgot(ClientInfo("2001:db8::ffff"), OWNER))


def test_unverified_account_may_request_as_well(harness: Harness, plane: ControlPlane) -> None:
    account = replace(harness.account("owner"), verified_at=None)
    harness.write(lambda records: records.accounts.replace(account))
    harness.do(plane.accounts.forgot(VISIT, OWNER))
    assert len(harness.post.posted) == 1
