"""Answers: values as JSON, never stored by anybody on the way, with the version of the thing where it has one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from litestar import Response
from msgspec import Struct

from tollgate.control.api.errors import NO_STORE
from tollgate.control.api.reading import JSON
from tollgate.control.service_context import ResultPage
from tollgate.control.versions import version_of

REPLAYED = "Idempotency-Replayed"

Answer = Response[bytes]


def shown(value: Struct, row: Struct | None = None) -> Answer:
    """One thing; with the row that it shows also its version."""
    return encoded(msgspec.json.encode(value), etag=version_of(row) if row is not None else None)


def encoded(body: bytes, status: int = 200, *, etag: str | None = None, replayed: bool = False) -> Answer:
    """An answer of JSON that is written already."""
    headers = dict(NO_STORE)
    if etag is not None:
        headers["ETag"] = etag
    if replayed:
        headers[REPLAYED] = "true"
    return Response(body, status_code=status, media_type=JSON, headers=headers)


def listed(page: ResultPage[Any], show: Callable[[Any], Struct]) -> Answer:
    """A part of a list."""
    return listed_items(map(show, page.items), page.next)


def listed_items(items: Iterable[Struct], following: str | None) -> Answer:
    """A part of a list whose items are ready."""
    return encoded(msgspec.json.encode({"items": list(items), "next": following}))


def done() -> Answer:
    """Done, and nothing to show."""
    return Response(b"", status_code=204, media_type=JSON, headers=NO_STORE)
