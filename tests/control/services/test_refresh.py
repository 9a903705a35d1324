"""The tool's login: an access token that runs out, a refresh token that changes with every use."""

from __future__ import annotations

import pytest
from tests.control.services.harness import DAY, ELSEWHERE, MINUTE, VISIT, Harness

from tollgate.control.plane import ControlPlane
from tollgate.control.problems import LoginExpired, NotLoggedIn
from tollgate.control.services.logins import REFRESH_GRACE_SECONDS, Secrets
from tollgate.core import secrets
from tollgate.core.people import CONSOLE, PERSONAL, TOOL, Login


def tool(harness: Harness, who: str = "owner") -> Secrets:
    """Log a tool in."""
    account = harness.account(who)
    return harness.write(
        lambda records: harness.plane.logins.issue(records, VISIT, account, "owner@laptop", harness.clock.now)
    )


def works(harness: Harness, given: Secrets) -> bool:
    try:
        harness.do(harness.plane.logins.actor(VISIT, given.access, TOOL, PERSONAL))
    except LoginExpired:
        return False
    return True


def rows(harness: Harness) -> list[Login]:
    return harness.write(lambda records: records.logins.page(100))


def test_tool_is_given_two_secrets_which_no_repr_shows(harness: Harness) -> None:
    given = tool(harness)
    assert secrets.well_formed(given.access, "tga_")
    assert secrets.well_formed(given.refresh, "tgr_")
    assert given.expires_in == 3_600
    assert repr(given) == "Secrets(…)"
    [login] = rows(harness)
    assert (login.kind, login.name, login.address) == ("tool", "owner@laptop", VISIT.address)
    assert harness.notes()[0].action == "login.open"


def test_access_runs_out_and_is_renewed(harness: Harness) -> None:
    plane = harness.choose(access_minutes=10)
    first = tool(harness)
    harness.clock.advance(10 * MINUTE - 1)
    assert works(harness, first)
    harness.clock.advance(1)
    assert not works(harness, first)
    second = harness.do(plane.logins.refresh(first.refresh))
    assert works(harness, second)
    assert len({first.access, first.refresh, second.access, second.refresh}) == 4
    assert len(rows(harness)) == 1


def test_refresh_that_comes_too_late_is_no_theft(harness: Harness, plane: ControlPlane) -> None:
    given = tool(harness)
    harness.clock.advance(1_000 * DAY)
    harness.refused(LoginExpired, plane.logins.refresh(given.refresh))
    assert harness.actions() == ["login.open"]
    assert len(rows(harness)) == 1


def test_renewal_ends_the_access_token_before(harness: Harness, plane: ControlPlane) -> None:
    first = tool(harness)
    harness.do(plane.logins.refresh(first.refresh))
    assert not works(harness, first)


def test_tool_stays_logged_in_for_as_long_as_it_is_used(harness: Harness) -> None:
    plane = harness.choose(refresh_days=10)
    given = tool(harness)
    for _ in range(5):
        harness.clock.advance(10 * DAY - 1)
        given = harness.do(plane.logins.refresh(given.refresh))
    harness.clock.advance(10 * DAY)
    harness.refused(LoginExpired, plane.logins.refresh(given.refresh))


def test_lost_answer_is_requested_again_within_the_grace(harness: Harness, plane: ControlPlane) -> None:
    first = tool(harness)
    harness.do(plane.logins.refresh(first.refresh))
    harness.clock.advance(REFRESH_GRACE_SECONDS)
    again = harness.do(plane.logins.refresh(first.refresh))
    assert works(harness, again)
    harness.do(plane.logins.refresh(again.refresh))
    assert "login.reused" not in harness.actions()


def test_old_refresh_token_after_the_grace_ends_the_login(harness: Harness, plane: ControlPlane) -> None:
    first = tool(harness)
    second = harness.do(plane.logins.refresh(first.refresh))
    harness.clock.advance(REFRESH_GRACE_SECONDS + 0.1)
    harness.refused(LoginExpired, plane.logins.refresh(first.refresh, ELSEWHERE))
    assert not works(harness, second)
    harness.refused(LoginExpired, plane.logins.refresh(second.refresh))
    assert rows(harness) == []
    entry = harness.notes()[-1]
    assert (entry.action, entry.actor, entry.name, entry.address) == (
        "login.reused", "owner@acme.example", "owner@laptop", ELSEWHERE.address
    )  # fmt: skip


