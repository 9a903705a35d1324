"""The ledger: all tables but those of days, the views over them, and triggers that keep final months as they are.

The tables are written out here, not imported from `ledger_tables.py`: that module changes with later versions, and
a migration must go on to make what it made before. A test compares the result of all migrations with that module.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
)
from sqlalchemy.schema import CreateIndex, CreateTable

# Registers that text is ordered by bytes in PostgreSQL, as in SQLite.
from tollgate.store import postgresql  # noqa: F401

revision = "0001"
down_revision = None

_metadata = MetaData()
_LINE = ("source_id", "network", "method", "outcome")
_KEYS = "team_id, month, hour, source_id, network, method, outcome"
_BILLABLE = "('ok', 'node_error', 'upstream_timeout')"
# Changes that are refused where the month is closed.
_CLOSED = {
    "usage": ("INSERT", "UPDATE", "DELETE"),
    "months": ("INSERT", "UPDATE", "DELETE"),
    "usage_new": ("INSERT",),
}
_FINAL = ("closed_months", "invoices")

Table(
    "segments",
    _metadata,
    Column("id", LargeBinary(16), primary_key=True),
    Column("offset", BigInteger, nullable=False),
    Column("done", Boolean, nullable=False),
    Column("updated_at", Float, nullable=False),
)
Table("days", _metadata, Column("day", String(8), primary_key=True))
Table(
    "teams",
    _metadata,
    Column("id", String(32), primary_key=True),
    Column("next_no", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
Table(
    "state",
    _metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("committed_at", Float),
    Column("seen_at", Float),
    Column("doubted_at", Float),
    Column("dropped_before", String(8)),
)
Table(
    "shared_blocks",
    _metadata,
    Column("id", BigInteger().with_variant(Integer(), "sqlite"), Identity(), primary_key=True),
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
Table(
    "usage",
    _metadata,
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
Table(
    "latencies",
    _metadata,
    Column("team_id", String(32), primary_key=True),
    Column("hour", Integer, primary_key=True),
    Column("network", String(65), primary_key=True),
    Column("outcome", String(40), primary_key=True),
    Column("buckets", LargeBinary, nullable=False),
    Index("ix_latencies_hour", "hour"),
    sqlite_with_rowid=False,
)
Table(
    "months",
    _metadata,
    Column("team_id", String(32), primary_key=True),
    Column("month", String(7), primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("cost", BigInteger, nullable=False),
    Column("uncapped", BigInteger, nullable=False),
    Column("free", BigInteger, nullable=False),
    Index("ix_months_month", "month"),
    sqlite_with_rowid=False,
)
Table(
    "call_leases",
    _metadata,
    Column("team_id", String(32), primary_key=True),
    Column("node", String(32), primary_key=True),
    Column("calls", BigInteger, nullable=False),
    Column("until", Float, nullable=False),
    sqlite_with_rowid=False,
)
Table(
    "payer_months",
    _metadata,
    Column("payer", String(32), primary_key=True),
    Column("month", String(7), primary_key=True),
    Column("free", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
Table(
    "source_months",
    _metadata,
    Column("source_id", String(32), primary_key=True),
    Column("month", String(7), primary_key=True),
    Column("requests", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
Table(
    "closed_months",
    _metadata,
    Column("month", String(7), primary_key=True),
    Column("closed_at", Float, nullable=False),
)
Table(
    "invoices",
    _metadata,
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


def upgrade() -> None:
    for table in _metadata.sorted_tables:
        op.execute(CreateTable(table))
        for index in table.indexes:
            op.execute(CreateIndex(index))
    if op.get_context().dialect.name == "postgresql":
        _upgrade_postgresql()
    else:
        _upgrade_sqlite()
    listed = f"{_KEYS}, requests, cost"
    op.execute(f"CREATE VIEW usage_all AS SELECT {listed} FROM usage UNION ALL SELECT {listed} FROM usage_lines")
    op.execute(
        "CREATE VIEW source_months_all AS SELECT source_id, month, requests FROM source_months "
        f"UNION ALL SELECT source_id, month, requests FROM usage_lines WHERE outcome IN {_BILLABLE}"
    )


def _upgrade_sqlite() -> None:
    op.execute("CREATE TABLE usage_new (month VARCHAR(7) NOT NULL, hour INTEGER NOT NULL, lines VARCHAR NOT NULL)")
    op.execute("CREATE TABLE latencies_new (hour INTEGER NOT NULL, lines BLOB NOT NULL)")
    names = ", ".join(f"json_extract(line.value, '$[0][{place}]') AS {name}" for place, name in enumerate(_LINE))
    op.execute(
        f"CREATE VIEW usage_lines AS SELECT team.key AS team_id, month, hour, {names}, "
        "json_extract(line.value, '$[1]') AS requests, json_extract(line.value, '$[2]') AS cost "
        "FROM usage_new, json_each(lines) AS team, json_each(team.value) AS line"
    )
    # An upsert is an INSERT to a trigger.
    for table, events in _CLOSED.items():
        for event in events:
            row = "NEW" if event == "INSERT" else "OLD"
            op.execute(
                f"CREATE TRIGGER {table}_{event.lower()}_closed BEFORE {event} ON {table} "
                f"WHEN EXISTS (SELECT 1 FROM closed_months WHERE month = {row}.month) "
                "BEGIN SELECT RAISE(ABORT, 'the month is closed'); END"
            )
    for table in _FINAL:
        for event in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_{event.lower()}_closed BEFORE {event} ON {table} "
                "BEGIN SELECT RAISE(ABORT, 'final months and invoices cannot be changed'); END"
            )


def _upgrade_postgresql() -> None:
    rowid = "rowid BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    op.execute(
        f'CREATE TABLE usage_new ({rowid}, month VARCHAR(7) COLLATE "C" NOT NULL, hour INTEGER NOT NULL, '
        "lines VARCHAR NOT NULL)"
    )
    op.execute(f"CREATE TABLE latencies_new ({rowid}, hour INTEGER NOT NULL, lines BYTEA NOT NULL)")
    names = ", ".join(f"line -> 0 ->> {place} AS {name}" for place, name in enumerate(_LINE))
    op.execute(
        f"CREATE VIEW usage_lines AS SELECT team.key AS team_id, month, hour, {names}, "
        "(line ->> 1)::bigint AS requests, (line ->> 2)::bigint AS cost "
        "FROM usage_new, json_each(lines::json) AS team, json_array_elements(team.value) AS line"
    )
    _create_partitioned()
    # Each commit changes rows of these: a new version of a row fits beside the old one, and no index is touched.
    for table in ("teams", "months", "payer_months", "source_months", "usage"):
        op.execute(f"ALTER TABLE {table} SET (fillfactor = 60)")
    _refuse_changes()


def _create_partitioned() -> None:
    """A partition for each day, made when the day begins; each has its own primary key."""
    op.execute(
        'CREATE TABLE blocks (day VARCHAR(8) COLLATE "C" NOT NULL, team_id VARCHAR(32) COLLATE "C" NOT NULL, '
        "first_no BIGINT NOT NULL, rows INTEGER NOT NULL, records INTEGER NOT NULL, errors INTEGER NOT NULL, "
        "level INTEGER NOT NULL, generation BIGINT NOT NULL, least_at FLOAT NOT NULL, greatest_at FLOAT NOT NULL, "
        "committed_at FLOAT NOT NULL, facts BYTEA NOT NULL, data_id BIGINT NOT NULL, "
        '"start" BIGINT NOT NULL, size BIGINT NOT NULL) PARTITION BY LIST (day)'
    )
    op.execute(
        'CREATE TABLE data (day VARCHAR(8) COLLATE "C" NOT NULL, id BIGINT NOT NULL, blocks INTEGER NOT NULL, '
        "data BYTEA NOT NULL) PARTITION BY LIST (day)"
    )
    op.execute("CREATE SEQUENCE data_ids")
    # Compressed already.
    op.execute("ALTER TABLE shared_blocks ALTER COLUMN data SET STORAGE EXTERNAL")


def _refuse_changes() -> None:
    op.execute(
        "CREATE FUNCTION refuse_closed() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$ "
        "BEGIN IF EXISTS (SELECT 1 FROM changed JOIN closed_months USING (month)) THEN "
        "RAISE EXCEPTION 'the month is closed'; END IF; RETURN NULL; END $$"
    )
    op.execute(
        "CREATE FUNCTION refuse_final() RETURNS trigger LANGUAGE plpgsql AS $$ "
        "BEGIN RAISE EXCEPTION 'final months and invoices cannot be changed'; END $$"
    )
    # By the statement, not by the row: a commit writes thousands.
    for table, events in _CLOSED.items():
        for event in events:
            op.execute(
                f"CREATE TRIGGER {table}_{event.lower()}_closed AFTER {event} ON {table} "
                f"REFERENCING {'NEW' if event == 'INSERT' else 'OLD'} TABLE AS changed "
                "FOR EACH STATEMENT EXECUTE FUNCTION refuse_closed()"
            )
    for table in _FINAL:
        op.execute(
            f"CREATE TRIGGER {table}_closed BEFORE UPDATE OR DELETE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION refuse_final()"
        )
