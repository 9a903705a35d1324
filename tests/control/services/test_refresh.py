"""The tool's login: an access token that runs out, a refresh token that changes with every use."""

from __future__ import annotations

import pytest
from tests.control.services.house import DAY, ELSEWHERE, MINUTE, VISIT, House

from tollgate.control.plane import ControlPlane
from tollgate.control.problems import LoginExpired, NotLoggedIn
from tollgate.control.services.logins import REFRESH_GRACE_SECONDS, Secrets
from tollgate.core import secrets
from tollgate.core.people import CONSOLE, PERSONAL, TOOL, Login


def tool(house: House, who: str = "owner") -> Secrets:
    """Log a tool in."""
    account = house.account(who)
    return house.write(lambda records: house.plane.logins.issue(records, VISIT, account, "owner@laptop"))


def works(house: House, given: Secrets) -> bool:
    try:
        house.do(house.plane.logins.actor(VISIT, given.access, TOOL, PERSONAL))
    except LoginExpired:
        return False
    return True


def rows(house: House) -> list[Login]:
    return house.write(lambda records: records.logins.page(100))


def test_tool_is_given_two_secrets_which_no_repr_shows(house: House) -> None:
    given = tool(house)
    assert secrets.well_formed(given.access, "tga_")
    assert secrets.well_formed(given.refresh, "tgr_")
    assert given.expires_in == 3_600
    assert repr(given) == "Secrets(…)"
    [login] = rows(house)
    assert (login.kind, login.name, login.address) == ("tool", "owner@laptop", VISIT.address)
    assert house.notes()[0].action == "login.open"


def test_access_runs_out_and_is_renewed(house: House) -> None:
    plane = house.choose(access_minutes=10)
    first = tool(house)
    house.clock.advance(10 * MINUTE - 1)
    assert works(house, first)
    house.clock.advance(1)
    assert not works(house, first)
    second = house.do(plane.logins.refresh(first.refresh))
    assert works(house, second)
    assert len({first.access, first.refresh, second.access, second.refresh}) == 4
    assert len(rows(house)) == 1


def test_renewal_ends_the_access_token_before(house: House, plane: ControlPlane) -> None:
    first = tool(house)
    house.do(plane.logins.refresh(first.refresh))
    assert not works(house, first)


def test_tool_stays_logged_in_for_as_long_as_it_is_used(house: House) -> None:
    plane = house.choose(refresh_days=10)
    given = tool(house)
    for _ in range(5):
        house.clock.advance(10 * DAY - 1)
        given = house.do(plane.logins.refresh(given.refresh))
    house.clock.advance(10 * DAY)
    house.refused(LoginExpired, plane.logins.refresh(given.refresh))


def test_lost_answer_is_asked_again_within_the_grace(house: House, plane: ControlPlane) -> None:
    first = tool(house)
    house.do(plane.logins.refresh(first.refresh))
    house.clock.advance(REFRESH_GRACE_SECONDS)
    again = house.do(plane.logins.refresh(first.refresh))
    assert works(house, again)
    house.do(plane.logins.refresh(again.refresh))
    assert "login.reused" not in house.actions()


def test_old_refresh_token_after_the_grace_ends_the_login(house: House, plane: ControlPlane) -> None:
    first = tool(house)
    second = house.do(plane.logins.refresh(first.refresh))
    house.clock.advance(REFRESH_GRACE_SECONDS + 0.1)
    house.refused(LoginExpired, plane.logins.refresh(first.refresh, ELSEWHERE))
    assert not works(house, second)
    house.refused(LoginExpired, plane.logins.refresh(second.refresh))
    assert rows(house) == []
    entry = house.notes()[-1]
    assert (entry.action, entry.actor, entry.name, entry.address) == (
        "login.reused", "owner@acme.example", "owner@laptop", ELSEWHERE.address
    )  # fmt: skip


def test_two_renewals_at_once_leave_one_login_and_the_last_answer_good(house: House, plane: ControlPlane) -> None:
    first = tool(house)
    given = house.at_once(plane.logins.refresh(first.refresh), plane.logins.refresh(first.refresh))
    good = [each for each in given if isinstance(each, Secrets)]
    assert len(good) == 2
    assert [works(house, each) for each in good].count(True) == 1
    assert len(rows(house)) == 1


def test_use_at_the_same_time_as_a_renewal_does_not_undo_it(house: House, plane: ControlPlane) -> None:
    """The last use is written after the login was read: the old secrets must not come along."""
    first = tool(house)
    house.clock.advance(5 * MINUTE)
    results = house.at_once(
        plane.logins.actor(VISIT, first.access, TOOL),
        plane.logins.refresh(first.refresh),
        plane.logins.actor(VISIT, first.access, TOOL),
    )
    [second] = [result for result in results if isinstance(result, Secrets)]
    assert works(house, second)
    assert not works(house, first)


@pytest.mark.parametrize("secret", ["", "tgr_x", "x" * 10_000, "\ud800", secrets.new_token("tgr_")])
def test_made_up_refresh_tokens_are_refused(house: House, plane: ControlPlane, secret: str) -> None:
    house.refused(LoginExpired, plane.logins.refresh(secret))


def test_access_token_is_no_refresh_token_and_the_other_way_round(house: House, plane: ControlPlane) -> None:
    given = tool(house)
    house.refused(LoginExpired, plane.logins.refresh(given.access))
    house.refused(NotLoggedIn, plane.logins.actor(VISIT, given.refresh, TOOL, PERSONAL))


def test_switched_off_account_renews_nothing(house: House, plane: ControlPlane) -> None:
    given = tool(house)
    house.do(plane.operator.switch("owner@acme.example", active=False))
    house.refused(LoginExpired, plane.logins.refresh(given.refresh))
    house.do(plane.operator.switch("owner@acme.example", active=True))
    house.refused(LoginExpired, plane.logins.refresh(given.refresh))


# --- Ending it -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["access", "refresh", "old refresh"])
def test_any_of_its_tokens_ends_the_login(house: House, plane: ControlPlane, which: str) -> None:
    given, others = tool(house), tool(house, "viewer")
    secret = given.access if which == "access" else given.refresh
    if which == "old refresh":
        given = house.do(plane.logins.refresh(given.refresh))
    house.do(plane.logins.revoke(ELSEWHERE, secret))
    assert not works(house, given)
    house.refused(LoginExpired, plane.logins.refresh(given.refresh))
    assert works(house, others)
    entry = house.notes()[-1]
    assert (entry.action, entry.actor, entry.via, entry.address) == (
        "login.end", "owner@acme.example", "tool", ELSEWHERE.address
    )  # fmt: skip


@pytest.mark.parametrize("secret", ["", "x", "\ud800", "ä", secrets.new_token("tga_")])
def test_ending_what_is_not_known_is_no_error(house: House, plane: ControlPlane, secret: str) -> None:
    given = tool(house)
    house.do(plane.logins.revoke(VISIT, secret))
    assert works(house, given)
    assert len(house.notes()) == 1


def test_browser_signs_out_by_its_cookie(house: House, plane: ControlPlane) -> None:
    cookie = house.do(plane.logins.open_session(VISIT, house.account("owner")))
    house.do(plane.logins.revoke(VISIT, cookie))
    house.refused(LoginExpired, plane.logins.actor(VISIT, cookie, CONSOLE))
