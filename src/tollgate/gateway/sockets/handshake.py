"""The head of a request that wants to become a WebSocket: whether it is well-formed, and what of it is needed.

Pure. The library of WebSockets ends a connection without a word where a line is too long or there are too many;
so it is handed only what it and we need, and whatever it would not take is answered as HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence

Header = tuple[bytes, bytes]

# Below the library's own bounds: 8,192 and 128.
MOST_LINE_BYTES, MOST_LINES = 8_000, 64
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


def needed(method: bytes, url: bytes, headers: Sequence[Header]) -> list[Header] | None:
    """What is needed of the headers; None where this is no handshake that can be answered."""
    kept = [header for header in headers if header[0] in _NEEDED]
    by_name = dict(kept)
    if (
        method != b"GET"
        or not url.isascii()
        or by_name.get(b"sec-websocket-version") != b"13"
        or b"sec-websocket-key" not in by_name
        or len(kept) > MOST_LINES
        or max(len(url), *map(len, by_name.values())) > MOST_LINE_BYTES
    ):
        return None
    return kept
