"""Reading a team's request logs: newest first, page by page, or forward from the newest as entries arrive.

The first page fixes the newest entry and the absolute start of `since`. The cursor carries both and the filters it
is valid for. Ids and cursors are sealed for their team, so that none can be forged.
"""

from __future__ import annotations

import hashlib
import re
import struct
from typing import ClassVar

import msgspec
from msgspec import Struct

from tollgate.api.logs import LogQuery
from tollgate.control.commands import checked
from tollgate.control.problems import InvalidInput, NotFound
from tollgate.control.service_context import Actor, Membership, ServiceContext, required, seconds_of
from tollgate.control.services.tokens import token_ids
from tollgate.core import origins
from tollgate.core.logs import LogEntry, LogFilter, LogSlice, without_names
from tollgate.core.models import Team
from tollgate.core.roles import Action
from tollgate.core.sealed import BrokenSeal, Seal
from tollgate.store.base import LogBook, Repositories

_DOMAIN_ID = re.compile(r"dom_[0-9A-Za-z]{16}")
_NEVER = float("-inf")
# Scans of one request for filters that match few rows. The store bounds each in time: together about a second.
MAX_LOOKS = 80


class LogResults(Struct, frozen=True):
    """A page of a team's logs. `next` leads to older entries, `newer` to those that arrived since."""

    team: Team
    rows: list[LogEntry]
    next: str | None
    newer: str


class LogPosition(Struct, frozen=True):
    """The position of a reader: what a cursor carries."""

    SIZE: ClassVar[int] = 47
    VERSION: ClassVar[int] = 1
    _FORM: ClassVar[struct.Struct] = struct.Struct(">BxxQQdQ12s")

    position: int
    newest: int
    """The newest entry at the first page."""
    start: float
    """The earliest time of entries, as fixed by the first page."""
    since: int
    """The duration that the start was computed from, in seconds."""
    filters: bytes
    """What identifies the filters."""

    def packed(self) -> bytes:
        return self._FORM.pack(self.VERSION, self.position, self.newest, self.start, self.since, self.filters)

    @classmethod
    def unpacked(cls, content: bytes) -> LogPosition:
        """The inverse of `packed`; raises `OtherVersion` if another version of Tollgate packed it."""
        version, *values = cls._FORM.unpack(content)
        if version != cls.VERSION:
            raise OtherVersion
        return cls(*values)


class OtherVersion(ValueError):
    """A cursor of another version of the format."""


class Cursors:
    """Cursors and ids, sealed for a team."""

    def __init__(self, pepper: bytes) -> None:
        self._entry = Seal(pepper, "ent_", 8)
        prefixes = {"after": "old_", "newer": "new_"}
        self._kinds = {kind: Seal(pepper, prefix, LogPosition.SIZE) for kind, prefix in prefixes.items()}

    def id_of(self, entry: LogEntry) -> str:
        """The id of an entry: stable, and useless to other teams."""
        return self._entry.close(entry.team_id, entry.seq.to_bytes(8, "big"))

    def place_of(self, team_id: str, entry_id: str) -> int:
        try:
            return int.from_bytes(self._entry.open(team_id, entry_id), "big")
        except BrokenSeal:
            raise _gone(entry_id) from None

    def write(self, kind: str, team_id: str, place: LogPosition) -> str:
        """The cursor of a position, to read `after` it or what is `newer`."""
        return self._kinds[kind].close(team_id, place.packed())

    def read(self, kind: str, team_id: str, cursor: str, filters: bytes) -> LogPosition:
        """The position of a cursor; refuse one that is not valid here."""
        member = "next" if kind == "after" else "newer"
        try:
            place = LogPosition.unpacked(self._kinds[kind].open(team_id, cursor))
        except OtherVersion:
            raise InvalidInput(
                "The cursor was made by another version of Tollgate. Start again without one.", field=kind
            ) from None
        except BrokenSeal:
            raise InvalidInput(
                f"The cursor is not one of this team's logs. Give the `{member}` of an earlier page of the same "
                "list, or none to start.",
                field=kind,
            ) from None
        if place.filters != filters:
            raise InvalidInput(
                "The cursor belongs to a list with other filters. Give those of the page that it came from, or "
                "none to start.",
                field=kind,
            )
        return place


