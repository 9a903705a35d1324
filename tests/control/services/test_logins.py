"""Browser sessions, personal access tokens, and what all logins have in common."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.control.services.harness import ALL, DAY, ELSEWHERE, HOUR, VISIT, Harness

from tollgate.api.me import NewPersonalToken
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import (
    InvalidInput,
    LimitReached,
    LoginExpired,
    NotFound,
    NotLoggedIn,
    PersonalTokenRefused,
)
from tollgate.control.service_context import ClientInfo, PageRequest
from tollgate.control.services import logins
from tollgate.core import secrets
from tollgate.core.people import CONSOLE, PERSONAL, TOOL, Login


def session(harness: Harness, who: str = "owner", client: ClientInfo = VISIT) -> str:
    return harness.do(harness.plane.logins.open_session(client, harness.account(who)))


def held(harness: Harness, who: str = "owner") -> list[Login]:
    return harness.do(harness.plane.logins.list(harness.actor(who), ALL)).items


# --- From a secret to who acts -------------------------------------------------------------------------


def test_session_shows_who_acts_and_from_where(harness: Harness, plane: ControlPlane) -> None:
    cookie = session(harness)
    assert secrets.well_formed(cookie, "tgs_")
    actor = harness.do(plane.logins.actor(ELSEWHERE, cookie, CONSOLE))
    assert (actor.id, actor.label, actor.via, actor.client) == (
        "acc_owner", "owner@acme.example", "console", ELSEWHERE
    )  # fmt: skip
    [login] = held(harness)
    assert (login.kind, login.name, login.address, login.agent) == (
        "console", "Firefox", VISIT.address, VISIT.agent
    )  # fmt: skip
    entry = harness.notes()[0]
    assert (entry.action, entry.target, entry.via) == ("login.open", login.id, "console")


@pytest.mark.parametrize(
    ("agent", "name"),
    [("Mozilla/5.0 Chrome/1 Safari/1 Edg/1", "Edge"), ("Mozilla/5.0 Chrome/1 Safari/1", "Chrome"),
     ("Mozilla/5.0 Version/1 Safari/1", "Safari"), ("x" * 1_000, "Browser"), ("", "Browser")],
)  # fmt: skip
def test_sessions_are_named_after_the_browser(harness: Harness, agent: str, name: str) -> None:
    session(harness, client=ClientInfo("192.0.2.1", agent))
    [login] = held(harness)
    assert (login.name, login.agent) == (name, agent[:256])


def test_session_ends_after_its_hours_whether_used_or_not(harness: Harness) -> None:
    plane = harness.choose(session_hours=2)
    cookie = session(harness)
    harness.clock.advance(2 * HOUR - 1)
    harness.do(plane.logins.actor(VISIT, cookie, CONSOLE))
    harness.clock.advance(1)
    problem = harness.refused(LoginExpired, plane.logins.actor(VISIT, cookie, CONSOLE))
    assert (problem.status, problem.headers) == (401, {"WWW-Authenticate": 'Bearer error="invalid_token"'})


@pytest.mark.parametrize("secret", ["", "x", "tgs_", "tga_" + "0" * 38, "\ud800", "ä" * 42, "x" * 100_000])
def test_malformed_secret_is_not_looked_up(harness: Harness, plane: ControlPlane, secret: str) -> None:
    problem = harness.refused(NotLoggedIn, plane.logins.actor(VISIT, secret, TOOL, PERSONAL))
    assert problem.detail == "The credential is not valid: log in again."


def test_api_token_is_shown_what_it_is_for(harness: Harness, plane: ControlPlane) -> None:
    problem = harness.refused(NotLoggedIn, plane.logins.actor(VISIT, secrets.new_token(), TOOL, PERSONAL))
    assert "API tokens only work for /x/" in problem.detail


def test_unknown_secret_is_refused_like_an_ended_one(harness: Harness, plane: ControlPlane) -> None:
    harness.refused(LoginExpired, plane.logins.actor(VISIT, secrets.new_token("tgp_"), TOOL, PERSONAL))


def test_secret_of_one_kind_is_not_accepted_as_another(harness: Harness, plane: ControlPlane) -> None:
    cookie = session(harness)
    harness.refused(NotLoggedIn, plane.logins.actor(VISIT, cookie, TOOL, PERSONAL))
    _, token = harness.program("owner")
    harness.refused(NotLoggedIn, plane.logins.actor(VISIT, token, CONSOLE))
    harness.refused(NotLoggedIn, plane.logins.actor(VISIT, token, TOOL))


def test_login_of_a_switched_off_account_is_refused(harness: Harness, plane: ControlPlane) -> None:
    cookie = session(harness)
    account = replace(harness.account("owner"), active=False)
    harness.write(lambda records: records.accounts.replace(account))
    harness.refused(LoginExpired, plane.logins.actor(VISIT, cookie, CONSOLE))


def test_last_use_is_written_once_a_minute_at_most(harness: Harness, plane: ControlPlane) -> None:
    cookie, started = session(harness), harness.clock.now
    seen = []
    for _ in range(5):
        harness.do(plane.logins.actor(VISIT, cookie, CONSOLE))
        seen.append((held(harness)[0].last_used_at or 0) - started)
        harness.clock.advance(25)
    assert seen == [0, 0, 0, 75, 75]


def test_use_during_the_end_of_a_login_does_not_bring_it_back(harness: Harness, plane: ControlPlane) -> None:
    cookie = session(harness)
    results = harness.at_once(
        plane.logins.actor(VISIT, cookie, CONSOLE), plane.logins.actor(VISIT, cookie, CONSOLE),
        _end_all(harness),
    )  # fmt: skip
    assert not [
        result for result in results if isinstance(result, BaseException) and type(result) is not LoginExpired
    ]
    assert held(harness) == []


async def _end_all(harness: Harness) -> None:
    async with harness.store.changing() as records:
        await records.logins.remove(account_id="acc_owner")


# --- Personal access tokens ----------------------------------------------------------------------------


def test_personal_token_is_shown_once_and_acts_by_its_name(harness: Harness, plane: ControlPlane) -> None:
    login, secret = harness.do(plane.logins.new_personal(harness.actor("owner"), NewPersonalToken(" ci ", 30)))
    assert secrets.well_formed(secret, "tgp_")
    assert (login.kind, login.name, login.expires_at) == ("personal", "ci", harness.clock.now + 30 * DAY)
    assert secret not in repr(login)
    actor = harness.do(plane.logins.actor(VISIT, secret, TOOL, PERSONAL))
    assert actor.via == "personal:ci"
    harness.clock.advance(30 * DAY)
    harness.refused(LoginExpired, plane.logins.actor(VISIT, secret, TOOL, PERSONAL))


def test_personal_token_without_an_end_goes_on(harness: Harness, plane: ControlPlane) -> None:
    _, secret = harness.program("owner")
    harness.clock.advance(3_650 * DAY)
    harness.do(plane.logins.actor(VISIT, secret, PERSONAL))


@pytest.mark.parametrize("days", [0, -1, 366])
def test_lifetime_of_a_personal_token_is_bounded(harness: Harness, plane: ControlPlane, days: int) -> None:
    problem = harness.refused(
        InvalidInput, plane.logins.new_personal(harness.actor("owner"), NewPersonalToken("ci", days))
    )
    assert (problem.detail, problem.extras) == (
        "`expires_in_days` is a whole number from 1 to 365, or null.", {"field": "expires_in_days"}
    )  # fmt: skip
    harness.refused(InvalidInput, plane.logins.new_personal(harness.actor("owner"), NewPersonalToken("", None)))


def test_program_makes_no_personal_tokens(harness: Harness, plane: ControlPlane) -> None:
    program, _ = harness.program("owner")
    problem = harness.refused(
        PersonalTokenRefused, plane.logins.new_personal(program, NewPersonalToken("more", None))
    )
    assert "may not create personal access tokens" in problem.detail


def test_personal_tokens_are_bounded_and_never_evicted(harness: Harness, plane: ControlPlane) -> None:
    _fill(harness, PERSONAL, logins.MAX_LOGINS)
    problem = harness.refused(
        LimitReached, plane.logins.new_personal(harness.actor("owner"), NewPersonalToken("one more", None))
    )
    assert problem.extras == {"limit": logins.MAX_LOGINS}
    session(harness)
    assert sum(login.kind == PERSONAL for login in held(harness)) == logins.MAX_LOGINS


# --- Bounds and lists ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [CONSOLE, TOOL])
def test_oldest_session_is_evicted_for_a_new_one(harness: Harness, plane: ControlPlane, kind: str) -> None:
    _, token = harness.program("owner")
    _fill(harness, kind, logins.MAX_LOGINS)
    if kind == CONSOLE:
        session(harness)
    else:
        account = harness.account("owner")
        harness.write(lambda records: plane.logins.issue(records, VISIT, account, "laptop", None))
    kept = [login.id for login in held(harness) if login.kind == kind]
    assert len(kept) == logins.MAX_LOGINS
    assert "log_000" not in kept
    assert "log_001" in kept
    harness.do(plane.logins.actor(VISIT, token, PERSONAL))


def _fill(harness: Harness, kind: str, number: int) -> None:
    async def fill() -> None:
        async with harness.store.changing() as records:
            for place in range(number):
                digest = place.to_bytes(32, "big")
                at = harness.clock.now - 1_000 + place
                await records.logins.add(Login(f"log_{place:03}", "acc_owner", kind, "x", at, digest))

    harness.do(fill())


def test_account_lists_its_own_logins_page_by_page(harness: Harness, plane: ControlPlane) -> None:
    for who in ("owner", "viewer", "owner", "owner"):
        session(harness, who)
        harness.clock.advance(1)
    actor = harness.actor("owner")
    first = harness.do(plane.logins.list(actor, PageRequest(2)))
    rest = harness.do(plane.logins.list(actor, PageRequest(2, first.next)))
    assert [len(first.items), len(rest.items), rest.next] == [2, 1, None]
    assert {login.account_id for login in first.items + rest.items} == {"acc_owner"}
    assert len({login.id for login in first.items + rest.items}) == 3
    # A cursor of one's own list is no cursor of another's.
    problem = harness.refused(InvalidInput, plane.logins.list(harness.actor("viewer"), PageRequest(2, first.next)))
    assert problem.extras == {"field": "after"}


def test_account_ends_only_its_own_logins(harness: Harness, plane: ControlPlane) -> None:
    cookie, others = session(harness), session(harness, "viewer")
    [mine], [theirs] = held(harness), held(harness, "viewer")
    actor = harness.actor("owner")
    foreign = harness.refused(NotFound, plane.logins.end(actor, theirs.id))
    unknown = harness.refused(NotFound, plane.logins.end(actor, "log_unknown"))
    assert foreign.detail.replace(theirs.id, "log_unknown") == unknown.detail
    harness.do(plane.logins.end(actor, mine.id))
    harness.refused(LoginExpired, plane.logins.actor(VISIT, cookie, CONSOLE))
    harness.do(plane.logins.actor(VISIT, others, CONSOLE))
    harness.refused(NotFound, plane.logins.end(actor, mine.id))
    entry = harness.notes()[-1]
    assert (entry.action, entry.target) == ("login.end", mine.id)


def test_program_may_end_itself(harness: Harness, plane: ControlPlane) -> None:
    program, secret = harness.program("owner")
    assert program.login is not None
    harness.do(plane.logins.end(program, program.login.id))
    harness.refused(LoginExpired, plane.logins.actor(VISIT, secret, PERSONAL))
    assert harness.notes()[-1].via == "personal:ci"
