"""Shared blocks of small teams; usage and latencies appended by the commit, not by the team.

What was appended before is added up first. Tables that each commit adds to are found by their key alone.
"""

from __future__ import annotations

import msgspec
import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_LINE = ("source_id", "network", "method", "outcome")
_KEYS = ("team_id", "month", "hour", *_LINE)


def upgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        return  # see 0004
    _fold()
    _create_appended()
    _create_shared()
    _rewrite("teams", "id VARCHAR(32) NOT NULL, next_no BIGINT NOT NULL, oldest_no BIGINT NOT NULL", "id")
    _rewrite(
        "token_months",
        "token_id VARCHAR(32) NOT NULL, month VARCHAR(7) NOT NULL, requests BIGINT NOT NULL",
        "token_id, month",
    )
    _rewrite(
        "months",
        "team_id VARCHAR(32) NOT NULL, month VARCHAR(7) NOT NULL, requests BIGINT NOT NULL, cost BIGINT NOT NULL",
        "team_id, month",
    )
    op.create_index("ix_months_month", "months", ["month"])
    # As the first version made them.
    for what, row in (("INSERT", "NEW"), ("UPDATE", "OLD"), ("DELETE", "OLD")):
        op.execute(
            f"CREATE TRIGGER months_{what.lower()}_closed BEFORE {what} ON months "
            f"WHEN EXISTS (SELECT 1 FROM closed_months WHERE month = {row}.month) "
            "BEGIN SELECT RAISE(ABORT, 'the month is closed'); END"
        )


def _fold() -> None:
    keys = ", ".join(_KEYS)
    op.execute(
        f"INSERT INTO usage SELECT {keys}, sum(requests), sum(cost) FROM usage_lines WHERE true GROUP BY {keys} "
        f"ON CONFLICT ({keys}) DO UPDATE SET requests = requests + excluded.requests, cost = cost + excluded.cost"
    )


def _create_appended() -> None:
    op.execute("DROP VIEW usage_all")
    op.execute("DROP VIEW usage_lines")
    op.drop_table("usage_new")
    op.create_table(
        "usage_new",
        sa.Column("month", sa.String(7), nullable=False),
        sa.Column("hour", sa.Integer, nullable=False),
        sa.Column("lines", sa.String, nullable=False),
    )
    op.execute(
        "CREATE TRIGGER usage_new_insert_closed BEFORE INSERT ON usage_new "
        "WHEN EXISTS (SELECT 1 FROM closed_months WHERE month = NEW.month) "
        "BEGIN SELECT RAISE(ABORT, 'the month is closed'); END"
    )
    names = ", ".join(f"json_extract(line.value, '$[0][{place}]') AS {name}" for place, name in enumerate(_LINE))
    op.execute(
        f"CREATE VIEW usage_lines AS SELECT team.key AS team_id, month, hour, {names}, "
        "json_extract(line.value, '$[1]') AS requests, json_extract(line.value, '$[2]') AS cost "
        "FROM usage_new, json_each(lines) AS team, json_each(team.value) AS line"
    )
    listed = ", ".join((*_KEYS, "requests", "cost"))
    op.execute(f"CREATE VIEW usage_all AS SELECT {listed} FROM usage UNION ALL SELECT {listed} FROM usage_lines")
    _create_latencies()


def _create_latencies() -> None:
    op.execute("ALTER TABLE latencies_new RENAME TO latencies_before")
    op.create_table(
        "latencies_new",
        sa.Column("hour", sa.Integer, nullable=False),
        sa.Column("lines", sa.LargeBinary, nullable=False),
    )
    connection = op.get_bind()
    query = "SELECT team_id, hour, network, outcome, buckets FROM latencies_before"
    for team_id, hour, network, outcome, buckets in connection.exec_driver_sql(query):
        line = (network, outcome, msgspec.msgpack.decode(buckets, type=dict[int, int]))
        connection.exec_driver_sql(
            "INSERT INTO latencies_new VALUES (?, ?)", (hour, msgspec.msgpack.encode({team_id: [line]}))
        )
    op.drop_table("latencies_before")


def _create_shared() -> None:
    op.create_table(
        "shared_blocks",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("day", sa.String(8), nullable=False),
        sa.Column("commit_no", sa.BigInteger, nullable=False),
        sa.Column("is_damaged", sa.Boolean, nullable=False),
        sa.Column("rows", sa.Integer, nullable=False),
        sa.Column("records", sa.Integer, nullable=False),
        sa.Column("errors", sa.Integer, nullable=False),
        sa.Column("least_at", sa.Float, nullable=False),
        sa.Column("greatest_at", sa.Float, nullable=False),
        sa.Column("committed_at", sa.Float, nullable=False),
        sa.Column("parts", sa.LargeBinary, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )


def _rewrite(table: str, columns: str, keys: str) -> None:
    """Make a table again without row ids: each of its rows is found by its key in one search, not two."""
    op.execute(f"ALTER TABLE {table} RENAME TO {table}_before")
    op.execute(f"CREATE TABLE {table} ({columns}, PRIMARY KEY ({keys})) WITHOUT ROWID")
    op.execute(f"INSERT INTO {table} SELECT * FROM {table}_before")
    op.drop_table(f"{table}_before")


def downgrade() -> None:
    raise NotImplementedError("shared blocks cannot be undone: restore a backup")
