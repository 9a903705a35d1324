"""The device login (RFC 8628), from both sides."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.control.services.harness import (
    BASE_URL,
    ELSEWHERE,
    MINUTE,
    PEOPLE,
    VISIT,
    Harness,
)

from tollgate.control.plane import ControlPlane
from tollgate.control.problems import InvalidInput, NotFound, PersonalTokenRefused
from tollgate.control.service_context import ClientInfo
from tollgate.control.services.devices import OAuthError, Started
from tollgate.control.services.logins import Secrets
from tollgate.core import secrets
from tollgate.core.people import TOOL


def start(harness: Harness, client: ClientInfo = ELSEWHERE) -> Started:
    return harness.do(harness.plane.devices.start(client, "ada@laptop"))


def poll(harness: Harness, started: Started) -> str | Secrets:
    """The answer's code, or what the tool is given."""
    try:
        return harness.do(harness.plane.devices.poll(ELSEWHERE, started.device_code))
    except OAuthError as error:
        return error.code


# --- The tool's side -----------------------------------------------------------------------------------


def test_tool_is_shown_where_to_go_and_how_often_to_poll(harness: Harness) -> None:
    harness.choose(device_minutes=10, device_interval=7)
    started = start(harness)
    assert secrets.well_formed(started.device_code, "tgd_")
    assert secrets.plain_code(started.user_code)
    assert started.verification_uri == f"{BASE_URL}/console/device"
    assert started.verification_uri_complete == f"{BASE_URL}/console/device?user_code={started.user_code}"
    assert (started.expires_in, started.interval) == (600, 7)
    assert repr(started) == "Started(…)"


def test_tool_waits_until_it_is_approved_and_then_is_in(harness: Harness, plane: ControlPlane) -> None:
    started = start(harness)
    assert poll(harness, started) == "authorization_pending"
    harness.clock.advance(started.interval)
    assert poll(harness, started) == "authorization_pending"
    harness.do(plane.devices.approve(harness.actor("viewer"), started.user_code))
    given = poll(harness, started)
    assert isinstance(given, Secrets)
    actor = harness.do(plane.logins.actor(ELSEWHERE, given.access, TOOL))
    assert (actor.id, actor.via, actor.login and actor.login.name) == ("acc_viewer", "tool", "ada@laptop")
    assert harness.actions() == ["login.approved", "login.open"]
    assert [entry.address for entry in harness.notes()] == [VISIT.address, ELSEWHERE.address]


def test_success_is_reported_once(harness: Harness, plane: ControlPlane) -> None:
    started = start(harness)
    harness.do(plane.devices.approve(harness.actor("viewer"), started.user_code))
    assert isinstance(poll(harness, started), Secrets)
    assert poll(harness, started) == "invalid_grant"


def test_two_polls_at_once_give_one_login(harness: Harness, plane: ControlPlane) -> None:
    started = start(harness)
    harness.do(plane.devices.approve(harness.actor("viewer"), started.user_code))
    results = harness.at_once(*(plane.devices.poll(ELSEWHERE, started.device_code) for _ in range(5)))
    assert sum(isinstance(result, Secrets) for result in results) == 1
    assert {error.code for error in results if isinstance(error, OAuthError)} == {"invalid_grant"}
    assert harness.write(lambda records: records.logins.count()) == 1


def test_tool_that_polls_two_nodes_whose_clocks_are_apart_is_not_slowed_down(harness: Harness) -> None:
    started = start(harness)
    for seconds in (0, 10, -5, 15, -5):
        harness.clock.advance(seconds)
        assert poll(harness, started) == "authorization_pending"


def test_impatient_tool_is_slowed_down_each_time_by_five_seconds(harness: Harness) -> None:
    started = start(harness)
    assert poll(harness, started) == "authorization_pending"
    harness.clock.advance(4)
    assert poll(harness, started) == "slow_down"  # now every 10
    harness.clock.advance(9)
    assert poll(harness, started) == "slow_down"  # now every 15
    harness.clock.advance(14.4)
    assert poll(harness, started) == "slow_down"  # now every 20
    harness.clock.advance(20)
    assert poll(harness, started) == "authorization_pending"
    harness.clock.advance(15)
    assert poll(harness, started) == "slow_down"


def test_half_a_second_early_is_forgiven(harness: Harness) -> None:
    started = start(harness)
    for _ in range(3):
        assert poll(harness, started) == "authorization_pending"
        harness.clock.advance(4.5)


def test_approval_is_reported_at_once_even_to_an_impatient_tool(harness: Harness, plane: ControlPlane) -> None:
    started = start(harness)
    assert poll(harness, started) == "authorization_pending"
    harness.do(plane.devices.approve(harness.actor("viewer"), started.user_code))
    assert isinstance(poll(harness, started), Secrets)


def test_denial_is_reported_once_and_then_forgotten(harness: Harness, plane: ControlPlane) -> None:
    started = start(harness)
    harness.do(plane.devices.deny(harness.actor("viewer"), started.user_code))
    assert [poll(harness, started), poll(harness, started)] == ["access_denied", "invalid_grant"]
    assert harness.actions() == ["login.denied"]


