"""Passwords at the door: right and wrong, and how guessing is slowed down."""

from __future__ import annotations

from contextlib import suppress

import pytest
from argon2 import PasswordHasher
from msgspec.structs import replace
from tests.control.services.house import (
    CHEAP,
    DAY,
    ELSEWHERE,
    HOUR,
    PASSWORD,
    PEOPLE,
    VISIT,
    House,
    words,
)

from tollgate.control.passwords import Passwords
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import Busy, TooManyAttempts, WrongPassword
from tollgate.control.service_context import ClientInfo
from tollgate.control.services.accounts import Accounts

OWNER = PEOPLE["owner"]
WRONG = "not the password"


def fail(house: House, times: int, email: str = OWNER, visit: ClientInfo = VISIT) -> None:
    for _ in range(times):
        house.refused(WrongPassword, house.plane.accounts.check_password(visit, email, WRONG))


def wait_of(house: House, email: str = OWNER, visit: ClientInfo = VISIT, password: str = PASSWORD) -> int:
    problem = house.refused(TooManyAttempts, house.plane.accounts.check_password(visit, email, password))
    assert problem.headers == {"Retry-After": str(problem.extras["retry_after"])}
    return int(str(problem.extras["retry_after"]))


def test_right_password_gives_the_account(house: House, plane: ControlPlane) -> None:
    account = house.do(plane.accounts.check_password(VISIT, " OWNER@acme.example", PASSWORD))
    assert account == house.account("owner")
    assert house.write(lambda records: records.failures.count()) == 0


def test_all_that_is_wrong_is_refused_in_the_same_words(house: House, plane: ControlPlane) -> None:
    house.do(plane.operator.create_account("off@x.example", PASSWORD))
    house.do(plane.operator.switch("off@x.example", active=False))
    told = {
        str(words(house.refused(WrongPassword, plane.accounts.check_password(VISIT, email, password))))
        for email, password in (
            (OWNER, WRONG),
            (OWNER, ""),
            (OWNER, "x" * 10_000),
            (OWNER, PASSWORD + "\ud800"),
            ("nobody@x.example", PASSWORD),
            ("no address at all", PASSWORD),
            (PEOPLE["viewer"], ""),  # has no password: a provider signs this person in
            (PEOPLE["viewer"], PASSWORD),
            ("off@x.example", PASSWORD),
        )
    }
    assert told == {"(401, 'wrong_password', 'The email or the password is wrong.', {})"}


def test_unknown_accounts_are_slowed_like_known_ones(house: House) -> None:
    told = []
    for email in (OWNER, "nobody@x.example"):
        visit = ClientInfo(f"192.0.2.{len(email)}")
        fail(house, 5, email, visit)
        told.append(house.refused(TooManyAttempts, house.plane.accounts.check_password(visit, email, PASSWORD)))
    assert words(told[0]) == words(told[1])


def test_stranger_cannot_lock_anybody_out(house: House) -> None:
    """Wrong passwords from changing addresses, for as long as they like."""
    for place in range(60):
        fail(house, 5, OWNER, ClientInfo(f"198.51.100.{place}"))
        if not place % 10:
            house.do(house.plane.accounts.check_password(VISIT, OWNER, PASSWORD))
            house.do(house.plane.accounts.check_password(ClientInfo(f"203.0.113.{place}"), OWNER, PASSWORD))
            house.do(house.plane.accounts.forgot(ELSEWHERE, OWNER))


def test_failed_sign_ins_are_written_down_for_the_person_in_moderation(house: House) -> None:
    for place in range(60):
        fail(house, 1, OWNER, ClientInfo(f"198.51.100.{place}"))
        fail(house, 1, "nobody@x.example", ClientInfo(f"198.51.100.{place}"))
    noted = [entry for entry in house.notes() if entry.action == "login.failed"]
    assert [entry.address for entry in noted] == [f"198.51.100.{place}" for place in range(20)]
    assert {(entry.actor_id, entry.target, entry.team_id) for entry in noted} == {("acc_owner", "acc_owner", None)}


def test_waits_grow_are_bounded_and_forgiven(house: House) -> None:
    fail(house, 5)
    waits = []
    for _ in range(12):
        waits.append(wait_of(house))
        house.clock.advance(waits[-1])
        fail(house, 1)
    assert waits == [2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900, 900]
    # A quiet day, and a fresh start.
    house.clock.advance(DAY)
    fail(house, 5)
    assert wait_of(house) == 2


def test_right_password_is_not_heard_during_a_wait_and_does_not_make_it_longer(house: House) -> None:
    fail(house, 6 - 1)
    house.clock.advance(2)
    fail(house, 1)
    assert wait_of(house, password=PASSWORD) == 4
    house.clock.advance(3)
    assert wait_of(house, password=PASSWORD) == 1
    house.clock.advance(1)
    house.do(house.plane.accounts.check_password(VISIT, OWNER, PASSWORD))


def test_problem_says_how_long_to_wait(house: House) -> None:
    fail(house, 5)
    work = house.plane.accounts.check_password(VISIT, OWNER, WRONG)
    assert house.refused(TooManyAttempts, work).detail == (
        "Too many failed sign-ins: wait 2 seconds, then try again."
    )
    for _ in range(8):
        house.clock.advance(900)
        fail(house, 1)
    work = house.plane.accounts.check_password(VISIT, OWNER, WRONG)
    assert house.refused(TooManyAttempts, work).detail.endswith("wait 9 minutes, then try again.")


def test_success_forgives_the_account(house: House) -> None:
    fail(house, 4)
    house.do(house.plane.accounts.check_password(VISIT, OWNER, PASSWORD))
    fail(house, 5)
    assert wait_of(house) == 2


