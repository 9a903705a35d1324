"""Signing in with passwords: right and wrong, and how guessing is slowed down."""

from __future__ import annotations

from contextlib import suppress

import pytest
from argon2 import PasswordHasher
from msgspec.structs import replace
from tests.control.services.harness import (
    CHEAP,
    DAY,
    ELSEWHERE,
    HOUR,
    PASSWORD,
    PEOPLE,
    VISIT,
    Harness,
    words,
)

from tollgate.control.passwords import MAX_WAITING, Passwords
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import Busy, TooManyAttempts, WrongPassword
from tollgate.control.service_context import ClientInfo
from tollgate.control.services.accounts import Accounts
from tollgate.store.sql import SqlStore

OWNER = PEOPLE["owner"]
WRONG = "not the password"


def fail(harness: Harness, times: int, email: str = OWNER, client: ClientInfo = VISIT) -> None:
    for _ in range(times):
        harness.refused(WrongPassword, harness.plane.accounts.check_password(client, email, WRONG))


def wait_of(harness: Harness, email: str = OWNER, client: ClientInfo = VISIT, password: str = PASSWORD) -> int:
    problem = harness.refused(TooManyAttempts, harness.plane.accounts.check_password(client, email, password))
    assert problem.headers == {"Retry-After": str(problem.extras["retry_after"])}
    return int(str(problem.extras["retry_after"]))


def test_right_password_gives_the_account(harness: Harness, plane: ControlPlane) -> None:
    account = harness.do(plane.accounts.check_password(VISIT, " OWNER@acme.example", PASSWORD))
    assert account == harness.account("owner")
    assert harness.write(lambda records: records.failures.count()) == 0


def test_every_failed_sign_in_gets_the_same_error(harness: Harness, plane: ControlPlane) -> None:
    harness.do(plane.admin.create_account("off@x.example", PASSWORD))
    harness.do(plane.admin.switch("off@x.example", active=False))
    refusals = {
        str(words(harness.refused(WrongPassword, plane.accounts.check_password(VISIT, email, password))))
        for email, password in (
            (OWNER, WRONG),
            (OWNER, ""),
            (OWNER, "x" * 10_000),
            (OWNER, PASSWORD + "\ud800"),
            ("unknown@x.example", PASSWORD),
            ("no address at all", PASSWORD),
            (PEOPLE["viewer"], ""),  # has no password: a provider signs this person in
            (PEOPLE["viewer"], PASSWORD),
            ("off@x.example", PASSWORD),
        )
    }
    assert refusals == {"(401, 'wrong_password', 'The email or the password is wrong.', {})"}


def test_unknown_accounts_are_slowed_like_known_ones(harness: Harness) -> None:
    refusals = []
    for email in (OWNER, "unknown@x.example"):
        client = ClientInfo(f"192.0.2.{len(email)}")
        fail(harness, 5, email, client)
        refusals.append(
            harness.refused(TooManyAttempts, harness.plane.accounts.check_password(client, email, PASSWORD))
        )
    assert words(refusals[0]) == words(refusals[1])


def test_failures_from_elsewhere_do_not_lock_an_account_out(harness: Harness) -> None:
    """Wrong passwords from changing addresses, for as long as they like."""
    for place in range(31):
        fail(harness, 5, OWNER, ClientInfo(f"198.51.100.{place}"))
        if not place % 10:
            harness.do(harness.plane.accounts.check_password(VISIT, OWNER, PASSWORD))
            harness.do(harness.plane.accounts.check_password(ClientInfo(f"203.0.113.{place}"), OWNER, PASSWORD))
            harness.do(harness.plane.accounts.forgot(ELSEWHERE, OWNER))


def test_failed_sign_ins_are_recorded_for_the_account_at_a_bounded_rate(harness: Harness) -> None:
    for place in range(60):
        fail(harness, 1, OWNER, ClientInfo(f"198.51.100.{place}"))
        fail(harness, 1, "unknown@x.example", ClientInfo(f"198.51.100.{place}"))
    noted = [entry for entry in harness.notes() if entry.action == "login.failed"]
    assert [entry.address for entry in noted] == [f"198.51.100.{place}" for place in range(20)]
    assert {(entry.actor_id, entry.target, entry.team_id) for entry in noted} == {("acc_owner", "acc_owner", None)}


def test_waits_grow_are_bounded_and_forgiven(harness: Harness) -> None:
    fail(harness, 5)
    waits = []
    for _ in range(12):
        waits.append(wait_of(harness))
        harness.clock.advance(waits[-1])
        fail(harness, 1)
    assert waits == [2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900, 900]
    # A quiet day, and a fresh start.
    harness.clock.advance(DAY)
    fail(harness, 5)
    assert wait_of(harness) == 2


