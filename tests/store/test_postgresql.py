"""PostgreSQL alone: migrating from many nodes at once, what is notified, what is retried, and moving there."""

import asyncio
import gc
import io
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy.engine import URL
from sqlalchemy.exc import OperationalError
from tests.contract.ledgers import TEAMS, LedgerHarness, SqliteHome, entry, history
from tests.contract.samples import DIGEST, FULL, OTHER, PLAIN, TEAM, put

from parts.postgres import cluster
from tollgate import log
from tollgate.control.services.job_leases import JobLeases
from tollgate.core.models import Team
from tollgate.core.nodes import JobLease, taken
from tollgate.errors import StartError
from tollgate.processes.control import retrying
from tollgate.store import (
    engines,
    ledger_engine,
    ledger_tables,
    move,
    postgresql,
    retries,
    sqlite,
    tables,
    upgrade,
)
from tollgate.store.base import Changes, StoreUnavailable
from tollgate.store.postgresql import Listener
from tollgate.store.sql import SqlStore

pytestmark = pytest.mark.e2e


@pytest.fixture
def url() -> Iterator[URL]:
    name = cluster().make()
    yield postgresql.checked(cluster().url(name))
    cluster().drop(name)


@pytest.fixture
def migrated(url: URL) -> URL:
    for folder in (upgrade.CONTROL, upgrade.LEDGER):
        upgrade.migrate(url, folder)
    return url


# --- Migrating ---------------------------------------------------------------------------------------------


def test_many_nodes_that_start_together_migrate_once(url: URL) -> None:
    with ThreadPoolExecutor(5) as pool:
        steps = list(pool.map(lambda _: upgrade.migrate(url), range(5)))
    assert sorted(map(bool, steps)) == [False] * 4 + [True]


@pytest.mark.parametrize(
    ("folder", "schema", "metadata"),
    [
        (upgrade.CONTROL, postgresql.CONTROL_SCHEMA, tables.metadata),
        (upgrade.LEDGER, postgresql.LEDGER_SCHEMA, ledger_tables.metadata),
    ],
)
def test_migrated_database_is_the_schema(migrated: URL, folder: str, schema: str, metadata: Any) -> None:
    engine = postgresql.make_engine(migrated, schema, pool_size=1, seconds=10)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        found = compare_metadata(context, metadata)
    engine.dispose()
    # What PostgreSQL has beyond the shared schema: parents of partitions, and numbers of appended rows.
    beyond = {"blocks", "data", "rowid"}
    assert [each for each in found if _name(each) not in beyond] == []


def _name(difference: Any) -> str:
    what = difference[3] if difference[0] in ("remove_column", "add_column") else difference[1]
    return str(getattr(what, "name", what))


def test_plan_names_steps_and_statements_and_changes_nothing(url: URL) -> None:
    steps = upgrade.plan(url)
    assert [step[:4] for step, _ in steps] == [f"{number:04}" for number in range(1, len(steps) + 1)]
    assert any("CREATE TABLE teams" in statement for _, statements in steps for statement in statements)
    assert upgrade.plan(url) == steps
    upgrade.migrate(url)
    assert upgrade.plan(url) == []