def test_two_renewals_at_once_leave_one_login_and_the_last_answer_good(
    harness: Harness, plane: ControlPlane
) -> None:
    first = tool(harness)
    given = harness.at_once(plane.logins.refresh(first.refresh), plane.logins.refresh(first.refresh))
    good = [each for each in given if isinstance(each, Secrets)]
    assert len(good) == 2
    assert [works(harness, each) for each in good].count(True) == 1
    assert len(rows(harness)) == 1


def test_use_at_the_same_time_as_a_renewal_does_not_undo_it(harness: Harness, plane: ControlPlane) -> None:
    """The last use is written after the login was read: the old secrets must not come along."""
    first = tool(harness)
    harness.clock.advance(5 * MINUTE)
    results = harness.at_once(
        plane.logins.actor(VISIT, first.access, TOOL),
        plane.logins.refresh(first.refresh),
        plane.logins.actor(VISIT, first.access, TOOL),
    )
    [second] = [result for result in results if isinstance(result, Secrets)]
    assert works(harness, second)
    assert not works(harness, first)


@pytest.mark.parametrize("secret", ["", "tgr_x", "x" * 10_000, "\ud800", secrets.new_token("tgr_")])
def test_made_up_refresh_tokens_are_refused(harness: Harness, plane: ControlPlane, secret: str) -> None:
    harness.refused(LoginExpired, plane.logins.refresh(secret))


def test_access_and_refresh_tokens_are_not_interchangeable(harness: Harness, plane: ControlPlane) -> None:
    given = tool(harness)
    harness.refused(LoginExpired, plane.logins.refresh(given.access))
    harness.refused(NotLoggedIn, plane.logins.actor(VISIT, given.refresh, TOOL, PERSONAL))


def test_switched_off_account_renews_nothing(harness: Harness, plane: ControlPlane) -> None:
    given = tool(harness)
    harness.do(plane.admin.switch("owner@acme.example", active=False))
    harness.refused(LoginExpired, plane.logins.refresh(given.refresh))
    harness.do(plane.admin.switch("owner@acme.example", active=True))
    harness.refused(LoginExpired, plane.logins.refresh(given.refresh))


# --- Ending it -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["access", "refresh", "old refresh"])
def test_either_token_ends_the_login(harness: Harness, plane: ControlPlane, which: str) -> None:
    given, others = tool(harness), tool(harness, "viewer")
    secret = given.access if which == "access" else given.refresh
    if which == "old refresh":
        given = harness.do(plane.logins.refresh(given.refresh))
    harness.do(plane.logins.revoke(ELSEWHERE, secret))
    assert not works(harness, given)
    harness.refused(LoginExpired, plane.logins.refresh(given.refresh))
    assert works(harness, others)
    entry = harness.notes()[-1]
    assert (entry.action, entry.actor, entry.via, entry.address) == (
        "login.end", "owner@acme.example", "tool", ELSEWHERE.address
    )  # fmt: skip


@pytest.mark.parametrize("secret", ["", "x", "\ud800", "ä", secrets.new_token("tga_")])
def test_ending_an_unknown_login_is_no_error(harness: Harness, plane: ControlPlane, secret: str) -> None:
    given = tool(harness)
    harness.do(plane.logins.revoke(VISIT, secret))
    assert works(harness, given)
    assert len(harness.notes()) == 1


def test_browser_signs_out_by_its_cookie(harness: Harness, plane: ControlPlane) -> None:
    cookie = harness.do(plane.logins.open_session(VISIT, harness.account("owner")))
    harness.do(plane.logins.revoke(VISIT, cookie))
    harness.refused(LoginExpired, plane.logins.actor(VISIT, cookie, CONSOLE))
