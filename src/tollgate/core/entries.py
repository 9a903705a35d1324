"""One answered request as the spool keeps it: what its calls have in common, and each call.

Encoded once, by the worker, as MessagePack; decoded by the collector. Bytes that came from a caller stay bytes
until then: the hot path decodes nothing. Parameters and results are never part of it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

# What a caller sent is cut here, so that a record cannot grow. Methods and texts are counted in bytes in the end.
LONGEST_METHOD, LONGEST_TEXT = 64, 256
# Calls of one record; a larger batch is written as several.
MAX_CALLS = 1_000
# Outcomes that are billed: a node has answered.
BILLABLE = frozenset({"ok", "node_error"})

# Bounds of what the store can keep. A record that breaks one was not written by us.
Moment = Annotated[float, Meta(ge=0, lt=253_402_300_800)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Code = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class CallEntry(Struct, frozen=True, array_like=True, gc=False):
    """One call of a request."""

    method: str
    outcome: str
    """`ok`, `node_error`, or the reason of a refusal."""
    code: Code | None = None
    """The code of its JSON-RPC error."""
    response_bytes: Count = 0
    upstream: str | None = None
    """In a batch, whose calls may go different ways; otherwise the request's own."""
    attempts: Count = 0
    cache: str = ""


class Entry(Struct, frozen=True, array_like=True, gc=False):
    """One answered request of a known team."""

    at: Moment
    request_id: bytes
    team_id: str
    source_id: str
    """The token or the domain that let it in."""
    source_name: str
    network: str
    status: Count
    calls: tuple[CallEntry, ...]
    request_bytes: Count = 0
    duration_micros: Count = 0
    upstream: str = ""
    attempts: Count = 0
    address: str = ""
    agent: bytes = b""
    origin: bytes = b""
    stands_for: Annotated[int, Meta(ge=1, le=2**53)] = 1
    """How many requests this one stands for: more than one only for refusals that came too fast."""
    cache: str = "bypass"


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Entry).decode
