"""The control process's answer, read piece by piece, and what of its head concerns the client.

Pure: bytes in, ASGI messages out. No socket, clock or deadline may enter.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import httptools

# Far more than any answer of ours has; the bound is for a program that took the port.
MAX_HEAD_BYTES = 65_536
# RFC 9110, 7.6.1, and `expect`, which the worker has met itself.
_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect")
)
_WITHOUT_BODY = (204, 304)

Headers = list[tuple[bytes, bytes]]


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Leave out what belongs to one connection alone. `host` stays, whoever names it: the app relies on it."""
    headers = list(headers)
    options = b",".join(value for name, value in headers if name == b"connection")
    dropped = _HOP_BY_HOP | ({option.strip().lower() for option in options.split(b",")} - {b"host"})
    return [header for header in headers if header[0] not in dropped and not header[0].startswith(b"proxy-")]


class ControlAnswer:
    """An answer as far as it has arrived. `on_…` are called by the parser."""

    def __init__(self, *, to_head: bool) -> None:
        self._parser: Any = httptools.HttpResponseParser(self)
        self._to_head = to_head
        self._status = 0
        self._headers: Headers = []
        self._head_bytes = 0
        self._pieces: list[bytes] = []
        self.begun = False
        """Set when the head is complete."""
        self.whole = False
        self.wrong = False
        """Set when what came cannot be understood. Nothing after the answer's end matters."""

    def feed(self, data: bytes) -> None:
        """Parse on, a piece of any size."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.wrong = True
        if not self.begun:
            self._head_bytes += len(data)
            self.wrong = self.wrong or self._head_bytes > MAX_HEAD_BYTES

    def start(self, identity: bytes) -> dict[str, Any]:
        """The message that begins the answer to the client; it always has a request id."""
        # The worker's server writes a date of its own, and waits for as many bytes as a length promises.
        dropped = (b"date", b"content-length") if self._status in _WITHOUT_BODY else (b"date",)
        headers = [header for header in end_to_end(self._headers) if header[0] not in dropped]
        if not any(name == b"x-request-id" for name, _ in headers):
            headers.append((b"x-request-id", identity))
        return {"type": "http.response.start", "status": self._status, "headers": headers}

    def take(self) -> bytes:
        """What has arrived of the body since the last time."""
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Let go of the parser, which holds us in turn: the collector of a worker comes by seldom."""
        self._parser = None

    # --- httptools -------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect the head; trailers are dropped."""
        if not self.begun:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Take the head, unless it is that of an interim answer."""
        if self.begun or self.wrong:
            return
        self._status = self._parser.get_status_code()
        if self._status < 200:
            self._headers.clear()
            return
        bodiless = self._to_head or self._status in _WITHOUT_BODY
        self.begun = self._status < 600 and (bodiless or self._has_an_end())
        self.whole = self.begun and bodiless
        self.wrong = not self.begun

    def on_body(self, body: bytes) -> None:
        """Collect the body."""
        if self.begun and not self.whole:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        """Note the end."""
        self.whole = self.begun

    def _has_an_end(self) -> bool:
        """Whether a cut would be noticed: a body that ends with its connection may be cut unseen."""
        encodings = [value.lower() for name, value in self._headers if name == b"transfer-encoding"]
        if encodings:
            return encodings == [b"chunked"]
        return any(name == b"content-length" for name, _ in self._headers)
