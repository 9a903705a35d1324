"""A request whose head is that of the one before on its connection: it need not be read again.

A client that keeps its connection sends the same head with every call, but for the length; to read it anew takes
about a sixth of the time of a call that is answered from memory. What is kept is only what reading gave: whatever
may change since (networks, limits, who may call) is looked up for each request as for any other.

Pure. Framing is not decided here: a head is kept only after the parser has found the same request in these bytes.
"""

from __future__ import annotations

import re

from msgspec import Struct

_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)\r\n", re.IGNORECASE)
# Digits of a length; a longer one is read the long way.
_MAX_DIGITS = 9
# These heads say more than who calls and what follows, or name the single request.
_NOT_AGAIN = (b"expect", b"transfer-encoding", b"upgrade", b"x-request-id")


class Opening(Struct, gc=False):
    """A head, as it was read."""

    before: bytes
    """As it was sent, up to the length."""
    after: bytes
    """And from there."""
    url: bytes
    headers: dict[bytes, bytes]
    digest: bytes | None = None
    """Of the token that it carries, where it carried a known one the last time."""

    def body(self, data: bytes) -> bytes | None:
        """The body of a request that is whole and begins with this head; None where it is something else."""
        if not data.startswith(self.before):
            return None
        start = len(self.before)
        end = data.find(b"\r", start, start + _MAX_DIGITS)
        length = data[start:end]
        if not length.isdigit() or not data.startswith(self.after, end):
            return None
        start = end + len(self.after)
        return data[start:] if len(data) - start == int(length) else None


def opening(data: bytes, url: bytes, headers: dict[bytes, bytes], size: int) -> Opening | None:
    """The head of the one request that these bytes are, with a body of this size; None where it is not kept."""
    for name in _NOT_AGAIN:
        if name in headers:
            return None
    end = data.find(_END) + len(_END)
    # Otherwise the first empty line is not what the parser took for the end of the head.
    if len(data) - end != size:
        return None
    found = _LENGTH.search(data, 0, end)
    if found is None:
        return None
    return Opening(data[: found.start(1)], data[found.end(1) : end], url, headers)
