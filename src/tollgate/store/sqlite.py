"""What only SQLite has: its address and its pragmas.

WAL, so that readers and the one writer do not wait for each other; a short busy timeout, because a
caller waits. Everything else is `sql.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from tollgate.errors import StartError
from tollgate.store.accountbook import SqlAccountBook
from tollgate.store.logbook import LOOK_SECONDS, THREADS, SqlLogBook
from tollgate.store.sql import DEADLINE_SECONDS, SqlStore

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
        raise StartError(
            "store.url must name an SQLite file, sqlite:///path/to/control.db, or a PostgreSQL database, "
            "postgresql://user:password@host/tollgate."
        )
    return url


def ledger_url(data_dir: Path) -> URL:
    """Return the ledger's address: `ledger.db` in the data folder."""
    return URL.create("sqlite", database=str(data_dir / "ledger.db"))


def open_logbook(
    url: URL, *, look_seconds: float = LOOK_SECONDS, clock: Callable[[], float] = time.monotonic
) -> SqlLogBook:
    """Open the ledger for reading its logs. Call it in the process that uses it, never before a fork."""
    engine = create_engine(url, pool_size=THREADS, max_overflow=0, hide_parameters=True)
    set_pragmas(engine)
    run_on_connect(engine, "query_only=ON")
    begin_explicitly(engine)
    return SqlLogBook(engine, look_seconds=look_seconds, clock=clock)


def open_accountbook(url: URL, *, busy_milliseconds: int = BUSY_MILLISECONDS) -> SqlAccountBook:
    """Open the ledger for reading usage and writing invoices."""
    return SqlAccountBook(_async_engine(url, busy_milliseconds))


def open_store(
    url: URL, *, deadline: float = DEADLINE_SECONDS, busy_milliseconds: int = BUSY_MILLISECONDS
) -> SqlStore:
    """Open the store for a worker. Call it in the process that uses it, never before a fork."""
    return SqlStore(_async_engine(url, busy_milliseconds), deadline)


def _async_engine(url: URL, busy_milliseconds: int) -> AsyncEngine:
    engine = create_async_engine(
        url.set(drivername="sqlite+aiosqlite"),
        pool_size=4,
        max_overflow=0,
        hide_parameters=True,  # digests and addresses of people, which the text of an error would repeat
    )
    set_pragmas(engine.sync_engine, busy_milliseconds)
    begin_explicitly(engine.sync_engine)
    return engine


def begin_explicitly(engine: Engine) -> None:
    """Begin transactions ourselves: Python's driver begins one only at the first change, after what was read."""

    @event.listens_for(engine, "connect")
    def manual(connection: Any, _record: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        immediate = connection.get_execution_options().get("immediate")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")


def set_pragmas(engine: Engine, busy_milliseconds: int = BUSY_MILLISECONDS) -> None:
    """Prepare every connection that this engine opens."""
    run_on_connect(
        engine,
        f"busy_timeout={busy_milliseconds}",
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "foreign_keys=ON",
    )


def run_on_connect(engine: Engine, *pragmas: str) -> None:
    """Run pragmas on every connection that this engine opens."""

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        for pragma in pragmas:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()
