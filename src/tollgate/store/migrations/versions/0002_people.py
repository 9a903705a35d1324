"""Accounts, logins, members, invitations, the audit log, and what tokens use of their cap."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    _accounts()
    _logins()
    _teams()
    _tokens()
    _books()


def _accounts() -> None:
    op.create_table(
        "accounts",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("email", sa.String(254), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("password_hash", sa.String(200), nullable=False),
        sa.Column("verified_at", sa.Float),
        sa.Column("active", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_accounts"),
        sa.UniqueConstraint("email", name="uq_accounts_email"),
    )
    op.create_table(
        "identities",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("issuer", sa.String(255), nullable=False),
        sa.Column("subject", sa.String(255), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name="fk_identities_account_id_accounts", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_identities"),
        sa.UniqueConstraint("issuer", "subject", name="uq_identities_issuer"),
    )
    op.create_index("ix_identities_account_id", "identities", ["account_id"])
    op.create_table(
        "reset_links",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("expires_at", sa.Float, nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name="fk_reset_links_account_id_accounts", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_reset_links"),
        sa.UniqueConstraint("digest", name="uq_reset_links_digest"),
    )
    op.create_index("ix_reset_links_account_id", "reset_links", ["account_id"])
    op.create_index("ix_reset_links_expires_at", "reset_links", ["expires_at"])
    op.create_table(
        "failures",
        sa.Column("id", sa.String(100), nullable=False),
        sa.Column("count", sa.Integer, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_failures"),
    )
    op.create_index("ix_failures_created_at", "failures", ["created_at"])


def _logins() -> None:
    op.create_table(
        "logins",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("expires_at", sa.Float),
        sa.Column("last_used_at", sa.Float),
        sa.Column("address", sa.String(45), nullable=False),
        sa.Column("agent", sa.String(256), nullable=False),
        sa.Column("refresh_digest", sa.LargeBinary(32)),
        sa.Column("old_refresh_digest", sa.LargeBinary(32)),
        sa.Column("refreshed_at", sa.Float),
        sa.Column("refresh_until", sa.Float),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name="fk_logins_account_id_accounts", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_logins"),
        sa.UniqueConstraint("digest", name="uq_logins_digest"),
        sa.UniqueConstraint("refresh_digest", name="uq_logins_refresh_digest"),
    )
    op.create_index("ix_logins_account_id", "logins", ["account_id", "created_at"])
    op.create_index("ix_logins_old_refresh_digest", "logins", ["old_refresh_digest"])
    op.create_table(
        "device_logins",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("code_digest", sa.LargeBinary(32), nullable=False),
        sa.Column("machine", sa.String(100), nullable=False),
        sa.Column("address", sa.String(45), nullable=False),
        sa.Column("agent", sa.String(256), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("expires_at", sa.Float, nullable=False),
        sa.Column("interval", sa.Integer, nullable=False),
        sa.Column("polled_at", sa.Float),
        sa.Column("state", sa.String(8), nullable=False),
        sa.Column("account_id", sa.String(32)),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name="fk_device_logins_account_id_accounts", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_device_logins"),
        sa.UniqueConstraint("code_digest", name="uq_device_logins_code_digest"),
        sa.UniqueConstraint("digest", name="uq_device_logins_digest"),
    )
    op.create_index("ix_device_logins_expires_at", "device_logins", ["expires_at"])


def _teams() -> None:
    op.create_table(
        "members",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("team_id", sa.String(32), nullable=False),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("created_by", sa.String(254), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name="fk_members_account_id_accounts", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["team_id"], ["teams.id"], name="fk_members_team_id_teams", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_members"),
        sa.UniqueConstraint("team_id", "account_id", name="uq_members_team_id"),
    )
    op.create_index("ix_members_account_id", "members", ["account_id", "created_at"])
    op.create_table(
        "invitations",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("email", sa.String(254), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("expires_at", sa.Float, nullable=False),
        sa.Column("created_by", sa.String(254), nullable=False),
        sa.Column("team_id", sa.String(32)),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("by_operator", sa.Boolean, nullable=False),
        sa.ForeignKeyConstraint(
            ["team_id"], ["teams.id"], name="fk_invitations_team_id_teams", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_invitations"),
        sa.UniqueConstraint("digest", name="uq_invitations_digest"),
    )
    op.create_index("ix_invitations_expires_at", "invitations", ["expires_at"])
    op.create_index("ix_invitations_team_id", "invitations", ["team_id", "created_at"])


def _tokens() -> None:
    op.add_column("tokens", sa.Column("replaces", sa.String(32), server_default="", nullable=False))
    op.create_index("ix_tokens_team_id", "tokens", ["team_id", "created_at"])
    op.create_table(
        "token_months",
        sa.Column("token_id", sa.String(32), nullable=False),
        sa.Column("month", sa.String(7), nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(
            ["token_id"], ["tokens.id"], name="fk_token_months_token_id_tokens", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("token_id", "month", name="pk_token_months"),
    )


def _books() -> None:
    op.create_table(
        "replays",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("body_digest", sa.LargeBinary(32), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("answer", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_replays"),
    )
    op.create_index("ix_replays_created_at", "replays", ["created_at"])
    op.create_table(
        "audit",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("action", sa.String(40), nullable=False),
        sa.Column("actor", sa.String(254), nullable=False),
        sa.Column("actor_id", sa.String(32)),
        sa.Column("team_id", sa.String(32)),
        sa.Column("target", sa.String(32), nullable=False),
        sa.Column("name", sa.String(254), nullable=False),
        sa.Column("details", sa.String, nullable=False),
        sa.Column("address", sa.String(45), nullable=False),
        sa.Column("via", sa.String(120), nullable=False),
        sa.Column("request_id", sa.String(128), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_index("ix_audit_actor_id", "audit", ["actor_id", "created_at", "id"])
    op.create_index("ix_audit_team_id", "audit", ["team_id", "created_at", "id"])


def downgrade() -> None:
    for table in (
        "audit", "replays", "token_months", "invitations", "members", "device_logins", "logins", "failures",
        "reset_links", "identities", "accounts",
    ):  # fmt: skip
        op.drop_table(table)
    op.drop_index("ix_tokens_team_id", "tokens")
    op.drop_column("tokens", "replaces")
