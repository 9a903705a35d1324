"""Months of tokens and domains are added up when usage is folded, not by each commit."""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"

_NEW = "FROM usage_lines WHERE outcome IN ('ok', 'node_error')"


def upgrade() -> None:
    # Under another name: a collector of an older version would count twice, and stops.
    op.execute("ALTER TABLE token_months RENAME TO source_months")
    op.execute("ALTER TABLE source_months RENAME COLUMN token_id TO source_id")
    # What is not folded yet was counted already.
    op.execute(
        f"INSERT INTO source_months SELECT source_id, month, -sum(requests) {_NEW} GROUP BY source_id, month "
        "ON CONFLICT (source_id, month) DO UPDATE SET requests = source_months.requests + excluded.requests"
    )
    op.execute("DELETE FROM source_months WHERE requests = 0")
    op.execute(
        "CREATE VIEW source_months_all AS SELECT source_id, month, requests FROM source_months "
        f"UNION ALL SELECT source_id, month, requests {_NEW}"
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup")
