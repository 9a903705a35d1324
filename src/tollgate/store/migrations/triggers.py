"""Triggers that note changes of grants in the table `changes`, for each database in its own words.

SQLite: one after another anyway. PostgreSQL: deferred to the end of the transaction, where one lock, held for the
moment of the commit, puts changes in the order of commits: a reader that has seen a revision gets no older one
later. There the changes are notified as well.
"""

from __future__ import annotations

from alembic import op

from tollgate.store.postgresql import CHANNEL, LOCK_CHANGES, LOCKS

# How many changes are kept for workers that look five times a second. One that has missed more starts anew.
KEPT_CHANGES = 10_000
# Table -> kind of a change, and its key in SQLite and in PostgreSQL.
_KEYS = {
    "tokens": ("token", "lower(hex({row}.digest))", "encode({row}.digest, 'hex')"),
    "domains": ("domain", "{row}.domain", "{row}.domain"),
    "teams": ("team", "{row}.id", "{row}.id"),
}


def note_changes(table: str, columns: str) -> None:
    """Note whatever happens to a table: rows added, removed, or changed in one of these columns."""
    if _is_postgresql():
        _make_function(table)
    kind, key, _ = _KEYS[table]
    _trigger(table, "insert", "AFTER INSERT", kind, key.format(row="NEW"))
    _trigger(table, "delete", "AFTER DELETE", kind, key.format(row="OLD"))
    _note_updates(table, columns)


def note_updates(table: str, columns: str) -> None:
    """Note changes of these columns from now on. A trigger cannot be altered, only made anew."""
    on_table = f" ON {table}" if _is_postgresql() else ""
    for name in ("update",) if _is_postgresql() else ("update", "renamed"):
        op.execute(f"DROP TRIGGER {table}_{name}{on_table}")
    _note_updates(table, columns)


def trim_changes() -> None:
    """Keep the newest changes alone."""
    if _is_postgresql():
        op.execute(
            "CREATE FUNCTION trim_changes() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$ "
            f"BEGIN DELETE FROM changes WHERE revision <= NEW.revision - {KEPT_CHANGES}; RETURN NULL; END $$"
        )
        op.execute(
            "CREATE TRIGGER changes_trim AFTER INSERT ON changes FOR EACH ROW "
            "WHEN (NEW.revision % 1000 = 0) EXECUTE FUNCTION trim_changes()"
        )
        return
    op.execute(
        "CREATE TRIGGER changes_trim AFTER INSERT ON changes WHEN NEW.revision % 1000 = 0 BEGIN "
        f"DELETE FROM changes WHERE revision <= NEW.revision - {KEPT_CHANGES}; END"
    )


def _is_postgresql() -> bool:
    return op.get_context().dialect.name == "postgresql"


def _note_updates(table: str, columns: str) -> None:
    kind, key, _ = _KEYS[table]
    _trigger(table, "update", f"AFTER UPDATE OF {columns}", kind, key.format(row="OLD"))
    # PostgreSQL's function notes the old and the new key.
    if not _is_postgresql():
        _trigger(table, "renamed", f"AFTER UPDATE OF {columns}", kind, key.format(row="NEW"))


def _trigger(table: str, name: str, event: str, kind: str, key: str) -> None:
    if _is_postgresql():
        op.execute(
            f"CREATE CONSTRAINT TRIGGER {table}_{name} {event} ON {table} DEFERRABLE INITIALLY DEFERRED "
            f"FOR EACH ROW EXECUTE FUNCTION note_{table}()"
        )
        return
    op.execute(
        f"CREATE TRIGGER {table}_{name} {event} ON {table} BEGIN "
        f"INSERT INTO changes (kind, key) VALUES ('{kind}', {key}); END"
    )


def _make_function(table: str) -> None:
    kind, _, key = _KEYS[table]
    old, new = (key.format(row=row) for row in ("OLD", "NEW"))
    op.execute(
        f"CREATE FUNCTION note_{table}() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$ "
        f"BEGIN PERFORM pg_advisory_xact_lock({LOCKS}, {LOCK_CHANGES}); "
        f"IF TG_OP <> 'INSERT' THEN INSERT INTO changes (kind, key) VALUES ('{kind}', {old}); END IF; "
        f"IF TG_OP = 'INSERT' OR (TG_OP = 'UPDATE' AND {new} <> {old}) THEN "
        f"INSERT INTO changes (kind, key) VALUES ('{kind}', {new}); END IF; "
        f"PERFORM pg_notify('{CHANNEL}', ''); RETURN NULL; END $$"
    )