def test_many_guesses_at_once_gain_nothing(house: House) -> None:
    works = [house.plane.accounts.check_password(VISIT, OWNER, f"{WRONG} {n}") for n in range(20)]
    results = house.at_once(*works)
    heard = sum(isinstance(result, WrongPassword) for result in results)
    assert (heard, sum(isinstance(result, TooManyAttempts) for result in results)) == (5, 15)
    assert wait_of(house) == 2


def test_right_guess_among_many_at_once_is_heard_only_within_the_free_ones(house: House) -> None:
    guesses = [f"{WRONG} {n}" for n in range(19)] + [PASSWORD]
    results = house.at_once(*(house.plane.accounts.check_password(VISIT, OWNER, each) for each in guesses))
    assert isinstance(results[-1], TooManyAttempts)


def test_address_is_slowed_over_many_accounts(house: House) -> None:
    for number in range(21):
        fail(house, 1, f"n{number}@x.example")
    assert wait_of(house, OWNER) == 2
    assert wait_of(house, "n99@x.example") == 2
    # Elsewhere the same person is not held up.
    house.do(house.plane.accounts.check_password(ELSEWHERE, OWNER, PASSWORD))
    house.clock.advance(HOUR)
    fail(house, 1, "n100@x.example")
    fail(house, 1, "n101@x.example")


def test_addresses_of_one_customer_are_slowed_together(house: House) -> None:
    for number in range(21):
        fail(house, 1, f"n{number}@x.example", ClientInfo(f"2001:db8::{number:x}:1"))
    assert wait_of(house, OWNER, ClientInfo("2001:db8::ffff")) == 2
    house.do(house.plane.accounts.check_password(ClientInfo("2001:db8:0:1::1"), OWNER, PASSWORD))


def test_successes_forgive_an_address_nothing_but_cost_it_nothing(house: House) -> None:
    """A guesser with an account of their own must not buy guesses with it, nor colleagues wait for each other."""
    for number in range(22):
        with suppress(TooManyAttempts):
            house.do(_wrong(house, f"n{number}@x.example"))
        house.clock.advance(2)
    # 22 failures, the last 2 seconds ago, so two more to wait.
    assert wait_of(house) == 2
    house.clock.advance(2)
    for _ in range(5):
        house.do(house.plane.accounts.check_password(VISIT, OWNER, PASSWORD))
    fail(house, 1, "n50@x.example")
    assert wait_of(house) == 8


async def _wrong(house: House, email: str) -> None:
    with suppress(WrongPassword):
        await house.plane.accounts.check_password(VISIT, email, WRONG)


def test_attempt_that_found_the_service_busy_is_not_counted(house: House, plane: ControlPlane) -> None:
    class Crowded(Passwords):
        async def fits(self, password: str, hashed: str) -> bool:
            raise Busy

    crowded = Accounts(plane.context, Crowded(CHEAP), house.post)
    fail(house, 2)
    before = house.write(lambda records: records.failures.page(10))
    house.clock.advance(5)
    for _ in range(10):
        house.refused(Busy, crowded.check_password(VISIT, OWNER, PASSWORD))
    assert house.write(lambda records: records.failures.page(10)) == before


def test_no_address_or_email_is_kept_in_clear_among_the_failures(house: House) -> None:
    fail(house, 1, "secret.person@x.example")
    rows = house.write(lambda records: records.failures.page(10))
    assert len(rows) == 3
    assert not any("secret" in row.id or VISIT.address in row.id for row in rows)


# --- What happens to the account while a password is being checked -------------------------------------


def test_hash_of_older_days_is_made_anew(house: House, plane: ControlPlane) -> None:
    _keep_hash(house, PasswordHasher(time_cost=2, memory_cost=16, parallelism=1).hash(PASSWORD))
    old = house.account("owner").password_hash
    account = house.do(plane.accounts.check_password(VISIT, OWNER, PASSWORD))
    assert account.password_hash == house.account("owner").password_hash != old
    assert not CHEAP.check_needs_rehash(account.password_hash)
    house.do(plane.accounts.check_password(VISIT, OWNER, PASSWORD))


def test_two_who_sign_in_at_once_with_an_old_hash_both_get_in(house: House, plane: ControlPlane) -> None:
    _keep_hash(house, PasswordHasher(time_cost=2, memory_cost=16, parallelism=1).hash(PASSWORD))
    results = house.at_once(*(plane.accounts.check_password(VISIT, OWNER, PASSWORD) for _ in range(3)))
    assert [result for result in results if isinstance(result, BaseException)] == []
    house.do(plane.accounts.check_password(VISIT, OWNER, PASSWORD))


@pytest.mark.parametrize("change", ["switch off", "rename", "reset"])
def test_rehash_undoes_nothing_that_was_done_meanwhile(house: House, plane: ControlPlane, change: str) -> None:
    _keep_hash(house, PasswordHasher(time_cost=2, memory_cost=16, parallelism=1).hash(PASSWORD))
    new = CHEAP.hash("another password")

    async def interfere() -> None:
        async with house.store.changing() as records:
            account = await records.accounts.get("acc_owner")
            assert account is not None
            if change == "switch off":
                account = replace(account, active=False)
            elif change == "rename":
                account = replace(account, name="Renamed")
            else:
                account = replace(account, password_hash=new)
            await records.accounts.replace(account)

    house.at_once(plane.accounts.check_password(VISIT, OWNER, PASSWORD), interfere())
    account = house.account("owner")
    assert account.active is (change != "switch off")
    assert account.name == ("Renamed" if change == "rename" else "Owner")
    assert (account.password_hash == new) is (change == "reset")


def _keep_hash(house: House, hashed: str) -> None:
    account = replace(house.account("owner"), password_hash=hashed)
    house.write(lambda records: records.accounts.replace(account))
