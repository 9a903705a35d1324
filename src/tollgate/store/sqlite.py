"""What only SQLite has: its pragmas, and migrating by itself at start.

WAL, so that readers and the one writer do not wait for each other; a short busy timeout, because whoever waits
here is a caller. Everything else is `sql.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine

from tollgate.errors import StartError
from tollgate.store import tables
from tollgate.store.sql import SqlStore

BUSY_MILLISECONDS = 2_000


def store_url(configured: str, data_dir: Path) -> URL:
    """Return the store's address: the configured one, or `control.db` in the data folder."""
    if not configured:
        return URL.create("sqlite", database=str(data_dir / "control.db"))
    try:
        url = make_url(configured)
    except ArgumentError as error:
        raise StartError("store.url is not a database URL: write sqlite:///path/to/control.db.") from error
    if url.get_backend_name() != "sqlite" or not url.database or url.database == ":memory:":
        raise StartError("store.url must name an SQLite file: sqlite:///path/to/control.db.")
    return url


def open_store(url: URL) -> SqlStore:
    """Open the store for a worker. Call it in the process that uses it, never before a fork."""
    engine = create_async_engine(url.set(drivername="sqlite+aiosqlite"), pool_size=4, max_overflow=0)
    _prepare(engine.sync_engine)
    return SqlStore(engine)


def migrate(url: URL) -> list[str]:
    """Bring the database to this version's schema; return the steps taken. Refuse a newer database."""
    with _migrating(url) as (connection, config, scripts):
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
def _migrating(url: URL) -> Iterator[tuple[Connection, Config, ScriptDirectory]]:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    engine = create_engine(url)
    _prepare(engine)
    try:
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            yield connection, config, ScriptDirectory.from_config(config)
    except (SQLAlchemyError, OSError) as error:
        raise StartError(
            f"The database {url.database} cannot be used: {_cause(error)}. "
            "Check that it is a Tollgate database and that its folder can be written."
        ) from error
    finally:
        engine.dispose()


def keep_fact(url: URL, name: str, value: str) -> str:
    """Write a fact once; return the one that stands, which may be older than ours."""
    engine = create_engine(url)
    _prepare(engine)
    try:
        with engine.begin() as connection:
            table = tables.facts
            stands = connection.execute(select(table.c.value).where(table.c.name == name)).scalar()
            if stands is None:
                connection.execute(table.insert().values(name=name, value=value))
            return value if stands is None else str(stands)
    finally:
        engine.dispose()


def _cause(error: BaseException) -> str:
    return str(getattr(error, "orig", None) or error).splitlines()[0]


def _prepare(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def pragmas(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        for pragma in (
            f"busy_timeout={BUSY_MILLISECONDS}",
            "journal_mode=WAL",
            "synchronous=NORMAL",
            "foreign_keys=ON",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()
