"""A team's own price, a cap of the operator, and why a team is suspended."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tollgate.store.migrations.triggers import note_updates

revision = "0012"
down_revision = "0011"

# The columns of a team that the gateway obeys, as they stood before.
OLD_COLUMNS = "name, requests_per_second, capped_until, spending_cap, suspended_at"
NUMBERS = ("free_requests", "micros_per_million", "operator_cap")


def upgrade() -> None:
    op.add_column("teams", sa.Column("suspended_reason", sa.String(200), server_default="", nullable=False))
    for name in NUMBERS:
        op.add_column("teams", sa.Column(name, sa.BigInteger))
    op.create_table(
        "price_changes",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("team_id", sa.String(32), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("free_requests", sa.BigInteger),
        sa.Column("micros_per_million", sa.BigInteger),
        sa.PrimaryKeyConstraint("id", name="pk_price_changes"),
    )
    op.create_index("ix_price_changes_team_id", "price_changes", ["team_id", "created_at"])
    note_updates("teams", ", ".join((OLD_COLUMNS, *NUMBERS)))


def downgrade() -> None:
    # First: SQLite keeps a column that a trigger names.
    note_updates("teams", OLD_COLUMNS)
    op.drop_table("price_changes")
    for name in (*NUMBERS, "suspended_reason"):
        op.drop_column("teams", name)
