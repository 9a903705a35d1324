"""How often unknown callers may query the store, and which callers count as unknown."""

import pytest
from tests.gateway.callers import digest, request, token_grant, with_token
from tests.gateway.calls import identify, refusal
from tests.gateway.fake_gateway import FakeGateway, open_gateway

from tollgate.core import secrets
from tollgate.core.limits import Limit
from tollgate.errors import OriginNotAllowed, Overloaded, RateLimited, TokenInvalid
from tollgate.gateway.messages import Request


def unknown_token(peer: str = "192.0.2.1") -> Request:
    return request(peer=peer, authorization=f"Bearer {secrets.new_token()}")


async def test_look_ups_in_vain_are_limited_for_each_address() -> None:
    gateway = await open_gateway(misses_per_address=Limit(3, 1.0))
    for _ in range(3):
        assert isinstance(await refusal(gateway, unknown_token()), TokenInvalid)
    refused = await refusal(gateway, unknown_token())
    assert isinstance(refused, RateLimited)
    assert refused.data["limit"] == "address"
    assert refused.headers == ((b"retry-after", b"1"),)
    assert len(gateway.store.lookups) == 3
    assert isinstance(await refusal(gateway, unknown_token("192.0.2.2")), TokenInvalid)
    gateway.clock.advance(1.0)
    assert isinstance(await refusal(gateway, unknown_token()), TokenInvalid)


async def test_unknown_origins_are_limited_for_each_address_too() -> None:
    gateway = await open_gateway(misses_per_address=Limit(3, 1.0))
    kinds = [type(await refusal(gateway, request(origin=f"https://x{number}.net"))) for number in range(4)]
    assert kinds == [*[OriginNotAllowed] * 3, RateLimited]


async def test_token_that_is_known_to_be_unknown_counts_once() -> None:
    gateway = await open_gateway(misses_per_address=Limit(2, 1.0))
    unknown = secrets.new_token()
    for token in (*[unknown] * 5, secrets.new_token()):
        assert isinstance(await refusal(gateway, with_token(token=token)), TokenInvalid)


async def test_look_ups_in_vain_are_limited_in_all() -> None:
    gateway = await open_gateway(misses=Limit(3, 1.0))
    for number in range(3):
        assert isinstance(await refusal(gateway, unknown_token(f"192.0.{number}.1")), TokenInvalid)
    assert isinstance(await refusal(gateway, unknown_token("192.0.9.1")), Overloaded)
    assert isinstance(await refusal(gateway, request(origin="https://x.unknown.net")), Overloaded)
    assert len(gateway.store.lookups) == 3


async def test_whole_ipv6_network_counts_as_one_address() -> None:
    gateway = await open_gateway(misses_per_address=Limit(1, 1.0))
    await refusal(gateway, unknown_token("2001:db8::1"))
    assert isinstance(await refusal(gateway, unknown_token("2001:db8::ffff:1")), RateLimited)
    assert isinstance(await refusal(gateway, unknown_token("2001:db8:0:1::1")), TokenInvalid)


async def test_new_good_tokens_are_found_while_one_ipv6_network_tries_many_unknown_ones() -> None:
    gateway = await open_gateway(misses_per_address=Limit(2, 1.0), misses=Limit(20, 1.0))
    kinds = [type(await refusal(gateway, unknown_token(f"2001:db8:0:{n:x}00::1"))) for n in range(200)]
    assert (kinds.count(TokenInvalid), kinds.count(RateLimited)) == (8, 192)
    for number in range(39):
        token = secrets.new_token()
        gateway.store.tokens[digest(token)] = token_grant()
        await identify(gateway, request(peer=f"198.51.100.{number}", authorization=f"Bearer {token}"))


async def test_ipv4_network_gets_no_more_than_half_of_the_look_ups_once_half_is_used() -> None:
    gateway = await open_gateway(misses_per_address=Limit(2, 1.0), misses=Limit(20, 1.0))
    kinds = [type(await refusal(gateway, unknown_token(f"192.0.2.{n}"))) for n in range(100)]
    assert kinds.count(TokenInvalid) <= 12
    assert isinstance(await refusal(gateway, unknown_token("198.51.100.1")), TokenInvalid)


async def test_look_ups_that_find_a_caller_do_not_count() -> None:
    gateway = await open_gateway(misses_per_address=Limit(1, 1.0))
    for number in range(20):
        token = secrets.new_token()
        gateway.store.tokens[digest(token)] = token_grant()
        await identify(gateway, with_token(token=token))
        await identify(gateway, request(origin=f"https://a{number}.example.com"))
    assert gateway.meters.taken == []


async def test_known_callers_are_not_limited_by_unknown_ones_at_their_address() -> None:
    gateway = await open_gateway(misses_per_address=Limit(1, 1.0))
    await identify(gateway, with_token())
    await refusal(gateway, unknown_token())
    assert isinstance(await refusal(gateway, unknown_token()), RateLimited)
    await identify(gateway, with_token())


async def test_every_caller_is_refused_with_a_retry_after_when_the_store_was_silent_for_too_long(
    gateway: FakeGateway,
) -> None:
    await identify(gateway, with_token())
    gateway.directory.stale = True
    assert isinstance(await refusal(gateway, with_token()), Overloaded)


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("10.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("10.0.0.1", "198.51.100.1, 203.0.113.9, 10.0.0.2", "203.0.113.9"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("192.0.2.1", "203.0.113.9", "192.0.2.1"),
    ],
)
async def test_address_is_the_last_one_that_no_trusted_proxy_has(peer: str, forwarded: str, address: str) -> None:
    gateway = await open_gateway(trusted=("10.0.0.0/8",))
    assert gateway.credentials.address(request(peer=peer, x_forwarded_for=forwarded)) == address


async def test_without_trusted_proxies_the_peer_is_the_address(gateway: FakeGateway) -> None:
    assert gateway.credentials.address(request(x_forwarded_for="203.0.113.9")) == "192.0.2.1"
