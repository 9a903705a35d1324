"""The headers that let a page in a browser read an answer, or why it was refused.

Every answer to a request with an Origin, errors included, echoes that origin: no cookie or other ambient
credential is ever accepted under /x/, so this gives nothing away, and a developer can read the reason in the
console. `Allow-Credentials` is never sent.
"""

from __future__ import annotations

import re

from tollgate.gateway.messages import Answer, Request

# Chromium caps it here.
_MAX_AGE = 7200
_MAX_HEADER_BYTES = 1024
_TOKENS = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:[ \t]*,[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+)*")
_EXPOSED = b"Retry-After, RateLimit, RateLimit-Policy, X-Request-Id, X-Tollgate-Cache, X-Tollgate-Upstream"


def headers(origin: bytes | None) -> bytes:
    """The header lines for an answer to a request from this origin."""
    if origin is None:
        return b""
    return b"access-control-allow-origin: %b\r\naccess-control-expose-headers: %b\r\nvary: Origin\r\n" % (
        origin,
        _EXPOSED,
    )


def preflight(request: Request) -> Answer:
    """Answer OPTIONS, before any look at credentials: a preflight carries none."""
    lines = b"access-control-allow-methods: POST\r\naccess-control-max-age: %d\r\n" % _MAX_AGE
    # Echoed, because `*` does not cover Authorization.
    wanted = request.headers.get(b"access-control-request-headers", b"").strip()
    if wanted and len(wanted) <= _MAX_HEADER_BYTES and _TOKENS.fullmatch(wanted):
        lines += b"access-control-allow-headers: %b\r\n" % wanted
    return Answer(204, b"", lines)
