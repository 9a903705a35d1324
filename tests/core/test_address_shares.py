"""What an address and the prefixes around it may have of something."""

from __future__ import annotations

import pytest

from tollgate.core.address_shares import AddressShares, prefixes
from tollgate.core.limits import Limit


@pytest.mark.parametrize(
    ("address", "names"),
    [
        ("192.0.2.7", ["192.0.2.7", "192.0.2.0/24"]),
        ("::ffff:192.0.2.7", ["192.0.2.7", "192.0.2.0/24"]),
        ("2001:db8:1:2ff::9", ["2001:db8:1:2ff::/64", "2001:db8:1:200::/56", "2001:db8:1::/48"]),
        ("2001:db8:1:2ff::/64", ["2001:db8:1:2ff::/64", "2001:db8:1:200::/56", "2001:db8:1::/48"]),
        ("a name", ["a name"]),
    ],
)
def test_address_counts_for_the_prefixes_around_it(address: str, names: list[str]) -> None:
    assert [each.name for each in prefixes(address)] == names


def taken(shares: AddressShares, addresses: list[str]) -> int:
    """How many of these addresses get one."""
    count = 0
    for address in addresses:
        if shares.has_room(address):
            shares.take(address)
            count += 1
    return count


def test_network_of_65536_prefixes_has_four_shares_and_leaves_the_rest() -> None:
    shares = AddressShares(1_000, 10)
    assert taken(shares, ["2001:db8::1"] * 20) == 10
    assert taken(shares, [f"2001:db8:0:{n:x}::1" for n in range(256)]) == 10, "a /56 has two shares"
    assert taken(shares, [f"2001:db8:0:{n:x}::1" for n in range(65_536)]) == 20, "a /48 has four"
    assert taken(shares, [f"198.51.{n}.1" for n in range(250)]) == 250


@pytest.mark.parametrize("network", ["2001:db8:0:{:x}00::1", "192.0.2.{}"])
def test_widest_prefix_takes_no_more_than_it_leaves_free(network: str) -> None:
    shares = AddressShares(40, 40)
    assert taken(shares, [network.format(n) for n in range(200)]) == 20
    assert taken(shares, [f"198.51.100.{n}" for n in range(200)]) == 10
    assert taken(shares, [f"203.0.113.{n}" for n in range(200)]) == 5


def test_what_is_given_back_is_free_for_the_same_prefixes() -> None:
    shares = AddressShares(10, 3)
    shares.take("2001:db8::1", 3)
    shares.take("", 2)
    assert not shares.has_room("2001:db8::2")
    assert shares.has_room("", 5)
    assert not shares.has_room("", 6)
    shares.give_back("2001:db8::1", 3)
    shares.give_back("", 2)
    assert (shares.taken, shares.free, shares._held) == (0, 10, {})


def test_reserved_amounts_are_left() -> None:
    shares = AddressShares(10, 10)
    assert shares.has_room("192.0.2.1", reserved=9)
    assert not shares.has_room("192.0.2.1", reserved=10)
    shares.take("192.0.2.1", 3)
    assert not shares.has_room("192.0.2.1", reserved=4), "three are left, and it would have four"


def test_limits_grow_with_the_prefix_up_to_half_of_all() -> None:
    limits = AddressShares.limits("2001:db8::1", Limit(600, 60.0), Limit(6_000, 60.0))
    assert [each.limit.count for each in limits] == [600, 1_200, 2_400]
    limits = AddressShares.limits("2001:db8::1", Limit(600, 60.0), Limit(1_600, 60.0))
    assert [each.limit.count for each in limits] == [600, 800, 800]
    limits = AddressShares.limits("2001:db8::1", Limit(600, 60.0), Limit(600, 60.0))
    assert [each.limit.count for each in limits] == [600] * 3, "never less than an address"
    assert not any(each.under_pressure for each in limits)


def test_ipv4_network_is_limited_under_pressure_and_where_all_have_a_limit() -> None:
    limits = AddressShares.limits("192.0.2.1", Limit(10, 1.0), Limit(500, 1.0))
    assert [(each.limit.count, each.under_pressure) for each in limits] == [(10, False), (250, True)]
    assert len(AddressShares.limits("192.0.2.1", Limit(10, 1.0))) == 1
