"""One answered request as the spool and the ledger keep it: a record.

A record is a MessagePack array that begins with what counting needs: time, subject, duration. The subject (caller,
status, cap, methods and outcomes) is an array of its own inside a byte string, because equal ones repeat: a worker
may encode it once for a caller and method, and the collector decodes each distinct one once. What follows is read
only when a log is shown. Bytes that came from a caller stay bytes until then. Parameters and results are never
part of it.

    record   [at, subject, duration_micros, details, request_bytes, request_id, upstream, attempts, cache,
              address, agent, origin]
    subject  [team_id, source_id, network, source_name, status, stands_for, cap, [[method, outcome], ...],
             [free_requests, micros_per_million] where the team has a price of its own, else null, payer
    details  [[code, response_bytes] or [code, response_bytes, upstream, attempts, cache], ...]
             or, where no call of a batch has more than that, its answers' sizes: a byte string, four bytes each
    attempts 0, or 1 where the only attempt lasted as long as the request and its verdict follows from the outcome;
             otherwise [[upstream, start_micros, end_micros, verdict] or [..., status], ...], at most 8, by start
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from tollgate.api import logs
from tollgate.api.logs import MAX_ATTEMPTS_KEPT, AttemptVerdict
from tollgate.core.pricing import OwnPrice

# What a caller sent is cut to these, in bytes, so that the size of a record is bounded.
MAX_METHOD_BYTES, MAX_TEXT_BYTES = logs.MAX_METHOD, logs.MAX_TEXT
# Calls of one record; a larger batch is written as several.
MAX_CALLS = 1_000
# Outcomes that are billed: a node has answered, or worked on it until the time was up.
BILLABLE = frozenset({"ok", "node_error", "upstream_timeout"})

# Bounds of what the store can keep. A record that breaks one was not written by us.
Moment = Annotated[float, Meta(ge=0, lt=253_402_300_800)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Code = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Multiple = Annotated[int, Meta(ge=1, le=2**53)]


class AttemptEntry(Struct, frozen=True, array_like=True, gc=False):
    """One attempt at an upstream; times count from the beginning of the request."""

    upstream: str
    start_micros: Count
    end_micros: Count
    verdict: AttemptVerdict
    status: Count = 0
    """The HTTP status, where that is the verdict."""


KeptAttempts = (
    Annotated[int, Meta(ge=0, le=1)] | Annotated[tuple[AttemptEntry, ...], Meta(max_length=MAX_ATTEMPTS_KEPT)]
)
"""Attempts as a record has them; to be read by `attempts_of`."""


class CallEntry(Struct, frozen=True, gc=False):
    """One call of a request."""

    method: str
    outcome: str
    """`ok`, `node_error`, or the reason of a refusal."""
    code: Code | None = None
    """The code of its JSON-RPC error."""
    response_bytes: Count = 0
    upstream: str | None = None
    """In a batch, whose calls may go different ways; otherwise the request's own."""
    attempts: KeptAttempts = 0
    cache: str = ""


class Entry(Struct, frozen=True, kw_only=True, gc=False):
    """One answered request of a known team."""

    at: Moment
    team_id: str
    source_id: str
    """The token or the domain that let it in."""
    network: str
    source_name: str
    status: Count
    stands_for: Multiple = 1
    """How many requests this record counts for: more than one only for refusals at a high rate."""
    cap: Count | None = None
    """The team's spending cap when the request was admitted, in micro-dollars."""
    price: OwnPrice | None = None
    """The team's own price when the request was admitted."""
    payer: str = ""
    """Whose free requests it uses; empty: the team's own."""
    calls: tuple[CallEntry, ...]
    duration_micros: Count = 0
    request_bytes: Count = 0
    request_id: bytes = b""
    upstream: str = ""
    attempts: KeptAttempts = 0
    cache: str = "bypass"
    address: str = ""
    agent: bytes = b""
    origin: bytes = b""


CountedCall = tuple[str, str]
"""What is counted of a call: method and outcome."""


class Subject(Struct, frozen=True, array_like=True, gc=False):
    """What is counted: who called what, and what became of it."""

    team_id: str
    source_id: str
    network: str
    source_name: str
    status: Count
    stands_for: Multiple
    cap: Count | None
    calls: tuple[CountedCall, ...]
    price: OwnPrice | None = None
    payer: str = ""


class CountedRecord(Struct, frozen=True, array_like=True, gc=False):
    """The beginning of a record; the rest is passed over."""

    at: Moment
    subject: bytes
    duration_micros: Count


