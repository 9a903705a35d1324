"""Client addresses: the right-most entry that no trusted proxy wrote for another one."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.core.address_shares import limit_key, network_of
from tollgate.core.addresses import client_address, parse_networks

TRUSTED = parse_networks(["10.0.0.0/8", "192.168.1.1", "fd00::/8"])
PROXY = "10.0.0.1"


def test_without_trusted_proxies_the_peer_is_the_client() -> None:
    assert client_address("1.2.3.4", "5.6.7.8", ()) == "1.2.3.4"
    assert client_address("10.0.0.1", "5.6.7.8", ()) == "10.0.0.1"


def test_header_of_an_untrusted_peer_is_not_believed() -> None:
    assert client_address("1.2.3.4", "5.6.7.8", TRUSTED) == "1.2.3.4"
    assert client_address("11.0.0.1", "5.6.7.8, 10.0.0.1", TRUSTED) == "11.0.0.1"


@pytest.mark.parametrize(
    ("forwarded_for", "client"),
    [
        ("5.6.7.8", "5.6.7.8"),
        ("9.9.9.9, 5.6.7.8", "5.6.7.8"),
        ("9.9.9.9,5.6.7.8,10.1.1.1", "5.6.7.8"),
        ("9.9.9.9, 5.6.7.8, 10.1.1.1, 192.168.1.1", "5.6.7.8"),
        ("9.9.9.9, 5.6.7.8 , , ", "5.6.7.8"),
        ("5.6.7.8:4711", "5.6.7.8"),
        ("2001:db8::1", "2001:db8::1"),
        ("[2001:db8::1]:4711", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("2001:DB8:0:0::1", "2001:db8::1"),
        ("5.6.7.8, fd00::7", "5.6.7.8"),
        ("::ffff:5.6.7.8", "5.6.7.8"),
        ("9.9.9.9, fe80::1%eth0", "fe80::1"),
        ("2001:db8::1%" + "z" * 5_000, "2001:db8::1"),
        ("5.6.7.8, ::ffff:10.0.0.9", "5.6.7.8"),
    ],
)
def test_client_is_the_right_most_entry_that_is_no_trusted_proxy(forwarded_for: str, client: str) -> None:
    assert client_address(PROXY, forwarded_for, TRUSTED) == client


@pytest.mark.parametrize("peer", ["10.200.0.1", "192.168.1.1", "fd00::1", "::ffff:10.0.0.1"])
def test_every_form_of_a_trusted_peer_is_believed(peer: str) -> None:
    assert client_address(peer, "5.6.7.8", TRUSTED) == "5.6.7.8"


@pytest.mark.parametrize("forwarded_for", ["", " ", ",", " , ,"])
def test_trusted_peer_without_entries_is_the_client_itself(forwarded_for: str) -> None:
    assert client_address(PROXY, forwarded_for, TRUSTED) == PROXY


def test_header_of_proxies_only_gives_the_left_most_of_them() -> None:
    assert client_address(PROXY, "10.0.0.3, 10.0.0.2", TRUSTED) == "10.0.0.3"


@pytest.mark.parametrize(
    "garbage", ["unknown", "_hidden", "999.1.1.1", "5.6.7.8.9", "010.1.1.1", "<script>", "::g"]
)
def test_garbage_ends_the_search_at_the_last_address_that_is_known(garbage: str) -> None:
    assert client_address(PROXY, f"5.6.7.8, {garbage}", TRUSTED) == PROXY
    assert client_address(PROXY, f"5.6.7.8, {garbage}, 10.0.0.2", TRUSTED) == "10.0.0.2"


@given(st.text() | st.lists(st.ip_addresses().map(str)).map(", ".join))
def test_client_cannot_choose_its_address_whatever_it_writes(written: str) -> None:
    for peer, chain in ((PROXY, "5.6.7.8"), (PROXY, "5.6.7.8, 10.0.0.2"), ("fd00::1", "5.6.7.8")):
        assert client_address(peer, f"{written}, {chain}", TRUSTED) == "5.6.7.8"
    assert client_address("5.6.7.8", written, TRUSTED) == "5.6.7.8"


@given(st.text())
def test_any_header_gives_an_address(forwarded_for: str) -> None:
    ipaddress.ip_address(client_address(PROXY, forwarded_for, TRUSTED))


def test_ipv4_addresses_are_limited_one_by_one() -> None:
    assert limit_key("1.2.3.4") != limit_key("1.2.3.5")


def test_ipv6_addresses_are_limited_by_their_64_bit_network() -> None:
    assert limit_key("2001:db8:1:2::1") == limit_key("2001:db8:1:2:ffff:ffff:ffff:ffff")
    assert limit_key("2001:db8:1:2::1") != limit_key("2001:db8:1:3::1")
    assert limit_key("fe80::1%eth0") == limit_key("fe80::2%eth0")


def test_mapped_ipv4_addresses_are_limited_one_by_one() -> None:
    assert limit_key("::ffff:1.2.3.4") != limit_key("::ffff:1.2.3.5")


def test_mapped_ipv4_address_is_limited_with_its_plain_form() -> None:
    assert limit_key("::ffff:1.2.3.4") == limit_key("1.2.3.4")


@given(st.ip_addresses(v=6), st.integers(0, 2**64 - 1))
def test_no_choice_of_interface_bits_gives_another_key(address: ipaddress.IPv6Address, interface: int) -> None:
    sibling = ipaddress.IPv6Address(int(address) >> 64 << 64 | interface)
    if address.ipv4_mapped is None and sibling.ipv4_mapped is None:
        assert limit_key(str(address)) == limit_key(str(sibling))


@given(st.text())
def test_any_text_has_a_key(text: str) -> None:
    assert isinstance(limit_key(text), str)


def test_networks_are_read_as_operators_write_them() -> None:
    networks = parse_networks(["10.0.0.7/8", "::1", "2001:db8::/32"])
    assert [str(network) for network in networks] == ["10.0.0.0/8", "::1/128", "2001:db8::/32"]
    with pytest.raises(ValueError):
        parse_networks(["proxy.example.com"])


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.77", "192.0.2.0/24"),
        ("::ffff:192.0.2.77", "192.0.2.0/24"),
        ("2001:db8:1:2::3", "2001:db8:1::/48"),
        ("nowhere", "nowhere"),
    ],
)
def test_network_is_what_one_attacker_may_well_have_all_of(address: str, network: str) -> None:
    assert network_of(address) == network
