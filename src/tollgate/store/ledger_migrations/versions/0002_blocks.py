"""Log records in blocks, rows numbered for each team, usage appended.

Rows of the first version stay where they are; the collector converts them in the background, the newest first
(`store/ledger_rows.py`). Each team's new rows are numbered from above all old ones, so that those can be numbered
downwards from there.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        return  # see 0004
    _create_state()
    _create_appended()
    _number_teams()
    op.drop_table("batches")
    op.drop_table("days")
    op.create_table("days", sa.Column("day", sa.String(8), nullable=False), sa.PrimaryKeyConstraint("day"))
    # What is appended is refused for a closed month, as what is added up.
    op.execute(
        "CREATE TRIGGER usage_new_insert_closed BEFORE INSERT ON usage_new "
        "WHEN EXISTS (SELECT 1 FROM closed_months WHERE month = NEW.month) "
        "BEGIN SELECT RAISE(ABORT, 'the month is closed'); END"
    )


def _create_state() -> None:
    op.create_table(
        "teams",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("next_no", sa.BigInteger, nullable=False),
        sa.Column("oldest_no", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "state",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("committed_at", sa.Float),
        sa.Column("seen_at", sa.Float),
        sa.Column("doubted_at", sa.Float),
        sa.Column("dropped_before", sa.String(8)),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "row_days",
        sa.Column("day", sa.String(8), nullable=False),
        sa.Column("below_seq", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("day"),
    )


def _create_appended() -> None:
    op.create_table(
        "usage_new",
        sa.Column("team_id", sa.String(32), nullable=False),
        sa.Column("month", sa.String(7), nullable=False),
        sa.Column("hour", sa.Integer, nullable=False),
        sa.Column("lines", sa.String, nullable=False),
    )
    names = ("source_id", "network", "method", "outcome", "requests", "cost")
    values = ", ".join(f"json_extract(value, '$[{place}]') AS {name}" for place, name in enumerate(names))
    op.execute(
        f"CREATE VIEW usage_lines AS SELECT team_id, month, hour, {values} FROM usage_new, json_each(lines)"
    )
    listed = ", ".join(("team_id", "month", "hour", *names))
    op.execute(f"CREATE VIEW usage_all AS SELECT {listed} FROM usage UNION ALL SELECT {listed} FROM usage_lines")
    keys = ("team_id", "hour", "network", "outcome")
    for name, rest in (("latencies", keys), ("latencies_new", None)):
        parts: list[sa.schema.SchemaItem] = [
            sa.Column("team_id", sa.String(32), nullable=False),
            sa.Column("hour", sa.Integer, nullable=False),
            sa.Column("network", sa.String(65), nullable=False),
            sa.Column("outcome", sa.String(40), nullable=False),
            sa.Column("buckets", sa.LargeBinary, nullable=False),
        ]
        if rest is not None:
            parts.append(sa.PrimaryKeyConstraint(*rest))
        op.create_table(name, *parts, sqlite_with_rowid=rest is None)
    op.create_index("ix_latencies_hour", "latencies", ["hour"])


def _number_teams() -> None:
    op.execute("INSERT INTO row_days SELECT day, 9223372036854775807 FROM days")
    op.execute(
        "INSERT INTO state (id, committed_at, seen_at, dropped_before) "
        "SELECT 1, (SELECT max(committed_at) FROM batches), (SELECT max(committed_at) FROM batches), "
        "CASE WHEN (SELECT min(first_seq) FROM days) > 1 THEN (SELECT min(day) FROM days) END"
    )
    # From team to team through the primary key: years of usage lie between.
    op.execute(
        "WITH RECURSIVE team (id) AS (SELECT min(team_id) FROM usage UNION ALL "
        "SELECT (SELECT min(team_id) FROM usage WHERE team_id > team.id) FROM team WHERE team.id IS NOT NULL) "
        "INSERT INTO teams SELECT id, n, n FROM team, (SELECT coalesce(max(next_seq), 1) AS n FROM batches) "
        "WHERE id IS NOT NULL"
    )


def downgrade() -> None:
    raise NotImplementedError("blocks cannot become rows again: restore a backup")
