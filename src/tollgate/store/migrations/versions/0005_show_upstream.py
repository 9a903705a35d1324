"""Tokens whose answers name their upstream."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tollgate.store.migrations.triggers import note_updates

revision = "0005"
down_revision = "0004"

# The columns of a token that the gateway obeys, as they stood since the first migration.
OLD_COLUMNS = (
    "team_id, name, digest, expires_at, active, networks, methods, requests_per_second, monthly_requests, "
    "capped_until, allow_in_url"
)


def upgrade() -> None:
    op.add_column("tokens", sa.Column("show_upstream", sa.Boolean, server_default=sa.false(), nullable=False))
    note_updates("tokens", f"{OLD_COLUMNS}, show_upstream")


def downgrade() -> None:
    # First: SQLite keeps a column that a trigger names.
    note_updates("tokens", OLD_COLUMNS)
    op.drop_column("tokens", "show_upstream")
