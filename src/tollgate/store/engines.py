"""Which backend an address names: SQLite files in the data folder, or one PostgreSQL database for everything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, func, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from tollgate.errors import StartError
from tollgate.store import accountbook, logbook, postgresql, sqlite, tables
from tollgate.store.accountbook import SqlAccountBook
from tollgate.store.ledger_facts import LedgerFacts, read_only
from tollgate.store.logbook import SqlLogBook
from tollgate.store.postgresql import CONTROL_SCHEMA, LEDGER_SCHEMA, READING, is_postgresql
from tollgate.store.sql import SqlStore

DATABASE_ERRORS = (SQLAlchemyError, OSError)
"""What the sync engines raise."""
# Of what is not a caller: it may wait for a busy database.
PATIENT_SECONDS = 10.0


def store_url(configured: str, data_dir: Path) -> URL:
    """Return the store's address: the configured one, or `control.db` in the data folder."""
    if configured:
        try:
            url = make_url(configured)
        except ArgumentError as error:
            raise StartError(
                "store.url is not a database URL: write sqlite:///path/to/control.db, "
                "or postgresql://user:password@host/tollgate."
            ) from error
        if is_postgresql(url):
            return postgresql.checked(url)
    return sqlite.store_url(configured, data_dir)


def exists(url: URL) -> bool:
    """Whether a database file exists; of a server it is assumed."""
    return is_postgresql(url) or Path(url.database or "").exists()


def open_store(url: URL) -> SqlStore:
    """Open the store for a worker. Call it in the process that uses it, never before a fork."""
    return postgresql.open_store(url) if is_postgresql(url) else sqlite.open_store(url)


def ledger_url(store: URL, data_dir: Path) -> URL:
    """Return the ledger's address: the store's database where that is PostgreSQL, or `ledger.db`."""
    return store if is_postgresql(store) else sqlite.ledger_url(data_dir)


def open_logbook(url: URL) -> SqlLogBook:
    """Open the ledger for reading its logs. Call it in the process that uses it, never before a fork."""
    if not is_postgresql(url):
        return sqlite.open_logbook(url)
    return SqlLogBook(
        postgresql.make_engine(
            url, LEDGER_SCHEMA, pool_size=logbook.THREADS, seconds=logbook.DEADLINE_SECONDS, begin=READING
        )
    )


def open_accountbook(url: URL) -> SqlAccountBook:
    """Open the ledger for reading usage and writing invoices."""
    if not is_postgresql(url):
        return sqlite.open_accountbook(url)
    seconds = accountbook.DEADLINE_SECONDS
    return SqlAccountBook(postgresql.make_async_engine(url, LEDGER_SCHEMA, pool_size=4, seconds=seconds))


def open_facts(url: URL) -> LedgerFacts:
    """Open the ledger for checking it; never writes."""
    if is_postgresql(url):
        return LedgerFacts(postgresql.make_engine(url, LEDGER_SCHEMA, pool_size=1, seconds=0, begin=READING))
    return LedgerFacts(read_only(Path(url.database or "")))


def open_control(url: URL, busy_milliseconds: int) -> Engine:
    """Open the control data for a process without an event loop, which may wait for a busy database."""
    if is_postgresql(url):
        return postgresql.make_engine(url, CONTROL_SCHEMA, pool_size=2, seconds=busy_milliseconds / 1_000)
    engine = create_engine(url, hide_parameters=True)
    sqlite.set_pragmas(engine, busy_milliseconds)
    return engine


@contextmanager
def _transaction(url: URL) -> Iterator[Connection]:
    """A transaction on the control data, for a moment."""
    engine = open_control(url, int(PATIENT_SECONDS * 1_000))
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def insert_if_absent(url: URL, name: str, value: str) -> str:
    """Insert a fact unless there is one of this name; return the stored value."""
    with _transaction(url) as connection:
        connection.exec_driver_sql(
            "INSERT INTO facts (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING", (name, value)
        )
        table = tables.facts
        return str(connection.execute(select(table.c.value).where(table.c.name == name)).scalar_one())


def fact(url: URL, name: str) -> str | None:
    with _transaction(url) as connection:
        return connection.execute(select(tables.facts.c.value).where(tables.facts.c.name == name)).scalar()


def replace_facts(url: URL, facts: Mapping[str, str]) -> None:
    with _transaction(url) as connection:
        for name, value in facts.items():
            connection.execute(tables.facts.delete().where(tables.facts.c.name == name))
            connection.execute(tables.facts.insert().values(name=name, value=value))


def has_accounts(url: URL) -> bool:
    with _transaction(url) as connection:
        return connection.execute(select(tables.accounts.c.id).limit(1)).first() is not None


def tokens_made_before(url: URL, at: float) -> int:
    """How many API tokens that work were made before a moment."""
    token = tables.tokens.c
    with _transaction(url) as connection:
        query = select(func.count()).where(token.created_at < at, token.active)
        return int(connection.execute(query).scalar_one())
