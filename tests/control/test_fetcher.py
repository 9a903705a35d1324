"""Fetching a file over HTTPS: what is sent, what is refused and when it ends. The sites are real, on loopback."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from parts.certs import Certificate, make_certificate
from parts.ports import LOOPBACK, free_port
from tollgate import __version__
from tollgate.control.outbound import Fetcher, FetchRefused, Missing, Unreachable
from tollgate.control.proofs import WELL_KNOWN

HOST = "proof.example"
BODY = b"tollgate-team=team_1"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("certificate"), HOST)


def answer(body: bytes = b"", status: str = "200 OK", *headers: str) -> bytes:
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers])
    return head.encode() + b"\r\n\r\n" + body


@dataclass
class Site:
    """A web site that answers everyone alike, and keeps what it was sent."""

    reply: bytes
    hangs: bool = False
    """Never ends the connection by itself."""
    repeats: bool = False
    """Sends it again and again for as long as it is listened to."""
    eager: bool = False
    """Does not wait for a request."""
    port: int = 0
    requests: list[str] = field(default_factory=list)
    server_names: list[str | None] = field(default_factory=list)
    connections: int = 0
    came: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the first bytes have come, be they of TLS."""
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a connection has ended."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            if not self.eager:
                first = await reader.read(1)
                self.came.set()
                self.requests.append((first + await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(self.reply)
            await writer.drain()
            while self.repeats:
                writer.write(self.reply)
                await writer.drain()
                await asyncio.sleep(0)  # the other side runs in the same loop
            if self.hangs:
                await reader.read()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the other side gave up
        finally:
            writer.close()
            self.left.set()

    def note_server_name(self, _: ssl.SSLObject, name: str | None, __: ssl.SSLContext) -> None:
        self.server_names.append(name)


@asynccontextmanager
async def on_the_web(site: Site, tls: Certificate | None) -> AsyncIterator[Site]:
    context = tls.server_context() if tls else None
    if context:
        context.sni_callback = site.note_server_name
    server = await asyncio.start_server(site.serve, LOOPBACK, 0, ssl=context)
    site.port = server.sockets[0].getsockname()[1]
    async with server:
        try:
            yield site
        finally:
            if site.connections:
                await asyncio.wait_for(site.left.wait(), 30)


class Given:
    """A resolver that gives these addresses."""

    def __init__(self, *addresses: str) -> None:
        self._addresses = addresses
        self.lookups: list[str] = []

    async def addresses(self, host: str) -> list[str]:
        self.lookups.append(host)
        return list(self._addresses)


@dataclass(frozen=True)
class Bench:
    """Sites with a certificate, and fetchers that may reach them."""

    certificate: Certificate

    def fetcher(
        self,
        site: Site,
        *addresses: str,
        allow_private: bool = True,
        seconds: float = 5.0,
        tls: ssl.SSLContext | None = None,
    ) -> Fetcher:
        """Make a fetcher that finds the site under every name."""
        return Fetcher(
            Given(*(addresses or (LOOPBACK,))),
            allow_private=allow_private,
            port=site.port,
            seconds=seconds,
            tls=tls or self.certificate.client_context(),
        )

    async def get(self, site: Site, host: str = HOST, *, seconds: float = 5.0, plain: bool = False) -> bytes:
        async with on_the_web(site, None if plain else self.certificate):
            return await self.fetcher(site, seconds=seconds).get(host, WELL_KNOWN)


@pytest.fixture
def bench(certificate: Certificate) -> Bench:
    return Bench(certificate)


# ---- the request


async def test_name_is_in_sni_and_host_though_the_address_is_connected_to(bench: Bench) -> None:
    site = Site(answer(b"hello"))
    assert await bench.get(site) == b"hello"
    assert site.server_names == [HOST]
    (request,) = site.requests
    assert request.splitlines() == [
        f"GET {WELL_KNOWN} HTTP/1.1",
        f"Host: {HOST}:{site.port}",
        f"User-Agent: tollgate/{__version__}",
        "Accept: */*",
        "Accept-Encoding: identity",
        "Connection: close",
        "",
    ]


async def test_name_is_resolved_once(certificate: Certificate) -> None:
    names = Given(LOOPBACK)
    async with on_the_web(Site(answer(b"hello")), certificate) as site:
        tls = certificate.client_context()
        await Fetcher(names, allow_private=True, port=site.port, tls=tls).get(HOST, WELL_KNOWN)
    assert names.lookups == [HOST]


async def test_proxies_of_the_environment_are_not_used(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://{LOOPBACK}:{free_port()}")
    assert await bench.get(Site(answer(b"hello"))) == b"hello"


async def test_authorities_of_the_environment_are_trusted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(bench.certificate.authority))
    async with on_the_web(Site(answer(b"hello")), bench.certificate) as site:
        fetcher = Fetcher(Given(LOOPBACK), allow_private=True, port=site.port)
        assert await fetcher.get(HOST, WELL_KNOWN) == b"hello"


async def test_next_address_is_tried_where_one_does_not_connect(bench: Bench) -> None:
    async with on_the_web(Site(answer(b"hello")), bench.certificate) as site:
        fetcher = bench.fetcher(site, "::1", LOOPBACK)  # the site is at the second alone
        assert await fetcher.get(HOST, WELL_KNOWN) == b"hello"


async def test_no_more_than_four_addresses_are_tried(bench: Bench) -> None:
    async with on_the_web(Site(answer(b"hello")), bench.certificate) as site:
        fetcher = bench.fetcher(site, "::1", "::1", "::1", "::1", LOOPBACK)
        with pytest.raises(Unreachable, match="cannot be reached: the connection is not accepted"):
            await fetcher.get(HOST, WELL_KNOWN)
    assert site.connections == 0


async def test_failed_answer_is_not_requested_again(bench: Bench) -> None:
    async with on_the_web(Site(b""), bench.certificate) as site:
        with pytest.raises(Unreachable):
            await bench.fetcher(site, LOOPBACK, LOOPBACK).get(HOST, WELL_KNOWN)
    assert len(site.requests) == 1


# ---- what is refused


@pytest.mark.parametrize("addresses", [[LOOPBACK], ["9.9.9.9", LOOPBACK]])
async def test_inner_address_is_refused_without_a_connection(bench: Bench, addresses: list[str]) -> None:
    async with on_the_web(Site(answer(BODY)), bench.certificate) as site:
        with pytest.raises(FetchRefused, match=f"{HOST} has a loopback address"):
            await bench.fetcher(site, *addresses, allow_private=False).get(HOST, WELL_KNOWN)
    assert site.connections == 0


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary Redirect", "304 Not Modified"])
async def test_redirect_is_refused_and_not_followed(bench: Bench, status: str) -> None:
    site = Site(answer(BODY, status, f"Location: https://{HOST}/elsewhere"))
    with pytest.raises(FetchRefused, match="redirects are not followed"):
        await bench.get(site)
    assert len(site.requests) == 1


async def test_body_of_exactly_the_limit_is_taken(bench: Bench) -> None:
    assert await bench.get(Site(answer(b"x" * 4096))) == b"x" * 4096


@pytest.mark.parametrize(
    "reply",
    [
        answer(b"x" * 4097),
        b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n" + b"x" * 4097,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"800\r\n%b\r\n" % (b"x" * 2048) * 3,
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 4097,
    ],
    ids=["by length", "endless", "chunked", "until close"],
)
async def test_longer_body_is_refused_before_its_end(bench: Bench, reply: bytes) -> None:
    with pytest.raises(FetchRefused, match="larger than 4096 bytes"):
        await bench.get(Site(reply, hangs=True))


async def test_compressed_body_is_refused(bench: Bench) -> None:
    site = Site(answer(gzip.compress(b"x" * 1_000_000), "200 OK", "Content-Encoding: gzip"))
    with pytest.raises(FetchRefused, match="compressed"):
        await bench.get(site)


@pytest.mark.parametrize("status", ["404 Not Found", "410 Gone"])
async def test_file_that_is_not_there_is_missing(bench: Bench, status: str) -> None:
    with pytest.raises(Missing, match=f"answers {status[:3]}"):
        await bench.get(Site(answer(BODY, status)))


@pytest.mark.parametrize("status", ["204 No Content", "206 Partial", "401 Who", "403 No", "429 Slow", "500 Oh"])
async def test_only_200_counts(bench: Bench, status: str) -> None:
    with pytest.raises(Unreachable, match=f"answers {status[:3]} instead of 200"):
        await bench.get(Site(answer(b"" if status.startswith("204") else BODY, status)))


# ---- what cannot be reached


async def test_certificate_for_the_address_but_another_name_is_not_accepted(bench: Bench) -> None:
    site = Site(answer(BODY))
    with pytest.raises(Unreachable, match=r"certificate is refused .*'other\.example'"):
        await bench.get(site, "other.example")  # the certificate is good for 127.0.0.1 and proof.example
    assert site.requests == []


async def test_certificate_of_an_unknown_authority_is_not_accepted(bench: Bench, tmp_path: Path) -> None:
    untrusted = make_certificate(tmp_path, HOST).client_context()
    async with on_the_web(Site(answer(BODY)), bench.certificate) as site:
        with pytest.raises(Unreachable, match="certificate is refused"):
            await bench.fetcher(site, tls=untrusted).get(HOST, WELL_KNOWN)
    assert site.requests == []


async def test_site_without_tls_is_refused(bench: Bench) -> None:
    site = Site(answer(BODY), eager=True)
    with pytest.raises(Unreachable, match="cannot be reached: TLS failed"):
        await bench.get(site, plain=True)
    assert site.requests == []


async def test_handshake_that_hangs_ends_at_the_deadline_and_closes_the_connection(bench: Bench) -> None:
    # It waits for a request in clear, so the handshake is never answered.
    async with on_the_web(Site(b""), None) as site:
        with pytest.raises(Unreachable):
            await bench.fetcher(site, seconds=0.3).get(HOST, WELL_KNOWN)
        await asyncio.wait_for(site.left.wait(), 30)


async def test_fetch_cancelled_within_the_handshake_closes_the_connection(bench: Bench) -> None:
    async with on_the_web(Site(b""), None) as site:
        task = asyncio.create_task(bench.fetcher(site).get(HOST, WELL_KNOWN))
        await asyncio.wait_for(site.came.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(site.left.wait(), 30)


@pytest.mark.parametrize(
    "reply", [b"", b"SSH-2.0-hello\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"]
)
async def test_answer_that_is_not_whole_http_leaves_doubt(bench: Bench, reply: bytes) -> None:
    with pytest.raises(Unreachable, match="does not send a complete HTTP response"):
        await bench.get(Site(reply))


@pytest.mark.parametrize(
    "site",
    [
        Site(b"", hangs=True),
        Site(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", hangs=True),
    ],
    ids=["silent", "silent within the body"],
)
async def test_slow_answer_ends_at_the_deadline(bench: Bench, site: Site) -> None:
    with pytest.raises(Unreachable, match=r"did not answer within 0\.3 s"):
        await bench.get(site, seconds=0.3)
    assert len(site.requests) == 1


@pytest.mark.parametrize(
    "reply",
    [b"HTTP/1.1 103 Early Hints\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1_000],
    ids=["many heads", "one long head"],
)
async def test_endless_head_is_given_up_long_before_the_deadline(bench: Bench, reply: bytes) -> None:
    with pytest.raises(FetchRefused, match="sends over 16384 bytes besides the file"):
        await bench.get(Site(reply, repeats=True))
