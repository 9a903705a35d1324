"""Second factors, operators, suspended teams, and whom an invoice is made out to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tollgate.store.migrations.triggers import note_updates

revision = "0009"
down_revision = "0008"

# The columns of a team that the gateway obeys, as they stood before.
OLD_COLUMNS = "name, requests_per_second, capped_until, spending_cap"


def upgrade() -> None:
    op.add_column("accounts", sa.Column("operator", sa.Boolean, server_default=sa.false(), nullable=False))
    op.add_column("teams", sa.Column("suspended_at", sa.Float))
    op.add_column("billing", sa.Column("buyer", sa.String(500), server_default="", nullable=False))
    op.add_column("billing", sa.Column("tax_number", sa.String(40), server_default="", nullable=False))
    op.create_table(
        "factors",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("secret", sa.LargeBinary(2048), nullable=False),
        sa.Column("credential", sa.LargeBinary(1024)),
        sa.Column("counter", sa.BigInteger, nullable=False),
        sa.Column("last_used_at", sa.Float),
        sa.Column("active", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_factors"),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], ondelete="CASCADE", name="fk_factors_account_id_accounts"
        ),
        sa.UniqueConstraint("credential", name="uq_factors_credential"),
    )
    op.create_index("ix_factors_account_id", "factors", ["account_id", "created_at"])
    note_updates("teams", f"{OLD_COLUMNS}, suspended_at")


def downgrade() -> None:
    # First: SQLite keeps a column that a trigger names.
    note_updates("teams", OLD_COLUMNS)
    op.drop_table("factors")
    op.drop_column("billing", "tax_number")
    op.drop_column("billing", "buyer")
    op.drop_column("teams", "suspended_at")
    op.drop_column("accounts", "operator")
