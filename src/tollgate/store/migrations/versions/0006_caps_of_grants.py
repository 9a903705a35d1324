"""Workers follow a team's spending cap: it is written into the record of each call."""

from __future__ import annotations

from tollgate.store.migrations.triggers import note_updates

revision = "0006"
down_revision = "0005"

# The columns of a team that the gateway obeys, as they stood since the first migration.
OLD_COLUMNS = "name, requests_per_second, capped_until"


def upgrade() -> None:
    note_updates("teams", f"{OLD_COLUMNS}, spending_cap")


def downgrade() -> None:
    note_updates("teams", OLD_COLUMNS)
