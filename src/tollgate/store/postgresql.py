"""What only PostgreSQL has: its address, how transactions begin, its locks, and notifications of changes.

Control data and ledger are two schemas of one database. Every transaction sets its own search path and timeouts
with its BEGIN, and no statement is prepared: so nothing depends on which server connection is used, and PgBouncer
in transaction mode works.

psycopg is a lazy module: it is imported when an address names PostgreSQL.
"""

from __future__ import annotations

import asyncio
import importlib.util
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Column, Connection, Engine, String, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.ext.compiler import compiles

from tollgate import log
from tollgate.errors import StartError
from tollgate.lazy_module import LazyModule
from tollgate.store.base import Changes
from tollgate.store.sql import DEADLINE_SECONDS, SqlStore
from tollgate.store.statements import Sql

if TYPE_CHECKING:
    import psycopg.adapt
    import psycopg.types.string
    import psycopg.waiting
else:
    psycopg = LazyModule("psycopg")

CONTROL_SCHEMA, LEDGER_SCHEMA = "tollgate", "tollgate_ledger"
CHANNEL = "tollgate_changes"
CONNECT_SECONDS = 5
# Changes under way in one process. Each may wait for a row that another one holds: others must have connections.
CHANGES_AT_ONCE = 4
POOL_SIZE = 8
# While notifications arrive, changes are polled for this often all the same.
NET_SECONDS = 0.8
RETRY_LISTENING_SECONDS = 5.0
# A poll that gets no answer for so long is joined by another one, on another connection, so many at once: one that
# a network has silently cut does not answer when the network is back, and a new one does.
POLL_SECONDS, MAX_POLLS = 0.4, 3
# Advisory locks of ours: the first number of each pair. The second is what is locked.
LOCKS = 0x746F6C6C
LOCK_MIGRATING, LOCK_CHANGES, LOCK_CHORES, LOCK_MONTHS, LOCK_DAYS, LOCK_LEASES = 1, 2, 3, 4, 5, 6
_PLACE = re.compile(r"\?")
_log = log.get("store")


@compiles(String, "postgresql")
def _text(kind: String, compiler: Any, **options: Any) -> str:
    """Text columns are ordered by bytes, as in SQLite; and no upgrade of a system's locales spoils an index."""
    is_column = isinstance(options.get("type_expression"), Column)
    return str(compiler.visit_VARCHAR(kind, **options)) + (' COLLATE "C"' if is_column else "")


def is_postgresql(url: URL) -> bool:
    return url.get_backend_name() in ("postgresql", "postgres")


def checked(url: URL) -> URL:
    """An address that can be used, or StartError."""
    if importlib.util.find_spec("psycopg") is None:
        raise StartError('store.url names PostgreSQL, which needs psycopg: pip install "tollgate-rpc[postgres]".')
    if not url.database:
        raise StartError("store.url names no database: write postgresql://user:password@host:5432/tollgate.")
    return url.set(drivername="postgresql+psycopg")


READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
"""Reads a snapshot."""


def make_engine(url: URL, schema: str, *, pool_size: int, seconds: float, begin: str = "BEGIN") -> Engine:
    """An engine of one thread or several."""
    engine = create_engine(url, **_options(pool_size, seconds))
    _prepare(engine, schema, seconds, begin)
    return engine


def make_async_engine(url: URL, schema: str, *, pool_size: int, seconds: float) -> AsyncEngine:
    """An engine of an event loop."""
    options = _options(pool_size, seconds)
    options["connect_args"]["async_creator_fn"] = _connect
    engine = create_async_engine(url, **options)
    _prepare(engine.sync_engine, schema, seconds, READING)
    return engine


def open_store(url: URL, *, deadline: float = DEADLINE_SECONDS) -> SqlStore:
    """Open the store for a worker. Call it in the process that uses it, never before a fork."""
    engine = make_async_engine(url, CONTROL_SCHEMA, pool_size=POOL_SIZE, seconds=deadline)
    return PostgresStore(engine, url, deadline)


def lock(connection: Connection, what: int, *, shared: bool = False) -> None:
    """Hold one of our locks until the transaction ends."""
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock{'_shared' if shared else ''}({LOCKS}, {what})")


