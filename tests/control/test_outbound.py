"""Which addresses are fetched from, and how DNS is queried; the DNS server here is scripted, on loopback."""

from __future__ import annotations

import asyncio
import ipaddress
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import httpcore
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parts.ports import free_port
from tollgate.control.outbound import DnsResolver, Fetcher, FetchRefused, Missing, Unreachable
from tollgate.control.safe_connect import TooMuch, _Stream, forbidden_kind
from tollgate.errors import StartError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

PUBLIC = ["1.1.1.1", "9.9.9.9", "93.184.216.34", "172.32.0.1", "100.128.0.1", "223.255.255.255"]
PUBLIC6 = ["2606:4700:4700::1111", "2001:4860:4860::8888", "2a00:1450:4001::200e", "64:ff9b::9.9.9.9"]

INNER = {
    "0.0.0.0/8": "an unspecified",
    "10.0.0.0/8": "a private",
    "100.64.0.0/10": "a carrier's internal",
    "127.0.0.0/8": "a loopback",
    "168.63.129.16/32": "a cloud provider's internal",
    "169.254.0.0/16": "a link-local",
    "172.16.0.0/12": "a private",
    "192.0.0.0/24": "a reserved",
    "192.0.2.0/24": "a reserved",
    "192.88.99.0/24": "a reserved",
    "192.168.0.0/16": "a private",
    "198.18.0.0/15": "a reserved",
    "198.51.100.0/24": "a reserved",
    "203.0.113.0/24": "a reserved",
    "224.0.0.0/4": "a multicast",
    "240.0.0.0/4": "a reserved",
}
INNER6 = {
    "::/128": "an unspecified",
    "::1/128": "a loopback",
    "::ffff:0:0/96": "a tunnelled IPv4",
    "64:ff9b:1::/48": "a tunnelled IPv4",
    "100::/64": "a reserved",
    "2001::/32": "a tunnelled IPv4",
    "2001:2::/48": "a reserved",
    "2001:db8::/32": "a reserved",
    "2002::/16": "a tunnelled IPv4",
    "3fff::/20": "a reserved",
    "4000::/3": "a reserved",
    "5f00::/16": "a reserved",
    "fc00::/7": "a private",
    "fe80::/10": "a link-local",
    "fec0::/10": "a private",
    "ff00::/8": "a multicast",
}
METADATA = [
    "169.254.169.254",
    "169.254.170.2",
    "100.100.100.200",
    "192.0.0.192",
    "168.63.129.16",
    "fd00:ec2::254",
    "fd20:ce::254",
]


@st.composite
def inner_ipv4(draw: st.DrawFn) -> ipaddress.IPv4Address:
    address = draw(st.ip_addresses(v=4, network=draw(st.sampled_from(list(INNER)))))
    assert isinstance(address, ipaddress.IPv4Address)
    return address


# ---- addresses


@pytest.mark.parametrize("address", PUBLIC + PUBLIC6)
def test_public_address_is_allowed(address: str) -> None:
    assert forbidden_kind(address) is None


@pytest.mark.parametrize(("network", "kind"), (INNER | INNER6).items())
def test_first_and_last_address_of_an_inner_network_are_forbidden(network: str, kind: str) -> None:
    parsed = ipaddress.ip_network(network)
    assert {forbidden_kind(str(parsed[0])), forbidden_kind(str(parsed[-1]))} == {kind}


@given(st.data())
def test_every_address_of_an_inner_network_is_forbidden(data: st.DataObject) -> None:
    network = data.draw(st.sampled_from([*INNER, *INNER6]))
    assert forbidden_kind(str(data.draw(st.ip_addresses(network=network)))) is not None


@pytest.mark.parametrize("address", METADATA)
def test_metadata_service_of_a_cloud_is_forbidden(address: str) -> None:
    assert forbidden_kind(address) is not None


