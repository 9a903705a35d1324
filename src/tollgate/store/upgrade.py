"""Brings a database to this version's schema with Alembic, and refuses a newer one.

Several nodes may start together: the first migrates, in one transaction, and the others wait for it (SQLite: the
write lock of the file; PostgreSQL: an advisory lock). On PostgreSQL no step waits for long for the lock of a
table that is in use, because all other transactions would wait behind it: it gives up, and is tried again a
moment later.

Alembic is a lazy module: it takes 10 MB, which every worker would keep.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy import Connection, create_engine
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError

from tollgate.errors import StartError
from tollgate.lazy_module import LazyModule
from tollgate.store import postgresql
from tollgate.store.base import cause_of
from tollgate.store.postgresql import CONTROL_SCHEMA, LEDGER_SCHEMA, is_postgresql
from tollgate.store.sqlite import begin_explicitly, run_on_connect

if TYPE_CHECKING:
    import alembic.command
    import alembic.runtime.migration
    import alembic.script
    from alembic.config import Config
else:
    alembic = LazyModule("alembic")

# Another process may be at it: wait for it rather than fail.
BUSY_MILLISECONDS = 30_000
# Folders of migrations.
CONTROL, LEDGER = "control", "ledger"
SCHEMAS = {CONTROL: CONTROL_SCHEMA, LEDGER: LEDGER_SCHEMA}
# How long to wait for another node that migrates.
OTHER_MILLISECONDS = 600_000
# How long a step waits for the lock of a table that is in use, and how long it then leaves others alone.
LOCK_MILLISECONDS = 2_000
PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)
LOCK_NOT_AVAILABLE = "55P03"
_FRAME = frozenset({"BEGIN", "COMMIT"})

Result = TypeVar("Result")


def migrate(url: URL, folder: str = CONTROL) -> list[str]:
    """Bring the database to this version's schema; return the steps taken. Refuse a newer database."""

    def work(connection: Connection, config: Config) -> list[str]:
        _, steps = _pending(connection, config, url)
        if steps:
            alembic.command.upgrade(config, "head")
        return steps

    return _with_retries(lambda: _migrate(url, folder, work))


def plan(url: URL, folder: str = CONTROL) -> list[tuple[str, list[str]]]:
    """What `migrate` would do: its steps, each with its statements. Changes nothing."""

    def work(connection: Connection, config: Config) -> list[tuple[str, list[str]]]:
        at, steps = _pending(connection, config, url)
        found = []
        for step in steps:
            number = step.partition(" ")[0]
            output = config.output_buffer = StringIO()
            config.attributes["connection"] = None
            config.attributes["dialect"] = url.get_backend_name()
            alembic.command.upgrade(config, f"{at or 'base'}:{number}", sql=True)
            found.append((step, _statements(output.getvalue())))
            at = number
        return found

    return _migrate(url, folder, work, makes_schema=False)


def _statements(text: str) -> list[str]:
    """Statements of a script, without Alembic's own bookkeeping and comments."""
    code = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    # Alembic ends each with a semicolon and an empty line; a semicolon alone may be part of a trigger.
    found = [" ".join(each.split()) for each in code.split(";\n\n")]
    return [each for each in found if each and "alembic_version" not in each and each.rstrip(";") not in _FRAME]


def _pending(connection: Connection, config: Config, url: URL) -> tuple[str | None, list[str]]:
    """Where the database is, and the steps from there to this version."""
    scripts = alembic.script.ScriptDirectory.from_config(config)
    known = {script.revision for script in scripts.walk_revisions()}
    at = alembic.runtime.migration.MigrationContext.configure(connection).get_current_revision()
    if at is not None and at not in known:
        raise StartError(
            f"The database {url.database} is at version {at}, made by a newer Tollgate. "
            "Install that version or newer, or restore a backup."
        )
    steps = [script for script in scripts.iterate_revisions("head", at or "base") if script.revision != at]
    return at, [f"{script.revision} {script.doc}" for script in reversed(steps)]


def _with_retries(work: Callable[[], list[str]]) -> list[str]:
    """Do it again while a table is in use."""
    for pause in PAUSES:
        try:
            return work()
        except StartError as error:
            if getattr(getattr(error.__cause__, "orig", None), "sqlstate", None) != LOCK_NOT_AVAILABLE:
                raise
        time.sleep(pause)
    return work()


def _migrate(
    url: URL, folder: str, work: Callable[[Connection, Config], Result], *, makes_schema: bool = True
) -> Result:
    config = alembic.config.Config()
    scripts = Path(__file__).parent / "migrations"
    config.set_main_option("script_location", str(scripts))
    config.set_main_option("version_locations", str(scripts / folder))
    config.set_main_option("path_separator", "newline")
    if is_postgresql(url):
        schema = SCHEMAS[folder]
        engine = postgresql.make_engine(url, schema, pool_size=1, seconds=0)
    else:
        engine = create_engine(url, execution_options={"immediate": True})
        run_on_connect(engine, f"busy_timeout={BUSY_MILLISECONDS}", "foreign_keys=ON")
        # A migration happens whole or not at all: by itself, Python's driver leaves out what changes tables.
        begin_explicitly(engine)
    try:
        with engine.begin() as connection:
            if is_postgresql(url):
                connection.exec_driver_sql(f"SET LOCAL lock_timeout TO {OTHER_MILLISECONDS}")
                postgresql.lock(connection, postgresql.LOCK_MIGRATING)
                if makes_schema:
                    connection.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")
                connection.exec_driver_sql(f"SET LOCAL lock_timeout TO {LOCK_MILLISECONDS}")
            config.attributes["connection"] = connection
            done = work(connection, config)
        if not is_postgresql(url):
            # For good. Of two that do it at once one is refused, and the other has done it.
            with closing(engine.raw_connection()) as raw, suppress(sqlite3.OperationalError):
                raw.cursor().execute("PRAGMA journal_mode=WAL")
    except (SQLAlchemyError, OSError) as error:
        advice = (
            "Check that the server runs, and that the user may connect and create schemas."
            if is_postgresql(url)
            else "Check that it is a Tollgate database and that its folder can be written."
        )
        raise StartError(f"The database {url.database} cannot be used: {cause_of(error)}. {advice}") from error
    finally:
        engine.dispose()
    return done