def try_lock(connection: Connection, what: int) -> bool:
    """Hold one of our locks until the transaction ends, unless another has it."""
    return bool(connection.exec_driver_sql(f"SELECT pg_try_advisory_xact_lock({LOCKS}, {what})").scalar())


def _options(pool_size: int, seconds: float) -> dict[str, Any]:
    return {
        "pool_size": pool_size,
        "max_overflow": 0,
        "pool_timeout": seconds,
        # A restarted server has closed all of them.
        "pool_pre_ping": True,
        "hide_parameters": True,  # digests and addresses of people, which the text of an error would repeat
        "connect_args": {
            # We begin transactions; see `_prepare`.
            "autocommit": True,
            "prepare_threshold": None,
            "connect_timeout": CONNECT_SECONDS,
            "application_name": "tollgate",
            # A server that is cut off is noticed while we wait for it.
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": int(seconds * 1_000),
        },
    }


def _prepare(engine: Engine, schema: str, seconds: float, usual: str) -> None:
    """Begin transactions ourselves, with all that they need in one round trip; translate placeholders."""

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        options = connection.get_execution_options()
        timeout = int(options.get("seconds", seconds) * 1_000)
        connection.exec_driver_sql(
            f"{'BEGIN' if options.get('immediate') else usual}; "
            f"SET LOCAL search_path TO {schema}; SET LOCAL statement_timeout TO {timeout}"
        )

    @event.listens_for(engine, "before_cursor_execute", retval=True)
    def translate(
        _connection: Any, _cursor: Any, statement: str, parameters: Any, context: Any, _many: bool
    ) -> tuple[str, Any]:
        # Only what was written by hand; SQLAlchemy's own is as the driver wants it.
        return (statement if context.compiled is not None else _translated(statement)), parameters

    @event.listens_for(engine, "handle_error")
    def shorten(context: Any) -> None:
        # The further lines repeat the row: digests, and addresses of people.
        for error in (context.original_exception, context.sqlalchemy_exception):
            # A wait that is cancelled has no words.
            if error is not None and error.args:
                error.args = (str(error.args[0]).partition("\n")[0], *error.args[1:])

    @event.listens_for(engine, "connect")
    def adapt(connection: Any, _record: Any) -> None:
        driver = getattr(connection, "driver_connection", connection)
        driver.adapters.register_dumper(str, _text_dumper())
        # Sums; all that is added up here is whole.
        driver.adapters.register_loader("numeric", _whole_loader())


async def _connect(*arguments: Any, **options: Any) -> Any:
    return await _connection_class().connect(*arguments, **options)


@cache
def _connection_class() -> Any:
    """A connection that is closed when a wait for it is cancelled.

    psycopg's own sends the server a cancel request for the statement, and waits up to ten seconds for that: beyond
    every deadline where the server is cut off. The server ends the statement by `statement_timeout`.
    """

    class Connection(psycopg.AsyncConnection[Any]):
        async def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
            try:
                return await psycopg.waiting.wait_async(gen, self.pgconn.socket, *arguments, **options)
            except asyncio.CancelledError:
                self.pgconn.finish()
                raise

    return Connection


@cache
def _text_dumper() -> Any:
    """Text as PostgreSQL takes it: without NUL, for which it has no place. Nothing is found by such a text."""

    class Text(psycopg.types.string.StrDumperUnknown):
        def dump(self, obj: str) -> Any:
            return super().dump(obj.replace("\x00", "\x01") if "\x00" in obj else obj)

    return Text


@lru_cache(maxsize=1_000)
def _translated(statement: str) -> str:
    """SQLite's placeholders as psycopg's."""
    return _PLACE.sub("%s", statement)


@cache
def _whole_loader() -> Any:
    class Whole(psycopg.adapt.Loader):
        def load(self, data: Any) -> int:
            return int(bytes(data))

    return Whole


class Array(NamedTuple):
    """How a column of many values is sent, as one text: the driver's own arrays take ten times as long to make."""

    sql: Sql
    text: Callable[[Iterable[Any]], str]


