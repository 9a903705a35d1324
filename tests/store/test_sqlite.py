"""SQLite alone: migrating at start, and what is refused."""

import asyncio
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, MetaData, create_engine, event
from sqlalchemy.engine import URL
from tests.store.migrated import make_control

from tollgate.core.models import Team, Token
from tollgate.errors import StartError
from tollgate.store import engines, ledger_tables, sql, sqlite, tables, upgrade
from tollgate.store.base import Conflict, StoreUnavailable

VERSIONS = ["0001"]
TABLES = set(tables.metadata.tables)


@pytest.fixture
def url(tmp_path: Path) -> URL:
    return sqlite.store_url("", tmp_path)


@pytest.fixture
def migrated(url: URL, tmp_path: Path) -> URL:
    make_control(tmp_path)
    return url


@contextmanager
def database(url: URL) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(url.database or "")) as connection:
        yield connection
        connection.commit()


def tables_of(url: URL) -> set[str]:
    with database(url) as connection:
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return {name for (name,) in rows} - {"alembic_version", "sqlite_sequence"}


# --- Addresses ---------------------------------------------------------------------------------------------


def test_store_is_control_db_in_the_data_folder_unless_configured(tmp_path: Path) -> None:
    assert sqlite.store_url("", tmp_path).database == str(tmp_path / "control.db")
    assert sqlite.store_url("sqlite:////var/lib/x.db", tmp_path).database == "/var/lib/x.db"


@pytest.mark.parametrize(
    "configured",
    ["nonsense", "sqlite://", "sqlite:///:memory:", "postgresql://u:secret@db/x", "mysql://db/x"],
)
def test_address_that_is_no_sqlite_file_is_refused_and_not_repeated(configured: str, tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"store\.url") as caught:
        sqlite.store_url(configured, tmp_path)
    assert "secret" not in str(caught.value)


# --- Migrating ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", [upgrade.CONTROL, upgrade.LEDGER])
def test_empty_database_is_migrated_and_the_steps_are_reported(url: URL, folder: str) -> None:
    """The newest version of the schema is pinned: a change of it needs a migration, and a line here."""
    metadata = {upgrade.CONTROL: tables.metadata, upgrade.LEDGER: ledger_tables.metadata}[folder]
    steps = upgrade.migrate(url, folder)
    assert [step.split()[0] for step in steps] == VERSIONS
    assert tables_of(url) == set(metadata.tables)


def test_second_migration_has_nothing_to_do(url: URL) -> None:
    upgrade.migrate(url)
    with database(url) as connection:
        connection.execute("INSERT INTO teams (id, name, created_at) VALUES ('team_1', 'acme', 0)")
    assert upgrade.migrate(url) == []
    with database(url) as connection:
        assert connection.execute("SELECT name FROM teams").fetchall() == [("acme",)]


def test_database_of_version_0_is_migrated(url: URL) -> None:
    with database(url) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
    assert upgrade.migrate(url)
    assert tables_of(url) == TABLES


def test_newer_database_is_refused_and_left_unchanged(url: URL) -> None:
    upgrade.migrate(url)
    with database(url) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StartError, match=r"9999.*newer Tollgate"):
        upgrade.migrate(url)
    with database(url) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [("9999",)]


def test_file_that_is_no_database_is_refused_and_left_unchanged(url: URL) -> None:
    path = Path(url.database or "")
    path.write_bytes(b"my diary\n" * 1_000)
    with pytest.raises(StartError, match="not a database"):
        upgrade.migrate(url)
    assert path.read_bytes() == b"my diary\n" * 1_000


@pytest.mark.parametrize("place", ["missing/control.db", "file/control.db"])
def test_folder_that_cannot_be_written_is_refused(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file, no folder")
    with pytest.raises(StartError, match="cannot be used") as caught:
        upgrade.migrate(URL.create("sqlite", database=str(tmp_path / place)))
    assert place in str(caught.value)


@pytest.mark.parametrize(
    ("scripts", "metadata"),
    [(upgrade.CONTROL, tables.metadata), (upgrade.LEDGER, ledger_tables.metadata)],
    ids=["control", "ledger"],
)
def test_migrations_lead_to_the_schema_in_tables(url: URL, scripts: str, metadata: MetaData) -> None:
    upgrade.migrate(url, scripts)
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            assert compare_metadata(context, metadata) == []
    finally:
        engine.dispose()


def test_migration_that_fails_half_way_leaves_the_database_as_it_was(url: URL) -> None:
    # A table in the way of the last step: as if the disk were full.
    with database(url) as connection:
        connection.execute("CREATE TABLE audit (in_the_way TEXT)")
    with pytest.raises(StartError):
        upgrade.migrate(url)
    assert tables_of(url) == {"audit"}
    with database(url) as connection:
        connection.execute("DROP TABLE audit")
    assert upgrade.migrate(url)
    assert tables_of(url) == TABLES


def test_two_that_migrate_at_once_both_succeed(tmp_path: Path) -> None:
    for attempt in range(5):
        url = URL.create("sqlite", database=str(tmp_path / f"{attempt}.db"))
        gate, opener = os.pipe()
        pids = [_migrate_in_child(url, gate, opener) for _ in range(2)]
        os.close(opener)
        outcomes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        os.close(gate)
        assert outcomes == [0, 0]
        assert tables_of(url) == TABLES


def _migrate_in_child(url: URL, gate: int, opener: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.close(opener)
        os.read(gate, 1)
        upgrade.migrate(url)
        os._exit(0)
    finally:
        os._exit(1)


# --- Pragmas, facts and outages ----------------------------------------------------------------------------


def test_database_writes_ahead_so_that_readers_do_not_wait(migrated: URL) -> None:
    with database(migrated) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_old_changes_are_trimmed_and_young_ones_kept(migrated: URL) -> None:
    with database(migrated) as connection:
        connection.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 25000) "
            "INSERT INTO changes (kind, key) SELECT 'team', 'x' FROM n"
        )
        count, newest = connection.execute("SELECT count(*), max(revision) FROM changes").fetchone()
    assert 10_000 <= count <= 11_000
    assert newest == 25_000


