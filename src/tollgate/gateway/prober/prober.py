"""Asks one upstream how it is: head, finality, chain id, syncing, and single blocks.

Over HTTP, by the pool that also serves calls (`transport.py`). Owns no rule and no schedule: what follows from
the answers is decided in `core/health.py`, when to ask in `watch.py`. Reasons are our own words: an address or
a node's message may hold a key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tollgate import __version__
from tollgate.chains import heads
from tollgate.chains.heads import Block, Misread, NodeCall
from tollgate.core.shapes import ErrorCode, Reply
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


class Wanted(Struct, frozen=True):
    """What is asked beside the head."""

    chain_id: bool = False
    syncing: bool = False
    finalized: bool = False


class ProbeReport(Struct, frozen=True):
    """What an upstream said. None: it was not asked, or does not know."""

    block: Block
    asked_at: float
    seconds: float
    chain_id: str | None = None
    syncing: bool | None = None
    finalized: int | None = None


class ProbeFailed(Exception):
    """An upstream did not say where it is."""

    def __init__(self, words: str, *, refused: bool = False) -> None:
        self.words = words
        self.refused = refused
        """Nobody listens at its address."""
        super().__init__(words)


class Asker(Protocol):
    """Whoever can be asked."""

    timeout_seconds: float

    async def probe(self, wanted: Wanted) -> ProbeReport:
        """How it is, or ProbeFailed."""
        ...

    async def block(self, number: int) -> Block:
        """One of its blocks, or ProbeFailed."""
        ...

    def sweep(self) -> None:
        """End what has taken too long."""
        ...

    def close(self) -> None:
        """End everything."""
        ...


class HttpAsker:
    """Asks an upstream by HTTP."""

    def __init__(self, family: str, upstream: UpstreamSettings, now: Callable[[], float]) -> None:
        self._family = family
        self.timeout_seconds = HealthSettings().timeout_seconds
        self._now = now
        # So that an operator can tell our questions from those of callers.
        named = replace(upstream, headers={"User-Agent": f"tollgate-prober/{__version__}", **upstream.headers})
        self._pool = Pool(named, max_bytes=MAX_BYTES, budget=Budget(MAX_HELD_BYTES), now=now)

    async def probe(self, wanted: Wanted) -> ProbeReport:
        """How it is. What it does not know beside its head is no failure."""
        asked_at = self._now()
        calls = {"head": heads.head_call(self._family)}
        if wanted.chain_id:
            calls["chain_id"] = heads.chain_id_call(self._family)
        if wanted.syncing:
            calls["syncing"] = heads.syncing_call(self._family)
        if wanted.finalized:
            calls["finalized"] = heads.finalized_call(self._family)
        asking = (self._ask(call) for call in calls.values())
        said = dict(zip(calls, await asyncio.gather(*asking, return_exceptions=True), strict=True))
        seconds = self._now() - asked_at
        return ProbeReport(
            _read(heads.read_block, self._family, said["head"]),
            asked_at,
            seconds,
            _perhaps(heads.read_chain_id, self._family, said.get("chain_id")),
            _perhaps(heads.read_syncing, self._family, said.get("syncing")),
            _perhaps(heads.read_number, self._family, said.get("finalized")),
        )

    async def block(self, number: int) -> Block:
        """One of its blocks."""
        return _read(heads.read_block, self._family, await self._ask(heads.block_call(self._family, number)))

    def sweep(self) -> None:
        """End what has taken too long."""
        self._pool.sweep()

    def close(self) -> None:
        """End everything."""
        self._pool.close()

    async def _ask(self, call: NodeCall) -> bytes:
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": call.method, "params": call.params})
        try:
            response = await self._pool.send(body, self._now() + self.timeout_seconds, repeatable=True)
        except AttemptFailed as failure:
            raise _failed(failure) from failure
        if response.status != 200:
            raise ProbeFailed(f"answers with HTTP {response.status}")
        try:
            reply = _reply(response.body)
            if reply.failed:
                raise ProbeFailed(f"answers {call.method} with error {_code(reply.error).code}")
        except msgspec.DecodeError as error:
            raise ProbeFailed("answers with something that is no JSON-RPC") from error
        return bytes(reply.result)


def _read(reader: Callable[[str, bytes], T], family: str, said: bytes | BaseException) -> T:
    """Read an answer, or fail as asking did."""
    if isinstance(said, BaseException):
        raise said
    try:
        return reader(family, said)
    except Misread as error:
        raise ProbeFailed("answers with something other than requested") from error


def _perhaps(reader: Callable[[str, bytes], T], family: str, said: bytes | BaseException | None) -> T | None:
    """Read an answer that it need not give."""
    if said is None:
        return None
    try:
        return _read(reader, family, said)
    except ProbeFailed:
        return None


def _failed(failure: AttemptFailed) -> ProbeFailed:
    if isinstance(failure, TimedOut):
        return ProbeFailed("does not answer in time")
    if not isinstance(failure, ConnectFailed):
        return ProbeFailed("breaks off")
    if isinstance(failure.__cause__, ConnectionRefusedError):
        return ProbeFailed("refuses connections", refused=True)
    return ProbeFailed("cannot be reached")