class LogService:
    """A team's request logs."""

    def __init__(self, context: ServiceContext, book: LogBook | None, pepper: bytes) -> None:
        self._context = context
        self._book = book
        self.cursors = Cursors(pepper)

    async def page(self, actor: Actor, team: str, query: LogQuery) -> LogResults:
        """A page of a team's logs: newest first, or, with `newer`, oldest first."""
        found, wanted = await self.wanted(actor, team, query)
        if query.newer is not None and query.after is not None:
            raise InvalidInput(
                "`after` reads older entries and `newer` newer ones: give one of the two.", field="newer"
            )
        book = required(self._book)
        if query.newer is not None:
            part = await self._newer(book, found, query, query.newer, wanted)
        else:
            part = await self._older(book, found, query, wanted)
        return msgspec.structs.replace(part, rows=self._shown(part.rows, actor))

    async def wanted(self, actor: Actor, team: str, query: LogQuery) -> tuple[Team, LogFilter]:
        """The team and the filter that a query means; raises where these logs may not be read."""
        async with self._context.reading(actor, team, Action.SEE_LOGS) as (records, membership):
            query = checked(query)
            # The first token of the lineage, whichever was given: a cursor outlives a rotation.
            source_id, *lineage = await _sources(records, membership, query) or (None,)
        return membership.team, LogFilter(
            membership.team.id,
            source_id,
            network=query.network,
            method=query.method,
            status=query.status,
            errors=query.errors,
            request_id=query.request_id,
            until=None if query.until is None else query.until.timestamp(),
            lineage=tuple(lineage),
        )

    async def newest(self, wanted: LogFilter) -> int:
        """The number of a team's newest entry, whether it matches or not."""
        return await required(self._book).newest(wanted.team_id)

    async def fresh(self, wanted: LogFilter, above: int, limit: int) -> tuple[list[LogEntry], int]:
        """Matching entries above a number, oldest first, and the number of the last entry that was read."""
        rows, position = await required(self._book).newer(wanted, above, limit)
        return self._shown(rows), position

    async def entry(self, actor: Actor, team: str, entry_id: str) -> tuple[Team, LogEntry]:
        membership = await self._context.member(actor, team, Action.SEE_LOGS)
        place = self.cursors.place_of(membership.team.id, entry_id)
        found = await required(self._book).older(LogFilter(membership.team.id), place + 1, 1)
        if not found.entries or found.entries[0].seq != place:
            raise _gone(entry_id)
        return membership.team, self._shown(found.entries, actor)[0]

    def _shown(self, rows: list[LogEntry], actor: Actor | None = None) -> list[LogEntry]:
        """Rows with the names of upstreams, where these are for the actor; None: any member of the team."""
        if self._context.settings.ledger.show_upstreams or (actor is not None and actor.is_operator):
            return rows
        return [without_names(row) for row in rows]

    async def _older(self, book: LogBook, team: Team, query: LogQuery, wanted: LogFilter) -> LogResults:
        identity = filters_of(wanted)
        if query.after is None:
            newest = await book.newest(team.id)
            place = self._since(LogPosition(newest + 1, newest, _NEVER, 0, identity), query)
        else:
            place = self._since(self.cursors.read("after", team.id, query.after, identity), query)
        found = await _looked(book, _from(wanted, place), place.position, query.limit)
        following = None
        if found.position is not None:
            following = self.cursors.write("after", team.id, _at(place, found.position))
        newer = self.cursors.write("newer", team.id, _at(place, place.newest))
        return LogResults(team, found.entries, following, newer)

    async def _newer(
        self, book: LogBook, team: Team, query: LogQuery, cursor: str, wanted: LogFilter
    ) -> LogResults:
        place = self._since(self.cursors.read("newer", team.id, cursor, filters_of(wanted)), query)
        rows, position = await book.newer(_from(wanted, place), place.position, query.limit)
        return LogResults(team, rows, None, self.cursors.write("newer", team.id, _at(place, position)))

    def _since(self, place: LogPosition, query: LogQuery) -> LogPosition:
        """The position, with the start of a `since` that its list did not have at first."""
        since = seconds_of(query.since)
        if since is None or (place.start != _NEVER and place.since == since):
            return place
        return msgspec.structs.replace(place, start=self._context.now() - since, since=since)


async def _looked(book: LogBook, wanted: LogFilter, below: int, limit: int) -> LogSlice:
    """Scan again if few rows matched, as often as one request may."""
    rows: list[LogEntry] = []
    for _ in range(MAX_LOOKS):
        found = await book.older(wanted, below, limit - len(rows))
        rows += found.entries
        # While old rows are converted, the end may be the current position.
        if found.position in (None, below) or len(rows) == limit:
            return LogSlice(rows, found.position)
        below = found.position
    return LogSlice(rows, below)


def _gone(entry_id: str) -> NotFound:
    return NotFound(f"There is no entry {entry_id[:60]}: it may be older than the retention, or another team's.")


def _from(wanted: LogFilter, place: LogPosition) -> LogFilter:
    return wanted if place.start == _NEVER else msgspec.structs.replace(wanted, since=place.start)


def _at(place: LogPosition, position: int) -> LogPosition:
    return msgspec.structs.replace(place, position=position)


def filters_of(wanted: LogFilter) -> bytes:
    """What identifies filters in a cursor; it does not change when a token is rotated."""
    filters = msgspec.structs.asdict(wanted)
    del filters["lineage"]
    return hashlib.sha256(msgspec.json.encode(filters)).digest()[:12]


async def _sources(records: Repositories, membership: Membership, query: LogQuery) -> tuple[str, ...]:
    """The ids of the given token or domain. An id needs no lookup: deleted ones have logs too."""
    if query.token is not None and query.domain is not None:
        raise InvalidInput("An entry has a token or a domain: give one of the two.", field="domain")
    if query.token is not None:
        return await token_ids(records, membership.team, query.token)
    if query.domain is None or _DOMAIN_ID.fullmatch(query.domain):
        return () if query.domain is None else (query.domain,)
    name = origins.normal_host(query.domain[:300])
    domain = await records.domains.find(team_id=membership.team.id, domain=name) if name else None
    if domain is None:
        raise NotFound(
            f"The team {membership.team.name} has no whitelisted domain {query.domain[:60]!r}: list them with "
            f"`tollgate rpc whitelist list --team {membership.team.name}`, or give the id of a deleted one."
        )
    return (domain.id,)
