"""Results of testing upstreams: a table, and the problems found.

Owns output and columns; `gateway/prober/examine.py` does the testing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tollgate.cli import show
from tollgate.gateway.prober.examine import Examined, examine_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tollgate.settings.model import Settings, UpstreamSettings

_TITLES = ("network", "upstream", "chain id", "head", "archive", "latency", "notes")

# Well-known names of chains; another id under such a name is likely a mistake.
KNOWN_IDS = {
    "eth/mainnet": "0x1",
    "eth/sepolia": "0xaa36a7",
    "eth/base": "0x2105",
    "eth/optimism": "0xa",
    "eth/arbitrum": "0xa4b1",
    "eth/polygon": "0x89",
    "starknet/mainnet": "0x534e5f4d41494e",
    "starknet/sepolia": "0x534e5f5345504f4c4941",
}


def try_upstreams(upstreams: Sequence[tuple[str, UpstreamSettings]], *, quiet: bool = False) -> list[Examined]:
    """Test upstreams, each with its network's path; print the results, unless `quiet`."""
    found = asyncio.run(examine_all([(path.partition("/")[0], each) for path, each in upstreams]))
    if not quiet:
        show.table(_TITLES, [_row(path, each) for (path, _), each in zip(upstreams, found, strict=True)])
    return found


def try_all(settings: Settings) -> list[str]:
    """Test all upstreams of the settings; print the results, and return the problems."""
    networks = settings.networks
    upstreams = [(path, each) for path, network in networks.items() for each in network.upstreams]
    found = try_upstreams(upstreams)
    expected = {path: network.chain_id for path, network in networks.items()}
    return wrong([(path, each) for (path, _), each in zip(upstreams, found, strict=True)], expected)


def wrong(found: Iterable[tuple[str, Examined]], expected: dict[str, str]) -> list[str]:
    """Return why upstreams cannot be used: no answer, or another chain than the network's."""
    problems = []
    chains = dict(expected)
    for path, each in found:
        if each.fault:
            problems.append(f"{path}: the upstream {each.name} {each.fault}.")
            continue
        chain = chains.get(path) or each.chain_id
        chains[path] = chain
        if each.chain_id and each.chain_id != chain:
            problems.append(f"{path}: the upstream {each.name} reports chain id {each.chain_id}, not {chain}.")
    return problems


def _row(path: str, each: Examined) -> tuple[show.Cell, ...]:
    if each.fault:
        return (path, each.name, None, None, None, None, each.fault)
    archive = None if each.archive is None else "yes" if each.archive else "no"
    notes = [f"lacks {', '.join(each.lacking)}"] if each.lacking else []
    if each.syncing:
        notes.append("syncing")
    latency = f"{each.milliseconds:.1f} ms"
    return (path, each.name, _number(each.chain_id), each.head, archive, latency, "; ".join(notes) or None)


def _number(chain_id: str) -> str:
    """A chain id as people know it: a decimal number if it is short."""
    return str(int(chain_id, 16)) if chain_id and len(chain_id) <= 12 else chain_id
