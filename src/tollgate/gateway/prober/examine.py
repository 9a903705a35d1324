"""Examines an upstream before it is used: chain id, head, latency, archive, methods it lacks.

For `tollgate init` and `tollgate config check --online`. A method counts as lacking where its node reports that
(the table of `chains/faults.py`); it is called with params that no node accepts, so nothing is executed and little
paid.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from msgspec import Struct

from tollgate.chains import faults, heads
from tollgate.chains.faults import Verdict
from tollgate.chains.heads import NodeCall
from tollgate.chains.methods import Kind
from tollgate.core.health import NOTHING
from tollgate.gateway.prober.prober import HttpProbeClient, NodeRefusal, ProbeFailed, Wanted
from tollgate.settings.model import UpstreamSettings

SECONDS, ALL_SECONDS = 10.0, 30.0
"""For one call, and for all."""
AT_ONCE = 4

# What callers miss most where it is missing.
_METHODS = {
    "eth": (
        "eth_call", "eth_createAccessList", "eth_estimateGas", "eth_feeHistory", "eth_getBlockReceipts",
        "eth_getLogs", "eth_getProof", "eth_simulateV1", "debug_traceCall", "debug_traceTransaction",
        "trace_block", "trace_transaction",
    ),
    "starknet": (
        "starknet_call", "starknet_estimateFee", "starknet_getBlockWithReceipts", "starknet_getEvents",
        "starknet_getMessagesStatus", "starknet_getStorageProof", "starknet_simulateTransactions",
        "starknet_traceBlockTransactions", "starknet_traceTransaction",
    ),
}  # fmt: skip
# State of the first block, as every archive has it.
_OLD_STATE = {
    "eth": NodeCall("eth_getBalance", ["0x" + "00" * 20, "0x1"]),
    "starknet": NodeCall("starknet_getNonce", [{"block_number": 1}, "0x1"]),
}
# State that a node keeps which is no archive (geth's default).
_KEPT_BLOCKS = 128
_NO_SUCH_CONTRACT = 20
_NO_PARAMS: list[object] = [None, None, None, None, None, None, None]


class Examined(Struct, frozen=True):
    """What was found out about an upstream."""

    name: str
    fault: str = ""
    """Why it cannot be used; empty where it can."""
    chain_id: str = ""
    head: int = NOTHING
    milliseconds: float = 0.0
    archive: bool | None = None
    """None: could not be found out."""
    syncing: bool = False
    lacking: tuple[str, ...] = ()


async def examine(family: str, upstream: UpstreamSettings) -> Examined:
    """Find out about one upstream. Never raises for what an upstream does."""
    if family not in heads.FAMILIES:
        return Examined(
            upstream.name,
            f"is of the family {family}, which cannot be probed: {' and '.join(sorted(heads.FAMILIES))} can",
        )
    client = HttpProbeClient(family, upstream, time.monotonic)
    client.timeout_seconds = SECONDS
    sweeping = asyncio.get_running_loop().create_task(_sweep(client))
    try:
        async with asyncio.timeout(ALL_SECONDS):
            return await _examine(client, family, upstream.name)
    except ProbeFailed as failure:
        return Examined(upstream.name, failure.reason)
    except TimeoutError:
        return Examined(upstream.name, "does not answer in time")
    finally:
        sweeping.cancel()
        client.close()


async def examine_all(upstreams: Sequence[tuple[str, UpstreamSettings]]) -> list[Examined]:
    """Find out about several, each with its family, side by side."""
    return await asyncio.gather(*(examine(family, upstream) for family, upstream in upstreams))


async def _examine(client: HttpProbeClient, family: str, name: str) -> Examined:
    await client.call(heads.CALLS[family].chain_id)  # the first one pays for the connection
    report = await client.probe(Wanted(chain_id=True))
    syncing = await client.probe(Wanted(syncing=True))
    return Examined(
        name,
        chain_id=report.chain_id or "",
        head=report.block.number,
        milliseconds=round(min(report.seconds, syncing.seconds) * 1000, 1),
        # A chain this young shows nothing: every node has all of it.
        archive=await _is_archive(client, family) if report.block.number > _KEPT_BLOCKS else None,
        syncing=bool(syncing.syncing),
        lacking=await _lacking(client, family),
    )


async def _is_archive(client: HttpProbeClient, family: str) -> bool | None:
    try:
        await client.call(_OLD_STATE[family])
    except NodeRefusal as refusal:
        if family == "starknet" and refusal.code == _NO_SUCH_CONTRACT:
            return True
        verdict = faults.verdict(family, Kind.READ, refusal.code, refusal.message)
        return False if verdict in (Verdict.PRUNED, Verdict.LAGGING) else None
    except ProbeFailed:
        return None
    return True


async def _lacking(client: HttpProbeClient, family: str) -> tuple[str, ...]:
    gate = asyncio.Semaphore(AT_ONCE)

    async def lacks(method: str) -> bool:
        async with gate:
            try:
                await client.call(NodeCall(method, _NO_PARAMS))
            except NodeRefusal as refusal:
                return faults.verdict(family, Kind.READ, refusal.code, refusal.message) is Verdict.UNSUPPORTED
            except ProbeFailed:
                pass
            return False

    methods = _METHODS[family]
    results = await asyncio.gather(*map(lacks, methods))
    return tuple(method for method, is_lacking in zip(methods, results, strict=True) if is_lacking)


async def _sweep(client: HttpProbeClient) -> None:
    while True:
        await asyncio.sleep(0.1)
        client.sweep()
