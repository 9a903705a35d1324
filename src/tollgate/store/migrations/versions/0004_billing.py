"""Alerts about spending, and what was reported to Stripe."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "billing",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("webhook", sa.String(1000), nullable=False),
        sa.Column("salt", sa.String(64), nullable=False),
        sa.Column("emails", sa.Boolean, nullable=False),
        sa.ForeignKeyConstraint(["id"], ["teams.id"], name="fk_billing_id_teams", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_billing"),
    )
    op.create_table(
        "alerts",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("team_id", sa.String(32), nullable=False),
        sa.Column("month", sa.String(7), nullable=False),
        sa.Column("threshold", sa.Integer, nullable=False),
        sa.Column("channel", sa.String(8), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("spent", sa.BigInteger, nullable=False),
        sa.Column("cap", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("next_at", sa.Float, nullable=False),
        sa.ForeignKeyConstraint(["team_id"], ["teams.id"], name="fk_alerts_team_id_teams", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_alerts"),
        sa.UniqueConstraint("team_id", "month", "threshold", "channel", name="uq_alerts_team_id"),
    )
    op.create_index("ix_alerts_state", "alerts", ["state", "created_at", "id"])
    op.create_table(
        "reports",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("team_id", sa.String(32), nullable=False),
        sa.Column("month", sa.String(7), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("tried_at", sa.Float),
        sa.Column("reference", sa.String(255), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_reports"),
        sa.UniqueConstraint("team_id", "month", "kind", name="uq_reports_team_id"),
    )


def downgrade() -> None:
    for table in ("reports", "alerts", "billing"):
        op.drop_table(table)
