"""What is refused before the body is read: ambiguous heads; then method, path, media type and size, in this order.

Pure, except for request ids. A refusal is noted on the request, not raised: its body must still be read past.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from tollgate.errors import BodyTooLarge, MethodNotPost, Refusal, UnknownNetwork, UnsupportedMediaType
from tollgate.gateway.messages import Request, ServedNetwork

PREFIX = b"/x/"
_JSON = re.compile(rb"application/json[ \t]*(?:;.*)?", re.IGNORECASE)
# A longer number is no length of a body that any server takes; Python reads none of more than 4,300 digits.
_MAX_LENGTH_DIGITS = 19
# A name, an address or nothing, with a port or without (RFC 3986, 3.2.2); no comma, which joins two headers.
_HOST = re.compile(rb"[A-Za-z0-9._~%!$&'()*+;=:\[\]-]*")
NO_HTTP = "This request is not HTTP/1.1: send it in that version."
REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")


def joined(pairs: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Join repeated headers as in RFC 9110; a doubled Authorization or Origin thus matches nothing."""
    found: dict[bytes, bytes] = {}
    for name, value in pairs:
        found[name] = b"%b,%b" % (found[name], value) if name in found else value
    return found


def ambiguity(version: str, headers: dict[bytes, bytes]) -> str | None:
    """Why another parser may read this head differently, or None (RFC 9112, sections 2.3, 3.2 and 6.1)."""
    if version not in ("1.1", "1.0"):
        return NO_HTTP
    if b"host" not in headers and version == "1.1":
        return "No Host: send one."
    if not _HOST.fullmatch(headers.get(b"host", b"")):
        return "More than one Host, or one that is none: send one."
    if len(headers.get(b"content-length", b"")) > _MAX_LENGTH_DIGITS:
        return "Content-Length has too many digits: send the number of bytes, without zeros before it."
    if b"transfer-encoding" in headers and (
        headers[b"transfer-encoding"].lower() != b"chunked" or version == "1.0"
    ):
        return "A body is sent as it is, or in chunks with HTTP/1.1: no other Transfer-Encoding is known."
    return None


class RequestReader:
    """Knows the networks and the size limit."""

    def __init__(self, networks: Iterable[ServedNetwork], max_bytes: int) -> None:
        self.change(networks, max_bytes)
        self.ids = _ids()
        """Ids of requests."""

    def change(self, networks: Iterable[ServedNetwork], max_bytes: int) -> None:
        """Apply networks and the limit."""
        self._networks = {b"/x/%b" % network.path.encode(): network for network in networks}
        self._max_bytes = max_bytes

    def open(self, method: bytes, url: bytes, headers: dict[bytes, bytes], peer: str) -> Request:
        """Make a request from its head; `refusal` is set where it is refused."""
        given_id = headers.get(b"x-request-id")
        if given_id is None or not REQUEST_ID.fullmatch(given_id):
            given_id = self.new_id()
        request = Request(method, headers, peer, given_id)
        request.network = self._networks.get(url)
        if (
            method == b"POST"
            and request.network is not None
            and headers.get(b"content-type") == b"application/json"
            and b"content-encoding" not in headers
            and int(headers.get(b"content-length", 0)) <= self._max_bytes
        ):
            return request
        if method != b"OPTIONS":
            try:
                self._check(request, url)
            except Refusal as refusal:
                request.refusal = refusal
        return request

    def again(self, url: bytes, headers: dict[bytes, bytes], peer: str) -> Request | None:
        """Make a request from a known head; None where its network is no longer served."""
        network = self._networks.get(url)
        if network is None:
            return None
        request = Request(b"POST", headers, peer, next(self.ids))
        request.network = network
        return request

    def new_id(self) -> bytes:
        """Make the id of a request."""
        return next(self.ids)

    def _check(self, request: Request, url: bytes) -> None:
        if request.network is None:
            self._find_network(request, url)
        if request.method != b"POST":
            raise MethodNotPost
        if request.network is None:
            raise self._unknown(url)
        media_type = request.headers.get(b"content-type", b"")
        if media_type != b"application/json" and not _JSON.fullmatch(media_type):
            raise UnsupportedMediaType
        if b"content-encoding" in request.headers and request.headers[b"content-encoding"].lower() != b"identity":
            raise UnsupportedMediaType("Compressed request bodies are not accepted: send the JSON as it is.")
        length = request.headers.get(b"content-length")
        if length is not None and int(length) > self._max_bytes:
            raise self.too_large()

    def _find_network(self, request: Request, url: bytes) -> None:
        """Understand a path that is not written exactly as served: trailing slash, query, token."""
        path = url.partition(b"?")[0]
        request.network = self._networks.get(path.removesuffix(b"/"))
        if request.network is None:
            path, _, token = path.removesuffix(b"/").rpartition(b"/")
            request.network = self._networks.get(path)
            if request.network is not None:
                request.path_token = token

    def _unknown(self, url: bytes) -> UnknownNetwork:
        served = sorted(path.decode() for path in self._networks)
        # Only family and network are repeated: what follows them may be a token.
        requested = "/".join(url.partition(b"?")[0].decode("latin-1").split("/")[:4])[:64]
        near = get_close_matches(requested, served, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        return UnknownNetwork(
            f"No such network: {requested}.{hint} Served here: {', '.join(served)}.", data={"networks": served}
        )

    def too_large(self) -> BodyTooLarge:
        """The refusal of a body that turns out too large."""
        return BodyTooLarge(
            f"The body is larger than {self._max_bytes} bytes: send fewer or smaller calls.",
            data={"limit": self._max_bytes},
        )


def _ids() -> Iterator[bytes]:
    """Request ids, unique in this process: a random prefix and a counter.

    Made in blocks of 256, because each request needs one.
    """
    start, low = secrets.token_hex(8).encode(), b"".join(b" %02x" % number for number in range(1 << 8))
    return itertools.chain.from_iterable(
        low.replace(b" ", b" %b%06x" % (start, high)).split() for high in itertools.count()
    )
