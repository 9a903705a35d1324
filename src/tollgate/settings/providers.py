"""Shorthands for the addresses of node providers: `alchemy://KEY` instead of the whole URL.

A table: what a provider calls each network, and how its addresses are made. A shorthand becomes an ordinary URL
while settings are loaded, so nothing behind them knows of it. Pure. The key is never part of an error.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from msgspec import Struct

# What a key or name may consist of: it becomes part of a host or path, and must not reach beyond it.
_KEY = re.compile(r"[A-Za-z0-9_-]{1,200}")


class ProviderUrls(NamedTuple):
    """Where a provider answers for a network."""

    url: str
    ws_url: str


class Provider(Struct, frozen=True):
    """A provider: parts of its shorthand, its addresses, and its names for networks."""

    form: str
    url: str
    """`{key}`, `{name}` and `{network}` are replaced by the parts of a shorthand and the provider's own name."""
    ws_url: str
    networks: dict[str, str]
    """By our path."""
    special: dict[str, ProviderUrls] = {}
    """Networks whose addresses are made otherwise."""
    seldom_ws: bool = False
    """Whether only some plans include WebSockets: then the address is not assumed."""


_EVM = ("eth/mainnet", "eth/sepolia", "eth/base", "eth/optimism", "eth/arbitrum", "eth/polygon")


def _named(*names: str) -> dict[str, str]:
    return dict(zip(_EVM, names, strict=True))


PROVIDERS: dict[str, Provider] = {
    "alchemy": Provider(
        "alchemy://KEY",
        "https://{network}.g.alchemy.com/v2/{key}",
        "wss://{network}.g.alchemy.com/v2/{key}",
        _named("eth-mainnet", "eth-sepolia", "base-mainnet", "opt-mainnet", "arb-mainnet", "polygon-mainnet"),
        special={
            f"starknet/{name}": ProviderUrls(
                f"https://starknet-{name}.g.alchemy.com/starknet/version/rpc/v0_10/{{key}}", ""
            )
            for name in ("mainnet", "sepolia")
        },
    ),
    "infura": Provider(
        "infura://KEY",
        "https://{network}.infura.io/v3/{key}",
        "wss://{network}.infura.io/ws/v3/{key}",
        _named(
            "mainnet", "sepolia", "base-mainnet", "optimism-mainnet", "arbitrum-mainnet", "polygon-mainnet"
        ),
        special={
            f"starknet/{name}": ProviderUrls(f"https://starknet-{name}.infura.io/v3/{{key}}", "")
            for name in ("mainnet", "sepolia")
        },
    ),
    "quicknode": Provider(
        "quicknode://NAME/KEY",
        "https://{name}.{network}.quiknode.pro/{key}/",
        "wss://{name}.{network}.quiknode.pro/{key}/",
        _named("", "ethereum-sepolia", "base-mainnet", "optimism", "arbitrum-mainnet", "matic"),
        special={
            # Its only network without a name of its own.
            "eth/mainnet": ProviderUrls("https://{name}.quiknode.pro/{key}/", "wss://{name}.quiknode.pro/{key}/"),
            "starknet/mainnet": ProviderUrls("https://{name}.strk-mainnet.quiknode.pro/{key}/", ""),
            "starknet/sepolia": ProviderUrls("https://{name}.strk-sepolia.quiknode.pro/{key}/", ""),
        },
    ),
    "drpc": Provider(
        "drpc://KEY",
        "https://lb.drpc.org/ogrpc?network={network}&dkey={key}",
        "wss://lb.drpc.org/ogws?network={network}&dkey={key}",
        _named("ethereum", "sepolia", "base", "optimism", "arbitrum", "polygon"),
        special={
            "starknet/mainnet": ProviderUrls("https://lb.drpc.org/ogrpc?network=starknet&dkey={key}", ""),
        },
    ),
    "ankr": Provider(
        "ankr://KEY",
        "https://rpc.ankr.com/{network}/{key}",
        "wss://rpc.ankr.com/{network}/ws/{key}",
        _named("eth", "eth_sepolia", "base", "optimism", "arbitrum", "polygon"),
        seldom_ws=True,
    ),
    "publicnode": Provider(
        "publicnode://",
        "https://{network}-rpc.publicnode.com",
        "wss://{network}-rpc.publicnode.com",
        _named("ethereum", "ethereum-sepolia", "base", "optimism", "arbitrum-one", "polygon-bor"),
        special={
            "starknet/mainnet": ProviderUrls("https://starknet-rpc.publicnode.com", ""),
            "starknet/sepolia": ProviderUrls("https://starknet-sepolia-rpc.publicnode.com", ""),
        },
    ),
}  # fmt: skip


def provider_of(url: str) -> str | None:
    """Which provider a URL is a shorthand of; None for an ordinary one."""
    scheme = url.partition("://")[0]
    return scheme if "://" in url and scheme in PROVIDERS else None


def expand(url: str, family: str, network: str) -> ProviderUrls:
    """Return the addresses of a shorthand; ValueError where it is wrong."""
    scheme = provider_of(url)
    if scheme is None:
        raise ValueError("is no shorthand of a provider")
    provider = PROVIDERS[scheme]
    parts = [part for part in url.partition("://")[2].split("/") if part]
    wanted = [part for part in provider.form.partition("://")[2].split("/") if part]
    if len(parts) != len(wanted) or not all(_KEY.fullmatch(part) for part in parts):
        raise ValueError(f"must read {provider.form}, with letters, digits, - and _ alone in its parts")
    given = {word.lower(): part for word, part in zip(wanted, parts, strict=True)}
    path = f"{family}/{network}"
    if path in provider.special:
        made = provider.special[path]
    elif path in provider.networks:
        made = ProviderUrls(provider.url, "" if provider.seldom_ws else provider.ws_url)
    else:
        known = ", ".join(sorted({*provider.networks, *provider.special}))
        raise ValueError(f"is a shorthand that is not known for {path} (only {known}): write the whole URL")
    given["network"] = provider.networks.get(path, "")
    return ProviderUrls(made.url.format(**given), made.ws_url.format(**given))
