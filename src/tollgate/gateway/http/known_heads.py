"""Heads that a connection has sent before: such requests are not parsed again.

A client that keeps its connection sends the same head with every call, except for the length. The parsed head is
kept, and the admission of the caller. Changes of networks, limits and grants raise the worker's epoch, which voids
the admission.

Pure. Framing is not decided here: a head is kept only after the parser has found the same request in these bytes.
"""

from __future__ import annotations

import re
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

END = b"\r\n\r\n"
MAX_HEADS = 8
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)\r\n", re.IGNORECASE)
# Digits of a length; heads with a longer one are parsed.
_MAX_DIGITS = 9
# Heads with these say more than who calls and how long the body is, or identify a single request.
_UNFIT = (b"expect", b"transfer-encoding", b"upgrade", b"x-request-id")


class Admitted(Protocol):
    """A caller that was admitted on this connection."""

    epoch: int
    """The worker's, when it was admitted."""


class KnownHead(Struct, gc=False):
    """A parsed head."""

    head: bytes
    """As it was sent."""
    end: int
    """Its length."""
    size: int
    """Bytes of the whole request."""
    before: bytes
    """As it was sent, up to the length."""
    after: bytes
    """And from there."""
    url: bytes
    headers: dict[bytes, bytes]
    admission: Admitted | None = None
    digest: bytes | None = None
    """Of its token, where that was known the last time."""

    def with_length(self, data: bytes, end: int) -> KnownHead | None:
        """The head that these bytes start with, where only its length differs from this one."""
        if not data.startswith(self.before):
            return None
        start = len(self.before)
        stop = data.find(b"\r", start, start + _MAX_DIGITS)
        length = data[start:stop]
        if not length.isdigit() or stop + len(self.after) != end or not data.startswith(self.after, stop):
            return None
        return replace(self, head=data[:end], end=end, size=end + int(length))


def known_head(data: bytes, url: bytes, headers: dict[bytes, bytes], size: int) -> KnownHead | None:
    """The head of the one request that these bytes are, with a body of this size; None where it is not kept."""
    for name in _UNFIT:
        if name in headers:
            return None
    end = data.find(END) + len(END)
    # Otherwise the first empty line is not what the parser took for the end of the head.
    if len(data) - end != size:
        return None
    head = data[:end]
    found = _LENGTH.search(head)
    if found is None:
        return None
    return KnownHead(head, end, len(data), data[: found.start(1)], data[found.end(1) : end], url, headers)
