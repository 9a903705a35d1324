"""Brings a database to this version's schema with Alembic, and refuses a newer one.

Alembic is imported only when it is used: it weighs 10 MB, which every worker would carry for good.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError

from tollgate.errors import StartError
from tollgate.store.sqlite import run_on_connect

if TYPE_CHECKING:
    from alembic.config import Config

# Another process may be at it: wait for it rather than fail.
BUSY_MILLISECONDS = 30_000
# Folders of migrations.
CONTROL, LEDGER = "migrations", "ledger_migrations"


def migrate(url: URL, folder: str = CONTROL) -> list[str]:
    """Bring the database to this version's schema; return the steps taken. Refuse a newer database."""
    from alembic import command  # noqa: PLC0415 - see above
    from alembic.runtime.migration import MigrationContext  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    with _migrating(url, folder) as (connection, config):
        scripts = ScriptDirectory.from_config(config)
        known = {script.revision: script for script in scripts.walk_revisions()}
        at = MigrationContext.configure(connection).get_current_revision()
        if at is not None and at not in known:
            raise StartError(
                f"The database {url.database} is at version {at}, made by a newer Tollgate. "
                "Install that version or newer, or restore a backup."
            )
        if at == scripts.get_current_head():
            return []
        command.upgrade(config, "head")
        steps = [script for script in scripts.iterate_revisions("head", at or "base") if script.revision != at]
        return [f"{script.revision} {script.doc}" for script in reversed(steps)]


@contextmanager
def _migrating(url: URL, folder: str) -> Iterator[tuple[Connection, Config]]:
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / folder))
    engine = create_engine(url)
    run_on_connect(engine, f"busy_timeout={BUSY_MILLISECONDS}", "foreign_keys=ON")
    _whole_transactions(engine)
    try:
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            yield connection, config
        _write_ahead(engine)
    except (SQLAlchemyError, OSError) as error:
        raise StartError(
            f"The database {url.database} cannot be used: {_cause(error)}. "
            "Check that it is a Tollgate database and that its folder can be written."
        ) from error
    finally:
        engine.dispose()


def _write_ahead(engine: Engine) -> None:
    """Switch to WAL, for good. Of two that do it at once one is refused, and the other has done it."""
    connection = engine.raw_connection()
    with closing(connection), suppress(sqlite3.OperationalError):
        connection.cursor().execute("PRAGMA journal_mode=WAL")


def _whole_transactions(engine: Engine) -> None:
    """Let a migration happen whole or not at all: by itself, Python's driver leaves out what changes tables."""

    @event.listens_for(engine, "connect")
    def manual(connection: Any, _record: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _cause(error: BaseException) -> str:
    return str(getattr(error, "orig", None) or error).splitlines()[0]
