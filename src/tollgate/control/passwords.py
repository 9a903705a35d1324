"""Passwords: Argon2id, off the event loop, a few at a time. No rule about accounts lives here.

Each hash takes 64 MiB for some 50 ms (argon2-cffi's defaults, RFC 9106), so their number at once is bounded and
so is the queue of those who wait.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Callable
from typing import TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from argon2.low_level import ARGON2_VERSION

from tollgate.control.problems import Busy, InvalidInput
from tollgate.core.common_passwords import is_common

SHORTEST, LONGEST = 10, 256
AT_ONCE = 2
MAX_WAITING = 50
WAIT_SECONDS = 10.0
Result = TypeVar("Result")


class Passwords:
    """Hashes and checks passwords."""

    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        self._hasher = hasher or PasswordHasher()
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0
        self._nobody = _nobodys(self._hasher)

    def check_new(self, password: str, email: str) -> None:
        """Refuse a password that is too short, too long, the address itself, or common."""
        if not SHORTEST <= len(password) <= LONGEST or not _is_text(password):
            raise InvalidInput(f"A password has {SHORTEST} to {LONGEST} characters.", field="password")
        if password.lower() in {email, email.partition("@")[0] * 2}:
            raise InvalidInput("The password must not be your email: choose another.", field="password")
        if is_common(password):
            raise InvalidInput(
                "This password is among the first that would be guessed: choose another, such as a few words.",
                field="password",
            )

    async def hash(self, password: str) -> str:
        return await self._in_turn(lambda: self._hasher.hash(password))

    async def fits(self, password: str, hashed: str) -> bool:
        """Whether this is the password. Without a hash it takes as long, and is not."""

        def check() -> bool:
            try:
                self._hasher.verify(hashed or self._nobody, password)
            except (VerificationError, InvalidHashError):
                return False
            return bool(hashed)

        return len(password) <= LONGEST and _is_text(password) and await self._in_turn(check)

    def outdated(self, hashed: str) -> bool:
        """Whether it was made with other parameters than today's."""
        return self._hasher.check_needs_rehash(hashed)

    async def _in_turn(self, work: Callable[[], Result]) -> Result:
        if self._waiting >= MAX_WAITING:
            raise Busy
        self._waiting += 1
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._turns.acquire()
        except TimeoutError as error:
            raise Busy from error
        finally:
            self._waiting -= 1
        # Given back when the work is done, which goes on even where nobody waits for it any more.
        running = asyncio.get_running_loop().run_in_executor(None, work)
        running.add_done_callback(lambda _: self._turns.release())
        return await asyncio.shield(running)


def _nobodys(hasher: PasswordHasher) -> str:
    """A hash that no password has, checked where there is no account, so that both take the same time."""
    salt, tag = (
        base64.b64encode(secrets.token_bytes(length)).rstrip(b"=").decode()
        for length in (hasher.salt_len, hasher.hash_len)
    )
    costs = f"m={hasher.memory_cost},t={hasher.time_cost},p={hasher.parallelism}"
    return f"$argon2id$v={ARGON2_VERSION}${costs}${salt}${tag}"


def _is_text(password: str) -> bool:
    """Whether it can be encoded in UTF-8: halves of characters cannot."""
    try:
        password.encode()
    except UnicodeEncodeError:
        return False
    return True
