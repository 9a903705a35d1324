"""A connection whose TLS handshake is under way: bounded in number and time, then handed over.

An event loop with a certificate reports a connection only after its handshake. An unfinished one would not be
counted, and takes a descriptor and 50 KiB. This leans on uvloop's own class for TLS; tests/e2e/test_tls.py fails
where that changes.

That class accepts writes of any size and does not report what waits in the transport below: `_Encryption` and
`_Transport` do.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, cast

from uvloop.loop import SSLProtocol  # type: ignore[attr-defined]

from tollgate.gateway.http.connection import CallerConnection

# Handshakes of an address count separately: an address with too many connections still gets an answer.
_KIND = "tls "
_NO_LIMIT = 1 << 30


class _Transport:
    """An encrypted transport that also counts what waits in the transport below."""

    def __init__(self, encrypted: Any, carrier: asyncio.Transport) -> None:
        self._encrypted = encrypted
        self._carrier = carrier
        self.write = encrypted.write
        self.is_closing = encrypted.is_closing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encrypted, name)

    def get_write_buffer_size(self) -> int:
        size: int = self._encrypted.get_write_buffer_size() + self._carrier.get_write_buffer_size()
        return size


class _Encryption(SSLProtocol):  # type: ignore[misc]
    """Pauses the inner protocol while the transport below is paused."""

    encrypted: Any = None
    """The inner transport, once there is one."""
    _paused = False

    def pause_writing(self) -> None:
        super().pause_writing()
        self._paused = True
        if self.encrypted is not None:
            self.encrypted.get_protocol().pause_writing()

    def resume_writing(self) -> None:
        self._paused = False
        # This writes what waits here, which may pause again.
        super().resume_writing()
        if self.encrypted is not None and not self._paused:
            self.encrypted.get_protocol().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        # Each has 256 KiB of buffers: they are not left to the garbage collector.
        self.encrypted = None

    def report(self, connection: CallerConnection, carrier: asyncio.Transport) -> None:
        """Report what waits below to a connection, if it was made."""
        encrypted: Any = connection.transport
        if encrypted is None:
            return
        self.encrypted = encrypted
        connection.transport = cast("asyncio.Transport", _Transport(encrypted, carrier))
        # Bytes wait here only while they wait below: one report is enough.
        encrypted.set_write_buffer_limits(_NO_LIMIT)


class TlsConnection(asyncio.Protocol):
    """One connection, until it is encrypted."""

    def __init__(self, make: Callable[..., CallerConnection], tls: ssl.SSLContext, **given: Any) -> None:
        self._connection = make(**given)
        self._tls = tls
        self._address = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the handshake, unless there are too many."""
        context = self._connection.context
        peer = transport.get_extra_info("peername")
        self._address, crowded = context.addresses.enter(peer[0] if peer else "", _KIND)
        context.upgraded += 1
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        ended.add_done_callback(self._leave)
        too_many = len(context.connections) + context.upgraded > context.bounds.max_connections
        if too_many or crowded:
            ended.cancel()
            transport.abort()
            return
        # `loop.start_tls` starts one loop iteration later: bytes received meanwhile would be lost.
        encrypting = _Encryption(
            loop,
            self._connection,
            self._tls,
            ended,
            server_side=True,
            call_connection_made=True,
            ssl_handshake_timeout=context.bounds.read_seconds,
        )
        ended.add_done_callback(lambda _: encrypting.report(self._connection, transport))
        transport.set_protocol(encrypting)
        encrypting.connection_made(transport)

    def _leave(self, ended: asyncio.Future[None]) -> None:
        """Count it no longer; why a handshake failed does not matter."""
        if not ended.cancelled():
            ended.exception()
        self._connection.context.upgraded -= 1
        self._connection.context.addresses.leave(self._address, _KIND)