def test_step_does_not_block_others_while_a_table_is_in_use(url: URL, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives up soon, so that later transactions do not wait for it, and is done when the table is free."""
    monkeypatch.setattr(upgrade, "LOCK_MILLISECONDS", 50)
    pauses: list[float] = []
    upgrade.migrate(url)
    engine = postgresql.make_engine(url, postgresql.CONTROL_SCHEMA, pool_size=1, seconds=10)
    user = engine.connect()
    user.exec_driver_sql("SELECT 1 FROM teams")

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        user.rollback()

    monkeypatch.setattr("tollgate.store.upgrade.time.sleep", pause)

    def step(connection: Any, _config: Any) -> list[str]:
        connection.exec_driver_sql("ALTER TABLE teams ADD COLUMN later INTEGER")
        return ["later"]

    assert upgrade._with_retries(lambda: upgrade._migrate(url, upgrade.CONTROL, step)) == ["later"]
    assert len(pauses) == 1
    user.close()
    engine.dispose()


def test_missing_driver_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(StartError, match=r"tollgate-rpc\[postgres\]"):
        engines.store_url("postgresql://u:secret@db/x", tmp_path)


async def until(is_so: Callable[[], bool]) -> None:
    """Let the loop run until something has come over the network."""
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


# --- Notifications -----------------------------------------------------------------------------------------


async def test_no_poll_is_needed_until_a_notification_or_the_periodic_check(migrated: URL) -> None:
    now = [0.0]
    store = postgresql.PostgresStore(
        postgresql.make_async_engine(migrated, postgresql.CONTROL_SCHEMA, pool_size=4, seconds=5.0), migrated, 5.0
    )
    store._listener = Listener(migrated, clock=lambda: now[0])
    try:
        beginning = await store.changes(None)
        assert beginning is not None
        assert await store.changes(beginning.revision) is None
        await until(lambda: store._listener._listening)
        assert await store.changes(beginning.revision) is None
        assert store._listener.is_quiet()
        await put(store, FULL, ["teams"])
        await until(lambda: not store._listener.is_quiet())
        changes = await store.changes(beginning.revision)
        assert changes is not None
        assert changes.teams == (TEAM.id,)
        assert store._listener.is_quiet()
        now[0] += postgresql.NET_SECONDS
        assert not store._listener.is_quiet()
    finally:
        await store.close()


async def test_poll_without_an_answer_is_joined_by_others_and_given_up_for_the_latest(
    migrated: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql, "POLL_SECONDS", 0.01)
    started: list[int] = []
    ended: list[int] = []

    async def silent(_store: SqlStore, since: int | None) -> Changes | None:
        number = len(started)
        started.append(number)
        try:
            return Changes(7) if number == 4 else await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            ended.append(number)
            raise

    monkeypatch.setattr(SqlStore, "changes", silent)
    store = postgresql.open_store(migrated)
    try:
        assert await store.changes(6) == Changes(7)
        assert started == [0, 1, 2, 3, 4]
        assert sorted(ended) == [0, 1, 2, 3]
        assert ended[:2] == [1, 2], "the first has its whole deadline"
    finally:
        await store.close()


async def test_wait_that_is_cancelled_closes_its_connection_at_once(migrated: URL) -> None:
    connection = await postgresql._connect(migrated.set(drivername="postgresql").render_as_string(False))
    waiting = asyncio.create_task(connection.execute("SELECT pg_sleep(600)"))
    await until(lambda: connection.info.transaction_status.name == "ACTIVE")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert connection.closed


async def test_statement_that_outlasts_the_deadline_is_an_outage(migrated: URL) -> None:
    holder, store = postgresql.open_store(migrated), postgresql.open_store(migrated, deadline=0.5)
    try:
        await put(holder, FULL, ["teams"])
        async with holder.changing() as first:
            await first.teams.get(TEAM.id)
            with pytest.raises(StoreUnavailable):
                async with store.changing() as second:
                    await second.teams.get(TEAM.id)
    finally:
        await store.close()
        await holder.close()


@pytest.mark.usefixtures("own_logging")
async def test_deadlines_and_lost_connections_leave_no_traceback_in_the_log(migrated: URL) -> None:
    output = io.StringIO()
    log.configure("info", "json", output)
    holder, store = postgresql.open_store(migrated), postgresql.open_store(migrated, deadline=0.5)
    try:
        await put(holder, FULL, ["teams"])
        async with holder.changing() as first:
            await first.teams.get(TEAM.id)
            for _ in range(3):
                with pytest.raises(StoreUnavailable):
                    async with store.changing() as second:
                        await second.teams.get(TEAM.id)
    finally:
        await store.close()
        await holder.close()
    gc.collect()
    assert "Traceback" not in output.getvalue()


# --- Changes at once ---------------------------------------------------------------------------------------


async def test_changes_of_different_rows_do_not_wait_for_each_other(migrated: URL) -> None:
    store = postgresql.open_store(migrated)
    try:
        await put(store, FULL, ["teams"])
        await put(store, PLAIN, ["teams"])
        async with store.changing() as first:
            await first.teams.get(TEAM.id)
            async with asyncio.timeout(30), store.changing() as second:
                await second.teams.get(OTHER.id)
    finally:
        await store.close()


async def test_request_that_the_database_undoes_is_done_again(migrated: URL) -> None:
    """Two change the same two teams in opposite order, so that each waits for the other."""
    store = postgresql.open_store(migrated)
    await put(store, FULL, ["teams"])
    await put(store, PLAIN, ["teams"])
    both = asyncio.Barrier(2)
    runs: list[str] = []

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        assert (await receive())["body"] == scope["path"].encode()
        first, second = scope["ids"]
        runs.append(scope["path"])
        try:
            async with store.changing() as records:
                await records.teams.get(first)
                if len(runs) <= 2:
                    await both.wait()
                await records.teams.get(second)
                await records.teams.add(Team(f"new {scope['path']}", scope["path"]))
        except StoreUnavailable:
            await send({"type": "http.response.start", "status": 503})
        else:
            await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b""})

    async def change(path: str, ids: tuple[str, str]) -> int:
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": path.encode()}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await retrying(app)({"type": "http", "path": path, "ids": ids}, receive, send)
        assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
        return int(sent[0]["status"])

    try:
        statuses = await asyncio.gather(change("one", (TEAM.id, OTHER.id)), change("two", (OTHER.id, TEAM.id)))
        assert list(statuses) == [200, 200]
        assert len(runs) == 3
        async with store.reading() as records:
            assert await records.teams.count() == 4
    finally:
        await store.close()


def test_what_was_committed_is_not_done_again() -> None:
    with retries.watching() as watch:
        retries.note_undone()
        assert watch.may_retry
        retries.note_commit()
        assert not watch.may_retry


@pytest.mark.parametrize(
    ("lease", "now", "gets_it"),
    [
        (None, 5.0, True),
        (JobLease("sweep", 0.0, "a", 60.0), 59.0, False),
        (JobLease("sweep", 0.0, "a", 60.0), 60.0, True),
        (JobLease("sweep", 0.0, "b", 60.0), 30.0, True),
    ],
)
def test_lease_belongs_to_its_holder_until_it_is_not_renewed(
    lease: JobLease | None, now: float, gets_it: bool
) -> None:
    held = taken(lease, "sweep", "b", now, 60.0)
    assert (held is not None) == gets_it
    if held is not None:
        assert (held.holder, held.until) == ("b", now + 60.0)


class _Context:
    """What leases need of the services."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.time = 1_000.0

    def now(self) -> float:
        return self.time


async def test_job_runs_on_one_node_and_on_another_when_that_one_is_gone(migrated: URL) -> None:
    store = postgresql.open_store(migrated)
    context: Any = _Context(store)
    first, second = JobLeases(context, "a"), JobLeases(context, "b")
    done: list[str] = []

    async def job(by: str) -> None:
        done.append(by)

    turns = [each.once("sweep", 60.0, partial(job, name)) for each, name in ((first, "a"), (second, "b"))]
    try:
        await asyncio.gather(*(turn() for turn in turns))
        assert len(done) == 1
        winner = done[0]
        loser = turns[winner == "a"]
        for _ in range(3):
            context.time += 60.0
            await turns[winner == "b"]()
            await loser()
        assert done == [winner] * 4
        context.time += 180.0
        await loser()
        assert done[-1] != winner
    finally:
        await store.close()


# --- Moving ------------------------------------------------------------------------------------------------


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[LedgerHarness]:
    """An installation on SQLite, with a history."""
    ledger = LedgerHarness(SqliteHome(tmp_path))
    history(ledger, 5)
    upgrade.migrate(sqlite.store_url("", tmp_path))

    async def fill() -> None:
        store = sqlite.open_store(sqlite.store_url("", tmp_path))
        await put(store, FULL)
        await put(store, PLAIN)
        await store.close()

    asyncio.run(fill())
    engines.insert_if_absent(sqlite.store_url("", tmp_path), "pepper", "print")
    yield ledger
    ledger.close()


def moving(tmp_path: Path, url: URL, report: Callable[[str], None] = lambda _: None) -> None:
    made = move.Move(sqlite.store_url("", tmp_path), url, report)
    try:
        made.run()
    finally:
        made.close()


def test_whole_installation_is_moved_and_goes_on_there(
    installation: LedgerHarness, tmp_path: Path, migrated: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted after each table and page, and started again, it completes with every row once."""
    monkeypatch.setattr(move, "PAGE_ROWS", 7)
    monkeypatch.setattr(move, "PAGE_DATA", 3)

    class Interrupted(Exception):
        pass

    for stop in range(1, 30):
        reports = 0

        def report(words: str, stop: int = stop) -> None:
            nonlocal reports
            reports += 1
            if reports == stop % 4 + 1 and "same" not in words:
                raise Interrupted

        try:
            moving(tmp_path, migrated, report)
            break
        except Interrupted:
            continue
    else:
        moving(tmp_path, migrated)

    class There:
        url = migrated

        def by_hand(self, statement: str) -> list[Any]:
            raise NotImplementedError

        def close(self) -> None:
            pass

    there = LedgerHarness(There())
    there.now = installation.now
    assert there.seen() == installation.seen()
    for each in (there, installation):
        each.chores()
        each.commit(*(entry(team, each.now) for team in TEAMS))
    assert there.seen() == installation.seen()
    there.close()

    async def control() -> None:
        store = postgresql.open_store(migrated)
        assert (await store.token(DIGEST)) is not None
        async with store.reading() as records:
            assert await records.audit.count() == 2
        await store.close()

    asyncio.run(control())
    assert engines.insert_if_absent(migrated, "pepper", "other") == "print"
    with pytest.raises(StartError, match="in use"):
        moving(tmp_path, migrated)


def test_move_into_a_store_that_is_in_use_is_refused(
    installation: LedgerHarness, tmp_path: Path, migrated: URL
) -> None:
    engines.insert_if_absent(migrated, "pepper", "another")
    with pytest.raises(StartError, match="in use"):
        moving(tmp_path, migrated)


@pytest.mark.parametrize(
    ("copied", "statement", "words"),
    [
        (
            "usage",
            f"UPDATE {postgresql.LEDGER_SCHEMA}.usage SET requests = requests + 1",
            "usage: the sums differ",
        ),
        ("c.reports", f"DELETE FROM {postgresql.CONTROL_SCHEMA}.reports", "reports: 2 rows here, 0 there"),
    ],
)
def test_copy_that_differs_is_refused(
    installation: LedgerHarness, tmp_path: Path, migrated: URL, copied: str, statement: str, words: str
) -> None:
    spoil = threading.Event()

    def report(line: str) -> None:
        if copied in line and not spoil.is_set():
            spoil.set()
            cluster().execute(statement, migrated.database or "")

    with pytest.raises(StartError, match=words):
        moving(tmp_path, migrated, report)


# --- Days --------------------------------------------------------------------------------------------------


def test_day_that_is_being_made_is_never_taken_for_one_that_was_dropped(
    migrated: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_engine, "LOCK_MILLISECONDS", 50)
    engine = postgresql.make_engine(migrated, postgresql.LEDGER_SCHEMA, pool_size=2, seconds=10)
    days = ledger_engine.Postgresql()
    with engine.connect() as making, engine.connect() as sweeping:
        days.make_day(making, "20261116")
        with pytest.raises(OperationalError):
            days.sweep_day(sweeping)
        sweeping.rollback()
        making.commit()
        assert not days.sweep_day(sweeping)
        assert sweeping.exec_driver_sql("SELECT count(*) FROM data_20261116").scalar() == 0
    engine.dispose()
