"""The grants of open WebSockets, looked at again all the time: who loses its grant loses its connections.

Connections with the same credential to the same network are checked together. Reports whose grant has ended; how
those are closed, and with which message, is decided by the endpoint.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable

from tollgate.errors import NetworkNotAllowed, Overloaded, RateLimited, Refusal
from tollgate.gateway.access.caller import Caller
from tollgate.gateway.access.credentials import Credentials
from tollgate.gateway.messages import Request
from tollgate.gateway.websocket.session import SocketSession

# Callers that are looked up in the store at once.
_AT_ONCE = 16
# Yields to other tasks after so many credentials: about a millisecond.
_IN_A_ROW = 200


class Grants:
    """What the connections of a worker were opened with."""

    def __init__(self, credentials: Credentials, on_lost: Callable[[SocketSession, Refusal], None]) -> None:
        self._credentials = credentials
        self._on_lost = on_lost
        self._groups: dict[bytes, dict[SocketSession, None]] = {}
        """Connections by credential."""
        self._doubted: set[bytes] = set()
        """Credentials that could not be checked the last time."""

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, conversation: SocketSession) -> None:
        """Look after a connection from here on."""
        self._groups.setdefault(_credential(conversation.opened), {})[conversation] = None

    def discard(self, conversation: SocketSession) -> None:
        key = _credential(conversation.opened)
        group = self._groups.get(key, {})
        group.pop(conversation, None)
        if not group:
            self._groups.pop(key, None)
            self._doubted.discard(key)

    async def check(self) -> None:
        """Report whose grant has ended."""
        unknown: list[bytes] = []
        for count, key in enumerate(list(self._groups), 1):
            if not self._is_known(key):
                unknown.append(key)
            if not count % _IN_A_ROW:
                await asyncio.sleep(0)
        for start in range(0, len(unknown), _AT_ONCE):
            await asyncio.gather(*map(self._look_up, unknown[start : start + _AT_ONCE]))

    def _is_known(self, key: bytes) -> bool:
        """Check those who came with the same credential; False where the store must be queried for it."""
        request = self._request(key)
        if request is None:
            return True
        try:
            if request.refusal is not None:
                raise request.refusal
            caller = self._credentials.recall(request)
            if caller is None:
                return False
            check_network(caller, request)
        except Refusal as refusal:
            self._doubt(key, refusal)
        else:
            self._doubted.discard(key)
        return True

    async def _look_up(self, key: bytes) -> None:
        request = self._request(key)
        if request is None:
            return
        try:
            # A reload may have taken the network away meanwhile.
            if request.refusal is not None:
                raise request.refusal
            check_network(await self._credentials.look_up(request), request)
        except Refusal as refusal:
            self._doubt(key, refusal)
        else:
            self._doubted.discard(key)

    def _request(self, key: bytes) -> Request | None:
        """A request with this credential; None where no connection with it is left."""
        return next((each.request() for each in self._groups.get(key, ())), None)

    def _doubt(self, key: bytes, refusal: Refusal) -> None:
        """Let go whose grant has ended; who only cannot be checked now, when that was so before too."""
        group: Iterable[SocketSession] = list(self._groups.get(key, ()))
        if isinstance(refusal, Overloaded | RateLimited) and key not in self._doubted:
            if group:
                self._doubted.add(key)
            return
        for conversation in group:
            self._on_lost(conversation, refusal)


def check_network(caller: Caller, request: Request) -> None:
    """Refuse a token that is for other networks."""
    network = request.network
    assert network is not None  # noqa: S101 - refused otherwise
    if caller.networks and network.path not in caller.networks:
        allowed = ", ".join(sorted(caller.networks))
        raise NetworkNotAllowed(f"This token may not call {network.path}, only: {allowed}.")


def _credential(opened: Request) -> bytes:
    """A credential and a network: connections that have the same are checked together."""
    assert opened.network is not None  # noqa: S101 - refused otherwise
    token = opened.headers.get(b"authorization") or opened.path_token
    kind, shown = (b"t", token) if token is not None else (b"o", opened.origin or b"")
    # Not the secret itself: it is kept as long as the connection is open.
    # Where it came from as well: a token may be for some addresses.
    place = (
        b"" if token is None else b"%b %b" % (opened.peer.encode(), opened.headers.get(b"x-forwarded-for", b""))
    )
    return hashlib.sha256(b"%b %b %b %b" % (kind, opened.network.path.encode(), place, shown)).digest()
