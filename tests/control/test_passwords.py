"""Passwords: Argon2id, the same work with and without an account, and bounded concurrency."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import argon2
import pytest
from argon2 import PasswordHasher
from tests.inner import Hands, advance

from tollgate.api.me import MAX_PASSWORD, MIN_PASSWORD
from tollgate.control.passwords import AT_ONCE, MAX_WAITING, WAIT_SECONDS, Passwords
from tollgate.control.problems import Busy, InvalidInput

CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
PASSWORD = "correct horse battery"


class Recorder(PasswordHasher):
    """Keeps the hashes that it was given to check."""

    def __init__(self) -> None:
        super().__init__(time_cost=1, memory_cost=8, parallelism=1)
        self.checked: list[str] = []

    def verify(self, hash: str | bytes, password: str | bytes) -> Any:  # noqa: A002 - the name in argon2
        self.checked.append(str(hash))
        return super().verify(hash, password)


class Gate(PasswordHasher):
    """Hashes when the test allows it."""

    def __init__(self) -> None:
        super().__init__(time_cost=1, memory_cost=8, parallelism=1)
        self.open = threading.Event()
        self.started = threading.Semaphore(0)
        self._lock = threading.Lock()
        self.running = self.most = 0

    def hash(self, password: str | bytes, *, salt: bytes | None = None) -> str:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.started.release()
        self.open.wait(20)
        with self._lock:
            self.running -= 1
        return "hashed"


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


async def turns() -> None:
    """Run the loop until all callers wait."""
    for _ in range(10):
        await asyncio.sleep(0)


# --- Hashing -------------------------------------------------------------------------------------------


async def test_hash_is_argon2id_with_the_costs_of_rfc_9106() -> None:
    passwords = Passwords()
    hashed = await passwords.hash(PASSWORD)
    found = argon2.extract_parameters(hashed)
    assert found == argon2.profiles.RFC_9106_LOW_MEMORY
    assert found.type is argon2.Type.ID
    assert await passwords.fits(PASSWORD, hashed)
    assert not passwords.outdated(hashed)
    assert passwords.outdated(CHEAP.hash(PASSWORD))


async def test_same_password_never_has_the_same_hash() -> None:
    passwords = Passwords(CHEAP)
    assert await passwords.hash(PASSWORD) != await passwords.hash(PASSWORD)


@pytest.mark.parametrize("other", ["", PASSWORD + " ", PASSWORD.upper(), PASSWORD[:-1], "\ud800", "x" * 10_000])
async def test_other_passwords_do_not_fit(other: str) -> None:
    assert not await Passwords(CHEAP).fits(other, CHEAP.hash(PASSWORD))


@pytest.mark.parametrize("text", ["pässwörter und 🐎", "x" * MAX_PASSWORD, "\x00" * 12])
async def test_any_text_can_be_a_password(text: str) -> None:
    passwords = Passwords(CHEAP)
    assert await passwords.fits(text, await passwords.hash(text))


async def test_password_of_an_unknown_account_costs_the_same_work_and_never_matches() -> None:
    counters = Recorder()
    passwords = Passwords(counters)
    for password in (PASSWORD, "unknown", ""):
        assert not await passwords.fits(password, "")
    assert len(counters.checked) == 3
    assert argon2.extract_parameters(counters.checked[0]) == argon2.extract_parameters(counters.hash(PASSWORD))


async def test_damaged_hash_fits_nothing() -> None:
    assert not await Passwords(CHEAP).fits(PASSWORD, "$argon2id$damaged")


# --- New ones ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("password", ["", "x" * (MIN_PASSWORD - 1), "x" * (MAX_PASSWORD + 1), "\udcff" * 20])
def test_too_short_and_too_long_ones_are_refused(password: str) -> None:
    with pytest.raises(InvalidInput, match="A password has 10 to 256 characters") as caught:
        Passwords(CHEAP).check_new(password, "ada@x.example")
    assert caught.value.extras == {"field": "password"}


@pytest.mark.parametrize("password", ["ada@x.example", "ADA@X.example", "adalovelaceadalovelace"])
def test_address_itself_is_refused(password: str) -> None:
    email = "adalovelace@x.example" if password.startswith("adal") else "ada@x.example"
    with pytest.raises(InvalidInput, match="must not be your email"):
        Passwords(CHEAP).check_new(password, email)


@pytest.mark.parametrize(
    "password", ["xyzw vuts "[:MIN_PASSWORD], "a few words, " * 19 + "the end.", "ada@x.example!"]
)
def test_others_are_accepted(password: str) -> None:
    Passwords(CHEAP).check_new(password, "ada@x.example")


# --- Too much at once ----------------------------------------------------------------------------------


async def test_concurrent_hashes_and_waiting_callers_are_bounded(gate: Gate) -> None:
    passwords = Passwords(gate)
    count = AT_ONCE + MAX_WAITING + 8
    works = [asyncio.create_task(passwords.hash(PASSWORD, f"192.0.{n}.1")) for n in range(count)]
    await turns()
    refused = [work for work in works if work.done()]
    assert [type(work.exception()) for work in refused] == [Busy] * 8
    gate.open.set()
    results = await asyncio.gather(*works, return_exceptions=True)
    assert results.count("hashed") == AT_ONCE + MAX_WAITING
    assert gate.most == AT_ONCE
    busy = next(result for result in results if isinstance(result, Busy))
    assert (busy.status, busy.reason, busy.headers) == (503, "busy", {"Retry-After": "2"})


async def test_one_network_leaves_room_for_others(gate: Gate) -> None:
    passwords = Passwords(gate)
    works = [asyncio.create_task(passwords.hash(PASSWORD, f"2001:db8:0:{n}::1")) for n in range(MAX_WAITING)]
    await turns()
    assert sum(work.done() for work in works) == MAX_WAITING // 2 - AT_ONCE
    passwords.check_room("192.0.2.1")
    gate.open.set()
    await asyncio.gather(*works, return_exceptions=True)


@pytest.mark.parametrize("new_loop", [Hands])
async def test_wait_for_a_turn_has_a_deadline(gate: Gate) -> None:
    passwords = Passwords(gate)
    running = [asyncio.create_task(passwords.hash(PASSWORD)) for _ in range(AT_ONCE)]
    late = asyncio.create_task(passwords.hash(PASSWORD))
    await advance(WAIT_SECONDS - 1)
    assert not late.done()
    await advance(1)
    with pytest.raises(Busy):
        await late
    gate.open.set()
    assert await asyncio.gather(*running) == ["hashed"] * AT_ONCE


async def test_work_of_a_cancelled_caller_still_counts(gate: Gate) -> None:
    """A thread cannot be stopped: a cancelled caller must not free its slot for another 64 MiB."""
    passwords = Passwords(gate)
    first = [asyncio.create_task(passwords.hash(PASSWORD)) for _ in range(AT_ONCE)]
    for _ in first:
        await asyncio.to_thread(gate.started.acquire, timeout=20)
    for work in first:
        work.cancel()
    await asyncio.gather(*first, return_exceptions=True)
    second = [asyncio.create_task(passwords.hash(PASSWORD)) for _ in range(AT_ONCE)]
    await turns()
    assert gate.running == AT_ONCE
    gate.open.set()
    assert await asyncio.gather(*second) == ["hashed"] * AT_ONCE
    assert gate.most == AT_ONCE


async def test_slot_is_released_after_a_failure() -> None:
    class Broken(PasswordHasher):
        def hash(self, password: str | bytes, *, salt: bytes | None = None) -> str:
            raise MemoryError

    passwords = Passwords(Broken())
    for _ in range(AT_ONCE * 2):
        with pytest.raises(MemoryError):
            await passwords.hash(PASSWORD)