@pytest.mark.parametrize("approved", [False, True])
def test_code_expires_approved_or_not(harness: Harness, plane: ControlPlane, approved: bool) -> None:
    started = start(harness)
    if approved:
        harness.do(plane.devices.approve(harness.actor("viewer"), started.user_code))
    harness.clock.advance(15 * MINUTE)
    assert [poll(harness, started), poll(harness, started)] == ["expired_token", "expired_token"]
    harness.refused(NotFound, plane.devices.approve(harness.actor("viewer"), started.user_code))


@pytest.mark.parametrize("code", ["", "tgd_x", "x" * 10_000, "\ud800", secrets.new_token("tgd_")])
def test_made_up_device_codes_are_no_grant(harness: Harness, plane: ControlPlane, code: str) -> None:
    problem = harness.refused(OAuthError, plane.devices.poll(ELSEWHERE, code))
    assert (problem.code, problem.description) == (
        "invalid_grant", "The code or refresh token is invalid or expired."
    )  # fmt: skip


def test_user_code_is_no_device_code(harness: Harness, plane: ControlPlane) -> None:
    started = start(harness)
    assert harness.refused(OAuthError, plane.devices.poll(ELSEWHERE, started.user_code)).code == "invalid_grant"


def test_account_that_was_switched_off_meanwhile_is_denied_and_stays_so(
    harness: Harness, plane: ControlPlane
) -> None:
    started = start(harness)
    harness.do(plane.devices.approve(harness.actor("viewer"), started.user_code))

    account = replace(harness.account("viewer"), active=False)
    harness.write(lambda records: records.accounts.replace(account))
    assert poll(harness, started) == "access_denied"
    harness.do(plane.admin.switch(PEOPLE["viewer"], active=True))
    assert poll(harness, started) == "invalid_grant"


def test_operator_who_switches_an_account_off_ends_its_approvals(harness: Harness, plane: ControlPlane) -> None:
    started = start(harness)
    harness.do(plane.devices.approve(harness.actor("viewer"), started.user_code))
    harness.do(plane.admin.switch(PEOPLE["viewer"], active=False))
    harness.do(plane.admin.switch(PEOPLE["viewer"], active=True))
    assert poll(harness, started) == "invalid_grant"


@pytest.mark.parametrize("machine", ["x" * 101, "a\nb", "a\u202eb"])
def test_odd_names_of_machines_are_refused(harness: Harness, plane: ControlPlane, machine: str) -> None:
    problem = harness.refused(InvalidInput, plane.devices.start(VISIT, machine))
    assert problem.extras == {"field": "machine"}


def test_machine_without_a_name_is_called_by_the_tool(harness: Harness, plane: ControlPlane) -> None:
    started = harness.do(plane.devices.start(VISIT, ""))
    harness.do(plane.devices.approve(harness.actor("viewer"), started.user_code))
    given = poll(harness, started)
    assert isinstance(given, Secrets)
    actor = harness.do(plane.logins.actor(VISIT, given.access, TOOL))
    assert actor.login is not None
    assert actor.login.name == "tollgate"


# --- The person's side ---------------------------------------------------------------------------------


def test_person_sees_which_machine_logs_in_from_where(harness: Harness, plane: ControlPlane) -> None:
    started = start(harness)
    row = harness.do(plane.devices.look(harness.actor("viewer"), started.user_code))
    assert (row.machine, row.address, row.agent, row.state) == (
        "ada@laptop", ELSEWHERE.address, ELSEWHERE.agent, "pending"
    )  # fmt: skip
    assert started.device_code not in repr(row)


@pytest.mark.parametrize(
    "typed", ["{0}-{1}", "{0}{1}", "{0} {1}", " {0}-{1}\r\n", "{0}\N{EN DASH}{1}", "{0}_{1}"]
)  # fmt: skip
@pytest.mark.parametrize("lower", [False, True])
def test_code_may_be_typed_any_way(harness: Harness, plane: ControlPlane, typed: str, lower: bool) -> None:
    started = start(harness)
    text = typed.format(*started.user_code.split("-"))
    harness.do(plane.devices.look(harness.actor("viewer"), text.lower() if lower else text))


@pytest.mark.parametrize("typed", ["", "BCDF", "AEIO-UAEI", "BCDF-GHJK-L", "\ud800", "B" * 10_000])
def test_what_is_no_code_is_a_wrong_code(harness: Harness, plane: ControlPlane, typed: str) -> None:
    problem = harness.refused(NotFound, plane.devices.look(harness.actor("viewer"), typed))
    assert problem.detail == ("No login waits with this code: check it, or run `tollgate auth login` again.")


def test_program_approves_nothing(harness: Harness, plane: ControlPlane) -> None:
    started = start(harness)
    program, _ = harness.program("viewer")
    harness.refused(PersonalTokenRefused, plane.devices.approve(program, started.user_code))
    assert poll(harness, started) == "authorization_pending"


def test_code_is_decided_once(harness: Harness, plane: ControlPlane) -> None:
    started = start(harness)
    harness.do(plane.devices.approve(harness.actor("viewer"), started.user_code))
    harness.refused(NotFound, plane.devices.deny(harness.actor("outsider"), started.user_code))
    harness.refused(NotFound, plane.devices.approve(harness.actor("outsider"), started.user_code))
    given = poll(harness, started)
    assert isinstance(given, Secrets)
    assert harness.do(plane.logins.actor(VISIT, given.access, TOOL)).id == "acc_viewer"
