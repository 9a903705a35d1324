"""The control data: all tables, and triggers that record each change of a grant for the workers.

The tables are written out here, not imported from `tables.py`: that module changes with later versions, and a
migration must go on to make what it made before. A test compares the result of all migrations with `tables.py`.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    false,
)
from sqlalchemy.schema import CreateIndex, CreateTable

from tollgate.store.postgresql import CHANNEL, LOCK_CHANGES, LOCKS

revision = "0001"
down_revision = None

# Changes that are kept for workers, which poll five times a second. A worker that missed more reloads everything.
KEPT_CHANGES = 10_000
# Grants: table -> kind of a change, and its key in SQLite and in PostgreSQL.
_GRANTS = {
    "teams": ("team", "{row}.id", "{row}.id"),
    "tokens": ("token", "lower(hex({row}.digest))", "encode({row}.digest, 'hex')"),
    "domains": ("domain", "{row}.domain", "{row}.domain"),
}
# Changes of this column alone are no changes of a grant.
_IGNORED = "last_used_at"

_BIG = BigInteger().with_variant(Integer(), "sqlite")
_metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Table(
    "teams",
    _metadata,
    Column("id", String(32), primary_key=True),
    Column("name", String(40), nullable=False, unique=True),
    Column("created_at", Float, nullable=False),
    Column("requests_per_second", Integer),
    Column("capped_until", Float),
    Column("spending_cap", BigInteger),
    Column("suspended_at", Float),
    Column("suspended_reason", String(200), nullable=False, server_default=""),
    Column("free_requests", BigInteger),
    Column("micros_per_million", BigInteger),
    Column("operator_cap", BigInteger),
    Column("payer", String(32), nullable=False, server_default=""),
)
Table(
    "former_teams",
    _metadata,
    Column("id", String(32), primary_key=True),
    Column("name", String(40), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("cap", BigInteger),
    Column("buyer", String(500), nullable=False),
    Column("tax_number", String(40), nullable=False),
    Column("emails", String, nullable=False),
)
Table(
    "price_changes",
    _metadata,
    Column("id", String(32), primary_key=True),
    Column("team_id", String(32), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("free_requests", BigInteger),
    Column("micros_per_million", BigInteger),
    Index("ix_price_changes_team_id", "team_id", "created_at"),
)
Table(
    "tokens",
    _metadata,
    Column("id", String(32), primary_key=True),
    Column("team_id", String(32), ForeignKey("teams.id", ondelete="CASCADE"), nullable=False),
    Column("name", String(100), nullable=False),
    Column("digest", LargeBinary(32), nullable=False, unique=True),
    Column("prefix", String(16), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("created_by", String(100), nullable=False),
    Column("last_used_at", Float),
    Column("expires_at", Float),
    Column("active", Boolean, nullable=False),
    Column("networks", String, nullable=False),
    Column("methods", String, nullable=False),
    Column("requests_per_second", Integer),
    Column("monthly_requests", _BIG),
    Column("capped_until", Float),
    Column("allow_in_url", Boolean, nullable=False),
    Column("show_upstream", Boolean, nullable=False, server_default=false()),
    Column("replaces", String(32), nullable=False, server_default=""),
    Column("addresses", String, nullable=False, server_default="[]"),
    Column("contracts", String, nullable=False, server_default="[]"),
    Column("playground_of", String(32), nullable=False, server_default=""),
    UniqueConstraint("team_id", "name", "playground_of"),
    Index("ix_tokens_team_id", "team_id", "created_at"),
)
Table(
    "lineages",
    _metadata,
    Column("id", String(32), primary_key=True),
    Column("created_at", Float, nullable=False),
    Column("team_id", String(32), ForeignKey("teams.id", ondelete="CASCADE"), nullable=False),
    Column("first_id", String(32), nullable=False),
    Index("ix_lineages_first_id", "team_id", "first_id", "created_at", "id"),
)
Table(
    "domains",
    _metadata,
    Column("id", String(32), primary_key=True),
    Column("team_id", String(32), ForeignKey("teams.id", ondelete="CASCADE"), nullable=False),
    Column("domain", String(253), nullable=False, unique=True),
    Column("created_at", Float, nullable=False),
    Column("created_by", String(100), nullable=False),
    Column("verified_at", Float),
    Column("address_per_minute", Integer),
    Column("domain_per_minute", Integer),
    Column("active", Boolean, nullable=False),
    Index("ix_domains_team_id", "team_id"),
)
Table(
    "accounts",
    _metadata,
    Column("id", String(32), primary_key=True),
    Column("email", String(254), nullable=False, unique=True),
    Column("created_at", Float, nullable=False),
    Column("name", String(100), nullable=False),
    Column("password_hash", String(200), nullable=False),
    Column("verified_at", Float),
    Column("active", Boolean, nullable=False),
    Column("operator", Boolean, nullable=False, server_default=false()),
)
Table(
    "factors",
    _metadata,
    Column("id", String(32), primary_key=True),
    Column("account_id", String(32), ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
    Column("kind", String(8), nullable=False),
    Column("name", String(100), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("secret", LargeBinary(2048), nullable=False),
    Column("credential", LargeBinary(1024), unique=True),
    Column("counter", BigInteger, nullable=False),
    Column("last_used_at", Float),
    Column("active", Boolean, nullable=False),
    Index("ix_factors_account_id", "account_id", "created_at"),
)
Table(
    "identities",
    _metadata,
    Column("id", String(32), primary_key=True),
    Column("account_id", String(32), ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
    Column("issuer", String(255), nullable=False),
    Column("subject", String(255), nullable=False),
    Column("created_at", Float, nullable=False),
    UniqueConstraint("issuer", "subject"),
    Index("ix_identities_account_id", "account_id"),
)
Table(
    "logins",
    _metadata,
    Column("id", String(32), primary_key=True),
    Column("account_id", String(32), ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
    Column("kind", String(8), nullable=False),
    Column("name", String(100), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("digest", LargeBinary(32), nullable=False, unique=True),
    Column("expires_at", Float),
    Column("last_used_at", Float),
    Column("address", String(45), nullable=False),
    Column("agent", String(256), nullable=False),
    Column("refresh_digest", LargeBinary(32), unique=True),
    Column("old_refresh_digest", LargeBinary(32)),
    Column("refreshed_at", Float),
    Column("refresh_until", Float),
    Column("team_id", String(32)),
    Column("read_only", Boolean, nullable=False, server_default=false()),
    Column("authenticated_at", Float),
    Index("ix_logins_account_id", "account_id", "created_at"),
    Index("ix_logins_old_refresh_digest", "old_refresh_digest"),
)
Table(
    "device_logins",
    _metadata,
    Column("id", String(32), primary_key=True),
    Column("digest", LargeBinary(32), nullable=False, unique=True),
    Column("code_digest", LargeBinary(32), nullable=False, unique=True),
    Column("machine", String(100), nullable=False),
    Column("address", String(45), nullable=False),
    Column("agent", String(256), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False, index=True),
    Column("interval", Integer, nullable=False),
    Column("polled_at", Float),
    Column("state", String(8), nullable=False),
    Column("account_id", String(32), ForeignKey("accounts.id", ondelete="CASCADE")),
    Column("authenticated_at", Float),
)
Table(
    "members",
    _metadata,
    Column("id", String(32), primary_key=True),
    Column("team_id", String(32), ForeignKey("teams.id", ondelete="CASCADE"), nullable=False),
    Column("account_id", String(32), ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
    Column("role", String(16), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("created_by", String(254), nullable=False),
    UniqueConstraint("team_id", "account_id"),
    Index("ix_members_account_id", "account_id", "created_at"),
)
Table(
    "invitations",
    _metadata,
    Column("id", String(32), primary_key=True),
    Column("email", String(254), nullable=False),
    Column("digest", LargeBinary(32), nullable=False, unique=True),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False, index=True),
    Column("created_by", String(254), nullable=False),
    Column("team_id", String(32), ForeignKey("teams.id", ondelete="CASCADE")),
    Column("role", String(16), nullable=False),
    Column("by_operator", Boolean, nullable=False),
    Index("ix_invitations_team_id", "team_id", "created_at"),
)
Table(
    "reset_links",
    _metadata,
    Column("id", String(32), primary_key=True),
    Column("account_id", String(32), ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
    Column("digest", LargeBinary(32), nullable=False, unique=True),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False, index=True),
    Index("ix_reset_links_account_id", "account_id"),
)
Table(
    "failures",
    _metadata,
    Column("id", String(100), primary_key=True),
    Column("count", Integer, nullable=False),
    Column("created_at", Float, nullable=False, index=True),
)
Table(
    "replays",
    _metadata,
    Column("id", String(64), primary_key=True),
    Column("body_digest", LargeBinary(32), nullable=False),
    Column("created_at", Float, nullable=False, index=True),
    Column("status", Integer, nullable=False),
    Column("answer", LargeBinary, nullable=False),
)
Table(
    "billing",
    _metadata,
    Column("id", String(32), ForeignKey("teams.id", ondelete="CASCADE"), primary_key=True),
    Column("created_at", Float, nullable=False),
    Column("webhook", String(1000), nullable=False),
    Column("salt", String(64), nullable=False),
    Column("previous_salt", String(64), nullable=False, server_default=""),
    Column("previous_until", Float),
    Column("emails", Boolean, nullable=False),
    Column("buyer", String(500), nullable=False, server_default=""),
    Column("tax_number", String(40), nullable=False, server_default=""),
)
Table(
    "alerts",
    _metadata,
    Column("id", String(32), primary_key=True),
    Column("team_id", String(32), ForeignKey("teams.id", ondelete="CASCADE"), nullable=False),
    Column("month", String(7), nullable=False),
    Column("threshold", Integer, nullable=False),
    Column("channel", String(8), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("spent", BigInteger, nullable=False),
    Column("cap", BigInteger, nullable=False),
    Column("state", String(10), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_at", Float, nullable=False),
    UniqueConstraint("team_id", "month", "threshold", "channel"),
    Index("ix_alerts_state", "state", "created_at", "id"),
)
Table(
    "reports",
    _metadata,
    Column("id", String(32), primary_key=True),
    Column("team_id", String(32), nullable=False),
    Column("month", String(7), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("tried_at", Float),
    Column("reference", String(255), nullable=False),
    UniqueConstraint("team_id", "month", "kind"),
)
Table(
    "audit",
    _metadata,
    Column("id", String(32), primary_key=True),
    Column("created_at", Float, nullable=False),
    Column("action", String(40), nullable=False),
    Column("actor", String(254), nullable=False),
    Column("actor_id", String(32)),
    Column("team_id", String(32)),
    Column("target", String(32), nullable=False),
    Column("name", String(254), nullable=False),
    Column("details", String, nullable=False),
    Column("address", String(45), nullable=False),
    Column("via", String(120), nullable=False),
    Column("request_id", String(128), nullable=False),
    Column("chain", String(32), nullable=False, server_default=""),
    Column("number", Integer, nullable=False, server_default="0"),
    Column("previous", String(64), nullable=False, server_default=""),
    Column("hash", String(64), nullable=False, server_default=""),
    Column("mac", String(64), nullable=False, server_default=""),
    Index("ix_audit_chain", "chain", "number", unique=True),
    Index("ix_audit_team_id", "team_id", "created_at", "id"),
    Index("ix_audit_actor_id", "actor_id", "created_at", "id"),
)
Table(
    "audit_chains",
    _metadata,
    Column("id", String(32), primary_key=True),
    Column("created_at", Float, nullable=False),
    Column("count", Integer, nullable=False),
    Column("hash", String(64), nullable=False),
)
Table(
    "nodes",
    _metadata,
    Column("id", String(80), primary_key=True),
    Column("created_at", Float, nullable=False),
    Column("name", String(64), nullable=False),
    Column("version", String(40), nullable=False),
    Column("roles", String(80), nullable=False),
    Column("seen_at", Float, nullable=False),
    Column("spool_bytes", BigInteger, nullable=False),
)
Table(
    "leases",
    _metadata,
    Column("id", String(40), primary_key=True),
    Column("created_at", Float, nullable=False),
    Column("holder", String(80), nullable=False),
    Column("until", Float, nullable=False),
)
Table(
    "changes",
    _metadata,
    Column("revision", _BIG, primary_key=True, autoincrement=True),
    Column("kind", String(8), nullable=False),
    Column("key", String(253), nullable=False),
    sqlite_autoincrement=True,
)
Table(
    "facts",
    _metadata,
    Column("name", String(40), primary_key=True),
    Column("value", String, nullable=False),
)


def upgrade() -> None:
    for table in _metadata.sorted_tables:
        op.execute(CreateTable(table))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            op.execute(CreateIndex(index))
    is_postgresql = op.get_context().dialect.name == "postgresql"
    for name in _GRANTS:
        if is_postgresql:
            _record_in_postgresql(name)
        else:
            _record_in_sqlite(name)
    _trim_changes(is_postgresql=is_postgresql)


def _record_in_sqlite(table: str) -> None:
    """Record each insert, delete and update; an update with the old key, and the new one where that differs.

    SQLite cannot compare whole rows. An update counts unless it changes `last_used_at` and no other column that is
    known here. So an update of a column that is added later counts too, unless the same statement writes
    `last_used_at`, which Tollgate writes alone.
    """
    kind, key, _ = _GRANTS[table]
    old, new = key.format(row="OLD"), key.format(row="NEW")
    columns = [column.name for column in _metadata.tables[table].columns if column.name != _IGNORED]
    counts = ""
    if _IGNORED in _metadata.tables[table].columns:
        before, after = (", ".join(f"{row}.{name}" for name in columns) for row in ("OLD", "NEW"))
        counts = f"WHEN OLD.{_IGNORED} IS NEW.{_IGNORED} OR ({before}) IS NOT ({after})"
    insert = "INSERT INTO changes (kind, key)"
    for event, condition, statements in (
        ("insert", "", f"{insert} VALUES ('{kind}', {new});"),
        ("delete", "", f"{insert} VALUES ('{kind}', {old});"),
        (
            "update",
            counts,
            f"{insert} VALUES ('{kind}', {old}); {insert} SELECT '{kind}', {new} WHERE {new} <> {old};",
        ),
    ):
        op.execute(
            f"CREATE TRIGGER {table}_{event} AFTER {event.upper()} ON {table} {condition} BEGIN {statements} END"
        )


def _record_in_postgresql(table: str) -> None:
    """As in SQLite, at the end of the transaction, and notify the workers.

    One lock, held during the commit, puts changes in the order of commits: a worker that has read a revision
    gets no older one later.
    """
    kind, _, key = _GRANTS[table]
    old, new = key.format(row="OLD"), key.format(row="NEW")
    op.execute(
        f"CREATE FUNCTION note_{table}() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$ "
        f"BEGIN PERFORM pg_advisory_xact_lock({LOCKS}, {LOCK_CHANGES}); "
        f"IF TG_OP <> 'INSERT' THEN INSERT INTO changes (kind, key) VALUES ('{kind}', {old}); END IF; "
        f"IF TG_OP = 'INSERT' OR (TG_OP = 'UPDATE' AND {new} <> {old}) THEN "
        f"INSERT INTO changes (kind, key) VALUES ('{kind}', {new}); END IF; "
        f"PERFORM pg_notify('{CHANNEL}', ''); RETURN NULL; END $$"
    )
    counts = ""
    if _IGNORED in _metadata.tables[table].columns:
        counts = (
            f"WHEN (OLD.{_IGNORED} IS NOT DISTINCT FROM NEW.{_IGNORED} "
            f"OR to_jsonb(OLD) - '{_IGNORED}' <> to_jsonb(NEW) - '{_IGNORED}') "
        )
    for name, event, condition in (
        ("insert", "INSERT", ""),
        ("delete", "DELETE", ""),
        ("update", "UPDATE", counts),
    ):
        op.execute(
            f"CREATE CONSTRAINT TRIGGER {table}_{name} AFTER {event} ON {table} DEFERRABLE INITIALLY DEFERRED "
            f"FOR EACH ROW {condition}EXECUTE FUNCTION note_{table}()"
        )


def _trim_changes(*, is_postgresql: bool) -> None:
    """Delete old changes now and then."""
    delete = f"DELETE FROM changes WHERE revision <= NEW.revision - {KEPT_CHANGES};"
    if is_postgresql:
        op.execute(
            "CREATE FUNCTION trim_changes() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$ "
            f"BEGIN {delete} RETURN NULL; END $$"
        )
        op.execute(
            "CREATE TRIGGER changes_trim AFTER INSERT ON changes FOR EACH ROW "
            "WHEN (NEW.revision % 1000 = 0) EXECUTE FUNCTION trim_changes()"
        )
    else:
        op.execute(
            f"CREATE TRIGGER changes_trim AFTER INSERT ON changes WHEN NEW.revision % 1000 = 0 BEGIN {delete} END"
        )
