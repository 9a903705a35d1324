"""Caps and limits: which caller is refused, by which limit, and the exact headers."""

from typing import Any

import pytest
from tests.gateway.callers import domain_grant, request, token_grant
from tests.gateway.fakes import Clock, Meters

from tollgate.core.limits import Limit, Taken
from tollgate.core.models import Grant, Team
from tollgate.errors import RateLimited, SpendingCap
from tollgate.gateway.access.caller import Caller, quota
from tollgate.gateway.access.limits import Limiter, limited
from tollgate.gateway.messages import Request
from tollgate.settings import model


class Door:
    """Admission on a clock, for one caller."""

    def __init__(self, grant: Grant, **limits: int) -> None:
        self.clock = Clock()
        self.wall = Clock(1_700_000_000.0)
        self.meters = Meters()
        self.limiter = Limiter(self.meters, lambda incoming: incoming.peer, monotonic=self.clock, time=self.wall)
        self.caller = Caller(grant, model.LimitSettings(**limits))

    def come(self, calls: int = 1, peer: str = "192.0.2.1") -> Request:
        """A request with so many calls."""
        incoming = request(peer=peer)
        self._admit(incoming, calls)
        return incoming

    def _admit(self, incoming: Request, calls: int) -> None:
        self.limiter.admit(self.caller, incoming)
        self.limiter.admit_rest(self.caller, incoming, calls)

    def refused(self, calls: int = 1, peer: str = "192.0.2.1") -> tuple[RateLimited, Request]:
        incoming = request(peer=peer)
        with pytest.raises(RateLimited) as caught:
            self._admit(incoming, calls)
        return caught.value, incoming


def team(rate: int | None = None, **fields: Any) -> Team:
    return Team("team_1", "acme", rate, **fields)


def headers(incoming: Request) -> bytes:
    return incoming.rates


# --- Caps --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "grant",
    [
        token_grant(team(capped_until=1_700_000_060.0)),
        token_grant(capped_until=1_700_000_060.0),
        domain_grant(team(capped_until=1_700_000_060.0)),
    ],
    ids=["team of a token", "token", "team of a domain"],
)
def test_cap_stops_calls_until_it_ends(grant: Grant) -> None:
    door = Door(grant)
    with pytest.raises(SpendingCap):
        door.come()
    door.wall.advance(60)
    door.come()


def test_cap_is_reported_before_a_limit_and_takes_nothing_from_it() -> None:
    door = Door(token_grant(team(1, capped_until=1_700_000_060.0)))
    for _ in range(3):
        with pytest.raises(SpendingCap):
            door.come()
    assert door.meters.taken == []


# --- Limits ------------------------------------------------------------------------------------------------


def test_token_without_limits_is_never_stopped_and_has_no_headers() -> None:
    door = Door(token_grant())
    for _ in range(1_000):
        assert not door.come(100).rates
    assert door.meters.taken == []


@pytest.mark.parametrize(
    ("grant", "name"),
    [
        (token_grant(requests_per_second=2), "token"),
        (token_grant(team(2)), "team"),
        (domain_grant(team(2)), "team"),
        (domain_grant(domain_per_minute=2), "domain"),
        (domain_grant(address_per_minute=2), "address"),
    ],
)
def test_refusal_names_the_limit(grant: Grant, name: str) -> None:
    door = Door(grant)
    door.come()
    door.come()
    refused, _ = door.refused()
    assert refused.data["limit"] == name
    assert f"for this {name}" in refused.message


def test_limits_of_domains_have_defaults() -> None:
    door = Door(domain_grant(), domain_address_per_minute=2, domain_per_minute=6)
    door.come()
    door.come()
    assert door.refused()[0].data["limit"] == "address"
    for number in range(4):
        door.come(peer=f"198.51.{number}.1")
    assert door.refused(peer="192.0.4.3")[0].data["limit"] == "domain"


def test_addresses_of_a_domain_do_not_take_from_each_other() -> None:
    door = Door(domain_grant(address_per_minute=1))
    door.come(peer="192.0.2.1")
    door.come(peer="192.0.2.2")
    door.refused(peer="192.0.2.1")


def test_ipv6_network_of_64_bits_is_one_address() -> None:
    door = Door(domain_grant(address_per_minute=1))
    door.come(peer="2001:db8::1")
    door.refused(peer="2001:db8::2")
    door.come(peer="2001:db8:0:1::1")


def test_one_ipv6_network_does_not_take_the_limit_of_a_domain_from_other_visitors() -> None:
    door = Door(domain_grant(address_per_minute=6, domain_per_minute=60))
    for number in range(24):
        door.come(peer=f"2001:db8:0:{number:x}00::1")
    for number in range(24, 1_000):
        refused, _ = door.refused(peer=f"2001:db8:0:{number:x}::1")
        assert refused.data["limit"] == "prefix", "a /48 has four times the limit of an address"
    assert "24 requests in 60 s for this prefix" in refused.message
    for number in range(36):
        door.come(peer=f"198.51.{number}.1")


def test_prefix_of_56_bits_has_twice_the_limit_of_an_address() -> None:
    door = Door(domain_grant(address_per_minute=2, domain_per_minute=60))
    for number in range(4):
        door.come(peer=f"2001:db8:0:{number:x}::1")
    assert door.refused(peer="2001:db8:0:ff::1")[0].data["limit"] == "prefix"
    door.come(peer="2001:db8:0:100::1")


def test_prefix_never_has_more_than_half_of_a_domain() -> None:
    door = Door(domain_grant(address_per_minute=6, domain_per_minute=20))
    for number in range(10):
        door.come(peer=f"2001:db8:0:{number:x}::1")
    door.refused(peer="2001:db8:0:ff::1")