@given(inner_ipv4())
def test_inner_ipv4_address_embedded_in_ipv6_is_forbidden(inner: ipaddress.IPv4Address) -> None:
    number = int(inner)
    clothes = {
        "mapped": 0xFFFF << 32 | number,
        "compatible": number,
        "NAT64": 0x64FF9B << 96 | number,
        "local NAT64": 0x64FF9B_0001 << 80 | number,
        "6to4": 0x2002 << 112 | number << 80,
        "Teredo, as the client": 0x2001_0000 << 96 | 0x09090909 << 64 | (number ^ 0xFFFF_FFFF),
        "Teredo, as the server": 0x2001_0000 << 96 | number << 64,
    }
    assert not [dress for dress, six in clothes.items() if forbidden_kind(str(ipaddress.IPv6Address(six))) is None]


@given(st.ip_addresses(v=4))
def test_allowed_ipv4_address_is_global_by_the_standard_library(address: ipaddress.IPv4Address) -> None:
    if forbidden_kind(str(address)) is None:
        assert address.is_global
        assert not address.is_multicast
        assert not address.is_reserved


@given(st.ip_addresses(v=6))
def test_allowed_ipv6_address_is_global_unicast(address: ipaddress.IPv6Address) -> None:
    if forbidden_kind(str(address)) is None and address not in ipaddress.ip_network("64:ff9b::/96"):
        assert address.is_global
        assert address in ipaddress.ip_network("2000::/3")


@pytest.mark.parametrize("text", ["", "example.com", "127.1", "2130706433", "fe80::1%lo", "2606:4700::1%lo"])
def test_malformed_address_is_forbidden(text: str) -> None:
    assert forbidden_kind(text) is not None


# ---- the fetch, up to its first connection


class Names:
    """Gives the same addresses for every name and keeps the questions; None never answers."""

    def __init__(self, addresses: list[str] | None) -> None:
        self._addresses = addresses
        self.lookups: list[str] = []

    async def addresses(self, host: str) -> list[str]:
        self.lookups.append(host)
        if self._addresses is None:
            await asyncio.get_running_loop().create_future()
        return list(self._addresses or ())


async def fetch(names: Names, host: str = "example.com", path: str = "/a.txt", seconds: float = 5.0) -> bytes:
    return await Fetcher(names, allow_private=False, seconds=seconds).get(host, path)


@pytest.mark.parametrize(
    "inner", ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "fd00::1", "::ffff:10.0.0.1"]
)
async def test_one_inner_address_among_public_ones_refuses_the_host(inner: str) -> None:
    for addresses in ([inner], ["9.9.9.9", inner], [*PUBLIC, *PUBLIC6, inner]):
        with pytest.raises(FetchRefused, match=r"^example\.com has an? .+ address in DNS: only public") as refusal:
            await fetch(Names(addresses))
        assert inner not in str(refusal.value), "addresses inside a network must not be shown"


async def test_host_without_an_address_has_nothing() -> None:
    with pytest.raises(Missing, match=r"example\.com has no address"):
        await fetch(Names([]))


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "", "a b", "a@b.example", "b.example:80", "0x7f.1", "a/b"])
async def test_invalid_host_name_is_refused_before_dns(host: str) -> None:
    names = Names(["9.9.9.9"])
    with pytest.raises(FetchRefused, match="not a URL of a named host"):
        await fetch(names, host)
    assert names.lookups == []


@pytest.mark.parametrize("path", ["", "a", "@evil.example/", "/a b", "/a\r\nX: y", "/ü"])
async def test_invalid_path_is_refused_before_dns(path: str) -> None:
    names = Names(["9.9.9.9"])
    with pytest.raises(FetchRefused, match="not a URL of a named host"):
        await fetch(names, path=path)
    assert names.lookups == []


async def test_time_of_dns_counts_towards_the_deadline() -> None:
    with pytest.raises(Unreachable, match=r"https://example\.com/a\.txt did not answer within 0\.01 s"):
        await fetch(Names(None), seconds=0.01)


