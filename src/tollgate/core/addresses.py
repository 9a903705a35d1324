"""Which address a client has. It can never choose its own.

`X-Forwarded-For` is believed only from a configured proxy, and only its right-most entry that is not itself
such a proxy: everything further left was written by the client.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def parse_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Read addresses and networks as an operator writes them."""
    return tuple(ipaddress.ip_network(text, strict=False) for text in texts)


def client_address(peer: str, forwarded_for: str, trusted: Sequence[Network]) -> str:
    """Return the client's address, given the peer of the connection."""
    if not trusted or not is_within(peer, trusted):
        return peer
    address = peer
    for entry in reversed(forwarded_for.split(",")):
        entry = entry.strip()
        if not entry:
            continue
        parsed = parse_address(entry)
        if parsed is None:
            return address
        address = str(parsed)
        if not is_within(address, trusted):
            return address
    return address


def parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Read an address as proxies write it; None where it is none."""
    # Some proxies add a port, and brackets around IPv6.
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        # A zone (`fe80::1%eth0`) is the name of a proxy's own interface, and of any length.
        parsed = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (parsed.ipv4_mapped or parsed) if isinstance(parsed, ipaddress.IPv6Address) else parsed


def is_within(address: str, trusted: Sequence[Network]) -> bool:
    parsed = parse_address(address)
    return parsed is not None and any(
        parsed.version == network.version and parsed in network for network in trusted
    )