def test_right_password_is_not_checked_during_a_wait_and_does_not_make_it_longer(harness: Harness) -> None:
    fail(harness, 6 - 1)
    harness.clock.advance(2)
    fail(harness, 1)
    assert wait_of(harness, password=PASSWORD) == 4
    harness.clock.advance(3)
    assert wait_of(harness, password=PASSWORD) == 1
    harness.clock.advance(1)
    harness.do(harness.plane.accounts.check_password(VISIT, OWNER, PASSWORD))


def test_problem_shows_how_long_to_wait(harness: Harness) -> None:
    fail(harness, 5)
    work = harness.plane.accounts.check_password(VISIT, OWNER, WRONG)
    assert harness.refused(TooManyAttempts, work).detail == (
        "Too many failed sign-ins: wait 2 seconds, then try again."
    )
    for _ in range(8):
        harness.clock.advance(900)
        fail(harness, 1)
    work = harness.plane.accounts.check_password(VISIT, OWNER, WRONG)
    assert harness.refused(TooManyAttempts, work).detail.endswith("wait 9 minutes, then try again.")


def test_success_resets_the_failures_of_the_account(harness: Harness) -> None:
    fail(harness, 4)
    harness.do(harness.plane.accounts.check_password(VISIT, OWNER, PASSWORD))
    fail(harness, 5)
    assert wait_of(harness) == 2


def test_many_guesses_at_once_gain_nothing(harness: Harness) -> None:
    works = [harness.plane.accounts.check_password(VISIT, OWNER, f"{WRONG} {n}") for n in range(20)]
    results = harness.at_once(*works)
    checked = sum(isinstance(result, WrongPassword) for result in results)
    assert (checked, sum(isinstance(result, TooManyAttempts) for result in results)) == (5, 15)
    assert wait_of(harness) == 2


def test_right_guess_among_many_at_once_counts_only_within_the_free_ones(harness: Harness) -> None:
    guesses = [f"{WRONG} {n}" for n in range(19)] + [PASSWORD]
    results = harness.at_once(*(harness.plane.accounts.check_password(VISIT, OWNER, each) for each in guesses))
    assert isinstance(results[-1], TooManyAttempts)


def test_address_is_slowed_over_many_accounts(harness: Harness) -> None:
    for number in range(21):
        fail(harness, 1, f"n{number}@x.example")
    assert wait_of(harness, OWNER) == 2
    assert wait_of(harness, "n99@x.example") == 2
    # Elsewhere the same person is not held up.
    harness.do(harness.plane.accounts.check_password(ELSEWHERE, OWNER, PASSWORD))
    harness.clock.advance(HOUR)
    fail(harness, 1, "n100@x.example")
    fail(harness, 1, "n101@x.example")


def test_addresses_of_one_customer_are_slowed_together(harness: Harness) -> None:
    for number in range(21):
        fail(harness, 1, f"n{number}@x.example", ClientInfo(f"2001:db8::{number:x}:1"))
    assert wait_of(harness, OWNER, ClientInfo("2001:db8::ffff")) == 2
    harness.do(harness.plane.accounts.check_password(ClientInfo("2001:db8:0:1::1"), OWNER, PASSWORD))


def test_successes_neither_reset_nor_add_to_failures_of_an_address(harness: Harness) -> None:
    """A guesser with an account of their own must not buy guesses with it, nor colleagues wait for each other."""
    for number in range(22):
        with suppress(TooManyAttempts):
            harness.do(_wrong(harness, f"n{number}@x.example"))
        harness.clock.advance(2)
    # 22 failures, the last 2 seconds ago, so two more to wait.
    assert wait_of(harness) == 2
    harness.clock.advance(2)
    for _ in range(5):
        harness.do(harness.plane.accounts.check_password(VISIT, OWNER, PASSWORD))
    fail(harness, 1, "n50@x.example")
    assert wait_of(harness) == 8


async def _wrong(harness: Harness, email: str) -> None:
    with suppress(WrongPassword):
        await harness.plane.accounts.check_password(VISIT, email, WRONG)


def test_attempt_that_found_the_service_busy_is_not_counted(harness: Harness, plane: ControlPlane) -> None:
    class Crowded(Passwords):
        async def fits(self, password: str, hashed: str, network: str = "") -> bool:
            raise Busy

    crowded = Accounts(plane.context, Crowded(CHEAP), harness.post)
    fail(harness, 2)
    before = harness.write(lambda records: records.failures.page(10))
    harness.clock.advance(5)
    for _ in range(10):
        harness.refused(Busy, crowded.check_password(VISIT, OWNER, PASSWORD))
    assert harness.write(lambda records: records.failures.page(10)) == before