async def test_name_that_gets_an_inner_address_after_the_check_is_not_resolved_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DNS rebinding: the second answer would lead inside."""

    class Rebound(Names):
        async def addresses(self, host: str) -> list[str]:
            return ["127.0.0.1"] if await super().addresses(host) and len(self.lookups) > 1 else ["9.9.9.9"]

    connected: list[str] = []

    async def connect(_self: object, address: str, *_: object, **__: object) -> None:
        connected.append(address)
        raise httpcore.ConnectError("refused")

    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", connect)
    names = Rebound(["9.9.9.9"])
    with pytest.raises(Unreachable, match="cannot be reached"):
        await fetch(names)
    assert (names.lookups, connected) == (["example.com"], ["9.9.9.9"])


async def test_host_is_requested_in_its_normal_form() -> None:
    names = Names([])
    with pytest.raises(Missing):
        await fetch(names, "Bücher.Example.")
    assert names.lookups == ["xn--bcher-kva.example"]


async def test_answer_is_read_to_the_last_byte_of_its_bound_and_no_further() -> None:
    stream = _Stream(httpcore.AsyncMockStream([b"abc", b"de", b"f"]), 4)
    assert [await stream.read(2), await stream.read(2)] == [b"abc", b"de"]
    with pytest.raises(TooMuch):
        await stream.read(2)


def test_url_shows_the_port_only_where_it_is_unusual() -> None:
    assert Fetcher(Names([]), allow_private=False).url("a.example", "/b") == "https://a.example/b"
    fetcher = Fetcher(Names([]), allow_private=False, port=8443)
    assert fetcher.url("a.example", "/b") == "https://a.example:8443/b"


# ---- DNS

Script = dict[tuple[str, str], list[str] | dns.rcode.Rcode | None]
"""What is answered to a name and a kind: records, an rcode, or nothing at all."""


class DnsServer(asyncio.DatagramProtocol):
    """A DNS server by script; what is not in it does not exist."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.queries: list[tuple[str, str]] = []
        self.transport: asyncio.DatagramTransport | None = None

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        question = query.question[0]
        key = (question.name.to_text(omit_final_dot=True), dns.rdatatype.to_text(question.rdtype))
        self.queries.append(key)
        answer = self._script.get(key, dns.rcode.NXDOMAIN)
        if answer is None:
            return
        response = dns.message.make_response(query)
        response.flags |= dns.flags.RA
        if isinstance(answer, dns.rcode.Rcode):
            response.set_rcode(answer)
        elif answer:
            response.answer.append(dns.rrset.from_text(question.name, 60, "IN", question.rdtype, *answer))
        assert self.transport is not None
        self.transport.sendto(response.to_wire(), addr)


@asynccontextmanager
async def server(script: Script) -> AsyncIterator[tuple[DnsServer, str]]:
    loop = asyncio.get_running_loop()
    transport, dns_server = await loop.create_datagram_endpoint(
        lambda: DnsServer(script), local_addr=("127.0.0.1", 0)
    )
    dns_server.transport = transport
    try:
        yield dns_server, "127.0.0.1:{}".format(transport.get_extra_info("sockname")[1])
    finally:
        transport.close()


async def resolve(
    script: Script, question: Callable[[DnsResolver], Awaitable[list[str]]], seconds: float = 5.0
) -> tuple[list[str], list[tuple[str, str]]]:
    async with server(script) as (dns_server, address):
        return await question(DnsResolver([address], seconds=seconds)), dns_server.queries


async def addresses(script: Script, seconds: float = 5.0) -> list[str]:
    return (await resolve(script, lambda resolver: resolver.addresses("a.example"), seconds))[0]


async def texts(script: Script, name: str = "a.example", seconds: float = 5.0) -> list[str]:
    return (await resolve(script, lambda resolver: resolver.texts(name), seconds))[0]


A, AAAA, TEXT = ("a.example", "A"), ("a.example", "AAAA"), ("a.example", "TXT")


async def test_addresses_come_in_turn_so_that_neither_family_hides_the_other() -> None:
    script: Script = {A: ["9.9.9.9", "9.9.9.10", "9.9.9.11"], AAAA: ["2620:fe::fe"]}
    found = await addresses(script)  # the server may give the addresses of one family in any order
    assert found[1] == "2620:fe::fe"
    assert sorted(found) == sorted(["9.9.9.9", "2620:fe::fe", "9.9.9.10", "9.9.9.11"])


