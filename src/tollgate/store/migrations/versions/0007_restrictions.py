"""Tokens for some client addresses and contracts; personal tokens for one team, and for reading."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tollgate.store.migrations.triggers import note_updates

revision = "0007"
down_revision = "0006"

# The columns of a token that the gateway obeys, as they stood before.
OLD_COLUMNS = (
    "team_id, name, digest, expires_at, active, networks, methods, requests_per_second, monthly_requests, "
    "capped_until, allow_in_url, show_upstream"
)
NEW = ("addresses", "contracts")


def upgrade() -> None:
    for name in NEW:
        op.add_column("tokens", sa.Column(name, sa.String, server_default="[]", nullable=False))
    note_updates("tokens", f"{OLD_COLUMNS}, {', '.join(NEW)}")
    op.add_column("logins", sa.Column("team_id", sa.String(32)))
    op.add_column("logins", sa.Column("read_only", sa.Boolean, server_default=sa.false(), nullable=False))


def downgrade() -> None:
    for name in ("read_only", "team_id"):
        op.drop_column("logins", name)
    # First: SQLite keeps a column that a trigger names.
    note_updates("tokens", OLD_COLUMNS)
    for name in reversed(NEW):
        op.drop_column("tokens", name)
