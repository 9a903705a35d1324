"""Probes one upstream: head, finality, chain id, syncing, and single blocks.

Over HTTP, by the pool that also serves calls (`upstream/pool.py`). Owns no rule and no schedule: what follows from
the answers is decided in `core/health.py`, when to probe in `network_monitor.py`. Reasons never quote an
address or a node's message: these may hold a key.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tollgate import __version__
from tollgate.chains import heads
from tollgate.chains.heads import Block, Misread, NodeCall
from tollgate.core.shapes import ErrorCode, ErrorMessage, Reply
from tollgate.gateway.memory_budget import Budget
from tollgate.gateway.upstream.connection import AttemptFailed, ConnectFailed, TimedOut
from tollgate.gateway.upstream.pool import Pool
from tollgate.settings.model import HealthSettings, UpstreamSettings

# A block of hashes is some hundred kilobytes at most.
MAX_BYTES = 8_388_608
MAX_HELD_BYTES = 67_108_864

T = TypeVar("T")
_reply = msgspec.json.Decoder(Reply).decode
_code = msgspec.json.Decoder(ErrorCode).decode
_error_message = msgspec.json.Decoder(ErrorMessage).decode


class Wanted(Struct, frozen=True):
    """What is queried beside the head."""

    chain_id: bool = False
    syncing: bool = False
    finalized: bool = False

    @property
    def calls(self) -> int:
        """How many calls that makes, the head included."""
        return 1 + self.chain_id + self.syncing + self.finalized


class ProbeReport(Struct, frozen=True):
    """What an upstream answered. None: it was not queried, or does not know."""

    block: Block
    queried_at: float
    seconds: float
    chain_id: str | None = None
    syncing: bool | None = None
    finalized: int | None = None


class ProbeFailed(Exception):
    """An upstream did not report its head."""

    def __init__(self, reason: str, *, refused: bool = False) -> None:
        self.reason = reason
        self.refused = refused
        """Its address refuses connections."""
        super().__init__(reason)


class NodeRefusal(ProbeFailed):
    """A node answered with a JSON-RPC error."""

    def __init__(self, reason: str, code: int | None, message: str) -> None:
        super().__init__(reason)
        self.code = code
        self.message = message


class ProbeClient(Protocol):
    """What probes one upstream."""

    timeout_seconds: float

    async def probe(self, wanted: Wanted) -> ProbeReport:
        """How it is, or ProbeFailed."""

    async def block(self, number: int) -> Block:
        """One of its blocks, or ProbeFailed."""

    def sweep(self) -> None:
        """End what has taken too long."""

    def close(self) -> None:
        """End everything."""


class HttpProbeClient:
    """Probes an upstream by HTTP."""

    def __init__(self, family: str, upstream: UpstreamSettings, now: Callable[[], float]) -> None:
        self._family = family
        self.timeout_seconds = HealthSettings().timeout_seconds
        self._now = now
        # So that an operator can distinguish probes from calls.
        named = replace(upstream, headers={"User-Agent": f"tollgate-prober/{__version__}", **upstream.headers})
        self._pool = Pool(named, max_bytes=MAX_BYTES, budget=Budget(MAX_HELD_BYTES), now=now)

    async def probe(self, wanted: Wanted) -> ProbeReport:
        """How it is. What it does not know beside its head is no failure."""
        queried_at = self._now()
        known = heads.CALLS[self._family]
        calls = {"head": known.head}
        if wanted.chain_id:
            calls["chain_id"] = known.chain_id
        if wanted.syncing:
            calls["syncing"] = known.syncing
        if wanted.finalized:
            calls["finalized"] = known.finalized
        pending = (self.call(call) for call in calls.values())
        results = dict(zip(calls, await asyncio.gather(*pending, return_exceptions=True), strict=True))
        seconds = self._now() - queried_at
        return ProbeReport(
            _read(heads.read_block, self._family, results["head"]),
            queried_at,
            seconds,
            _perhaps(heads.read_chain_id, self._family, results.get("chain_id")),
            _perhaps(heads.read_syncing, self._family, results.get("syncing")),
            _perhaps(heads.read_number, self._family, results.get("finalized")),
        )

    async def block(self, number: int) -> Block:
        """One of its blocks. Another one than was requested counts as none."""
        found = _read(heads.read_block, self._family, await self.call(heads.block_call(self._family, number)))
        if found.number != number:
            raise ProbeFailed("answers with another block than requested")
        return found

    def sweep(self) -> None:
        self._pool.sweep()

    def close(self) -> None:
        self._pool.close()

    async def call(self, call: NodeCall) -> bytes:
        """The result of a call, or ProbeFailed."""
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": call.method, "params": call.params})
        try:
            response = await self._pool.send(body, self._now() + self.timeout_seconds, repeatable=True)
        except AttemptFailed as failure:
            raise _failed(failure) from failure
        if response.status != 200:
            raise ProbeFailed(f"answers with HTTP {response.status}{_ADVICE.get(response.status, '')}")
        try:
            reply = _reply(response.body)
            if reply.failed:
                code = _code(reply.error).code
                raise NodeRefusal(f"answers {call.method} with error {code}", code, _message(reply.error))
        except (msgspec.DecodeError, RecursionError) as error:
            raise ProbeFailed("answers with something that is no JSON-RPC") from error
        return bytes(reply.result)


def _read(reader: Callable[[str, bytes], T], family: str, result: bytes | BaseException) -> T:
    """Read a result, or raise what the call raised."""
    if isinstance(result, BaseException):
        raise result
    try:
        return reader(family, result)
    except Misread as error:
        raise ProbeFailed("answers with something other than requested") from error


def _message(error: msgspec.Raw) -> str:
    """The message of a node's error; empty where it cannot be read."""
    try:
        return _error_message(error).message
    except (msgspec.DecodeError, RecursionError):
        return ""


def _perhaps(reader: Callable[[str, bytes], T], family: str, result: bytes | BaseException | None) -> T | None:
    if result is None:
        return None
    try:
        return _read(reader, family, result)
    except ProbeFailed:
        return None


def _failed(failure: AttemptFailed) -> ProbeFailed:
    """Describe what failed, without an address: it may hold a key."""
    if isinstance(failure, TimedOut):
        return ProbeFailed("does not answer in time")
    if not isinstance(failure, ConnectFailed):
        return ProbeFailed("breaks off")
    match failure.__cause__:
        case ConnectionRefusedError():
            return ProbeFailed("refuses connections", refused=True)
        case TimeoutError():
            return ProbeFailed("cannot be connected to in time")
        case socket.gaierror():
            return ProbeFailed("has a name that is not found: check its address, or the DNS server")
        case ssl.SSLCertVerificationError() as error:
            return ProbeFailed(f"shows a TLS certificate that is refused ({error.verify_message})")
        case ssl.SSLError() as error:
            advice = ": try http:// instead of https://" if error.reason in _NO_TLS else ""
            reason = (error.reason or "no reason given").replace("_", " ").lower()
            return ProbeFailed(f"fails in the TLS handshake ({reason}){advice}")
        case OSError() as error if error.errno:
            return ProbeFailed(f"cannot be reached: {os.strerror(error.errno)}")
    return ProbeFailed("cannot be reached")


# What a server that speaks plain HTTP looks like.
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"})


# What an operator can do about a status.
_ADVICE = {
    401: ": check its key",
    402: ": its plan is used up",
    403: ": check its key, and whether it allows this address",
    404: ": check its path",
    429: ": its rate limit is reached",
}
