"""Fetching URLs that users choose, safe against server-side request forgery.

    TollgateError
    ├── Refused        the rules forbid the address or the response; a retry changes nothing
    ├── Missing        fetched, and nothing is there
    └── Unreachable    could not be fetched now: DNS, connection, TLS, status, deadline

Owns the rules of such a fetch: HTTPS only, each name resolved once and the connection made to that address, no
private address, no redirect, no compression, a deadline and a bound on the answer. The meaning of the bytes must
not enter, nor a client that follows redirects, retries, or reads the environment.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import ssl
from contextlib import asynccontextmanager
from functools import cached_property
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Protocol

import httpcore
from msgspec import Struct

from tollgate import __version__
from tollgate.control.safe_connect import Pinned, TooMuch, forbidden_kind
from tollgate.core.origins import normal_host
from tollgate.errors import StartError, TollgateError
from tollgate.lazy_module import LazyModule

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    import dns.asyncresolver
    import dns.exception
    import dns.name
    import dns.nameserver
    import dns.rdtypes.ANY.TXT
    import dns.resolver
    from dns.rdata import Rdata
else:
    # Loaded when a domain is proved or a webhook is called.
    dns = LazyModule("dns")

HTTPS_PORT = 443

# What fits in one packet on every path of the internet (DNS flag day 2020); longer answers use TCP.
_UDP_BYTES = 1232

# A name may have thousands of addresses: only these many are tried.
_MAX_CONNECTS = 4

# Of a file.
_MAX_BYTES = 4_096
# Of the answer's head. Browsers and servers stop at 8 to 64 KiB.
_MAX_HEAD = 16 * 1024

_HEADERS: tuple[tuple[str | bytes, str | bytes], ...] = (
    ("User-Agent", f"tollgate/{__version__}"),
    ("Accept", "*/*"),
    ("Accept-Encoding", "identity"),
    ("Connection", "close"),
)

_PATH = re.compile(r"/[!-~]*")


class FetchRefused(TollgateError):
    """The rules forbid this address or this response; the message names the rule."""


class Missing(TollgateError):
    """The server answered that nothing is there."""


class Unreachable(TollgateError):
    """It could not be fetched now, so nothing is known about what is there."""


class Addresses(Protocol):
    """What a fetch needs of DNS."""

    async def addresses(self, host: str) -> list[str]: ...


class DnsResolver:
    """Queries the given DNS servers, or those of the system; caches nothing."""

    def __init__(self, servers: Sequence[str], *, seconds: float = 5.0) -> None:
        self._servers = [_server(text) for text in servers]
        self._seconds = seconds

    async def addresses(self, host: str) -> list[str]:
        """Return the addresses of a host, IPv4 and IPv6 in turn; none if it has none."""
        answers = await asyncio.gather(self._query(host, "A"), self._query(host, "AAAA"), return_exceptions=True)
        found: list[list[str]] = []
        failures: list[BaseException] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                failures.append(answer)
            else:
                found.append([rdata.to_text() for rdata in answer])
        in_turn = [address for address in chain.from_iterable(zip_longest(*found)) if address]
        # Some name servers answer A and fail at AAAA: one of them is enough.
        for failure in failures:
            if not in_turn or not isinstance(failure, Unreachable):
                raise failure
        return in_turn

    async def texts(self, name: str) -> list[str]:
        """Return the TXT records at a name, the strings of each joined; none if there are none."""
        records = await self._query(name, "TXT")
        return [
            b"".join(record.strings).decode(errors="replace")
            for record in records
            if isinstance(record, dns.rdtypes.ANY.TXT.TXT)
        ]

    async def _query(self, name: str, kind: str) -> list[Rdata]:
        try:
            absolute = dns.name.from_text(name)  # with the root: the system's search list is not used
            answer = await self._client().resolve(absolute, kind, search=False, raise_on_no_answer=False)
        except (dns.resolver.NXDOMAIN, dns.name.NameTooLong):
            return []
        except dns.resolver.NoResolverConfiguration as error:
            raise Unreachable("No DNS server is known: the operator can set whitelist.resolvers.") from error
        except dns.exception.Timeout as error:
            raise Unreachable(
                f"DNS did not answer for {name} ({kind}) within {self._seconds:g} s: try again later."
            ) from error
        except (dns.exception.DNSException, OSError) as error:
            # The error's text names our DNS servers, which users must not learn.
            raise Unreachable(
                f"The DNS look-up of {name} ({kind}) failed: check the domain's name servers, or try again later."
            ) from error
        return list(answer.rrset or ())

    def _client(self) -> dns.asyncresolver.Resolver:
        # A new resolver for each query: the system's servers may have changed.
        client = dns.asyncresolver.Resolver(configure=not self._servers)
        if self._servers:
            client.nameservers = self._servers
        client.lifetime = self._seconds
        client.use_edns(0, payload=_UDP_BYTES)
        return client


def _server(text: str) -> dns.nameserver.Do53Nameserver:
    address, port = text, "53"
    if match := re.fullmatch(r"\[([^\]]*)\](?::([0-9]{1,5}))?|([^:]*):([0-9]{1,5})", text):
        address, port = match[1] or match[3] or "", match[2] or match[4] or "53"
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        parsed = None
    if parsed is None or not 0 < int(port) < 65536:
        raise StartError(
            f"{text!r} is not a DNS server: give an address, with or without a port (9.9.9.9, [2620:fe::fe]:53)."
        )
    return dns.nameserver.Do53Nameserver(str(parsed), int(port))


class _Request(Struct, frozen=True):
    host: str
    url: str
    shown: str
    """How messages name it: the path of a webhook is often a secret."""
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None


class Fetcher:
    """Fetches small files by HTTPS from hosts that users choose."""

    def __init__(
        self,
        resolver: Addresses,
        *,
        allow_private: bool,
        port: int = HTTPS_PORT,
        seconds: float = 5.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._resolver = resolver
        self._allow_private = allow_private
        self._port = port
        self._seconds = seconds
        self._given_tls = tls

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        # Created on first use: reading the system's certificate authorities takes 0.1 s.
        return self._given_tls or ssl.create_default_context()

    def url(self, host: str, path: str) -> str:
        return f"https://{host}{path}" if self._port == HTTPS_PORT else f"https://{host}:{self._port}{path}"

    async def get(self, host: str, path: str) -> bytes:
        """Return the body at a path of a host; raise Refused, Missing or Unreachable without one."""
        name = normal_host(host)
        url = self.url(name or host, path)
        if name is None or not _PATH.fullmatch(path):
            raise FetchRefused(f"{url!r} is not a URL of a named host: use a name such as example.com.")
        async with self._response(_Request(name, url, url)) as response:
            _check_response(url, response)
            return await self._read(url, response)

    async def post(self, host: str, url: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Call a webhook at a host; raise Refused, Missing or Unreachable unless it answers with success."""
        async with self._response(_Request(host, url, host, "POST", tuple(headers.items()), body)) as response:
            # The body is not read.
            if 300 <= response.status < 400:
                raise FetchRefused(f"{host} answers {response.status}, and redirects are not followed.")
            if not 200 <= response.status < 300:
                raise Unreachable(f"{host} answers {response.status} instead of 200.")

    @asynccontextmanager
    async def _response(self, request: _Request) -> AsyncIterator[httpcore.Response]:
        """Send the request under all rules; the response can be read until the deadline."""
        try:
            async with asyncio.timeout(self._seconds) as deadline:
                addresses = await self._resolver.addresses(request.host)
                self._check(request.host, addresses)
                until = deadline.when() or 0.0
                async with self._exchange(addresses[:_MAX_CONNECTS], until, request) as response:
                    yield response
        except TimeoutError as error:
            raise Unreachable(
                f"{request.shown} did not answer within {self._seconds:g} s: try again later."
            ) from error

    def _check(self, host: str, addresses: list[str]) -> None:
        # All of them before the first connection: a name with both public and private addresses is an attack.
        if not addresses:
            raise Missing(f"{host} has no address: DNS has neither an A nor an AAAA record for it.")
        if self._allow_private:
            return
        for address in addresses:
            if kind := forbidden_kind(address):
                raise FetchRefused(f"{host} has {kind} address in DNS: only public addresses are fetched from.")

    @asynccontextmanager
    async def _exchange(
        self, addresses: list[str], until: float, request: _Request
    ) -> AsyncIterator[httpcore.Response]:
        # httpcore and not httpx: it follows no redirect, decodes nothing, keeps no cookies and does not read the
        # environment. It takes SNI, the certificate's name and Host from the URL; the backend chooses the address.
        pinned = Pinned(addresses, until=until, max_bytes=_MAX_BYTES + _MAX_HEAD)
        shown, headers = request.shown, (*_HEADERS, *request.headers)
        async with httpcore.AsyncConnectionPool(ssl_context=self._tls, network_backend=pinned) as pool:
            try:
                async with pool.stream(
                    request.method, request.url, headers=headers, content=request.body
                ) as response:
                    yield response
            except TooMuch as error:
                raise FetchRefused(
                    f"{shown} sends over {_MAX_HEAD} bytes besides the file itself: shorten its headers."
                ) from error
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                raise Unreachable(f"{shown} cannot be reached: {_why(error)}.") from error
            except (httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:
                # A TLS failure after the handshake is an OSError.
                raise Unreachable(f"{shown} does not send a complete HTTP response: {_why(error)}.") from error

    async def _read(self, url: str, response: httpcore.Response) -> bytes:
        body = bytearray()
        async for part in response.aiter_stream():
            body += part
            if len(body) > _MAX_BYTES:
                raise FetchRefused(f"{url} is larger than {_MAX_BYTES} bytes: shorten it.")
        return bytes(body)


def _check_response(url: str, response: httpcore.Response) -> None:
    status = response.status
    if status in {404, 410}:
        raise Missing(f"{url} answers {status}.")
    if 300 <= status < 400:
        raise FetchRefused(f"{url} answers {status}, and redirects are not followed: answer there with 200.")
    if status != 200:
        raise Unreachable(f"{url} answers {status} instead of 200.")
    for name, value in response.headers:
        if name.lower() == b"content-encoding" and value.strip().lower() != b"identity":
            raise FetchRefused(f"{url} is compressed: send it without Content-Encoding.")


def _why(error: BaseException | None) -> str:
    """Describe a connection failure; the most specific cause may be deep in the chain."""
    cause = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is refused ({cause.verify_message.rstrip('.')})"
        if isinstance(cause, ssl.SSLError):
            return "TLS failed"
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpcore.ConnectTimeout):
        return "the connection takes too long"
    if isinstance(error, httpcore.ConnectError):
        return "the connection is not accepted"
    return "the connection broke" if isinstance(error, httpcore.NetworkError) else "the answer is not HTTP"
