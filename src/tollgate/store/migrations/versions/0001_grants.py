"""Teams, tokens, domains, and the record of their changes that workers follow."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tollgate.store.migrations.triggers import note_changes, trim_changes

revision = "0001"
down_revision = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

# Only columns that the gateway obeys: noting when a token was last used must not look like a change of grants.
TOKEN_COLUMNS = (
    "team_id, name, digest, expires_at, active, networks, methods, requests_per_second, monthly_requests, "
    "capped_until, allow_in_url"
)
DOMAIN_COLUMNS = "team_id, domain, address_per_minute, domain_per_minute, active"
TEAM_COLUMNS = "name, requests_per_second, capped_until"


def upgrade() -> None:
    _tables()
    for table, columns in (("tokens", TOKEN_COLUMNS), ("domains", DOMAIN_COLUMNS), ("teams", TEAM_COLUMNS)):
        note_changes(table, columns)
    trim_changes()


def _tables() -> None:
    op.create_table(
        "teams",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("name", sa.String(40), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("requests_per_second", sa.Integer),
        sa.Column("capped_until", sa.Float),
        sa.PrimaryKeyConstraint("id", name="pk_teams"),
        sa.UniqueConstraint("name", name="uq_teams_name"),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("team_id", sa.String(32), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("prefix", sa.String(16), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("created_by", sa.String(100), nullable=False),
        sa.Column("last_used_at", sa.Float),
        sa.Column("expires_at", sa.Float),
        sa.Column("active", sa.Boolean, nullable=False),
        sa.Column("networks", sa.String, nullable=False),
        sa.Column("methods", sa.String, nullable=False),
        sa.Column("requests_per_second", sa.Integer),
        sa.Column("monthly_requests", _BIG),
        sa.Column("capped_until", sa.Float),
        sa.Column("allow_in_url", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
        sa.ForeignKeyConstraint(["team_id"], ["teams.id"], ondelete="CASCADE", name="fk_tokens_team_id_teams"),
        sa.UniqueConstraint("digest", name="uq_tokens_digest"),
        sa.UniqueConstraint("team_id", "name", name="uq_tokens_team_id"),
    )
    op.create_table(
        "domains",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("team_id", sa.String(32), nullable=False),
        sa.Column("domain", sa.String(253), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("created_by", sa.String(100), nullable=False),
        sa.Column("verified_at", sa.Float),
        sa.Column("address_per_minute", sa.Integer),
        sa.Column("domain_per_minute", sa.Integer),
        sa.Column("active", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_domains"),
        sa.ForeignKeyConstraint(["team_id"], ["teams.id"], ondelete="CASCADE", name="fk_domains_team_id_teams"),
        sa.UniqueConstraint("domain", name="uq_domains_domain"),
    )
    op.create_index("ix_domains_team_id", "domains", ["team_id"])
    op.create_table(
        "changes",
        sa.Column("revision", _BIG, nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("key", sa.String(253), nullable=False),
        sa.PrimaryKeyConstraint("revision", name="pk_changes"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "facts",
        sa.Column("name", sa.String(40), nullable=False),
        sa.Column("value", sa.String, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_facts"),
    )


def downgrade() -> None:
    for table in ("facts", "changes", "domains", "tokens", "teams"):
        op.drop_table(table)
