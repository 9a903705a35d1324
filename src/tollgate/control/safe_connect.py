"""Which addresses may be connected to; connections to those alone, with a bound on the bytes received.

Owns the table of private addresses, and the network side of a fetch: the addresses of a URL that a user chose were
checked before, and no name is resolved here. Only so many bytes of each answer are read. HTTP must not enter.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import TYPE_CHECKING, Any

import httpcore

from tollgate.errors import TollgateError

if TYPE_CHECKING:
    import ssl

# From the IANA registries of special-purpose addresses, written out because ipaddress changed between releases of
# Python 3.11. The first match names the kind.
_FORBIDDEN = tuple(
    (ipaddress.ip_network(network), kind)
    for kind, networks in {
        "a loopback": ("127.0.0.0/8", "::1/128"),
        "an unspecified": ("0.0.0.0/8", "::/128"),
        "a link-local": ("169.254.0.0/16", "fe80::/10"),  # with the metadata service of most clouds
        "a private": ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10"),
        "a carrier's internal": ("100.64.0.0/10",),  # with the metadata service of Alibaba
        "a cloud provider's internal": ("168.63.129.16/32",),  # Azure's: it looks public and is not
        "a multicast": ("224.0.0.0/4", "ff00::/8"),
        # Mapped, compatible, 6to4, Teredo, local NAT64: no web site is there, but an IPv4 address may hide.
        "a tunnelled IPv4": ("::ffff:0:0/96", "::/96", "2002::/16", "2001::/32", "64:ff9b:1::/48"),
        "a reserved": (
            *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24"),
            *("203.0.113.0/24", "240.0.0.0/4", "2001::/23", "2001:db8::/32", "3fff::/20"),
        ),
    }.items()
    for network in networks
)
_GLOBAL_IPV6 = ipaddress.IPv6Network("2000::/3")
# Resolvers of networks without IPv4 (DNS64) give every IPv4 host an address in this range.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


# Read in one iteration of the loop: a parser makes hundreds of events of it.
_READ_BYTES = 4_096
# What the kernel buffers meanwhile: without a bound, the loop reads megabytes ahead.
_RECEIVE = (socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)


class TooMuch(TollgateError):
    """An answer has more bytes than allowed."""


def forbidden_kind(address: str) -> str | None:
    """Return what kind of address this is, with its article, if it is not one on the public internet."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return "an unreadable"
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed in _NAT64:
            return forbidden_kind(str(ipaddress.IPv4Address(int(parsed) & 0xFFFF_FFFF)))
        if parsed.scope_id:
            return "a link-local"
    for network, kind in _FORBIDDEN:
        if parsed.version == network.version and parsed in network:
            return kind
    if parsed.version == 6 and parsed not in _GLOBAL_IPV6:
        return "a reserved"
    return None if parsed.is_global else "a reserved"


class Bounded(httpcore.AsyncNetworkBackend):
    """Connects to any host; bounds the bytes of an answer, interim answers and heads included."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109
        *_: Any,
        **__: Any,
    ) -> httpcore.AsyncNetworkStream:
        stream = await self._inner.connect_tcp(host, port, timeout, socket_options=[_RECEIVE])
        return _Stream(stream, self._max_bytes)


class Pinned(Bounded):
    """Connects to the given addresses, whatever host is requested; `until` is in the time of the loop."""

    def __init__(self, addresses: list[str], *, until: float, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self._addresses = addresses
        self._until = until

    async def connect_tcp(
        self,
        host: str,  # noqa: ARG002 - never resolved here
        port: int,
        *_: Any,
        **__: Any,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address that accepts; each gets its share of the time that is left."""
        failure: Exception = httpcore.ConnectError("no address")
        for number, address in enumerate(self._addresses):
            left = max(self._until - asyncio.get_running_loop().time(), 0.0)
            try:
                return await super().connect_tcp(address, port, left / (len(self._addresses) - number))
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure


class _Stream(httpcore.AsyncNetworkStream):
    """A connection that bounds the bytes of an answer: endless heads would keep the parser and the loop busy."""

    def __init__(self, inner: httpcore.AsyncNetworkStream, max_bytes: int) -> None:
        self._inner = inner
        self._max_bytes = self._left = max_bytes

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        """Return what has arrived, up to the bound, after letting other tasks run."""
        if self._left <= 0:
            raise TooMuch
        await asyncio.sleep(0)
        data = await self._inner.read(min(max_bytes, self._left, _READ_BYTES), timeout)
        self._left -= len(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Send all of it; the count of the next answer starts at zero."""
        self._left = self._max_bytes
        await self._inner.write(buffer, timeout)

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore.AsyncNetworkStream:
        try:
            return _Stream(await self._inner.start_tls(ssl_context, server_hostname, timeout), self._left)
        except BaseException:
            # httpcore forgets a connection that is cancelled within the handshake: a silent peer would keep it.
            await self._inner.aclose()
            raise

    async def aclose(self) -> None:
        await self._inner.aclose()

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