class Detail(Struct, frozen=True, array_like=True, gc=False):
    """What is not counted of a call."""

    code: Code | None = None
    response_bytes: Count = 0
    upstream: str | None = None
    attempts: KeptAttempts = 0
    cache: str = ""


class Record(Struct, frozen=True, array_like=True, gc=False):
    """All of a record; its subject is still encoded."""

    at: Moment
    subject: bytes
    duration_micros: Count
    details: tuple[Detail, ...] | bytes
    """To be read by `details_of`."""
    request_bytes: Count = 0
    request_id: bytes = b""
    upstream: str = ""
    attempts: KeptAttempts = 0
    cache: str = "bypass"
    address: str = ""
    agent: bytes = b""
    origin: bytes = b""


pack = msgspec.msgpack.Encoder().encode
read_subject = msgspec.msgpack.Decoder(Subject).decode
read_counted = msgspec.msgpack.Decoder(CountedRecord).decode
read_record = msgspec.msgpack.Decoder(Record).decode


@lru_cache(maxsize=128)
def _packer(count: int) -> Callable[..., bytes]:
    return struct.Struct(f">{count}I").pack


def pack_sizes(sizes: list[int]) -> bytes:
    """Encode the details of calls that have none but the sizes of their answers."""
    return pack(_packer(len(sizes))(*sizes))


def details_of(record: Record) -> tuple[Detail, ...]:
    """What is not counted of each call; a `ValueError` where it cannot be read."""
    details = record.details
    if isinstance(details, tuple):
        return details
    if len(details) % 4:
        raise ValueError("the sizes of a record's answers are torn")
    return tuple(Detail(None, size) for (size,) in struct.iter_unpack(">I", details))


_VERDICTS = {"ok": AttemptVerdict.ANSWERED, "node_error": AttemptVerdict.NODE_ERROR}


def attempts_of(kept: KeptAttempts, upstream: str, duration_micros: int, outcome: str) -> tuple[AttemptEntry, ...]:
    """The attempts at a call with this outcome."""
    if isinstance(kept, tuple):
        return kept
    only = AttemptEntry(upstream, 0, duration_micros, _VERDICTS.get(outcome, AttemptVerdict.OTHER))
    return (only,) * kept


def pack_subject(caller: Sequence[Any], calls: Sequence[Any], price: OwnPrice | None, payer: str) -> bytes:
    """Encode a subject: who called, under which cap, what, and who pays."""
    return pack((*caller, calls, price, payer))


def encode(entry: Entry) -> bytes:
    """Encode an entry."""
    caller = (entry.team_id, entry.source_id, entry.network, entry.source_name, entry.status, entry.stands_for)
    counted = [(call.method, call.outcome) for call in entry.calls]
    # What a call has of its own only in a batch is left out elsewhere.
    details = [
        (call.code, call.response_bytes)
        if call.upstream is None
        else (call.code, call.response_bytes, call.upstream, call.attempts, call.cache)
        for call in entry.calls
    ]
    return pack(
        (
            entry.at,
            pack_subject((*caller, entry.cap), counted, entry.price, entry.payer),
            entry.duration_micros,
            details,
            entry.request_bytes,
            entry.request_id,
            entry.upstream,
            entry.attempts,
            entry.cache,
            entry.address,
            entry.agent,
            entry.origin,
        )
    )


def decode(payload: bytes) -> Entry:
    """Decode a record; a `ValueError` where it is none."""
    record = read_record(payload)
    if isinstance(record.details, bytes):
        # A batch that went one way: each of its calls did.
        way = (record.upstream, record.attempts, record.cache)
        details = tuple(Detail(None, each.response_bytes, *way) for each in details_of(record))
        record = msgspec.structs.replace(record, details=details, upstream="", attempts=0, cache="bypass")
    at, content, duration, _, *rest = msgspec.structs.astuple(record)
    details = details_of(record)
    *caller, calls, price, payer = msgspec.structs.astuple(read_subject(content))
    if len(calls) != len(details):
        raise ValueError("a record does not have the details of each of its calls")
    whole = tuple(
        CallEntry(*call, *msgspec.structs.astuple(detail)) for call, detail in zip(calls, details, strict=True)
    )
    values = (at, *caller, price, payer, whole, duration, *rest)
    return Entry(**dict(zip(Entry.__struct_fields__, values, strict=True)))
