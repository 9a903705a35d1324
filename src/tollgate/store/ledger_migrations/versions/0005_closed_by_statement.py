"""Closed months are refused by the statement, not by the row; rows change within their page. PostgreSQL alone."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"

_CHANGED = {"INSERT": "NEW", "UPDATE": "OLD", "DELETE": "OLD"}
_EVENTS = {
    "usage": ("INSERT", "UPDATE", "DELETE"),
    "months": ("INSERT", "UPDATE", "DELETE"),
    "usage_new": ("INSERT",),
}


def upgrade() -> None:
    if op.get_context().dialect.name != "postgresql":
        return
    for table in _EVENTS:
        op.execute(f"DROP TRIGGER {table}_closed ON {table}")
    op.execute("DROP FUNCTION refuse_closed()")
    op.execute(
        "CREATE FUNCTION refuse_closed() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$ "
        "BEGIN IF EXISTS (SELECT 1 FROM changed JOIN closed_months USING (month)) THEN "
        "RAISE EXCEPTION 'the month is closed'; END IF; RETURN NULL; END $$"
    )
    for table, events in _EVENTS.items():
        for event in events:
            op.execute(
                f"CREATE TRIGGER {table}_{event.lower()}_closed AFTER {event} ON {table} "
                f"REFERENCING {_CHANGED[event]} TABLE AS changed "
                "FOR EACH STATEMENT EXECUTE FUNCTION refuse_closed()"
            )
    # What commits change again and again: a new version of a row fits beside the old one, and no index is touched.
    for table in ("teams", "months", "token_months", "usage"):
        op.execute(f"ALTER TABLE {table} SET (fillfactor = 60)")


def downgrade() -> None:
    raise NotImplementedError("restore a backup")
