"""Secrets that we hand out: their format, checksum and digest.

An API token is `tg_`, 32 base62 characters (190 bits) and the CRC-32 of what precedes, in six base62
characters: secret scanners recognise it, and a mistyped one is refused without a look-up (as GitHub's are).
What logs people in has the same form with a prefix of its own, so that one is never taken for another.
Nothing here logs or compares a secret in clear: the store holds HMAC-SHA-256 of it. The pepper itself is no key:
each purpose has one that is derived from it.
"""

from __future__ import annotations

import hmac
import secrets
import string
import zlib
from functools import lru_cache

PREFIX = "tg_"
ACCESS, REFRESH, PERSONAL, SESSION = "tga_", "tgr_", "tgp_", "tgs_"
DEVICE, INVITATION, RESET = "tgd_", "tgi_", "tgl_"
RANDOM_LENGTH = 32
# Purposes of keys.
TOKENS, RECOVERY_CODES, USER_CODES, TICKETS, LINKS, PASSWORD_PROOFS, LIMIT_KEYS = (
    "tokens",
    "recovery codes",
    "user codes",
    "tickets",
    "links",
    "password proofs",
    "keys of limits",
)
CHECK_LENGTH = 6
SHOWN = 8

# Consonants alone, so that no code spells a word (RFC 8628, section 6.1): 20 ** 8 are 34 bits.
CODE_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
CODE_LENGTH = 8

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase


def new_token(prefix: str = PREFIX) -> str:
    """Make a secret; the only time it exists in clear on our side."""
    start = prefix + "".join(secrets.choice(_ALPHABET) for _ in range(RANDOM_LENGTH))
    return start + _checksum(start)


def derived_token(pepper: bytes, text: str) -> str:
    """A token that can be made again from the pepper and a text."""
    number = int.from_bytes(digest(text.encode(), pepper, "derived tokens"))
    letters = []
    for _ in range(RANDOM_LENGTH):
        number, place = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[place])
    start = PREFIX + "".join(letters)
    return start + _checksum(start)


def new_id(kind: str) -> str:
    """Make an identifier such as `tok_…`."""
    return f"{kind}_{''.join(secrets.choice(_ALPHABET) for _ in range(16))}"


def new_code() -> str:
    """Make a code for a person to type, `BCDF-GHJK`."""
    letters = "".join(secrets.choice(CODE_LETTERS) for _ in range(CODE_LENGTH))
    return f"{letters[:4]}-{letters[4:]}"


def plain_code(typed: str) -> str | None:
    """The letters of a code as a person typed it, or None where it cannot be one."""
    # Spaces, line ends and dashes of any kind come along when a code is pasted (RFC 8628, section 6.1).
    letters = "".join(letter for letter in typed.upper() if letter.isalnum())
    return letters if len(letters) == CODE_LENGTH and set(letters) <= set(CODE_LETTERS) else None


def well_formed(token: str, prefix: str = PREFIX) -> bool:
    """Whether this could be a token at all."""
    return (
        len(token) == len(prefix) + RANDOM_LENGTH + CHECK_LENGTH
        and token.startswith(prefix)
        and token.isascii()
        and token[len(prefix) :].isalnum()
        and hmac.compare_digest(_checksum(token[:-CHECK_LENGTH]), token[-CHECK_LENGTH:])
    )


@lru_cache(64)
def derive(pepper: bytes, purpose: str) -> bytes:
    """The key for one purpose: HKDF-SHA-256 (RFC 5869), without salt, of 32 bytes."""
    extracted = hmac.digest(bytes(32), pepper, "sha256")
    return hmac.digest(extracted, f"tollgate {purpose}".encode() + b"\x01", "sha256")


def digest(token: bytes, pepper: bytes, purpose: str = TOKENS) -> bytes:
    """What the store knows of a token or of another secret, or what signs a text that comes back."""
    return hmac.digest(derive(pepper, purpose), token, "sha256")


def shown_prefix(token: str) -> str:
    """The part of a token that may be shown to identify it."""
    return token[:SHOWN]


def _checksum(start: str) -> str:
    rest = zlib.crc32(start.encode())
    digits = ""
    for _ in range(CHECK_LENGTH):
        rest, digit = divmod(rest, len(_ALPHABET))
        digits = _ALPHABET[digit] + digits
    return digits
