"""Records of the first version, as segments have them that were written before an upgrade."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct

from tollgate.core.entries import Code, Count, Moment, Multiple, encode


class _OldCall(Struct, frozen=True, array_like=True, gc=False):
    method: str
    outcome: str
    code: Code | None = None
    response_bytes: Count = 0
    upstream: str | None = None
    attempts: Count = 0
    cache: str = ""


class _Entry(Struct, frozen=True, array_like=True, gc=False):
    at: Moment
    request_id: bytes
    team_id: str
    source_id: str
    source_name: str
    network: str
    status: Count
    calls: tuple[_OldCall, ...]
    request_bytes: Count = 0
    duration_micros: Count = 0
    upstream: str = ""
    attempts: Count = 0
    address: str = ""
    agent: bytes = b""
    origin: bytes = b""
    stands_for: Multiple = 1
    cache: str = "bypass"


_read = msgspec.msgpack.Decoder(_Entry).decode


def converted(payload: bytes, cap: Callable[[str], int | None]) -> bytes:
    """The record in today's form; a `ValueError` where it is none. Its cap is the one that the team has now.

    Then no team had a price of its own.
    """
    old = _read(payload)
    calls = [msgspec.structs.astuple(call) for call in old.calls]
    return encode(
        (
            old.at, old.team_id, old.source_id, old.network, old.source_name, old.status, old.stands_for,
            cap(old.team_id), None, [call if call[4] is not None else call[:4] for call in calls],
            old.duration_micros, old.request_bytes, old.request_id, old.upstream, old.attempts, old.cache,
            old.address, old.agent, old.origin,
        )
    )  # fmt: skip
