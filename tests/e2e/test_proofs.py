"""Proofs of ownership against a real DNS server and a web site with TLS, both on loopback."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import pytest

from parts.certs import Certificate, make_certificate
from parts.dns import Nameserver, nameserver
from parts.ports import LOOPBACK, free_port
from parts.processes import alive
from tollgate import __version__
from tollgate.control.outbound import DnsResolver, Fetcher, FetchRefused, Missing, Unreachable
from tollgate.control.proofs import WELL_KNOWN, Finding, Proofs, dns_name, record

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

T = TypeVar("T")

TEAM = "team_1"
PROOF = record(TEAM)
SITE = "proof.example"
NAMES = {
    SITE: [LOOPBACK],
    "mixed.example": ["9.9.9.9", LOOPBACK],
    "other.example": [LOOPBACK],
    "text.example": [],
    "rooted.example": [],
    "crowded.example": [],
}
TEXTS = {
    dns_name("text.example"): ["unrelated", PROOF],
    "rooted.example": ["v=spf1 -all", "tollgate-,team=team_1"],
    dns_name("crowded.example"): [*(f"{number:03d}-{'x' * 200}" for number in range(30)), PROOF],
    dns_name("other.example"): [record("team_2")],
}


@pytest.fixture(scope="module")
def dns(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nameserver]:
    with nameserver(tmp_path_factory.mktemp("dns"), addresses=NAMES, texts=TEXTS) as server:
        yield server


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("certificate"), SITE, "mixed.example")


def answer(body: bytes = b"", status: str = "200 OK", *headers: str) -> bytes:
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers])
    return head.encode() + b"\r\n\r\n" + body


@dataclass
class Site:
    """A web site that says the same to everyone, and keeps what it was sent."""

    says: bytes
    hangs: bool = False
    """Never ends the connection by itself."""
    repeats: bool = False
    """Says it again and again for as long as it is listened to."""
    eager: bool = False
    """Does not wait for a request."""
    port: int = 0
    requests: list[str] = field(default_factory=list)
    server_names: list[str | None] = field(default_factory=list)
    connections: int = 0
    came: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a first word has come, be it of TLS."""
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a connection has ended."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            if not self.eager:
                first = await reader.read(1)
                self.came.set()
                self.requests.append((first + await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(self.says)
            await writer.drain()
            while self.repeats:
                writer.write(self.says)
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
        yield site


@dataclass(frozen=True)
class Bench:
    """Runs one step of a test with the site up and a fetcher that may reach it."""

    dns: Nameserver
    certificate: Certificate

    def run(
        self,
        site: Site,
        step: Callable[[DnsResolver, Fetcher], Awaitable[T]],
        *,
        allow_private: bool = True,
        seconds: float = 5.0,
        plain: bool = False,
    ) -> T:
        async def run() -> T:
            async with on_the_web(site, None if plain else self.certificate):
                resolver = DnsResolver([self.dns.address])
                trust = self.certificate.client_context()
                return await step(
                    resolver,
                    Fetcher(resolver, allow_private=allow_private, port=site.port, seconds=seconds, tls=trust),
                )

        return asyncio.run(run())

    def look(self, site: Site, domain: str = SITE, team_id: str = TEAM) -> Finding:
        return self.run(site, lambda resolver, fetcher: Proofs(resolver, fetcher).look(domain, team_id))

    def get(self, site: Site, host: str = SITE, *, seconds: float = 5.0, plain: bool = False) -> bytes:
        return self.run(site, lambda _, fetcher: fetcher.get(host, WELL_KNOWN), seconds=seconds, plain=plain)


@pytest.fixture
def bench(dns: Nameserver, certificate: Certificate) -> Bench:
    return Bench(dns, certificate)


def not_there() -> Site:
    return Site(answer(b"not found", "404 Not Found"))


# ---- looking for a proof


@pytest.mark.parametrize(
    "domain",
    ["text.example", "rooted.example", "crowded.example"],
    ids=["beside another record", "at the domain itself, in two strings", "too long for UDP"],
)
def test_txt_record_proves(bench: Bench, domain: str) -> None:
    assert bench.look(not_there(), domain) == Finding(proven=True, by="dns")


def test_file_proves(bench: Bench) -> None:
    site = Site(answer(f"# ours\r\n{PROOF}\r\n".encode()))
    assert bench.look(site) == Finding(proven=True, by="well-known")


def test_neither_is_certain_and_says_what_to_do(bench: Bench) -> None:
    site = not_there()
    finding = bench.look(site)
    assert finding == Finding(
        proven=False,
        by="",
        certain=True,
        problems=(
            f"No TXT record at _tollgate.proof.example: add one with {PROOF}.",
            f"https://proof.example:{site.port}/.well-known/tollgate.txt answers 404.",
        ),
    )


def test_proof_of_another_team_is_none(bench: Bench) -> None:
    assert bench.look(not_there(), "text.example", "team_2").proven is False
    finding = bench.look(Site(answer(record("team_2").encode())))
    assert (finding.proven, finding.certain) == (False, True)
    assert "names another team" in finding.problems[-1]


def test_domain_that_dns_does_not_know_is_certainly_not_proven(bench: Bench) -> None:
    finding = bench.look(not_there(), "nowhere.example")
    assert (finding.proven, finding.certain) == (False, True)
    assert "nowhere.example has no address" in finding.problems[-1]


def test_site_that_is_down_leaves_doubt(bench: Bench) -> None:
    finding = bench.look(Site(answer(b"", "503 Service Unavailable")))
    assert (finding.proven, finding.certain) == (False, False)
    assert "answers 503" in finding.problems[-1]


def test_dead_resolver_leaves_doubt(certificate: Certificate) -> None:
    async def look() -> Finding:
        resolver = DnsResolver([f"{LOOPBACK}:{free_port()}"], seconds=0.2)
        fetcher = Fetcher(resolver, allow_private=True, tls=certificate.client_context())
        return await Proofs(resolver, fetcher).look(SITE, TEAM)

    finding = asyncio.run(look())
    assert (finding.proven, finding.certain) == (False, False)
    assert len(finding.problems) == 3


def test_resolver_that_refuses_leaves_doubt(tmp_path: Path, certificate: Certificate) -> None:
    with nameserver(tmp_path, addresses={SITE: [LOOPBACK]}, refuses=True) as dns:
        finding = Bench(dns, certificate).look(not_there(), "stranger.example")
    assert (finding.proven, finding.certain) == (False, False)


def test_proof_in_dns_counts_though_the_site_hangs(bench: Bench, tmp_path: Path) -> None:
    with nameserver(tmp_path, addresses={SITE: [LOOPBACK]}, texts={SITE: [PROOF]}) as dns:
        finding = Bench(dns, bench.certificate).look(Site(b"", hangs=True))
    assert finding == Finding(proven=True, by="dns")


# ---- the request


def test_name_is_in_sni_and_host_though_the_address_is_connected_to(bench: Bench) -> None:
    site = Site(answer(b"hello"))
    assert bench.get(site) == b"hello"
    assert site.server_names == [SITE]
    (request,) = site.requests
    assert request.splitlines() == [
        f"GET {WELL_KNOWN} HTTP/1.1",
        f"Host: {SITE}:{site.port}",
        f"User-Agent: tollgate/{__version__}",
        "Accept: */*",
        "Accept-Encoding: identity",
        "Connection: close",
        "",
    ]


def test_name_is_resolved_once(bench: Bench) -> None:
    before = len(bench.dns.questions())
    bench.get(Site(answer(b"hello")))
    assert sorted(bench.dns.questions()[before:]) == [("A", SITE), ("AAAA", SITE)]


def test_proxies_of_the_environment_are_not_used(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://{LOOPBACK}:{free_port()}")
    assert bench.get(Site(answer(b"hello"))) == b"hello"


def test_authorities_of_the_environment_are_trusted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(bench.certificate.authority))
    site = Site(answer(b"hello"))

    async def get(resolver: DnsResolver, _: Fetcher) -> bytes:
        return await Fetcher(resolver, allow_private=True, port=site.port).get(SITE, WELL_KNOWN)

    assert bench.run(site, get) == b"hello"


class Given:
    """A resolver that gives these addresses."""

    def __init__(self, *addresses: str) -> None:
        self._addresses = addresses

    async def addresses(self, host: str) -> list[str]:
        return list(self._addresses)


def test_next_address_is_asked_where_one_does_not_connect(bench: Bench) -> None:
    site = Site(answer(b"hello"))

    async def get(_: DnsResolver, __: Fetcher) -> bytes:
        trust = bench.certificate.client_context()
        names = Given("::1", LOOPBACK)  # the site is at the second alone
        return await Fetcher(names, allow_private=True, port=site.port, tls=trust).get(SITE, WELL_KNOWN)

    assert bench.run(site, get) == b"hello"


def test_no_more_than_four_addresses_are_asked(bench: Bench) -> None:
    site = Site(answer(b"hello"))

    async def get(_: DnsResolver, __: Fetcher) -> bytes:
        trust = bench.certificate.client_context()
        names = Given("::1", "::1", "::1", "::1", LOOPBACK)
        return await Fetcher(names, allow_private=True, port=site.port, tls=trust).get(SITE, WELL_KNOWN)

    with pytest.raises(Unreachable, match="cannot be reached: the connection is not accepted"):
        bench.run(site, get)
    assert site.connections == 0


def test_failed_answer_is_not_asked_for_again(bench: Bench) -> None:
    site = Site(b"")
    with pytest.raises(Unreachable):
        bench.run(
            site,
            lambda _, __: Fetcher(
                Given(LOOPBACK, LOOPBACK),
                allow_private=True,
                port=site.port,
                tls=bench.certificate.client_context(),
            ).get(SITE, WELL_KNOWN),
        )
    assert len(site.requests) == 1


# ---- what is refused


@pytest.mark.parametrize(("host", "kind"), [(SITE, "a loopback"), ("mixed.example", "a loopback")])
def test_inner_address_is_refused_without_a_connection(bench: Bench, host: str, kind: str) -> None:
    site = Site(answer(PROOF.encode()))
    with pytest.raises(FetchRefused, match=f"{host} has {kind} address"):
        bench.run(site, lambda _, fetcher: fetcher.get(host, WELL_KNOWN), allow_private=False)
    assert site.connections == 0


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary Redirect", "304 Not Modified"])
def test_redirect_is_refused_and_not_followed(bench: Bench, status: str) -> None:
    site = Site(answer(PROOF.encode(), status, f"Location: https://{SITE}/elsewhere"))
    with pytest.raises(FetchRefused, match="redirects are not followed"):
        bench.get(site)
    assert len(site.requests) == 1


def test_body_of_exactly_the_limit_is_taken(bench: Bench) -> None:
    assert bench.get(Site(answer(b"x" * 4096))) == b"x" * 4096


@pytest.mark.parametrize(
    "says",
    [
        answer(b"x" * 4097),
        b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n" + b"x" * 4097,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"800\r\n%b\r\n" % (b"x" * 2048) * 3,
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 4097,
    ],
    ids=["by length", "endless", "chunked", "until close"],
)
def test_longer_body_is_refused_before_its_end(bench: Bench, says: bytes) -> None:
    with pytest.raises(FetchRefused, match="larger than 4096 bytes"):
        bench.get(Site(says, hangs=True))


def test_compressed_body_is_refused(bench: Bench) -> None:
    site = Site(answer(gzip.compress(b"x" * 1_000_000), "200 OK", "Content-Encoding: gzip"))
    with pytest.raises(FetchRefused, match="compressed"):
        bench.get(site)


@pytest.mark.parametrize("status", ["404 Not Found", "410 Gone"])
def test_file_that_is_not_there_is_missing(bench: Bench, status: str) -> None:
    with pytest.raises(Missing, match=f"answers {status[:3]}"):
        bench.get(Site(answer(PROOF.encode(), status)))


@pytest.mark.parametrize("status", ["204 No Content", "206 Partial", "401 Who", "403 No", "429 Slow", "500 Oh"])
def test_only_200_counts(bench: Bench, status: str) -> None:
    with pytest.raises(Unreachable, match=f"answers {status[:3]} instead of 200"):
        bench.get(Site(answer(b"" if status.startswith("204") else PROOF.encode(), status)))


# ---- what cannot be reached


def test_certificate_for_the_address_but_another_name_is_not_accepted(bench: Bench) -> None:
    site = Site(answer(PROOF.encode()))
    with pytest.raises(Unreachable, match=r"certificate is refused .*'other\.example'"):
        bench.get(site, "other.example")  # the certificate is good for 127.0.0.1 and proof.example
    assert site.requests == []


def test_certificate_of_an_unknown_authority_is_not_accepted(bench: Bench, tmp_path: Path) -> None:
    site = Site(answer(PROOF.encode()))
    stranger = make_certificate(tmp_path, SITE).client_context()

    async def get(resolver: DnsResolver, _: Fetcher) -> bytes:
        return await Fetcher(resolver, allow_private=True, port=site.port, tls=stranger).get(SITE, WELL_KNOWN)

    with pytest.raises(Unreachable, match="certificate is refused"):
        bench.run(site, get)
    assert site.requests == []


def test_site_without_tls_is_not_spoken_to(bench: Bench) -> None:
    site = Site(answer(PROOF.encode()), eager=True)
    with pytest.raises(Unreachable, match="cannot be reached: TLS failed"):
        bench.get(site, plain=True)
    assert site.requests == []


def test_handshake_that_hangs_ends_at_the_deadline_and_closes_the_connection(bench: Bench) -> None:
    site = Site(b"")  # waits for a request in clear, so the handshake is never answered

    async def get(_: DnsResolver, fetcher: Fetcher) -> None:
        with pytest.raises(Unreachable):
            await fetcher.get(SITE, WELL_KNOWN)
        await asyncio.wait_for(site.left.wait(), 5)

    bench.run(site, get, seconds=0.3, plain=True)


def test_fetch_cancelled_within_the_handshake_closes_the_connection(bench: Bench) -> None:
    site = Site(b"")

    async def get(_: DnsResolver, fetcher: Fetcher) -> None:
        task = asyncio.create_task(fetcher.get(SITE, WELL_KNOWN))
        await asyncio.wait_for(site.came.wait(), 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(site.left.wait(), 5)

    bench.run(site, get, plain=True)


@pytest.mark.parametrize("says", [b"", b"SSH-2.0-hello\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"])
def test_answer_that_is_not_whole_http_leaves_doubt(bench: Bench, says: bytes) -> None:
    with pytest.raises(Unreachable, match="gives no whole answer in HTTP"):
        bench.get(Site(says))


@pytest.mark.parametrize(
    "site",
    [
        Site(b"", hangs=True),
        Site(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", hangs=True),
    ],
    ids=["silent", "silent within the body"],
)
def test_slow_answer_ends_at_the_deadline(bench: Bench, site: Site) -> None:
    with pytest.raises(Unreachable, match=r"did not answer within 0\.3 s"):
        bench.get(site, seconds=0.3)
    assert len(site.requests) == 1


@pytest.mark.parametrize(
    "says",
    [b"HTTP/1.1 103 Early Hints\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1_000],
    ids=["many heads", "one long head"],
)
def test_endless_head_is_given_up_long_before_the_deadline(bench: Bench, says: bytes) -> None:
    with pytest.raises(FetchRefused, match="sends over 16384 bytes besides the file"):
        bench.get(Site(says, repeats=True))


# ---- the equipment


def test_nameserver_is_gone_afterwards_and_its_port_can_be_used_again(tmp_path: Path) -> None:
    async def texts(server: Nameserver) -> list[str]:
        return await DnsResolver([server.address]).texts("a.example")

    with nameserver(tmp_path, texts={"a.example": ["one"]}) as first:
        assert asyncio.run(texts(first)) == ["one"]
        assert first.questions() == [("TXT", "a.example")]
    assert not alive(first.pid)
    with nameserver(tmp_path, texts={"a.example": ["two"]}, port=first.port) as second:
        assert asyncio.run(texts(second)) == ["two"]
