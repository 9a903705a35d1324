"""Workers follow a team's spending cap: it is written into the record of each call."""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"

# The columns of a team that the gateway obeys, as they stood since the first migration.
OLD_COLUMNS = "name, requests_per_second, capped_until"


def upgrade() -> None:
    _follow(f"{OLD_COLUMNS}, spending_cap")


def downgrade() -> None:
    _follow(OLD_COLUMNS)


def _follow(columns: str) -> None:
    """A trigger cannot be altered, only made anew."""
    for name, row in (("update", "OLD"), ("renamed", "NEW")):
        op.execute(f"DROP TRIGGER teams_{name}")
        op.execute(
            f"CREATE TRIGGER teams_{name} AFTER UPDATE OF {columns} ON teams BEGIN "
            f"INSERT INTO changes (kind, key) VALUES ('team', {row}.id); END"
        )