async def test_each_family_is_requested_once_and_without_the_search_list() -> None:
    _, queries = await resolve({A: ["9.9.9.9"], AAAA: []}, lambda resolver: resolver.addresses("a.example"))
    assert sorted(queries) == [A, AAAA]


@pytest.mark.parametrize("script", [{}, {A: [], AAAA: []}], ids=["no such name", "no such record"])
async def test_host_that_dns_does_not_know_has_no_address(script: Script) -> None:
    assert await addresses(script) == []


@pytest.mark.parametrize("failure", [dns.rcode.SERVFAIL, dns.rcode.REFUSED, None])
async def test_one_family_is_enough_where_the_other_fails(failure: dns.rcode.Rcode | None) -> None:
    assert await addresses({A: ["9.9.9.9"], AAAA: failure}, 0.2) == ["9.9.9.9"]
    assert await addresses({A: failure, AAAA: ["2620:fe::fe"]}, 0.2) == ["2620:fe::fe"]


@pytest.mark.parametrize("failure", [dns.rcode.SERVFAIL, dns.rcode.REFUSED, None])
async def test_failure_is_not_taken_for_a_host_without_addresses(failure: dns.rcode.Rcode | None) -> None:
    with pytest.raises(Unreachable, match=r"a\.example"):
        await addresses({A: [], AAAA: failure}, 0.2)


async def test_strings_of_a_txt_record_are_joined() -> None:
    script: Script = {TEXT: ['"tollgate-" "team=1"', '"other"', r'"\195\188\255"']}
    assert sorted(await texts(script)) == ["other", "tollgate-team=1", "ü\ufffd"]


@pytest.mark.parametrize("script", [{}, {TEXT: []}], ids=["no such name", "no such record"])
async def test_name_without_txt_records_has_none(script: Script) -> None:
    assert await texts(script) == []


async def test_name_too_long_for_dns_has_no_records() -> None:
    assert await texts({}, "_tollgate." + ".".join(["a" * 49] * 5)) == []


async def test_server_that_fails_is_unreachable_and_not_named() -> None:
    with pytest.raises(Unreachable, match=r"look-up of a\.example \(TXT\) failed") as failure:
        await texts({TEXT: dns.rcode.SERVFAIL})
    assert "127.0.0.1" not in str(failure.value)


async def test_server_that_is_not_there_is_unreachable_and_not_named() -> None:
    port = free_port()
    with pytest.raises(Unreachable, match=r"a\.example \(TXT\)") as failure:
        await DnsResolver([f"127.0.0.1:{port}"], seconds=0.2).texts("a.example")
    assert str(port) not in str(failure.value)


async def test_server_that_is_silent_is_unreachable_at_the_deadline() -> None:
    with pytest.raises(Unreachable, match=r"not answer for a\.example \(TXT\) within 0\.05 s"):
        await texts({TEXT: None}, seconds=0.05)


async def test_second_server_answers_for_the_first() -> None:
    async with server({TEXT: dns.rcode.REFUSED}) as (_, bad), server({TEXT: ['"b"']}) as (_, good):
        assert await DnsResolver([bad, good]).texts("a.example") == ["b"]


@pytest.mark.parametrize("text", ["9.9.9.9", "9.9.9.9:5353", "2620:fe::fe", "[2620:fe::fe]", "[2620:fe::fe]:53"])
def test_servers_are_addresses_with_or_without_a_port(text: str) -> None:
    DnsResolver([text])


@pytest.mark.parametrize(
    "text", ["", "dns.example", "9.9.9.9:", "9.9.9.9:0", "9.9.9.9:65536", "[9.9.9.9", "[]:53", ":53", "9.9.9"]
)
def test_invalid_dns_server_keeps_the_service_from_starting(text: str) -> None:
    with pytest.raises(StartError, match="is not a DNS server"):
        DnsResolver([text])