def test_ipv4_network_is_limited_only_while_half_of_the_domain_is_used() -> None:
    door = Door(domain_grant(address_per_minute=5, domain_per_minute=20))
    for number in range(10):
        door.come(peer=f"192.0.2.{number}")
    assert door.refused(peer="192.0.2.99")[0].data["limit"] == "prefix"
    for number in range(10):
        door.come(peer=f"198.51.{number}.1")
    door.clock.advance(60)
    for number in range(10):
        door.come(peer=f"192.0.2.{number}")


def test_refused_calls_of_a_prefix_take_nothing_from_the_addresses_in_it() -> None:
    door = Door(domain_grant(address_per_minute=2, domain_per_minute=60))
    for _ in range(2):
        door.come(peer="2001:db8::1")
    for _ in range(50):
        door.refused(peer="2001:db8::1")
    door.come(peer="2001:db8:0:1::1")


def test_headers_show_no_limits_of_prefixes() -> None:
    door = Door(domain_grant(address_per_minute=6, domain_per_minute=60))
    rates = door.come(peer="2001:db8::1").rates
    assert b'"prefix"' not in rates
    assert rates.startswith(b'ratelimit-policy: "address";q=6;w=60, "domain";q=60;w=60')


def test_token_that_waits_as_instructed_passes() -> None:
    door = Door(token_grant(requests_per_second=2))
    door.come()
    door.come()
    refused, _ = door.refused()
    assert refused.headers == ((b"retry-after", b"1"),)
    assert refused.data == {"limit": "token", "retry_after": 1}
    door.clock.advance(1)
    door.come()


def test_wait_is_rounded_up_to_seconds() -> None:
    door = Door(domain_grant(address_per_minute=1))
    door.come()
    door.clock.advance(0.5)
    assert door.refused()[0].headers == ((b"retry-after", b"60"),)
    door.clock.advance(59.2)
    assert door.refused()[0].headers == ((b"retry-after", b"1"),)


# --- Batches -----------------------------------------------------------------------------------------------


def test_batch_costs_as_many_as_it_has_calls() -> None:
    door = Door(token_grant(requests_per_second=10))
    door.come(7)
    door.come(3)
    door.refused()
    assert sum(cost for _, cost in door.meters.taken) == 10


def test_batch_that_does_not_fit_now_is_refused_whole_and_may_wait() -> None:
    door = Door(token_grant(requests_per_second=10))
    door.come(5)
    refused, _ = door.refused(6)
    assert refused.headers == ((b"retry-after", b"1"),)
    door.clock.advance(1.0)
    door.come(6)


def test_batch_larger_than_the_limit_is_informed_without_a_time_to_wait() -> None:
    door = Door(token_grant(requests_per_second=10))
    refused, _ = door.refused(11)
    assert refused.headers == ()
    assert refused.data == {"limit": "token"}
    assert "send smaller batches" in refused.message
    assert "10 requests in 1 s" in refused.message


def test_batch_of_exactly_the_limit_passes() -> None:
    Door(token_grant(requests_per_second=10)).come(10)


# --- Headers -----------------------------------------------------------------------------------------------


def test_headers_of_one_limit() -> None:
    door = Door(token_grant(requests_per_second=10))
    assert headers(door.come()) == (b'ratelimit-policy: "token";q=10;w=1\r\nratelimit: "token";r=9;t=1\r\n')


def test_headers_of_a_batch_show_what_is_left_after_all_of_it() -> None:
    door = Door(token_grant(requests_per_second=10))
    assert headers(door.come(4)).endswith(b'ratelimit: "token";r=6;t=1\r\n')


def test_headers_of_several_limits() -> None:
    door = Door(domain_grant(team(5), address_per_minute=60, domain_per_minute=600))
    assert headers(door.come()) == (
        b'ratelimit-policy: "address";q=60;w=60, "domain";q=600;w=60, "team";q=5;w=1\r\n'
        b'ratelimit: "address";r=59;t=2, "domain";r=599;t=1, "team";r=4;t=1\r\n'
    )


def test_headers_of_a_refusal_end_with_the_limit_that_refused() -> None:
    door = Door(token_grant(team(5), requests_per_second=1))
    door.come()
    _, incoming = door.refused()
    assert headers(incoming) == (
        b'ratelimit-policy: "token";q=1;w=1, "team";q=5;w=1\r\nratelimit: "token";r=0;t=1\r\n'
    )


def test_refusal_names_at_least_a_second_to_wait() -> None:
    limit = quota("token", "tok_1", Limit(5, 1.0))
    for seconds, wait in ((0.0, 1), (0.2, 1), (1.0, 1), (1.1, 2)):
        refusal = limited(limit, Taken(False, 0.0, 0, seconds), 1)
        assert refusal.headers == ((b"retry-after", b"%d" % wait),)
        assert refusal.data == {"limit": "token", "retry_after": wait}


@pytest.mark.parametrize(("calls", "can_wait"), [(5, True), (6, False)])
def test_batch_that_can_never_pass_is_not_sent_to_wait(calls: int, can_wait: bool) -> None:
    refusal = limited(quota("token", "tok_1", Limit(5, 1.0)), Taken(False, 0.0, 0, 0.5), calls)
    assert bool(refusal.headers) is can_wait
    assert ("retry_after" in refusal.data) is can_wait


def test_batch_of_one_is_taken_once() -> None:
    door = Door(token_grant(requests_per_second=5))
    door.come(1)
    assert [cost for _, cost in door.meters.taken] == [1]
    door.come(3)
    assert [cost for _, cost in door.meters.taken] == [1, 1, 2]
    door.limiter.admit_more(door.caller, request(), 0)
    assert len(door.meters.taken) == 3
    door.limiter.admit_more(door.caller, request(), 1)
    assert door.meters.taken[-1][1] == 1
