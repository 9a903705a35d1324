"""Time-based one-time passwords (RFC 6238), as authenticator apps generate them. Pure."""

from __future__ import annotations

import base64
import hmac
import struct
from urllib.parse import quote, urlencode

STEP_SECONDS, DIGITS, SECRET_BYTES = 30, 6, 20
# A phone's clock may be off by one step.
SLACK_STEPS = 1


def code_at(secret: bytes, step: int) -> str:
    """The code of a step (RFC 4226, section 5.3)."""
    digest = hmac.digest(secret, struct.pack(">Q", step), "sha1")
    offset = digest[-1] & 0xF
    number = struct.unpack(">I", digest[offset : offset + 4])[0] & 0x7FFFFFFF
    return f"{number % 10**DIGITS:0{DIGITS}d}"


def step_of(secret: bytes, code: str, now: float, after: int = 0) -> int | None:
    """The step that a code is of, if it is one of those around now, and newer than the last one accepted."""
    current = int(now) // STEP_SECONDS
    for step in range(current - SLACK_STEPS, current + SLACK_STEPS + 1):
        if step > after and hmac.compare_digest(code_at(secret, step).encode(), code.encode()):
            return step
    return None


def shown(secret: bytes) -> str:
    """The secret as it is typed into an app."""
    return base64.b32encode(secret).decode().rstrip("=")


def uri(secret: bytes, account: str, issuer: str) -> str:
    """The secret as an app reads it from a link."""
    query = urlencode({"secret": shown(secret), "issuer": issuer})
    return f"otpauth://totp/{quote(issuer)}:{quote(account, safe='@')}?{query}"
