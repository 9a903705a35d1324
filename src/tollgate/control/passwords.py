"""Passwords: which are too easy to guess; Argon2id, off the event loop, a few at a time. No rules of accounts.

Each hash takes 64 MiB for some 50 ms (argon2-cffi's defaults, RFC 9106), so concurrency and queue are bounded.
"""

from __future__ import annotations

import asyncio
import base64
import re
import secrets
from collections.abc import Callable
from typing import TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from argon2.low_level import ARGON2_VERSION

from tollgate.api.me import MAX_PASSWORD, MIN_PASSWORD
from tollgate.control.problems import Busy, InvalidInput
from tollgate.core.address_shares import AddressShares

AT_ONCE = 2
# Fewer than a worker has slots for requests: sign-ins must not block other requests.
MAX_WAITING = 24
WAIT_SECONDS = 10.0
# Words that attackers try first. A list of all leaked passwords would be larger than the service; nearly all with
# ten characters or more are combinations of a few words, which are listed here.
_TEXT = """
abc access account admin administrator adobe alpha america angel apple ashley asdf asdfgh asdfghjkl autumn
azerty baby bailey banana baseball basketball batman beautiful bitcoin blockchain blink bonjour butterfly
changeme charlie chelsea chocolate christmas computer cookie crypto daniel default demo dolphin dragon
ethereum flower football forever freedom friends fuck fuckyou gandalf george ginger google guest hannah hello
hockey hunter iloveyou internet jennifer jessica jesus jordan joshua killer letmein liverpool login london
love lovely loveyou maggie manager master matrix merlin michael michelle mickey monkey mustang mypassword
naruto nicole ninja node nothing number oracle orange owner pass passphrase passwd password pepper pokemon
princess private purple qazwsx qwer qwert qwerty qwertyuiop root ruby samsung samuel secret secure security
server shadow soccer spring starknet starwars summer sunshine super superman supersecret system test testing
thomas tiger tollgate trustno user wallet welcome whatever william winter wizard zaqxsw zxcvbn zxcvbnm
"""
_WORDS = frozenset(_TEXT.split())
_LEET = str.maketrans("013457@$!|", "oleastasii")
_WALKS = (
    "abcdefghijklmnopqrstuvwxyz",
    "01234567890123456789",
    "qwertyuiopasdfghjklzxcvbnm",
    "1q2w3e4r5t6y7u8i9o0p",
    "1qaz2wsx3edc4rfv5tgb6yhn7ujm",
    "qazwsxedcrfvtgbyhnujm",
)
_MIN_KINDS = 4
_ENDS = re.compile(r"^[^a-z]+|[^a-z]+$")
Result = TypeVar("Result")


class Passwords:
    """Hashes and checks passwords."""

    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        self._hasher = hasher or PasswordHasher()
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._waiting = AddressShares(MAX_WAITING, MAX_WAITING)
        self._dummy = _dummy_hash(self._hasher)

    def check_new(self, password: str, email: str, *, field: str = "password") -> None:
        """Refuse a password that is too short, too long, the address itself, or common."""
        if not MIN_PASSWORD <= len(password) <= MAX_PASSWORD or not _is_text(password):
            raise InvalidInput(f"A password has {MIN_PASSWORD} to {MAX_PASSWORD} characters.", field=field)
        if password.lower() in {email, email.partition("@")[0] * 2}:
            raise InvalidInput("The password must not be your email: choose another.", field=field)
        if is_common(password):
            raise InvalidInput(
                "This password is among the first that would be guessed: choose another, such as a few words.",
                field=field,
            )

    def check_room(self, address: str) -> None:
        """Refuse a client address with `Busy` if too many wait."""
        if not self._waiting.has_room(address):
            raise Busy

    async def hash(self, password: str, address: str = "") -> str:
        return await self._in_turn(lambda: self._hasher.hash(password), address)

    async def fits(self, password: str, hashed: str, address: str = "") -> bool:
        """Whether this is the password. Takes as long without a hash, and is False."""

        def check() -> bool:
            try:
                self._hasher.verify(hashed or self._dummy, password)
            except (VerificationError, InvalidHashError):
                return False
            return bool(hashed)

        return len(password) <= MAX_PASSWORD and _is_text(password) and await self._in_turn(check, address)

    def outdated(self, hashed: str) -> bool:
        """Whether it was created with other parameters than the current ones."""
        return self._hasher.check_needs_rehash(hashed)

    async def _in_turn(self, work: Callable[[], Result], address: str) -> Result:
        self.check_room(address)
        self._waiting.take(address)
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._turns.acquire()
        except TimeoutError as error:
            raise Busy from error
        finally:
            self._waiting.give_back(address)
        # Released when the work is done, which continues after the caller has gone.
        running = asyncio.get_running_loop().run_in_executor(None, work)
        running.add_done_callback(lambda _: self._turns.release())
        return await asyncio.shield(running)


def _dummy_hash(hasher: PasswordHasher) -> str:
    """A hash that no password has, checked if there is no account, so that both take the same time."""
    salt, tag = (
        base64.b64encode(secrets.token_bytes(length)).rstrip(b"=").decode()
        for length in (hasher.salt_len, hasher.hash_len)
    )
    costs = f"m={hasher.memory_cost},t={hasher.time_cost},p={hasher.parallelism}"
    return f"$argon2id$v={ARGON2_VERSION}${costs}${salt}${tag}"


def _is_text(password: str) -> bool:
    """Whether it can be encoded in UTF-8: lone surrogates cannot."""
    try:
        password.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_common(password: str) -> bool:
    """Whether it would be guessed early: common words and keyboard walks, with any substitutions."""
    lowered = password.casefold()
    if len(set(lowered)) < _MIN_KINDS or _repeats(lowered):
        return True
    letters = re.sub(r"[^a-z0-9]", "", lowered)
    if any(letters in walk or letters in walk[::-1] for walk in _WALKS):
        return True
    inside = _ENDS.sub("", lowered)
    return any(_is_words(form) for form in (lowered, inside.translate(_LEET)))


def _repeats(text: str) -> bool:
    """Whether it repeats one piece."""
    return any(text == (text[:length] * len(text))[: len(text)] for length in range(1, len(text) // 2 + 1))


def _is_words(text: str) -> bool:
    """Whether it consists of at most two common words, digits and symbols."""
    words = [word for word in re.split(r"[^a-z]+", text) if word]
    if not words or len(words) > 2:
        return not words
    return all(word in _WORDS or _is_pair(word) for word in words)


def _is_pair(word: str) -> bool:
    return any(word[:at] in _WORDS and word[at:] in _WORDS for at in range(2, len(word) - 1))
