"""The schema of the control data, in SQLAlchemy Core. A change here needs a migration; a test compares the two.

Times are seconds since 1970 in UTC. Lists are JSON text. `changes` is filled by triggers (see the first
migration), so that every change of a grant reaches the workers, even one made by hand in the database.
"""

from __future__ import annotations

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

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# More than four bytes; SQLite's integers have as many as they need, and number rows only where they are called so.
_BIG = BigInteger().with_variant(Integer(), "sqlite")

teams = Table(
    "teams",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", String(40), nullable=False, unique=True),
    Column("created_at", Float, nullable=False),
    Column("requests_per_second", Integer),
    Column("capped_until", Float),
    Column("spending_cap", BigInteger),
    Column("suspended_at", Float),
    Column("suspended_reason", String(200), nullable=False, default="", server_default=""),
    Column("free_requests", BigInteger),
    Column("micros_per_million", BigInteger),
    Column("operator_cap", BigInteger),
    Column("payer", String(32), nullable=False, default="", server_default=""),
)

# What invoices need of teams that were deleted.
former_teams = Table(
    "former_teams",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", String(40), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("cap", BigInteger),
    Column("buyer", String(500), nullable=False),
    Column("tax_number", String(40), nullable=False),
    Column("emails", String, nullable=False),
)

# Since when a team has which price of its own. No foreign key: invoices outlive the team.
price_changes = Table(
    "price_changes",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("team_id", String(32), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("free_requests", BigInteger),
    Column("micros_per_million", BigInteger),
    Index("ix_price_changes_team_id", "team_id", "created_at"),
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
    Column("monthly_requests", _BIG),
    Column("capped_until", Float),
    Column("allow_in_url", Boolean, nullable=False, default=False),
    Column("show_upstream", Boolean, nullable=False, default=False, server_default=false()),
    Column("replaces", String(32), nullable=False, default="", server_default=""),
    Column("addresses", String, nullable=False, default="[]", server_default="[]"),
    Column("contracts", String, nullable=False, default="[]", server_default="[]"),
    Column("playground_of", String(32), nullable=False, default="", server_default=""),
    UniqueConstraint("team_id", "name", "playground_of"),
    Index("ix_tokens_team_id", "team_id", "created_at"),
)

# Tokens that replaced others or were replaced, deleted ones too: what they used stays one token's history.
lineages = Table(
    "lineages",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("created_at", Float, nullable=False),
    Column("team_id", String(32), ForeignKey("teams.id", ondelete="CASCADE"), nullable=False),
    Column("first_id", String(32), nullable=False),
    Index("ix_lineages_first_id", "team_id", "first_id", "created_at", "id"),
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

accounts = Table(
    "accounts",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("email", String(254), nullable=False, unique=True),
    Column("created_at", Float, nullable=False),
    Column("name", String(100), nullable=False),
    Column("password_hash", String(200), nullable=False),
    Column("verified_at", Float),
    Column("active", Boolean, nullable=False),
    Column("operator", Boolean, nullable=False, server_default=false()),
)

# What signs an account in beside its password, or after it: passkeys, one TOTP secret, recovery codes.
factors = Table(
    "factors",
    metadata,
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

identities = Table(
    "identities",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("account_id", String(32), ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
    Column("issuer", String(255), nullable=False),
    Column("subject", String(255), nullable=False),
    Column("created_at", Float, nullable=False),
    UniqueConstraint("issuer", "subject"),
    Index("ix_identities_account_id", "account_id"),
)

logins = Table(
    "logins",
    metadata,
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
    Column("read_only", Boolean, nullable=False, default=False, server_default=false()),
    Column("authenticated_at", Float),
    Index("ix_logins_account_id", "account_id", "created_at"),
    Index("ix_logins_old_refresh_digest", "old_refresh_digest"),
)

device_logins = Table(
    "device_logins",
    metadata,
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

members = Table(
    "members",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("team_id", String(32), ForeignKey("teams.id", ondelete="CASCADE"), nullable=False),
    Column("account_id", String(32), ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
    Column("role", String(16), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("created_by", String(254), nullable=False),
    UniqueConstraint("team_id", "account_id"),
    Index("ix_members_account_id", "account_id", "created_at"),
)

invitations = Table(
    "invitations",
    metadata,
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

reset_links = Table(
    "reset_links",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("account_id", String(32), ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
    Column("digest", LargeBinary(32), nullable=False, unique=True),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False, index=True),
    Index("ix_reset_links_account_id", "account_id"),
)

# Failed attempts by what was tried, such as an account's password. Old rows are swept.
failures = Table(
    "failures",
    metadata,
    Column("id", String(100), primary_key=True),
    Column("count", Integer, nullable=False),
    Column("created_at", Float, nullable=False, index=True),
)

# Answers to requests with an `Idempotency-Key`. Old rows are swept.
replays = Table(
    "replays",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("body_digest", LargeBinary(32), nullable=False),
    Column("created_at", Float, nullable=False, index=True),
    Column("status", Integer, nullable=False),
    Column("answer", LargeBinary, nullable=False),
)

# How a team is alerted about its spending; the cap itself is in `teams`. One row for each team that ever set one.
billing = Table(
    "billing",
    metadata,
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

# Written before the first attempt: an alert with a row is never sent twice. Old rows are removed.
alerts = Table(
    "alerts",
    metadata,
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

# What was reported to Stripe, or is about to be. No foreign keys: money that moved outlives the team.
reports = Table(
    "reports",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("team_id", String(32), nullable=False),
    Column("month", String(7), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("tried_at", Float),
    Column("reference", String(255), nullable=False),
    UniqueConstraint("team_id", "month", "kind"),
)

# No foreign keys: what happened outlives what it happened to.
audit = Table(
    "audit",
    metadata,
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
    # A chain cannot fork, also with several writers.
    Index("ix_audit_chain", "chain", "number", unique=True),
    Index("ix_audit_team_id", "team_id", "created_at", "id"),
    Index("ix_audit_actor_id", "actor_id", "created_at", "id"),
)

# Where each chain of the audit log ends: a team's, or that of the service. Never removed.
audit_chains = Table(
    "audit_chains",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("created_at", Float, nullable=False),
    Column("count", Integer, nullable=False),
    Column("hash", String(64), nullable=False),
)

# Services on machines, by their last sign of life.
nodes = Table(
    "nodes",
    metadata,
    Column("id", String(80), primary_key=True),
    Column("created_at", Float, nullable=False),
    Column("name", String(64), nullable=False),
    Column("version", String(40), nullable=False),
    Column("roles", String(80), nullable=False),
    Column("seen_at", Float, nullable=False),
    Column("spool_bytes", BigInteger, nullable=False),
)

# Who does the jobs that one node does for all.
leases = Table(
    "leases",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("created_at", Float, nullable=False),
    Column("holder", String(80), nullable=False),
    Column("until", Float, nullable=False),
)

# One row for each change of a grant; the newest revision is the store's.
changes = Table(
    "changes",
    metadata,
    Column("revision", _BIG, primary_key=True, autoincrement=True),
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
