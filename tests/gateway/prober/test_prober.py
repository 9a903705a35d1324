"""Probing one upstream by HTTP, on a loop without sockets."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import ssl
from collections.abc import Callable
from typing import Any

import pytest
from tests.gateway.fake_node import http
from tests.gateway.fakes import Clock, run_pending, scripted_loop

from tollgate.chains.heads import Block
from tollgate.gateway.prober.prober import HttpProbeClient, ProbeFailed, ProbeReport, Wanted, _failed
from tollgate.gateway.upstream.connection import ConnectFailed
from tollgate.settings import model

KEY = "s3cr3t"
ETH = {
    "latest": {"number": "0x64", "hash": "0xAa", "parentHash": "0xa9"},
    "finalized": {"number": "0x24", "hash": "0xf1", "parentHash": "0xf0"},
    "0x7": {"number": "0x7", "hash": "0x77", "parentHash": "0x76"},
}
STARKNET = {
    "latest": {"block_number": 100, "block_hash": "0x0aa", "parent_hash": "0xa9", "transactions": ["0x1"]},
    "l1_accepted": {"block_number": 36, "block_hash": "0xf1", "parent_hash": "0xf0"},
}


def answer(method: str, params: list[Any]) -> Any:
    """What a healthy node answers."""
    if method == "eth_getBlockByNumber":
        return ETH.get(params[0])
    if method == "starknet_getBlockWithTxHashes":
        return STARKNET.get(params[0]) if isinstance(params[0], str) else {**STARKNET["latest"], **params[0]}
    return {"eth_chainId": "0x01", "starknet_chainId": "0x534e", "eth_syncing": False, "starknet_syncing": False}[
        method
    ]


class ProbeClientSetup:
    """A client, and what its node gets and answers."""

    def __init__(self, family: str = "eth", **upstream: Any) -> None:
        self.clock = Clock()
        self.calls: list[dict[str, Any]] = []
        self.reply: Callable[[dict[str, Any]], bytes | None] = self.healthy
        scripted_loop().node = self._respond
        given = model.UpstreamSettings(name="a", url=f"http://node:8545/{KEY}", **upstream)
        self.client = HttpProbeClient(family, given, self.clock)

    def _respond(self, body: bytes) -> bytes | None:
        self.calls.append(json.loads(body))
        return self.reply(self.calls[-1])

    def healthy(self, call: dict[str, Any]) -> bytes | None:
        return result(answer(call["method"], call["params"]))

    async def fails(self) -> ProbeFailed:
        with pytest.raises(ProbeFailed) as failed:
            await self.client.probe(Wanted())
        assert KEY not in str(failed.value)
        return failed.value

    @property
    def methods(self) -> list[str]:
        return [call["method"] for call in self.calls]


def result(value: Any) -> bytes:
    return http(json.dumps({"jsonrpc": "2.0", "id": 1, "result": value}).encode())


def error(code: int) -> bytes:
    response = {"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": f"about {KEY}"}}
    return http(json.dumps(response).encode())


async def test_a_plain_probe_is_one_call() -> None:
    setup = ProbeClientSetup()
    assert await setup.client.probe(Wanted()) == ProbeReport(Block(100, "0xaa", "0xa9"), 1_000.0, 0.0)
    assert [(call["method"], call["params"]) for call in setup.calls] == [
        ("eth_getBlockByNumber", ["latest", False])
    ]


@pytest.mark.parametrize(
    ("family", "chain_id", "methods"),
    [
        ("eth", "0x1", ["eth_getBlockByNumber", "eth_chainId", "eth_syncing", "eth_getBlockByNumber"]),
        (
            "starknet",
            "0x534e",
            [
                "starknet_getBlockWithTxHashes",
                "starknet_chainId",
                "starknet_syncing",
                "starknet_getBlockWithTxHashes",
            ],
        ),
    ],
)
async def test_everything_can_be_probed_at_once(family: str, chain_id: str, methods: list[str]) -> None:
    setup = ProbeClientSetup(family)
    report = await setup.client.probe(Wanted(chain_id=True, syncing=True, finalized=True))
    assert (report.block.number, report.block.hash) == (100, "0xaa")
    assert (report.chain_id, report.syncing, report.finalized) == (chain_id, False, 36)
    assert setup.methods == methods


async def test_what_a_node_does_not_know_beside_its_head_is_no_failure() -> None:
    setup = ProbeClientSetup()
    setup.reply = lambda call: setup.healthy(call) if call["params"][:1] == ["latest"] else error(-32601)
    report = await setup.client.probe(Wanted(chain_id=True, syncing=True, finalized=True))
    assert (report.block.number, report.chain_id, report.syncing, report.finalized) == (100, None, None, None)


async def test_a_probe_is_sent_again_where_the_node_has_closed_a_kept_connection() -> None:
    setup = ProbeClientSetup()
    await setup.client.probe(Wanted())
    kept = scripted_loop().transports[0]

    def hang_up(_call: object) -> None:
        setup.reply = setup.healthy
        asyncio.get_running_loop().call_soon(kept.drop)

    setup.reply = hang_up
    assert (await setup.client.probe(Wanted())).block.number == 100
    assert len(setup.calls) == 3
    assert len(scripted_loop().transports) == 2


async def test_a_block_by_its_number() -> None:
    setup = ProbeClientSetup()
    assert await setup.client.block(7) == Block(7, "0x77", "0x76")
    with pytest.raises(ProbeFailed):
        await setup.client.block(8)
    setup.reply = lambda call: result(answer(call["method"], ["0x7", False]))
    with pytest.raises(ProbeFailed, match="another block"):
        await setup.client.block(9)
    starknet = ProbeClientSetup("starknet")
    assert (await starknet.client.block(9)).number == 9
    assert starknet.calls[0]["params"] == [{"block_number": 9}]


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (http(b"", status=b"401 No"), "answers with HTTP 401: check its key"),
        (http(b"", status=b"402 No"), "answers with HTTP 402: its plan is used up"),
        (http(b"", status=b"403 No"), "answers with HTTP 403: check its key, and whether it allows this address"),
        (http(b"", status=b"404 No"), "answers with HTTP 404: check its path"),
        (http(b"", status=b"429 Too Many Requests"), "answers with HTTP 429: its rate limit is reached"),
        (http(b"", status=b"500 No"), "answers with HTTP 500"),
        (http(b"<html>", status=b"200 OK"), "answers with something that is no JSON-RPC"),
        (http(b'{"error":"oops"}'), "answers with something that is no JSON-RPC"),
        (http(b'{"result":' + b'{"a":' * 50_000), "answers with something that is no JSON-RPC"),
        (http(b'{"error":{"a":' + b"[" * 50_000), "answers with something that is no JSON-RPC"),
        (error(-32005), "answers eth_getBlockByNumber with error -32005"),
        (result(None), "answers with something other than requested"),
        (result({"number": "0x1"}), "answers with something other than requested"),
        (result({**ETH["latest"], "number": "soon"}), "answers with something other than requested"),
        (http(b"{}"), "answers with something other than requested"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "breaks off"),
    ],
)
async def test_invalid_answer_is_reported_without_quoting_it(response: bytes, words: str) -> None:
    setup = ProbeClientSetup()
    setup.reply = lambda _: response
    failure = await setup.fails()
    assert (failure.reason, failure.refused) == (words, False)


async def test_a_refused_connection_is_distinguished() -> None:
    setup = ProbeClientSetup()
    scripted_loop().refusing = True
    failure = await setup.fails()
    assert (failure.reason, failure.refused) == ("refuses connections", True)


def tls_error(reason: str | None) -> ssl.SSLError:
    error = ssl.SSLError(1, "no")
    error.reason = reason  # type: ignore[assignment]
    return error


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (TimeoutError(), "cannot be connected to in time"),
        (socket.gaierror(), "has a name that is not found: check its address, or the DNS server"),
        (
            tls_error("WRONG_VERSION_NUMBER"),
            "fails in the TLS handshake (wrong version number): try http:// instead of https://",
        ),
        (tls_error("NO_CIPHERS"), "fails in the TLS handshake (no ciphers)"),
        (tls_error(None), "fails in the TLS handshake (no reason given)"),
        (OSError(errno.EHOSTUNREACH, ""), "cannot be reached: No route to host"),
        (OSError(), "cannot be reached"),
    ],
)
async def test_reason_of_a_failed_connection_is_reported(cause: OSError, words: str) -> None:
    failure = ConnectFailed("no", sent=False)
    failure.__cause__ = cause
    assert _failed(failure).reason == words


def test_calls_of_a_probe_are_counted() -> None:
    assert [Wanted().calls, Wanted(chain_id=True).calls, Wanted(True, True, True).calls] == [1, 2, 4]


async def test_silence_ends_with_the_deadline() -> None:
    setup = ProbeClientSetup()
    setup.client.timeout_seconds = 2.0
    setup.reply = lambda _: None
    asking = asyncio.ensure_future(setup.client.probe(Wanted()))
    await run_pending()
    setup.clock.advance(1.9)
    setup.client.sweep()
    await run_pending()
    assert not asking.done()
    setup.clock.advance(0.1)
    setup.client.sweep()
    with pytest.raises(ProbeFailed) as failed:
        await asking
    assert failed.value.reason == "does not answer in time"


async def test_closing_ends_abandoned_probes_too() -> None:
    setup = ProbeClientSetup()
    setup.reply = lambda _: None
    asking = asyncio.ensure_future(setup.client.probe(Wanted()))
    await run_pending()
    asking.cancel()
    await run_pending()
    setup.client.close()
    await run_pending()
    assert asking.cancelled()
    assert all(transport.closed for transport in scripted_loop().transports)
