"""Tokens for some client addresses and contracts; personal tokens for one team, and for reading."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

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
    _tell_changes_of(f"{OLD_COLUMNS}, {', '.join(NEW)}")
    op.add_column("logins", sa.Column("team_id", sa.String(32)))
    op.add_column("logins", sa.Column("read_only", sa.Boolean, server_default=sa.false(), nullable=False))


def downgrade() -> None:
    for name in ("read_only", "team_id"):
        op.drop_column("logins", name)
    # First: SQLite keeps a column that a trigger names.
    _tell_changes_of(OLD_COLUMNS)
    for name in reversed(NEW):
        op.drop_column("tokens", name)


def _tell_changes_of(columns: str) -> None:
    """Let the workers know when one of these columns changes. A trigger cannot be altered, only made anew."""
    for name, row in (("update", "OLD"), ("renamed", "NEW")):
        op.execute(f"DROP TRIGGER tokens_{name}")
        op.execute(
            f"CREATE TRIGGER tokens_{name} AFTER UPDATE OF {columns} ON tokens BEGIN "
            f"INSERT INTO changes (kind, key) VALUES ('token', lower(hex({row}.digest))); END"
        )