@pytest.mark.parametrize("how", ["another password", "switched off", "deleted"])
def test_password_replaced_while_it_is_checked_is_refused(harness: Harness, plane: ControlPlane, how: str) -> None:
    class Slow(Passwords):
        async def fits(self, password: str, hashed: str, network: str = "") -> bool:
            fits = await super().fits(password, hashed, network)
            if how == "another password":
                changed = replace(account, password_hash=CHEAP.hash("an even better password"))
                async with harness.store.changing() as records:
                    await records.accounts.replace(changed)
            elif how == "switched off":
                await plane.admin.switch(account.email, active=False)
            else:
                await plane.accounts.delete(viewer)
            return fits

    account = replace(harness.account("viewer"), password_hash=CHEAP.hash(PASSWORD))
    harness.write(lambda records: records.accounts.replace(account))
    viewer = harness.actor("viewer")
    accounts = Accounts(plane.context, Slow(CHEAP), harness.post)
    harness.refused(WrongPassword, accounts.check_password(VISIT, account.email, PASSWORD))


def test_no_address_or_email_is_kept_in_clear_among_the_failures(harness: Harness) -> None:
    fail(harness, 1, "secret.person@x.example")
    rows = harness.write(lambda records: records.failures.page(10))
    assert len(rows) == 3
    assert not any("secret" in row.id or VISIT.address in row.id for row in rows)


# --- What happens to the account while a password is being checked -------------------------------------


def test_outdated_hash_is_replaced(harness: Harness, plane: ControlPlane) -> None:
    _keep_hash(harness, PasswordHasher(time_cost=2, memory_cost=16, parallelism=1).hash(PASSWORD))
    old = harness.account("owner").password_hash
    account = harness.do(plane.accounts.check_password(VISIT, OWNER, PASSWORD))
    assert account.password_hash == harness.account("owner").password_hash != old
    assert not CHEAP.check_needs_rehash(account.password_hash)
    harness.do(plane.accounts.check_password(VISIT, OWNER, PASSWORD))


def test_two_who_sign_in_at_once_with_an_old_hash_both_get_in(harness: Harness, plane: ControlPlane) -> None:
    _keep_hash(harness, PasswordHasher(time_cost=2, memory_cost=16, parallelism=1).hash(PASSWORD))
    results = harness.at_once(*(plane.accounts.check_password(VISIT, OWNER, PASSWORD) for _ in range(3)))
    assert [result for result in results if isinstance(result, BaseException)] == []
    harness.do(plane.accounts.check_password(VISIT, OWNER, PASSWORD))


@pytest.mark.parametrize("change", ["switch off", "rename", "reset"])
def test_rehash_undoes_nothing_that_was_done_meanwhile(harness: Harness, plane: ControlPlane, change: str) -> None:
    _keep_hash(harness, PasswordHasher(time_cost=2, memory_cost=16, parallelism=1).hash(PASSWORD))
    new = CHEAP.hash("another password")

    async def interfere() -> None:
        async with harness.store.changing() as records:
            account = await records.accounts.get("acc_owner")
            assert account is not None
            if change == "switch off":
                account = replace(account, active=False)
            elif change == "rename":
                account = replace(account, name="Renamed")
            else:
                account = replace(account, password_hash=new)
            await records.accounts.replace(account)

    harness.at_once(plane.accounts.check_password(VISIT, OWNER, PASSWORD), interfere())
    account = harness.account("owner")
    assert account.active is (change != "switch off")
    assert account.name == ("Renamed" if change == "rename" else "Owner")
    assert (account.password_hash == new) is (change == "reset")


def _keep_hash(harness: Harness, hashed: str) -> None:
    account = replace(harness.account("owner"), password_hash=hashed)
    harness.write(lambda records: records.accounts.replace(account))


def test_flood_from_one_network_is_refused_before_the_store_is_used(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane, harness.post.open = harness.choose(sign_up="open"), False
    plane.accounts._passwords._waiting.take("192.0.2.77", MAX_WAITING)
    monkeypatch.delattr(SqlStore, "changing")
    harness.refused(Busy, plane.accounts.check_password(VISIT, OWNER, PASSWORD))
    harness.refused(Busy, plane.accounts.sign_up(VISIT, "new@x.example", PASSWORD))


def test_guesses_from_many_prefixes_of_one_ipv6_network_have_to_wait(
    harness: Harness, plane: ControlPlane
) -> None:
    network = [ClientInfo(f"2001:db8:0:{number:x}00::1") for number in range(20)]
    for client in network[:17]:
        fail(harness, 1, client=client)
    assert wait_of(harness, client=network[17]) == 2, "a /48 has four times what an address may try"
    harness.do(plane.accounts.check_password(VISIT, OWNER, PASSWORD))
