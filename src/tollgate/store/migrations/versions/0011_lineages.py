"""Lineages: tokens that replaced others keep their history, also where one of them is deleted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

# A token that was deleted begins its lineage all the same.
_EXISTING = """
INSERT INTO lineages (id, created_at, team_id, first_id)
WITH RECURSIVE chain (id, created_at, team_id, first_id) AS (
    SELECT new.id, new.created_at, new.team_id, new.replaces
    FROM tokens AS new LEFT JOIN tokens AS old ON old.id = new.replaces
    WHERE new.replaces <> '' AND (old.id IS NULL OR old.replaces = '')
    UNION ALL
    SELECT new.id, new.created_at, new.team_id, chain.first_id
    FROM tokens AS new JOIN chain ON new.replaces = chain.id
)
SELECT id, created_at, team_id, first_id FROM chain
UNION ALL
SELECT first_id, min(created_at), team_id, first_id FROM chain GROUP BY first_id, team_id
"""


def upgrade() -> None:
    op.create_table(
        "lineages",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("team_id", sa.String(32), nullable=False),
        sa.Column("first_id", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_lineages"),
        sa.ForeignKeyConstraint(["team_id"], ["teams.id"], name="fk_lineages_team_id_teams", ondelete="CASCADE"),
    )
    op.create_index("ix_lineages_first_id", "lineages", ["team_id", "first_id", "created_at", "id"])
    op.execute(_EXISTING)


def downgrade() -> None:
    op.drop_table("lineages")
