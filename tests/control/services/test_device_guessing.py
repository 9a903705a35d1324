"""Guessing the codes of device logins, and exhausting the pending logins."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from tests.control.services.harness import ELSEWHERE, HOUR, VISIT, Harness, words

from tollgate.control.plane import ControlPlane
from tollgate.control.problems import NotFound, TooManyAttempts
from tollgate.control.service_context import ClientInfo
from tollgate.control.services import devices
from tollgate.control.services.devices import OAuthError, Started
from tollgate.control.services.logins import Secrets
from tollgate.core import secrets
from tollgate.core.people import Failures


def start(harness: Harness, client: ClientInfo = ELSEWHERE) -> Started:
    return harness.do(harness.plane.devices.start(client, "ada@laptop"))


# --- Guessing codes ------------------------------------------------------------------------------------


def guess(harness: Harness, times: int, who: str = "viewer", client: ClientInfo = VISIT) -> None:
    for _ in range(times):
        harness.refused(NotFound, harness.plane.devices.look(harness.actor(who, client), secrets.new_code()))


def test_ten_wrong_codes_lock_the_person_even_for_the_right_one(harness: Harness, plane: ControlPlane) -> None:
    started = start(harness)
    guess(harness, 10)
    for deed in (plane.devices.look, plane.devices.approve, plane.devices.deny):
        problem = harness.refused(TooManyAttempts, deed(harness.actor("viewer"), started.user_code))
        assert problem.extras == {"retry_after": 900}
        assert problem.detail == "Too many wrong codes: wait 15 minutes, then try again."
    # Neither from elsewhere, nor as another person from here.
    harness.refused(TooManyAttempts, plane.devices.look(harness.actor("viewer", ELSEWHERE), started.user_code))
    harness.refused(TooManyAttempts, plane.devices.look(harness.actor("outsider"), started.user_code))
    harness.do(plane.devices.look(harness.actor("outsider", ELSEWHERE), started.user_code))
    harness.clock.advance(900)
    guess(harness, 1)


def test_nine_wrong_codes_are_free_and_right_ones_count_nothing(harness: Harness, plane: ControlPlane) -> None:
    started = start(harness)
    guess(harness, 9)
    for _ in range(5):
        harness.do(plane.devices.look(harness.actor("viewer"), started.user_code))
    guess(harness, 1)
    harness.refused(TooManyAttempts, plane.devices.look(harness.actor("viewer"), started.user_code))


def test_wrong_codes_are_forgiven_after_an_hour(harness: Harness, plane: ControlPlane) -> None:
    guess(harness, 9)
    harness.clock.advance(HOUR)
    guess(harness, 9)
    harness.do(plane.devices.look(harness.actor("viewer"), start(harness).user_code))


def test_many_guesses_at_once_are_ten(harness: Harness, plane: ControlPlane) -> None:
    actor = harness.actor("viewer")
    results = harness.at_once(*(plane.devices.look(actor, secrets.new_code()) for _ in range(20)))
    assert sum(isinstance(result, NotFound) for result in results) == 10
    assert sum(isinstance(result, TooManyAttempts) for result in results) == 10


def test_guesses_are_counted_by_account_and_address(harness: Harness, plane: ControlPlane) -> None:
    people = ("viewer", "owner", "admin")
    for place in range(10):
        guess(harness, 1, people[place % 3], ClientInfo(f"2001:db8::{place:x}"))
    harness.refused(
        TooManyAttempts, plane.devices.look(harness.actor("loner", ClientInfo("2001:db8::ffff")), "BCDF-GHJK")
    )


# --- Bounds --------------------------------------------------------------------------------------------


def fill(harness: Harness, number: int, address: str = "", networks: int = 0) -> None:
    """Insert pending logins directly, because thousands of calls would be slow."""
    now = harness.clock.now
    rows = [
        (
            f"dev_{place}",
            place.to_bytes(32, "big"),
            place.to_bytes(32, "big"),
            address or (f"10.0.{place % networks}.{place % 250}" if networks else f"a{place}"),
            now,
            now + 900,
        )
        for place in range(number)
    ]
    with closing(sqlite3.connect(harness.folder / "control.db")) as connection:
        connection.executemany(
            "INSERT INTO device_logins (id, digest, code_digest, machine, address, agent, created_at, expires_at,"
            " interval, state) VALUES (?, ?, ?, '', ?, '', ?, ?, 5, 'pending')",
            rows,
        )
        connection.commit()


def test_pending_logins_of_one_address_are_bounded(harness: Harness, plane: ControlPlane) -> None:
    fill(harness, devices.MAX_WAITING_FROM_ADDRESS - 1, ELSEWHERE.address)
    started = start(harness)
    problem = harness.refused(TooManyAttempts, plane.devices.start(ELSEWHERE, ""))
    assert words(problem)[1:] == (
        "too_many_attempts",
        "Too many logins wait for approval: finish or wait for them.",
        {"retry_after": 60},
    )
    start(harness, VISIT)
    # One that is finished makes room.
    harness.do(plane.devices.deny(harness.actor("viewer"), started.user_code))
    assert harness.refused(OAuthError, plane.devices.poll(ELSEWHERE, started.device_code)).code == "access_denied"
    start(harness)


def waiting(harness: Harness) -> int:
    return harness.write(lambda records: records.device_logins.count())


def test_pending_logins_are_bounded_in_total_and_the_older_half_is_evicted(harness: Harness) -> None:
    fill(harness, devices.MAX_WAITING)
    harness.clock.advance(1)
    start(harness)
    assert waiting(harness) == devices.MAX_WAITING // 2 + 1


def test_networks_with_all_pending_logins_are_evicted_for_others_however_often_they_poll(
    harness: Harness, plane: ControlPlane
) -> None:
    mine = start(harness, VISIT)
    fill(harness, devices.MAX_WAITING - 1, networks=50)
    harness.clock.advance(1)
    start(harness)
    assert waiting(harness) == 1 + 50 * devices.KEPT_OF_NETWORK + 1
    harness.do(plane.devices.approve(harness.actor("viewer"), mine.user_code))
    assert isinstance(harness.do(plane.devices.poll(VISIT, mine.device_code)), Secrets)


@pytest.mark.parametrize(
    ("addresses", "leaving"),
    [
        (["192.0.2.1"] * 7 + ["198.51.100.1"], ["5", "6"]),
        ([f"192.0.2.{n}" for n in range(7)], ["5", "6"]),
        ([f"2001:db8:1:{n:x}::1" for n in range(6)], ["5"]),
        ([f"2001:db8:{n:x}::1" for n in range(4)], ["2", "3"]),
        (["192.0.2.1", "192.0.3.1", "192.0.4.1"], ["1", "2"]),
    ],
)
def test_of_each_network_the_newest_few_stay_and_at_least_the_older_half_goes(
    addresses: list[str], leaving: list[str]
) -> None:
    assert devices.crowding([(str(place), address) for place, address in enumerate(addresses)]) == leaving


def test_one_network_with_many_addresses_cannot_use_all_pending_logins(
    harness: Harness, plane: ControlPlane
) -> None:
    key = plane.context.key("device-from", "2001:db8::/64")
    harness.write(lambda records: records.failures.add(Failures(key, devices.STARTS.free - 1, harness.clock.now)))
    for place in range(2):
        harness.do(plane.devices.start(ClientInfo(f"2001:db8::{place:x}"), ""))
    problem = harness.refused(TooManyAttempts, plane.devices.start(ClientInfo("2001:db8::ffff"), ""))
    assert problem.detail == "Too many logins that were not approved: wait 60 seconds, then try again."
    start(harness)


def test_logins_that_are_finished_do_not_count(harness: Harness, plane: ControlPlane) -> None:
    for who in ("viewer", "owner"):
        started = start(harness)
        harness.do(plane.devices.approve(harness.actor(who), started.user_code))
        assert isinstance(harness.do(plane.devices.poll(ELSEWHERE, started.device_code)), Secrets)
    assert harness.write(lambda records: records.failures.count()) == 0


def test_logins_without_polls_are_evicted_for_new_ones(harness: Harness, plane: ControlPlane) -> None:
    fill(harness, devices.MAX_WAITING - 1)
    mine = start(harness)
    harness.clock.advance(devices.SILENT_SECONDS - 1)
    harness.refused(OAuthError, plane.devices.poll(ELSEWHERE, mine.device_code))
    harness.clock.advance(2)
    start(harness, VISIT)
    assert waiting(harness) == 2
    # A tool that keeps polling keeps its login.
    harness.do(plane.devices.approve(harness.actor("viewer"), mine.user_code))
    harness.clock.advance(5)
    harness.do(plane.devices.poll(ELSEWHERE, mine.device_code))
