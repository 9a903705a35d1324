"""Heads that a connection has sent before: such a request need not be parsed again.

A client that keeps its connection sends the same head with every call, but for the length. What is kept is what
parsing gave, and the admission that let the caller in; whatever may change since (networks, limits, grants) raises
the worker's epoch, and the admission is void.

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
# Digits of a length; a longer one is parsed.
_MAX_DIGITS = 9
# Such heads mean more than who calls and what follows, or name the single request.
_UNFIT = (b"expect", b"transfer-encoding", b"upgrade", b"x-request-id")


class Admitted(Protocol):
    """A caller that was admitted on this connection."""

    epoch: int
    """The worker's, when it was admitted."""


class KnownHead(Struct, gc=False):
    """A head, as it was parsed."""

    head: bytes
    """As it was sent."""
    end: int
    """Its length, which every request needs."""
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
    """Of the token that it carries, where it carried a known one the last time."""

    def with_length(self, data: bytes, end: int) -> KnownHead | None:
        """The head that these bytes begin with, where it is this one but for the length."""
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
