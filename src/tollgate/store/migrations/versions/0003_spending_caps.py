"""A team's spending cap; counting calls is the ledger's business now."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("teams", sa.Column("spending_cap", sa.BigInteger))
    op.drop_table("token_months")


def downgrade() -> None:
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
    op.drop_column("teams", "spending_cap")
