"""The one schema, in SQLAlchemy Core. A change here needs a migration; a test compares the two.

Times are seconds since 1970 in UTC. Lists are JSON text. `changes` is filled by triggers (see the first
migration), so that no way of changing a grant, not even a hand in the database, can forget to tell the
workers.
"""

from __future__ import annotations

from sqlalchemy import (
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
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

teams = Table(
    "teams",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", String(40), nullable=False, unique=True),
    Column("created_at", Float, nullable=False),
    Column("requests_per_second", Integer),
    Column("capped_until", Float),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("team_id", String(32), ForeignKey("teams.id", ondelete="CASCADE"), nullable=False),
    Column("name", String(100), nullable=False),
    Column("digest", LargeBinary(32), nullable=False, unique=True),
    Column("prefix", String(16), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("created_by", String(100), nullable=False, default=""),
    Column("last_used_at", Float),
    Column("expires_at", Float),
    Column("active", Boolean, nullable=False, default=True),
    Column("networks", String, nullable=False, default="[]"),
    Column("methods", String, nullable=False, default="[]"),
    Column("requests_per_second", Integer),
    Column("monthly_requests", Integer),
    Column("capped_until", Float),
    Column("allow_in_url", Boolean, nullable=False, default=False),
    UniqueConstraint("team_id", "name"),
)

domains = Table(
    "domains",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("team_id", String(32), ForeignKey("teams.id", ondelete="CASCADE"), nullable=False),
    Column("domain", String(253), nullable=False, unique=True),
    Column("created_at", Float, nullable=False),
    Column("created_by", String(100), nullable=False, default=""),
    Column("verified_at", Float),
    Column("address_per_minute", Integer),
    Column("domain_per_minute", Integer),
    Column("active", Boolean, nullable=False, default=True),
    Index("ix_domains_team_id", "team_id"),
)

# One row for each change of a grant; the newest revision is the store's.
changes = Table(
    "changes",
    metadata,
    Column("revision", Integer, primary_key=True, autoincrement=True),
    Column("kind", String(8), nullable=False),
    Column("key", String(253), nullable=False),
    sqlite_autoincrement=True,
)

# What must hold for as long as the database lives, such as which pepper its digests were made with.
facts = Table(
    "facts",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("value", String, nullable=False),
)
