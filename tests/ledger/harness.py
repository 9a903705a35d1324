"""A spool folder and the ledger it is collected into, looked at from outside: files, and SQL of the test's own."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.store.stored_blocks import stored_rows

from tollgate.core.entries import CallEntry, Entry, encode
from tollgate.core.pricing import MILLION, Price
from tollgate.ledger.collector import SETTLED_SECONDS, Collector, CollectorRules
from tollgate.ledger.segments import HEADER_BYTES, MAGIC, SUFFIX, frame
from tollgate.processes.collector import billing_month
from tollgate.store import sqlite
from tollgate.store.ledger import LedgerStore, open_ledger

NOON = 1_794_744_000.0  # 2026-11-15T12:00:00Z
FREE = 3
"""Free requests of a month; each further one costs a micro-dollar."""


def entry(name: str, *outcomes: str, at: float = NOON, team: str = "team_1", **more: Any) -> Entry:
    """A request with a call for each outcome; `name` is its request id."""
    calls = tuple(CallEntry("eth_call", outcome) for outcome in outcomes or ("ok",))
    usual: dict[str, Any] = {"source_id": "tok_1", "source_name": "ci", "network": "eth/mainnet", "status": 200}
    return Entry(at=at, request_id=name.encode(), team_id=team, calls=calls, **{**usual, **more})


def identity(number: int) -> bytes:
    return number.to_bytes(16, "big")


def segment_bytes(number: int, entries: Iterable[Entry]) -> bytes:
    """A whole segment with the id of this number."""
    return MAGIC + identity(number) + b"".join(frame(encode(each)) for each in entries)


def nothing(_: str) -> None:
    pass


class Harness:
    """A spool and its ledger."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spool = folder / "spool"
        self.spool.mkdir(exist_ok=True)
        self.url = sqlite.ledger_url(folder)
        self.now = NOON
        self._stores: list[LedgerStore] = []

    def close(self) -> None:
        for store in self._stores:
            store.close()
        self._stores.clear()

    # --- The spool -----------------------------------------------------------------------------------------

    def put(self, name: str, data: bytes, *, settled: bool = True) -> Path:
        """Leave a file in the spool, written just now or so long ago that it has no writer any more."""
        path = self.spool / name
        path.write_bytes(data)
        written = self.now - (SETTLED_SECONDS if settled else 0.0)
        os.utime(path, (written, written))
        return path

    def age(self) -> None:
        """Make everything in the spool so old, by our clock, that it has no writer any more."""
        written = self.now - SETTLED_SECONDS
        for path in self.spool.iterdir():
            os.utime(path, (written, written))

    def segment(self, number: int, *entries: Entry, name: str | None = None) -> Path:
        """Leave the segment of an ended worker."""
        return self.put(name or f"{number:014d}{SUFFIX}", segment_bytes(number, entries))

    def files(self) -> list[str]:
        return sorted(path.name for path in self.spool.iterdir())

    # --- The collector -------------------------------------------------------------------------------------

    def store(self) -> LedgerStore:
        made = open_ledger(self.url)
        self._stores.append(made)
        return made

    def collector(self, fault: Callable[[str], None] = nothing) -> Collector:
        """A collector as a new process would make it."""
        price = Price(free_requests=FREE, micros_per_million=MILLION)
        rules = CollectorRules(lambda _: price, lambda _, method: method, billing_month)
        return Collector(self.spool, self.store(), rules, lambda: self.now, fault=fault)

    def collect(self, collector: Collector | None = None) -> int:
        """Collect until there is nothing new; how many rows that gave."""
        collector = collector or self.collector()
        rows = 0
        for _ in range(1_000):
            posting = collector.step()
            if posting is None:
                return rows
            rows += posting.entries
        raise AssertionError("it never ends")

    # --- The ledger ----------------------------------------------------------------------------------------

    def wait_until(self, now: float) -> None:
        """Let time pass as if the collector ran meanwhile: jumps of the clock have tests of their own."""
        self.now = now
        self.sql("UPDATE state SET seen_at = NULL, doubted_at = NULL")

    def sql(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / "ledger.db")) as connection, connection:
            return connection.execute(query, values).fetchall()

    def rows(self, columns: str = "request_id") -> list[tuple[Any, ...]]:
        """All log rows, in the order of their commit."""
        names = columns.split(", ")
        return [tuple(getattr(row, name) for name in names) for row in stored_rows(self.folder / "ledger.db")]

    def names(self) -> list[str]:
        return [name for (name,) in self.rows()]

    def marks(self) -> dict[int, tuple[int, bool]]:
        """How far each segment was read, by the number of its id, without its header; and whether that is all."""
        return {
            int.from_bytes(key, "big"): (offset - HEADER_BYTES, bool(done))
            for key, offset, done in self.sql('SELECT id, "offset", done FROM segments')
        }

    def check(self, *expected: Entry) -> None:
        """Every call has one row, and whatever is counted elsewhere is counted from just these rows."""
        wanted = Counter((each.request_id.decode(), call.outcome) for each in expected for call in each.calls)
        assert Counter(self.rows("request_id, outcome")) == wanted
        numbers: dict[str, list[int]] = {}
        for team, seq in self.rows("team_id, seq"):
            numbers.setdefault(team, []).append(seq)
        assert all(each == list(range(1, len(each) + 1)) for each in numbers.values()), "numbered without gaps"
        usage: Counter[tuple[str, ...]] = Counter()
        costs: Counter[tuple[str, ...]] = Counter()
        months: Counter[tuple[str, str]] = Counter()
        for team, month, outcome, count, cost, billable in self.rows(
            "team_id, month, outcome, stands_for, cost, billable"
        ):
            usage[team, month, outcome] += count
            costs[team, month] += cost
            months[team, month] += count if billable else 0
        used = self.sql("SELECT team_id, month, outcome, sum(requests) FROM usage_all GROUP BY 1, 2, 3")
        assert {row[:3]: row[3] for row in used} == dict(usage)
        assert {
            row[:2]: row[2] for row in self.sql("SELECT team_id, month, sum(cost) FROM usage_all GROUP BY 1, 2")
        } == {key: costs[key] for key in {row[:2] for row in usage}}
        assert {row[:2]: row[2:] for row in self.sql("SELECT team_id, month, requests, cost FROM months")} == {
            key: (requests, max(0, requests - FREE)) for key, requests in months.items() if requests
        }
        tokens = sum(row[0] for row in self.sql("SELECT requests FROM source_months_all"))
        assert tokens == sum(months.values())
