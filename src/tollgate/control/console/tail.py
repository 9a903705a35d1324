"""The live tail: new entries as server-sent events (HTML, "Server-sent events").

Tails of the same team and filters share a feed, which queries the ledger once a second and renders each entry
once, so hundreds of open tails cost little more than one. Entries beyond `MAX_LINES` a second are counted and
omitted, so that neither the service nor the browser falls behind.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from litestar import Response

from tollgate.control.api.access import client
from tollgate.control.api.exports import streamed
from tollgate.control.api.operations import COST, SEARCH_COST
from tollgate.control.api.rates import Shares
from tollgate.control.console import render, session
from tollgate.control.console.frame import open_frame
from tollgate.control.console.logs import given_of, line_of, query_of
from tollgate.control.console.paths import HttpRequest, Part, Plane, shown
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import Busy, Problem
from tollgate.core.logs import LogFilter
from tollgate.store.base import StoreUnavailable

TICK_SECONDS = 1.0
# Entries that a feed keeps, and shows per second.
MAX_LINES = 50
# Entries that a feed reads per second: of more, the newest.
MAX_LOOKED = 200
MAX_TAILS = 300
# The share of free slots that one account, and one client address, may take: 20 and 75 of an empty hub, fewer the
# more are taken. If none is free, the oldest tail is closed for a client without one. So no client can take all
# slots, however many accounts it has.
ACCOUNT_PART, ADDRESS_PART = 14, 3
# Tails that are being closed for others at the same time: each takes a moment to end.
MAX_LEAVING = 50
# How often the session and its permission to read the team's logs are checked again.
CHECK_TICKS = 10
# A browser opens the tail again by itself.
LIFE_SECONDS = 600.0
MAX_DIGITS = 18
_BEAT = b": still here\n\n"


class TailFeed:
    """New entries of a team that match, for all tails with these filters."""

    def __init__(self, plane: ControlPlane, team: str, wanted: LogFilter, clock: Callable[[], float]) -> None:
        self._plane = plane
        self._team = team
        self._wanted = wanted
        self._clock = clock
        self._looked_at = float("-inf")
        self._looking = asyncio.Lock()
        self._lines: deque[tuple[int, str]] = deque(maxlen=MAX_LINES)
        self._left_out = 0
        """The newest entry that is known to have been omitted."""
        self.position = -1
        """The newest entry that was read; -1 before the first query."""
        self.tails = 0

    async def look(self, seen: int | None = None) -> None:
        """Query new entries, unless this was done just now; `seen`: the newest that the first tail has."""
        async with self._looking:
            if self._clock() - self._looked_at < TICK_SECONDS * 0.9:
                return
            logs = self._plane.logs
            newest = await logs.newest(self._wanted)
            if self.position < 0:
                self.position = newest if seen is None else min(seen, newest)
            if newest - self.position > MAX_LOOKED:
                self.position = self._left_out = newest - MAX_LOOKED
            if newest > self.position:
                entries, self.position = await logs.fresh(self._wanted, self.position, MAX_LOOKED)
                if len(entries) > MAX_LINES:
                    self._left_out = entries[-MAX_LINES - 1].seq
                for entry in entries[-MAX_LINES:]:
                    line = line_of(self._plane, entry)
                    self._lines.append((entry.seq, render.html("log_line.html", line=line, team=self._team)))
            self._looked_at = self._clock()

    def above(self, number: int) -> bytes:
        """The event for a tail that has seen everything up to an entry."""
        fresh = [markup for seq, markup in reversed(self._lines) if seq > number]
        if not fresh:
            return _BEAT
        data = msgspec.json.encode({"lines": fresh, "more": self._left_out > number})
        return b"id: %d\ndata: %b\n\n" % (self.position, data)


class Tail:
    """One reader of a feed."""

    def __init__(self, feed: TailFeed) -> None:
        self.feed = feed
        self.is_over = False
        """Whether it is being closed for another one."""


class Hub:
    """The feeds of a process."""

    def __init__(self, plane: ControlPlane, clock: Callable[[], float] = time.monotonic) -> None:
        self._plane = plane
        self._clock = clock
        self._feeds: dict[tuple[str, bytes], TailFeed] = {}
        self._places = Shares(MAX_TAILS, ACCOUNT_PART, ADDRESS_PART)
        self._tails: dict[Tail, None] = {}
        """Open tails that are not being closed, oldest first."""

    @property
    def tails(self) -> int:
        """The number of open tails."""
        return self._places.taken

    def check(self, account: str, address: str) -> None:
        """Refuse a tail of an account and a client address with `Busy` if there are too many."""
        self._places.check_share(account, address)
        if self.tails - len(self._tails) >= MAX_LEAVING:
            raise Busy("Too many live views are open: try again in a moment.")

    @contextmanager
    def joined(self, team: str, wanted: LogFilter, account: str, address: str) -> Iterator[Tail]:
        """A tail and its feed, which ends with its last tail; `Busy` if there are too many."""
        self.check(account, address)
        if not self._places.free:
            oldest = next(iter(self._tails))
            oldest.is_over = True
            del self._tails[oldest]
        key = team, msgspec.msgpack.encode(wanted)
        feed = self._feeds.setdefault(key, TailFeed(self._plane, team, wanted, self._clock))
        feed.tails += 1
        tail = Tail(feed)
        self._tails[tail] = None
        try:
            with self._places.taking(account, address):
                yield tail
        finally:
            self._tails.pop(tail, None)
            feed.tails -= 1
            if not feed.tails:
                del self._feeds[key]


_hubs: WeakKeyDictionary[ControlPlane, Hub] = WeakKeyDictionary()


@shown("/teams/{team:str}/logs/tail", opt={COST: SEARCH_COST})
async def tail(request: HttpRequest, plane: Plane, team: Part) -> Response[Any]:
    """New entries that match the filters, as they arrive."""
    frame = await open_frame(request, plane, team)
    # Without the right to read them the answer is a refusal, not an empty stream.
    found, wanted = await plane.logs.wanted(frame.actor, team, query_of(given_of(request)))
    hub = _hubs.setdefault(plane, Hub(plane))
    who = frame.actor.id, client(request).address
    hub.check(*who)
    events = _events(hub, found.name, wanted, request, plane, who)
    return streamed(events, "text/event-stream", {"X-Accel-Buffering": "no"})


async def _events(
    hub: Hub, team: str, wanted: LogFilter, request: HttpRequest, plane: ControlPlane, who: tuple[str, str]
) -> AsyncGenerator[bytes]:
    try:
        with hub.joined(team, wanted, *who) as joined:
            feed, before = joined.feed, _last_seen(request)
            await feed.look(before)
            seen, ends = feed.position, time.monotonic() + LIFE_SECONDS
            yield b"retry: 1000\nid: %d\nevent: ready\ndata: {}\n\n" % seen
            if before is not None:
                yield feed.above(before)
            while time.monotonic() < ends and await _sees(request, plane, team) == wanted:
                for _ in range(CHECK_TICKS):
                    await asyncio.sleep(TICK_SECONDS)
                    if joined.is_over:
                        return  # the browser reconnects, and continues where it was
                    await feed.look()
                    yield feed.above(seen)
                    seen = feed.position
    except (StoreUnavailable, Problem):
        return  # the browser reconnects, and gets the reason


def _last_seen(request: HttpRequest) -> int | None:
    """The newest entry that a reconnecting browser has."""
    given = request.headers.get("last-event-id", "")
    return int(given) if given.isascii() and given.isdigit() and len(given) <= MAX_DIGITS else None


async def _sees(request: HttpRequest, plane: ControlPlane, team: str) -> LogFilter | None:
    """The current filter of a tail: other tokens after a rotation, none for a former member."""
    actor = await session.actor_of(request, plane)
    if actor is None:
        return None
    return (await plane.logs.wanted(actor, team, query_of(given_of(request))))[1]
