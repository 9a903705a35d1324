"""A connection whose TLS handshake is under way: bounded in number and time, then handed over.

An event loop that is given a certificate makes a connection known when its handshake is done. Who never finishes
one would then be counted nowhere, and takes a descriptor and 50 KiB. It leans on uvloop's own class for TLS;
tests/e2e/test_tls.py fails where that changes.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

from uvloop.loop import SSLProtocol  # type: ignore[attr-defined]

from tollgate.gateway.http.connection import CallerConnection

# Handshakes of an address count beside its connections: who has too many of those still gets an answer.
_KIND = "tls "


class TlsConnection(asyncio.Protocol):
    """One connection, until it is encrypted."""

    def __init__(self, make: Callable[..., CallerConnection], tls: ssl.SSLContext, **given: Any) -> None:
        self._connection = make(**given)
        self._tls = tls
        self._address = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin the handshake, unless there are too many."""
        context = self._connection.context
        peer = transport.get_extra_info("peername")
        self._address = context.addresses.enter(peer[0] if peer else "", _KIND)
        context.upgraded += 1
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        ended.add_done_callback(self._leave)
        too_many = len(context.connections) + context.upgraded > context.max_connections
        if too_many or context.addresses.is_crowded(self._address):
            ended.cancel()
            transport.abort()
            return
        # `loop.start_tls` begins a turn of the loop later: what comes meanwhile would be lost.
        encrypting = SSLProtocol(
            loop,
            self._connection,
            self._tls,
            ended,
            server_side=True,
            call_connection_made=True,
            ssl_handshake_timeout=context.read_seconds,
        )
        transport.set_protocol(encrypting)
        encrypting.connection_made(transport)

    def _leave(self, ended: asyncio.Future[None]) -> None:
        """Count it no more; why a handshake failed does not matter."""
        if not ended.cancelled():
            ended.exception()
        self._connection.context.upgraded -= 1
        self._connection.context.addresses.leave(self._address)
