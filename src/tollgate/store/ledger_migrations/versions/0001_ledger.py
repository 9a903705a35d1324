"""The ledger: read offsets, days, usage, months, invoices."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        return  # see 0004
    _create_reading()
    _create_counting()
    _create_invoices()
    for name, what, when, words in _triggers():
        op.execute(f"CREATE TRIGGER {name} BEFORE {what} {when} BEGIN SELECT RAISE(ABORT, '{words}'); END")


def _create_reading() -> None:
    op.create_table(
        "segments",
        sa.Column("id", sa.LargeBinary(16), nullable=False),
        sa.Column("offset", sa.BigInteger, nullable=False),
        sa.Column("done", sa.Boolean, nullable=False),
        sa.Column("updated_at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "days",
        sa.Column("day", sa.String(8), nullable=False),
        sa.Column("first_seq", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("day"),
    )
    op.create_table(
        "batches",
        sa.Column("first_seq", sa.BigInteger, nullable=False),
        sa.Column("committed_at", sa.Float, nullable=False),
        sa.Column("next_seq", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("first_seq"),
    )
    op.create_index("ix_batches_committed_at", "batches", ["committed_at"])


def _create_counting() -> None:
    keys = ("team_id", "month", "hour", "source_id", "network", "method", "outcome")
    op.create_table(
        "usage",
        sa.Column("team_id", sa.String(32), nullable=False),
        sa.Column("month", sa.String(7), nullable=False),
        sa.Column("hour", sa.Integer, nullable=False),
        sa.Column("source_id", sa.String(32), nullable=False),
        sa.Column("network", sa.String(65), nullable=False),
        sa.Column("method", sa.String(64), nullable=False),
        sa.Column("outcome", sa.String(40), nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("cost", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint(*keys),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "months",
        sa.Column("team_id", sa.String(32), nullable=False),
        sa.Column("month", sa.String(7), nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("cost", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("team_id", "month"),
    )
    op.create_index("ix_months_month", "months", ["month"])
    op.create_table(
        "token_months",
        sa.Column("token_id", sa.String(32), nullable=False),
        sa.Column("month", sa.String(7), nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("token_id", "month"),
    )


def _create_invoices() -> None:
    op.create_table(
        "closed_months",
        sa.Column("month", sa.String(7), nullable=False),
        sa.Column("closed_at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("month"),
    )
    op.create_table(
        "invoices",
        sa.Column("team_id", sa.String(32), nullable=False),
        sa.Column("month", sa.String(7), nullable=False),
        sa.Column("number", sa.String(64), nullable=False),
        sa.Column("issued_at", sa.Float, nullable=False),
        sa.Column("billable", sa.BigInteger, nullable=False),
        sa.Column("cost", sa.BigInteger, nullable=False),
        sa.Column("total_cents", sa.BigInteger, nullable=False),
        sa.Column("document", sa.String, nullable=False),
        sa.PrimaryKeyConstraint("team_id", "month"),
        sa.UniqueConstraint("number"),
    )
    op.create_index("ix_invoices_month", "invoices", ["month", "team_id"])


def _triggers() -> list[tuple[str, str, str, str]]:
    """The database itself refuses: no way of writing, and no race with another process, gets past it.

    A collector that looked at the closed months before one more was closed: its commit fails whole, and it looks
    again. An upsert is an INSERT to a trigger.
    """
    closed = "WHEN EXISTS (SELECT 1 FROM closed_months WHERE month = {row}.month)"
    found = []
    for table in ("usage", "months"):
        for what, row in (("INSERT", "NEW"), ("UPDATE", "OLD"), ("DELETE", "OLD")):
            name = f"{table}_{what.lower()}_closed"
            found.append((name, f"{what} ON {table}", closed.format(row=row), "the month is closed"))
    for table in ("closed_months", "invoices"):
        found += [
            (f"{table}_{what.lower()}_closed", f"{what} ON {table}", "", "what is final stays as it is")
            for what in ("UPDATE", "DELETE")
        ]
    return found


def downgrade() -> None:
    for table in ("invoices", "closed_months", "token_months", "months", "usage", "batches", "days", "segments"):
        op.drop_table(table)
