"""The directory in memory: token digest or Origin host -> Caller.

Filled on a miss by one indexed read, bounded, least recently used first out. The store has a revision that
every change of a grant raises; `refresh` reads it several times a second and drops what changed. While the
store cannot be reached, known callers are served for a bounded time.

A look-up that overlaps a change may have read the state before it: its result is used for its own request and
not remembered, or a deleted token could live on.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from tollgate import log
from tollgate.core import origins
from tollgate.core.models import Grant
from tollgate.errors import Overloaded
from tollgate.gateway.access.caller import Caller
from tollgate.settings import model
from tollgate.shm import metrics
from tollgate.store.base import Changes, Directory, StoreUnavailable

K = TypeVar("K")

# Concurrent lookups; of a flood of unknown tokens the rest is refused, to be retried.
MAX_LOOKUPS = 64
_log = log.get("directory")


class Recent(Generic[K]):
    """Callers by key, the least recently used dropped first; unknown keys are remembered for a while."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._known: OrderedDict[K, Caller] = OrderedDict()
        self._unknown: OrderedDict[K, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: K) -> Caller | None:
        caller = self._known.get(key)
        if caller is not None:
            self._known.move_to_end(key)
        return caller

    def is_unknown(self, key: K, now: float) -> bool:
        """Whether the store was queried a moment ago and had nothing."""
        return self._unknown.get(key, 0.0) > now

    def put(self, key: K, caller: Caller) -> None:
        self._known[key] = caller
        self._unknown.pop(key, None)
        if len(self._known) > self._max_entries:
            self._known.popitem(last=False)

    def put_unknown(self, key: K, until: float) -> None:
        """Remember that there is nothing under this key."""
        self._unknown[key] = until
        if len(self._unknown) > self._max_entries:
            self._unknown.popitem(last=False)

    def drop(self, key: K) -> None:
        self._known.pop(key, None)
        self._unknown.pop(key, None)

    def drop_where(self, doomed: Callable[[K, Caller | None], bool]) -> None:
        for key in [key for key, caller in self._known.items() if doomed(key, caller)]:
            del self._known[key]
        for key in [key for key in self._unknown if doomed(key, None)]:
            del self._unknown[key]

    def renew(self, renewed: Callable[[Caller], Caller]) -> None:
        """Put another in the place of each that is known."""
        for key, caller in self._known.items():
            self._known[key] = renewed(caller)

    def clear(self) -> None:
        self._known.clear()
        self._unknown.clear()


class CallerDirectory:
    """One worker's copy."""

    def __init__(
        self,
        store: Directory,
        settings: model.Settings,
        writer: metrics.Writer,
        now: Callable[[], float],
    ) -> None:
        self._store = store
        self._settings = settings.directory
        self._limits = settings.limits
        self._now = now
        self._writer = writer
        self.tokens: Recent[bytes] = Recent(self._settings.entries)
        """Callers by the digest of their token."""
        self._hosts: Recent[str] = Recent(self._settings.entries)
        self._pending: dict[bytes | str, asyncio.Task[Caller | None]] = {}
        self._revision: int | None = None
        self._generation = 0
        self._refreshed_at = now()
        self._entries_cell = writer.cell(metrics.DIRECTORY_ENTRIES)
        self._stale_cell = writer.cell(metrics.DIRECTORY_STALE_SECONDS)
        self.changed: Callable[[], None] = lambda: None
        """Called when a caller that was found may be another now."""
        self.stale = False
        """Set when the store has been silent for longer than known grants are honoured."""

    def change(self, limits: model.LimitSettings) -> None:
        """Apply limits. No caller is dropped: to look all of them up again at once is more than is allowed."""
        self._limits = limits
        self.changed()
        self._hosts.renew(lambda caller: Caller(caller.grant, limits))

    # --- Look-ups of a request -------------------------------------------------------------------------

    def known_host(self, host: str) -> Caller | None:
        return self._hosts.get(host)

    def unknown_token(self, digest: bytes) -> bool:
        """Whether the store was queried for this token a moment ago."""
        return self.tokens.is_unknown(digest, self._now())

    def unknown_host(self, host: str) -> bool:
        return self._hosts.is_unknown(host, self._now())

    async def find_token(self, digest: bytes) -> Caller | None:
        return await self._find(self.tokens, digest, lambda: self._store.token(digest))

    async def find_host(self, host: str) -> Caller | None:
        """Query the store for the domain that covers a host."""
        return await self._find(self._hosts, host, lambda: self._store.domain(origins.candidates(host)))

    async def _find(
        self, recent: Recent[Any], key: bytes | str, fetch: Callable[[], Coroutine[Any, Any, Grant | None]]
    ) -> Caller | None:
        """Query once for all requests that wait for the same key."""
        task = self._pending.get(key)
        if task is None:
            if len(self._pending) >= MAX_LOOKUPS:
                raise Overloaded("Too many unknown callers at once: try again.")
            task = asyncio.get_running_loop().create_task(self._look_up(recent, key, fetch))
            self._pending[key] = task
            task.add_done_callback(lambda done: self._looked_up(key, done))
        try:
            return await asyncio.shield(task)
        except StoreUnavailable as error:
            self._count("failed")
            raise Overloaded("Tokens cannot be checked now: try again.") from error

    def _looked_up(self, key: bytes | str, task: asyncio.Task[Caller | None]) -> None:
        if self._pending.get(key) is task:
            del self._pending[key]

    async def _look_up(
        self, recent: Recent[Any], key: bytes | str, fetch: Callable[[], Coroutine[Any, Any, Grant | None]]
    ) -> Caller | None:
        generation = self._generation
        grant = await fetch()
        self._count("unknown" if grant is None else "found")
        caller = None if grant is None else Caller(grant, self._limits)
        if generation == self._generation:
            if caller is None:
                recent.put_unknown(key, self._now() + self._settings.unknown_seconds)
            else:
                recent.put(key, caller)
        return caller

    def _count(self, outcome: str) -> None:
        self._writer.add(self._writer.cell(metrics.DIRECTORY_LOOKUPS, outcome))

    # --- Keeping it fresh ------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Read from the store what changed, and forget that."""
        try:
            changes = await self._store.changes(self._revision)
        except StoreUnavailable as error:
            self._silent(error)
            return
        if self.stale:
            _log.info("the store is back")
        self._refreshed_at = self._now()
        self.stale = False
        if changes is not None:
            self._apply(changes)
        self._writer.set(self._stale_cell, 0)
        self._writer.set(self._entries_cell, len(self.tokens) + len(self._hosts))

    def _silent(self, error: StoreUnavailable) -> None:
        silence = self._now() - self._refreshed_at
        self._writer.set(self._stale_cell, int(silence))
        if silence > self._settings.stale_seconds and not self.stale:
            self.stale = True
            self.changed()
            _log.error("the store has been unreachable for too long; refusing calls", error=str(error))

    def _apply(self, changes: Changes) -> None:
        first = self._revision is None
        self._revision = changes.revision
        self.changed()
        self._generation += 1
        # A later request must not get what was read before.
        self._pending.clear()
        if changes.everything or first:
            self.tokens.clear()
            self._hosts.clear()
            return
        for digest in changes.tokens:
            self.tokens.drop(digest)
        names, teams = set(changes.domains), set(changes.teams)
        if names or teams:
            self._hosts.drop_where(
                lambda host, caller: (
                    (caller is not None and caller.team_id in teams)
                    or not names.isdisjoint(origins.candidates(host))
                )
            )
        if teams:
            self.tokens.drop_where(lambda _, caller: caller is not None and caller.team_id in teams)
