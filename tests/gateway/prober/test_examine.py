"""Examining an upstream once: what is found out about it, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from tollgate.chains.heads import Block, NodeCall
from tollgate.core.health import NOTHING
from tollgate.gateway.prober import examine as module
from tollgate.gateway.prober.examine import Examined, examine, examine_all
from tollgate.gateway.prober.prober import NodeRefusal, ProbeFailed, ProbeReport, Wanted
from tollgate.settings.model import UpstreamSettings

PRUNED = NodeRefusal("refuses", -32000, "missing trie node")
UNSUPPORTED = NodeRefusal("refuses", -32601, "the method does not exist/is not available")
INVALID = NodeRefusal("refuses", -32602, "invalid params")
NO_CONTRACT = NodeRefusal("refuses", 20, "Contract not found")
OLD_STATE = ("eth_getBalance", "starknet_getNonce")


class Client:
    """Answers as the test wants, and counts how often it is to end what takes too long."""

    def __init__(self) -> None:
        self.swept = asyncio.Event()
        self.closed = False
        self.head = 1_000
        self.seconds = [0.75, 0.51239]
        self.chain_id: str | None = "0x1"
        self.syncing: bool | None = False
        self.fault: ProbeFailed | None = None
        self.fault_of: Callable[[str], ProbeFailed | None] = lambda method: INVALID
        self.calls: list[str] = []
        self.params: dict[str, object] = {}
        self.at_once = self.max_at_once = 0
        self.hangs = False
        self.timeout_seconds = 0.0

    async def call(self, call: NodeCall) -> object:
        self.calls.append(call.method)
        self.params[call.method] = call.params
        self.at_once += 1
        self.max_at_once = max(self.max_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        if self.hangs:
            await asyncio.Event().wait()
        fault = self.fault_of(call.method)
        if fault is not None and not call.method.endswith(("chainId", "syncing")):
            raise fault
        return "0x1"

    async def probe(self, wanted: Wanted) -> ProbeReport:
        if self.fault is not None:
            raise self.fault
        return ProbeReport(
            Block(self.head, "0xa", "0xb"),
            0.0,
            self.seconds.pop(0),
            self.chain_id if wanted.chain_id else None,
            self.syncing if wanted.syncing else None,
        )

    def sweep(self) -> None:
        self.swept.set()

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    made = Client()
    monkeypatch.setattr(module, "HttpProbeClient", lambda *_: made)
    return made


async def found(family: str = "eth") -> Examined:
    return await examine(family, UpstreamSettings(name="a", url="http://a"))


async def test_queries_that_take_too_long_are_ended_again_and_again() -> None:
    client = Client()
    sweeping = asyncio.ensure_future(module._sweep(cast("Any", client)))
    for _ in range(2):
        client.swept.clear()
        await asyncio.wait_for(client.swept.wait(), 30.0)
    sweeping.cancel()


async def test_what_is_found_out_about_a_good_upstream(client: Client) -> None:
    client.fault_of = lambda method: None
    tasks = asyncio.all_tasks()
    assert await found() == Examined("a", "", "0x1", 1_000, 512.4, archive=True)
    assert client.calls[0] == "eth_chainId", "the first one pays for the connection"
    assert (client.closed, client.timeout_seconds, client.max_at_once) == (True, module.SECONDS, module.AT_ONCE)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == tasks, "nothing goes on behind it"


async def test_chain_id_that_is_not_reported_is_none_and_syncing_is_shown(client: Client) -> None:
    client.chain_id, client.syncing = None, True
    result = await found()
    assert (result.chain_id, result.syncing) == ("", True)


@pytest.mark.parametrize(
    ("family", "fault", "archive"),
    [
        ("eth", None, True),
        ("eth", PRUNED, False),
        ("eth", NO_CONTRACT, None),
        ("eth", INVALID, None),
        ("eth", ProbeFailed("breaks off"), None),
        ("starknet", None, True),
        ("starknet", NO_CONTRACT, True),
        ("starknet", INVALID, None),
    ],
)
async def test_archive_is_known_by_state_of_the_first_block(
    family: str, fault: ProbeFailed | None, archive: bool | None, client: Client
) -> None:
    client.fault_of = lambda method: fault if method in OLD_STATE else INVALID
    assert (await found(family)).archive is archive
    if family == "eth":
        assert client.params["eth_getBalance"] == ["0x0000000000000000000000000000000000000000", "0x1"]
    else:
        assert client.params["starknet_getNonce"] == [{"block_number": 1}, "0x1"]


@pytest.mark.parametrize(("head", "archive"), [(128, None), (129, True)])
async def test_young_chain_shows_nothing_of_an_archive(head: int, archive: bool | None, client: Client) -> None:
    client.head, client.fault_of = head, lambda method: None
    assert (await found()).archive is archive


async def test_methods_that_a_node_does_not_have_are_named(client: Client) -> None:
    faults = {"trace_block": UNSUPPORTED, "eth_getLogs": ProbeFailed("breaks off"), "eth_getProof": UNSUPPORTED}
    client.fault_of = lambda method: faults.get(method, INVALID)
    assert (await found()).lacking == ("eth_getProof", "trace_block")


async def test_upstream_that_cannot_be_used_is_shown_with_the_reason(client: Client) -> None:
    client.fault = ProbeFailed("refuses connections")
    assert await found() == Examined("a", "refuses connections", head=NOTHING)
    assert client.closed


async def test_upstream_that_hangs_is_given_up(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALL_SECONDS", 0.0)
    client.hangs = True
    assert (await found()).fault == "does not answer in time"
    assert client.closed


async def test_family_that_cannot_be_probed_is_named_with_those_that_can() -> None:
    result = await found("bitcoin")
    assert result.fault == "is of the family bitcoin, which cannot be probed: eth and starknet can"


async def test_all_are_examined_in_their_order(client: Client) -> None:
    client.seconds = [0.1] * 4
    upstreams = [("eth", UpstreamSettings(name=name, url="http://a")) for name in "ab"]
    assert [each.name for each in await examine_all(upstreams)] == ["a", "b"]