def _lines(values: Iterable[str]) -> str:
    """One text a line, and a line before them: no text at all and one that is empty would look alike."""
    # Names of ours have no line's end. One that has must not become two.
    return "\n".join(["", *[value.replace("\n", " ") for value in values]])


TEXTS = Array(Sql("(string_to_array(?, E'\\n'))[2:]"), _lines)
NUMBERS = Array(Sql("?::int8[]"), lambda values: f"{{{','.join(map(str, values))}}}")
TIMES = Array(Sql("?::float8[]"), lambda values: f"{{{','.join(map(repr, values))}}}")
BYTES = Array(
    Sql("?::bytea[]"), lambda values: "{" + ",".join([f'"\\\\x{value.hex()}"' for value in values]) + "}"
)


class PostgresStore(SqlStore):
    """The store, with PostgreSQL's notifications of changes."""

    def __init__(self, engine: AsyncEngine, url: URL, deadline: float) -> None:
        super().__init__(engine, deadline, changes_at_once=CHANGES_AT_ONCE, locks_rows=True)
        self._listener = Listener(url)

    async def close(self) -> None:
        await self._listener.close()
        await super().close()

    async def changes(self, since: int | None) -> Changes | None:
        """Return what changed after `since`; without a query while no notification has come."""
        if since is None:
            return await super().changes(since)
        if self._listener.is_quiet():
            return None
        self._listener.looks()
        try:
            return await self._polled(since)
        except BaseException:
            self._listener.forget()
            raise

    async def _polled(self, since: int) -> Changes | None:
        """The first answer of several polls; another one starts while the earlier ones get no answer."""
        poll = super().changes
        first: asyncio.Task[Changes | None] = asyncio.create_task(poll(since))
        others: list[asyncio.Task[Changes | None]] = []
        try:
            while True:
                polls = (first, *others)
                done, _ = await asyncio.wait(polls, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if done:
                    return done.pop().result()
                # The first has the whole deadline: a slow database must do. Of the others the latest are kept.
                if len(others) == MAX_POLLS - 1:
                    others.pop(0).cancel()
                others.append(asyncio.create_task(poll(since)))
        finally:
            for each in (first, *others):
                each.cancel()
            await asyncio.gather(first, *others, return_exceptions=True)


class Listener:
    """Knows whether there was a notification since the last look. Without a connection, there always was."""

    def __init__(self, url: URL, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._listening = False
        self._notified = True
        self._looked_at = 0.0

    def is_quiet(self) -> bool:
        """Whether no look is needed now."""
        return self._listening and not self._notified and self._clock() - self._looked_at < NET_SECONDS

    def looks(self) -> None:
        """Note a look at the changes; listen from now on."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._listen())
        self._notified = False
        self._looked_at = self._clock()

    def forget(self) -> None:
        """Note that the last look has failed."""
        self._notified = True

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _listen(self) -> None:
        while True:
            try:
                async with asyncio.timeout(2 * CONNECT_SECONDS):
                    connection = await self._connect()
                async with connection:
                    if not await _is_direct(connection):
                        _log.info("PostgreSQL is behind a pooler: changes are polled for")
                        return
                    await connection.execute(f"LISTEN {CHANNEL}")
                    self._listening, self._notified = True, True
                    async for _ in connection.notifies():
                        self._notified = True
            except (psycopg.Error, OSError) as error:
                _log.warning("changes are polled for: PostgreSQL cannot notify", why=type(error).__name__)
            finally:
                self._listening = False
            await asyncio.sleep(RETRY_LISTENING_SECONDS)

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        engine = create_async_engine(self._url)
        _, values = engine.dialect.create_connect_args(self._url)
        options = {**values, **_options(1, DEADLINE_SECONDS)["connect_args"]}
        return await psycopg.AsyncConnection.connect(**options)


async def _is_direct(connection: psycopg.AsyncConnection[Any]) -> bool:
    """Whether this is a connection to the server. A pooler reports process numbers of its own."""
    row = await (await connection.execute("SELECT pg_backend_pid()")).fetchone()
    return row is not None and row[0] == connection.info.backend_pid
