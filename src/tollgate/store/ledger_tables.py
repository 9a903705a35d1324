"""The schema of `ledger.db`: what was answered, counted and charged.

A file of its own, so that its constant writing neither holds up a change of tokens nor looks like one. Log rows
stand in one table for each day of commit, made when the day begins (`log_table`); so a day is thrown away by
dropping its table. `seq` is the order of commit and never repeats.
"""

from __future__ import annotations

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

# Where the collector stands in each segment; kept for a while after the file is gone, to know a copy of it.
segments = Table(
    "segments",
    metadata,
    Column("id", LargeBinary(16), primary_key=True),
    Column("offset", BigInteger, nullable=False),
    Column("done", Boolean, nullable=False),
    Column("updated_at", Float, nullable=False),
)

# The days that have a table of log rows, with the first row of each.
days = Table(
    "days",
    metadata,
    Column("day", String(8), primary_key=True),
    Column("first_seq", BigInteger, nullable=False),
)

# When rows were committed: `--since` begins at the first batch after its time.
batches = Table(
    "batches",
    metadata,
    Column("first_seq", BigInteger, primary_key=True),
    Column("committed_at", Float, nullable=False, index=True),
    Column("next_seq", BigInteger, nullable=False),
)

usage = Table(
    "usage",
    metadata,
    Column("team_id", String(32), primary_key=True),
    Column("month", String(7), primary_key=True),
    Column("hour", Integer, primary_key=True),
    Column("source_id", String(32), primary_key=True),
    Column("network", String(65), primary_key=True),
    Column("method", String(64), primary_key=True),
    Column("outcome", String(40), primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("cost", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

# What each team used and owes, by billing month. `requests` are the billable ones.
months = Table(
    "months",
    metadata,
    Column("team_id", String(32), primary_key=True),
    Column("month", String(7), primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("cost", BigInteger, nullable=False),
    Index("ix_months_month", "month"),
)

# Billing months that are closed: what comes late is billed in the open one.
closed_months = Table(
    "closed_months",
    metadata,
    Column("month", String(7), primary_key=True),
    Column("closed_at", Float, nullable=False),
)

token_months = Table(
    "token_months",
    metadata,
    Column("token_id", String(32), primary_key=True),
    Column("month", String(7), primary_key=True),
    Column("requests", BigInteger, nullable=False),
)

LOG_COLUMNS = (
    "seq", "at", "request_id", "team_id", "source_id", "source_name", "address", "agent", "origin", "network",
    "method", "status", "outcome", "code", "request_bytes", "response_bytes", "duration_micros", "upstream",
    "attempts", "cache", "billable", "cost", "month", "stands_for",
)  # fmt: skip


def log_table(day: str) -> Table:
    """The log rows that were committed on a day, `20261115`."""
    name = f"log_{day}"
    if name in metadata.tables:
        return metadata.tables[name]
    return Table(
        name,
        MetaData(),
        Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
        Column("at", Float, nullable=False),
        Column("request_id", String(128), nullable=False),
        Column("team_id", String(32), nullable=False),
        Column("source_id", String(32), nullable=False),
        Column("source_name", String(253), nullable=False),
        Column("address", String(45), nullable=False),
        Column("agent", String(256), nullable=False),
        Column("origin", String(256), nullable=False),
        Column("network", String(65), nullable=False),
        Column("method", String(64), nullable=False),
        Column("status", Integer, nullable=False),
        Column("outcome", String(40), nullable=False),
        Column("code", BigInteger),
        Column("request_bytes", BigInteger, nullable=False),
        Column("response_bytes", BigInteger, nullable=False),
        Column("duration_micros", BigInteger, nullable=False),
        Column("upstream", String(64), nullable=False),
        Column("attempts", Integer, nullable=False),
        Column("cache", String(9), nullable=False),
        Column("billable", Boolean, nullable=False),
        Column("cost", BigInteger, nullable=False),
        Column("month", String(7), nullable=False),
        Column("stands_for", Integer, nullable=False),
        Index(f"ix_{name}_team", "team_id", "seq"),
        Index(f"ix_{name}_source", "source_id", "seq"),
    )


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
