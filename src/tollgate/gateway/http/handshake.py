"""The head of a WebSocket handshake: whether it is well-formed, and the headers that are needed.

Pure. The WebSocket library closes a connection without an answer where a line is too long or there are too many.
So it gets only the headers that are needed, and handshakes that it would not accept are answered as HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

Header = tuple[bytes, bytes]

# Below the library's own bounds: 8,192 and 128.
MAX_LINE_BYTES, MAX_LINES = 8_000, 64
_NEEDED = frozenset(
    {
        b"host",
        b"connection",
        b"upgrade",
        b"sec-websocket-key",
        b"sec-websocket-version",
        b"sec-websocket-protocol",
        b"authorization",
        b"origin",
        b"user-agent",
        b"x-forwarded-for",
        b"x-request-id",
    }
)
# Headers that must not come twice.
_SINGLE = (b"sec-websocket-key", b"sec-websocket-version", b"origin")
_KEY = re.compile(rb"[A-Za-z0-9+/]{22}==")
# A list of tokens (RFC 9110, 5.6). The library would echo a malformed one, and it may be a secret.
_PROTOCOLS = re.compile(
    rb"[ \t,]*[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:[ \t]*,[ \t,]*[!#$%&'*+.^_`|~0-9A-Za-z-]+)*[ \t,]*"
)


def needed(method: bytes, url: bytes, headers: Sequence[Header]) -> list[Header] | None:
    """The headers that are needed; None where this is not a handshake that can be answered."""
    kept = [header for header in headers if header[0] in _NEEDED]
    by_name, names = dict(kept), [name for name, _ in kept]
    if (
        method != b"GET"
        or not url.isascii()
        or by_name.get(b"sec-websocket-version") != b"13"
        or not _KEY.fullmatch(by_name.get(b"sec-websocket-key", b""))
        or any(names.count(name) > 1 for name in _SINGLE)
        or not all(_PROTOCOLS.fullmatch(value) for name, value in kept if name == b"sec-websocket-protocol")
        or len(kept) > MAX_LINES
        or max(len(url), *map(len, by_name.values())) > MAX_LINE_BYTES
    ):
        return None
    return kept