def test_fact_is_inserted_once(migrated: URL) -> None:
    assert engines.insert_if_absent(migrated, "colour", "green") == "green"
    assert engines.insert_if_absent(migrated, "colour", "red") == "green"
    assert engines.insert_if_absent(migrated, "size", "red") == "red"


def test_no_error_of_an_engine_repeats_values(url: URL, tmp_path: Path) -> None:
    ledger = sqlite.ledger_url(tmp_path)
    control = engines.open_control(url, 100)
    readers = sqlite.open_logbook(ledger)._engine, sqlite.open_accountbook(ledger)._engine.sync_engine
    assert all(engine.hide_parameters for engine in (control, *readers))


def test_processes_without_callers_wait_for_a_busy_database_and_check_foreign_keys(migrated: URL) -> None:
    with engines._transaction(migrated) as connection:
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 1_000 * engines.PATIENT_SECONDS
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1


def test_facts_are_replaced_and_others_kept(migrated: URL) -> None:
    for name in ("colour", "size"):
        engines.insert_if_absent(migrated, name, "old")
    engines.replace_facts(migrated, {"colour": "new", "shape": "new"})
    assert [engines.insert_if_absent(migrated, name, "") for name in ("colour", "size", "shape")] == [
        "new",
        "old",
        "new",
    ]


async def test_only_tokens_that_work_and_were_made_before_count(migrated: URL) -> None:
    assert (engines.has_accounts(migrated), engines.tokens_made_before(migrated, 9.0)) == (False, 0)
    store = sqlite.open_store(migrated)
    async with store.changing() as records:
        await records.teams.add(Team("team_1", "a"))
        for number, active in ((1, True), (2, False), (3, True)):
            made = Token(f"tok_{number}", "team_1", f"ci {number}", "tg_zzzzz", float(number), active=active)
            await records.tokens.add(made, digest=bytes([number]) * 32)
    await store.close()
    assert [engines.tokens_made_before(migrated, at) for at in (1.0, 2.0, 3.0, 4.0)] == [0, 1, 1, 2]


async def test_reader_does_not_wait_for_a_writer(migrated: URL) -> None:
    store = sqlite.open_store(migrated)
    with database(migrated) as other:
        other.execute("BEGIN IMMEDIATE")
        assert await store.token(bytes(32)) is None
        other.rollback()
    await store.close()


@pytest.mark.parametrize(("busy", "deadline"), [(20, 5.0), (300, 0.02)])
async def test_writer_that_waits_too_long_gets_unavailable_and_leaves_no_lock(
    busy: int, deadline: float, migrated: URL
) -> None:
    impatient = sqlite.open_store(migrated, busy_milliseconds=busy, deadline=deadline)
    store = sqlite.open_store(migrated)
    with database(migrated) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable):
            await add_acme(impatient)
        other.rollback()
    await add_acme(store)
    with pytest.raises(Conflict):
        await add_acme(store)
    await impatient.close()
    await store.close()


async def test_connection_that_breaks_at_the_commit_is_an_outage(migrated: URL) -> None:
    store = sqlite.open_store(migrated)

    async def add(team_id: str) -> None:
        async with store.changing() as records:
            await records.teams.add(Team(team_id, team_id))

    def fail(_connection: Connection) -> None:
        raise ConnectionResetError

    event.listen(store._engine.sync_engine, "commit", fail)
    with pytest.raises(StoreUnavailable):
        await add("team_1")
    event.remove(store._engine.sync_engine, "commit", fail)
    await add("team_2")
    async with store.reading() as records:
        assert [team.id for team in await records.teams.page(9)] == ["team_2"]
    await store.close()


async def test_store_can_be_used_again_after_a_timeout(migrated: URL) -> None:
    store = sqlite.open_store(migrated, busy_milliseconds=20)
    with database(migrated) as other:
        other.execute("BEGIN IMMEDIATE")
        for _ in range(6):
            with pytest.raises(StoreUnavailable):
                await add_acme(store)
        other.rollback()
    await add_acme(store)
    await store.close()


async def test_block_that_outlives_the_deadline_is_undone_and_reported_unavailable(migrated: URL) -> None:
    impatient = sqlite.open_store(migrated, deadline=0.3)
    store = sqlite.open_store(migrated)

    async def endless() -> None:
        async with impatient.changing() as records:
            await records.teams.add(Team("team_1", "acme"))
            await asyncio.Event().wait()

    with pytest.raises(StoreUnavailable):
        await endless()
    await add_acme(store)
    await impatient.close()
    await store.close()


async def add_acme(store: sql.SqlStore) -> None:
    async with store.changing() as records:
        await records.teams.add(Team("team_1", "acme"))
