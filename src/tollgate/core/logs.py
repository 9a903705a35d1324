"""Request logs as values: an entry, what is wanted of them, a slice; a text as a cell of CSV. Pure."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tollgate.core.entries import AttemptEntry

# What spreadsheets take for the beginning of a formula, in full width also (OWASP, CSV injection): where a cell
# begins, and behind a semicolon, a tab or a line end, which begin a cell in countries that write `1,5`.
_FORMULA = re.compile("(?:^|(?<=[;\t\r\n]))(?=[ \"']*[=+\\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n])")

T = TypeVar("T")


def csv_cell(value: T) -> T | str:
    """A cell of a CSV file, escaped against formula injection; numbers are ours, and may be negative."""
    return _FORMULA.sub("'", value) if isinstance(value, str) else value


class LogEntry(Struct, frozen=True, gc=False):
    """One call of a team, as the ledger keeps it."""

    seq: int
    """Its number among the entries of its team, in the order of commit."""
    at: float
    request_id: str
    team_id: str
    source_id: str
    source_name: str
    address: str
    agent: str
    origin: str
    network: str
    method: str
    status: int
    outcome: str
    code: int | None
    request_bytes: int
    response_bytes: int
    duration_micros: int
    upstream: str
    attempts: tuple[AttemptEntry, ...]
    """In the order of their start."""
    cache: str
    billable: bool
    cost: int
    month: str
    stands_for: int


def without_names(entry: LogEntry) -> LogEntry:
    """Name its upstreams `upstream 1`, `upstream 2`, in the order in which they were called first."""
    names = dict.fromkeys([*(attempt.upstream for attempt in entry.attempts), entry.upstream])
    names.pop("", None)
    numbers = {name: f"upstream {number}" for number, name in enumerate(names, 1)}
    attempts = tuple(replace(each, upstream=numbers.get(each.upstream, "")) for each in entry.attempts)
    return replace(entry, upstream=numbers.get(entry.upstream, ""), attempts=attempts)


class LogFilter(Struct, frozen=True, dict=True):
    """Which entries are wanted."""

    team_id: str
    source_id: str | None = None
    since: float | None = None
    """The least time of an entry itself, however late it was committed."""
    network: str | None = None
    method: str | None = None
    status: int | None = None
    errors: bool = False
    request_id: str | None = None
    until: float | None = None
    """The first time that is too late."""
    lineage: tuple[str, ...] = ()
    """Sources whose entries count as those of `source_id`: tokens that it replaced, or that replaced it."""

    def fits(self, entry: LogEntry) -> bool:
        return (
            (self.source_id is None or entry.source_id == self.source_id or entry.source_id in self.lineage)
            and (self.since is None or entry.at >= self.since)
            and (self.until is None or entry.at < self.until)
            and (self.network is None or entry.network == self.network)
            and (self.method is None or entry.method == self.method)
            and (self.status is None or entry.status == self.status)
            and (not self.errors or entry.outcome != "ok")
            and (self.request_id is None or entry.request_id == self.request_id)
        )

    @cached_property
    def is_plain(self) -> bool:
        """Whether every entry of the team fits."""
        return self == LogFilter(self.team_id)

    @cached_property
    def words(self) -> tuple[bytes, ...]:
        """What the facts of a block have in them, encoded, where an entry of it fits."""
        named = (None if self.lineage else self.source_id, self.network, self.method, self.status)
        return tuple(msgspec.msgpack.encode(each) for each in named if each is not None)

    @cached_property
    def sources(self) -> tuple[bytes, ...]:
        """The sources whose entries fit, encoded; none where all do."""
        return tuple(msgspec.msgpack.encode(each) for each in (self.source_id, *self.lineage) if each is not None)


class LogSlice(Struct, frozen=True):
    """Some entries, and the entry below which the next page starts; None on the last page."""

    entries: list[LogEntry]
    position: int | None
