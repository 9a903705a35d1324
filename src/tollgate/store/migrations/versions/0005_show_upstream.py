"""Tokens whose answers tell where they came from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

# The columns of a token that the gateway obeys, as they stood since the first migration.
OLD_COLUMNS = (
    "team_id, name, digest, expires_at, active, networks, methods, requests_per_second, monthly_requests, "
    "capped_until, allow_in_url"
)


def upgrade() -> None:
    op.add_column("tokens", sa.Column("show_upstream", sa.Boolean, server_default=sa.false(), nullable=False))
    _tell_changes_of(f"{OLD_COLUMNS}, show_upstream")


def downgrade() -> None:
    # First: SQLite keeps a column that a trigger names.
    _tell_changes_of(OLD_COLUMNS)
    op.drop_column("tokens", "show_upstream")


def _tell_changes_of(columns: str) -> None:
    """Let the workers hear when one of these columns changes. A trigger cannot be altered, only made anew."""
    for name, row in (("update", "OLD"), ("renamed", "NEW")):
        op.execute(f"DROP TRIGGER tokens_{name}")
        op.execute(
            f"CREATE TRIGGER tokens_{name} AFTER UPDATE OF {columns} ON tokens BEGIN "
            f"INSERT INTO changes (kind, key) VALUES ('token', lower(hex({row}.digest))); END"
        )
