"""Asks one upstream how it is: head, finality, chain id, syncing, and single blocks.

Over HTTP, by the pool that also serves calls (`transport.py`). Owns no rule and no schedule: what follows from
the answers is decided in `core/health.py`, when to ask in `watch.py`. Reasons are our own words: an address or
a node's message may hold a key.
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
from tollgate.core.shapes import ErrorCode, ErrorWords, Reply
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
_words = msgspec.json.Decoder(ErrorWords).decode


class Wanted(Struct, frozen=True):
    """What is asked beside the head."""

    chain_id: bool = False
    syncing: bool = False
    finalized: bool = False

    @property
    def calls(self) -> int:
        """How many calls that makes, the head included."""
        return 1 + self.chain_id + self.syncing + self.finalized


class ProbeReport(Struct, frozen=True):
    """What an upstream said. None: it was not asked, or does not know."""

    block: Block
    queried_at: float
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


class NodeRefusal(ProbeFailed):
    """A node answered with a JSON-RPC error."""

    def __init__(self, words: str, code: int | None, message: str) -> None:
        super().__init__(words)
        self.code = code
        self.message = message


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
        queried_at = self._now()
        calls = {"head": heads.head_call(self._family)}
        if wanted.chain_id:
            calls["chain_id"] = heads.chain_id_call(self._family)
        if wanted.syncing:
            calls["syncing"] = heads.syncing_call(self._family)
        if wanted.finalized:
            calls["finalized"] = heads.finalized_call(self._family)
        asking = (self.ask(call) for call in calls.values())
        said = dict(zip(calls, await asyncio.gather(*asking, return_exceptions=True), strict=True))
        seconds = self._now() - queried_at
        return ProbeReport(
            _read(heads.read_block, self._family, said["head"]),
            queried_at,
            seconds,
            _perhaps(heads.read_chain_id, self._family, said.get("chain_id")),
            _perhaps(heads.read_syncing, self._family, said.get("syncing")),
            _perhaps(heads.read_number, self._family, said.get("finalized")),
        )

    async def block(self, number: int) -> Block:
        """One of its blocks."""
        return _read(heads.read_block, self._family, await self.ask(heads.block_call(self._family, number)))

    def sweep(self) -> None:
        """End what has taken too long."""
        self._pool.sweep()

    def close(self) -> None:
        """End everything."""
        self._pool.close()

    async def ask(self, call: NodeCall) -> bytes:
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


def _message(error: msgspec.Raw) -> str:
    """The words of a node's error; none where they cannot be read."""
    try:
        return _words(error).message
    except msgspec.DecodeError:
        return ""


def _perhaps(reader: Callable[[str, bytes], T], family: str, said: bytes | BaseException | None) -> T | None:
    """Read an answer that it need not give."""
    if said is None:
        return None
    try:
        return _read(reader, family, said)
    except ProbeFailed:
        return None


def _failed(failure: AttemptFailed) -> ProbeFailed:
    """Say what exactly failed, without an address: it may hold a key."""
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
            return ProbeFailed(f"fails in the TLS handshake ({_reason(error)}): is it an https address?")
        case OSError() as error if error.errno:
            return ProbeFailed(f"cannot be reached: {os.strerror(error.errno)}")
    return ProbeFailed("cannot be reached")


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "no reason given").replace("_", " ").lower()


# What an operator can do about a status.
_ADVICE = {
    401: ": check its key",
    402: ": its plan is used up",
    403: ": check its key, and whether it allows this address",
    404: ": check its path",
    429: ": its rate limit is reached",
}
