"""Streamed answers, and exports of logs: CSV, escaped against formula injection, and JSON lines.

An export is streamed page by page, and bounded in length.
"""

from __future__ import annotations

import asyncio
import csv
import io
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any, cast
from weakref import WeakKeyDictionary

import msgspec
from litestar import Response
from litestar.response import Stream

from tollgate.api.base import CSV, JSON_LINES
from tollgate.api.logs import Attempt, Log, LogQuery
from tollgate.control.api.errors import NO_STORE
from tollgate.control.api.rates import Shares
from tollgate.control.problems import InvalidInput
from tollgate.control.service_context import Actor
from tollgate.control.services.logs import LogResults, LogService
from tollgate.core.logs import LogEntry, csv_cell

MAX_ROWS = 100_000
PAGE_ROWS = 1_000
QUIET_SECONDS = 15.0
# Concurrent exports. One account may take a fourteenth of the free slots, one client address a third.
MAX_EXPORTS, ACCOUNT_PART, ADDRESS_PART = 64, 14, 3
MEDIA_TYPES = {"csv": CSV, "jsonl": JSON_LINES}
# A cell has no room for the trace; `attempts` counts it.
COLUMNS = tuple(name for name in Log.__struct_fields__ if name != "trace")

_exports: WeakKeyDictionary[LogService, Shares] = WeakKeyDictionary()
_ending: set[asyncio.Future[None]] = set()
"""Tasks that must not be garbage-collected before they end."""


def streamed(pieces: AsyncGenerator[bytes], media_type: str, headers: Mapping[str, str]) -> Response[Any]:
    made: Any = Stream(_step_by_step(pieces), media_type=media_type, headers=dict(headers))
    return cast("Response[Any]", made)


async def _step_by_step(pieces: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Complete each piece even if the client disconnects: a cancelled query breaks its connection."""
    step: asyncio.Future[bytes | None] | None = None
    try:
        while True:
            step = asyncio.ensure_future(_next(pieces))
            piece = await asyncio.shield(step)
            if piece is None:
                return
            yield piece
    finally:
        ended = asyncio.ensure_future(_end(pieces, step))
        _ending.add(ended)
        ended.add_done_callback(_ending.discard)


async def _next(pieces: AsyncGenerator[bytes]) -> bytes | None:
    return await anext(pieces, None)


async def _end(pieces: AsyncGenerator[bytes], step: asyncio.Future[bytes | None] | None) -> None:
    if step is not None:
        await asyncio.wait([step])
    await pieces.aclose()


def shown(entry: LogEntry, logs: LogService, team_name: str) -> Log:
    family, _, network = entry.network.partition("/")
    by_token = entry.source_id.startswith("tok_")
    # Member by member, without `of`: a page may have a thousand of them.
    return Log(
        id=logs.cursors.id_of(entry),
        time=datetime.fromtimestamp(entry.at, UTC),
        request_id=entry.request_id,
        team=team_name,
        token_id=entry.source_id if by_token else None,
        token_name=entry.source_name if by_token else None,
        domain_id=None if by_token else entry.source_id,
        domain=None if by_token else entry.source_name,
        address=entry.address,
        user_agent=entry.agent or None,
        origin=entry.origin or None,
        family=family,
        network=network,
        method=entry.method or None,
        status=entry.status,
        outcome=entry.outcome,
        error_code=entry.code,
        request_bytes=entry.request_bytes,
        response_bytes=entry.response_bytes,
        duration_us=entry.duration_micros,
        upstream=entry.upstream or None,
        attempts=len(entry.attempts),
        trace=[
            Attempt(
                upstream=each.upstream,
                start_us=each.start_micros,
                end_us=each.end_micros,
                verdict=each.verdict.label,
                status=each.status or None,
            )
            for each in entry.attempts
        ],
        cache=entry.cache,
        billable=entry.billable,
        cost_micros=entry.cost,
        count=entry.stands_for,
    )


def form_of(text: str) -> str:
    if text not in MEDIA_TYPES:
        raise InvalidInput(f"Logs are exported as one of {', '.join(MEDIA_TYPES)}.", field="format")
    return text


def answer(logs: LogService, actor: Actor, first: LogResults, query: LogQuery, form: str) -> Response[bytes]:
    """A file of logs, from a first page on."""
    headers = {
        **NO_STORE,
        "Content-Disposition": f'attachment; filename="{first.team.name}-logs.{form}"',
        "X-Content-Type-Options": "nosniff",
    }
    places = _exports.setdefault(logs, Shares(MAX_EXPORTS, ACCOUNT_PART, ADDRESS_PART))
    who = actor.id, actor.client.address
    places.check(*who)
    return streamed(_pieces(logs, actor, first, query, form, places.taking(*who)), MEDIA_TYPES[form], headers)


async def _pieces(
    logs: LogService,
    actor: Actor,
    page: LogResults,
    query: LogQuery,
    form: str,
    place: AbstractContextManager[None],
) -> AsyncGenerator[bytes]:
    write = _csv if form == "csv" else _lines
    with place:
        if form == "csv":
            yield (",".join(COLUMNS) + "\r\n").encode()
        left, written_at = MAX_ROWS, time.monotonic()
        while True:
            entries = page.rows[:left]
            if entries:
                yield write(shown(entry, logs, page.team.name) for entry in entries)
                written_at = time.monotonic()
            elif time.monotonic() - written_at > QUIET_SECONDS:
                # A search that finds nothing for long: proxies must see that the response is alive.
                yield b"\n"
                written_at = time.monotonic()
            left -= len(entries)
            if page.next is None or left <= 0:
                return
            page = await logs.page(
                actor, page.team.id, msgspec.structs.replace(query, after=page.next, limit=PAGE_ROWS)
            )


def _lines(entries: Iterable[Log]) -> bytes:
    return b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)


def _csv(entries: Iterable[Log]) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    plain: Callable[[Any], Any] = msgspec.to_builtins
    for entry in entries:
        writer.writerow([csv_cell(plain(getattr(entry, name))) for name in COLUMNS])
    return out.getvalue().encode()
