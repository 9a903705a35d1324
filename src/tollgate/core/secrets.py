"""API tokens: their format, checksum and digest.

A token is `tg_`, 32 base62 characters (190 bits) and the CRC-32 of what stands before, in six base62
characters: secret scanners recognise it, and a mistyped one is refused without a look-up (as GitHub's are).
Nothing here keeps, logs or compares a secret in clear: the store holds HMAC-SHA-256 under the pepper.
"""

from __future__ import annotations

import hmac
import secrets
import string
import zlib

PREFIX = "tg_"
RANDOM_LENGTH = 32
CHECK_LENGTH = 6
LENGTH = len(PREFIX) + RANDOM_LENGTH + CHECK_LENGTH
SHOWN = 8
PEPPER_LENGTH = 32

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase


def new_token() -> str:
    """Make a token; the only time it exists in clear on our side."""
    start = PREFIX + "".join(secrets.choice(_ALPHABET) for _ in range(RANDOM_LENGTH))
    return start + _checksum(start)


def new_id(kind: str) -> str:
    """Make an identifier such as `tok_…`."""
    return f"{kind}_{''.join(secrets.choice(_ALPHABET) for _ in range(16))}"


def well_formed(token: str) -> bool:
    """Whether this could be a token at all."""
    return (
        len(token) == LENGTH
        and token.startswith(PREFIX)
        and token.isascii()
        and token[len(PREFIX) :].isalnum()
        and hmac.compare_digest(_checksum(token[:-CHECK_LENGTH]), token[-CHECK_LENGTH:])
    )


def digest(token: bytes, pepper: bytes) -> bytes:
    """What the store knows of a token."""
    return hmac.digest(pepper, token, "sha256")


def shown_prefix(token: str) -> str:
    """The part of a token that may be shown to tell it from others."""
    return token[:SHOWN]


def _checksum(start: str) -> str:
    rest = zlib.crc32(start.encode())
    digits = ""
    for _ in range(CHECK_LENGTH):
        rest, digit = divmod(rest, len(_ALPHABET))
        digits = _ALPHABET[digit] + digits
    return digits
