"""The schema of the ledger: what was answered, counted and charged.

A database file of its own, so that its constant writing neither delays a change of tokens nor looks like one. Log
records are in blocks, in two tables for each day of commit that are created when the day begins: small headers,
and the compressed data that they point to. Blocks with few entries share their data (`store/ledger_blocks.py`).
Records of teams with few entries wait in one table for all teams, until they are sorted into those.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
)

metadata = MetaData()

# The level of blocks that are not joined any more.
FINAL = 9

# The read offset of each segment; kept for a while after the file is deleted, to recognise a copy of it.
segments = Table(
    "segments",
    metadata,
    Column("id", LargeBinary(16), primary_key=True),
    Column("offset", BigInteger, nullable=False),
    Column("done", Boolean, nullable=False),
    Column("updated_at", Float, nullable=False),
)

# The days that have tables of blocks.
days = Table("days", metadata, Column("day", String(8), primary_key=True))

# The number of each team's next log entry.
teams = Table(
    "teams",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("next_no", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

# Shared blocks (`core/shared_blocks.py`) of the last commits, in their order. `commit_no` is the same for those of
# one commit; `is_damaged` are left where they are.
shared_blocks = Table(
    "shared_blocks",
    metadata,
    Column("id", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True),
    Column("day", String(8), nullable=False),
    Column("commit_no", BigInteger, nullable=False),
    Column("is_damaged", Boolean, nullable=False),
    Column("rows", Integer, nullable=False),
    Column("records", Integer, nullable=False),
    Column("errors", Integer, nullable=False),
    Column("least_at", Float, nullable=False),
    Column("greatest_at", Float, nullable=False),
    Column("committed_at", Float, nullable=False),
    Column("parts", LargeBinary, nullable=False),
    Column("data", LargeBinary, nullable=False),
)

# One row: when the last batch was committed, what the ledger knows of time (`core/clock.py`), and the day before
# which logs were dropped.
state = Table(
    "state",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("committed_at", Float),
    Column("seen_at", Float),
    Column("doubted_at", Float),
    Column("dropped_before", String(8)),
)


def _usage_columns(*, keys: bool) -> list[Column[Any]]:
    names = {"team_id": 32, "month": 7, "source_id": 32, "network": 65, "method": 64, "outcome": 40}
    columns: list[Column[Any]] = [
        Column(name, String(size), primary_key=keys, nullable=False) for name, size in names.items()
    ]
    columns.insert(2, Column("hour", Integer, primary_key=keys, nullable=False))
    return [
        *columns,
        Column("requests", BigInteger, nullable=False),
        Column("cost", BigInteger, nullable=False),
    ]


# What was used. Each commit appends a row for each hour to `usage_new`, whose `lines` are a JSON object: team ->
# array of ((source, network, method, outcome), requests, cost). A row for each would cost three times as much. A
# chore adds that up into `usage`; the view `usage_all` shows both.
usage = Table("usage", metadata, *_usage_columns(keys=True), sqlite_with_rowid=False)
usage_new = Table(
    "usage_new",
    metadata,
    Column("month", String(7), nullable=False),
    Column("hour", Integer, nullable=False),
    Column("lines", String, nullable=False),
)
usage_all = Table("usage_all", MetaData(), *_usage_columns(keys=False))


# How long calls took (`core/latencies.py`), appended and added up like usage; kept as long as logs. What is
# appended is in MessagePack: team -> array of (network, outcome, buckets).
latencies = Table(
    "latencies",
    metadata,
    Column("team_id", String(32), primary_key=True),
    Column("hour", Integer, primary_key=True),
    Column("network", String(65), primary_key=True),
    Column("outcome", String(40), primary_key=True),
    Column("buckets", LargeBinary, nullable=False),
    Index("ix_latencies_hour", "hour"),
    sqlite_with_rowid=False,
)
latencies_new = Table(
    "latencies_new",
    metadata,
    Column("hour", Integer, nullable=False),
    Column("lines", LargeBinary, nullable=False),
)

# What each team used and owes, by billing month. `requests` are the billable ones, `free` those of them that were
# free; `uncapped` is what they cost before any cap.
months = Table(
    "months",
    metadata,
    Column("team_id", String(32), primary_key=True),
    Column("month", String(7), primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("cost", BigInteger, nullable=False),
    Column("uncapped", BigInteger, nullable=False),
    Column("free", BigInteger, nullable=False),
    Index("ix_months_month", "month"),
    sqlite_with_rowid=False,
)

# Calls under a spending cap that nodes have leased, until when: where several nodes share the ledger.
call_leases = Table(
    "call_leases",
    metadata,
    Column("team_id", String(32), primary_key=True),
    Column("node", String(32), primary_key=True),
    Column("calls", BigInteger, nullable=False),
    Column("until", Float, nullable=False),
    sqlite_with_rowid=False,
)

# How many free requests all teams of a payer have had in a billing month, deleted ones included.
payer_months = Table(
    "payer_months",
    metadata,
    Column("payer", String(32), primary_key=True),
    Column("month", String(7), primary_key=True),
    Column("free", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

# Billing months that are closed: what comes late is billed in the open one.
closed_months = Table(
    "closed_months",
    metadata,
    Column("month", String(7), primary_key=True),
    Column("closed_at", Float, nullable=False),
)

# Billable requests of tokens and domains, of usage that is folded; the view `source_months_all` has all of it.
source_months = Table(
    "source_months",
    metadata,
    Column("source_id", String(32), primary_key=True),
    Column("month", String(7), primary_key=True),
    Column("requests", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
source_months_all = Table(
    "source_months_all",
    MetaData(),
    Column("source_id", String(32)),
    Column("month", String(7)),
    Column("requests", BigInteger),
)


class BlockHeader(NamedTuple):
    """A row of a day's table of blocks. Its data is `size` bytes from `start` on, of the row `data_id`."""

    team_id: str
    first_no: int
    rows: int
    records: int
    errors: int
    level: int
    generation: int
    least_at: float
    greatest_at: float
    committed_at: float
    facts: bytes
    data_id: int
    start: int
    size: int


# Final invoices: triggers of the migration refuse to change them, and usage of months that are closed.
# `document` is the whole of it; the columns beside are for checks and lists.
invoices = Table(
    "invoices",
    metadata,
    Column("team_id", String(32), primary_key=True),
    Column("month", String(7), primary_key=True),
    Column("number", String(64), nullable=False, unique=True),
    Column("issued_at", Float, nullable=False),
    Column("billable", BigInteger, nullable=False),
    Column("cost", BigInteger, nullable=False),
    Column("total_cents", BigInteger, nullable=False),
    Column("document", String, nullable=False),
    Index("ix_invoices_month", "month", "team_id"),
)
