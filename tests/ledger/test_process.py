"""The collector's process: alone on its spool, its duties beside collecting, and `tollgate collect`."""

import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from tests.ledger.house import entry, segment_bytes

from tollgate.cli.main import cli
from tollgate.core.entries import Entry
from tollgate.ledger.lock import CollectorRuns, Lock
from tollgate.processes.bootstrap import Bootstrap, prepare
from tollgate.processes.collector import MANY_ROWS, CollectorLoop, collect
from tollgate.settings.model import PricingSettings, Settings
from tollgate.store import sqlite
from tollgate.store.ledger import LedgerBehind

NOW = time.time()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Bootstrap:
    """A data folder with one team and its two tokens."""
    made = prepare(Settings(data_dir=str(tmp_path_factory.mktemp("template"))))
    with closing(sqlite3.connect(made.data_dir / "control.db")) as connection, connection:
        connection.execute("INSERT INTO teams (id, name, created_at) VALUES ('team_1', 'acme', 1)")
        for name in ("1", "2"):
            connection.execute(
                "INSERT INTO tokens (id, team_id, name, digest, prefix, created_at, created_by, active, networks, "
                "methods, allow_in_url, replaces) VALUES (?, 'team_1', ?, ?, 'tg_', 1, '', 1, '[]', '[]', 0, '')",
                (f"tok_{name}", name, name.encode() * 32),
            )
    return made


@pytest.fixture
def bootstrap(tmp_path: Path, template: Bootstrap) -> Bootstrap:
    data_dir = tmp_path / "data"
    shutil.copytree(template.data_dir, data_dir)
    return replace(
        template,
        settings=Settings(
            data_dir=str(data_dir), billing=PricingSettings(free_requests=0, micros_per_million=1_000_000)
        ),
        data_dir=data_dir,
        store_url=sqlite.store_url("", data_dir),
        ledger_url=sqlite.ledger_url(data_dir),
    )


@pytest.fixture
def loops(bootstrap: Bootstrap) -> Iterator[list[CollectorLoop]]:
    """Collectors that are closed in the end."""
    made: list[CollectorLoop] = []
    yield made
    for loop in made:
        loop.close()


def leave(bootstrap: Bootstrap, number: int, *entries: Entry) -> Path:
    """Leave a dead worker's segment."""
    path = bootstrap.spool_dir / f"{number:014d}.seg"
    path.write_bytes(segment_bytes(number, entries))
    os.utime(path, (NOW - 60, NOW - 60))
    return path


def sql(bootstrap: Bootstrap, database: str, query: str, *values: Any) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(bootstrap.data_dir / database)) as connection, connection:
        return connection.execute(query, values).fetchall()


def turn_until_idle(loop: CollectorLoop) -> None:
    while loop.turn():
        pass


# --- Patience ----------------------------------------------------------------------------------------------


def test_few_records_may_gather_and_many_are_followed_at_once(
    bootstrap: Bootstrap, loops: list[CollectorLoop]
) -> None:
    loops.append(loop := CollectorLoop(bootstrap))
    behind = []
    for number, count in ((1, 1), (2, MANY_ROWS), (3, 1)):
        leave(bootstrap, number, *[entry(f"{number}-{each}") for each in range(count)])
        assert loop.turn()
        behind.append(loop.is_behind)
        turn_until_idle(loop)
        behind.append(loop.is_behind)
    assert behind == [False, False, True, False, False, False]
    assert loop.rows == MANY_ROWS + 2


# --- Alone -------------------------------------------------------------------------------------------------


def test_second_collector_is_told_that_there_is_one(bootstrap: Bootstrap) -> None:
    first = CollectorLoop(bootstrap)
    with pytest.raises(CollectorRuns, match=r"Another collector works on .*spool"):
        CollectorLoop(bootstrap)
    with pytest.raises(CollectorRuns):
        collect(bootstrap, once=True)
    first.close()
    CollectorLoop(bootstrap).close()


def test_lock_of_a_killed_collector_is_free(tmp_path: Path) -> None:
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        Lock(tmp_path)
        os.write(tell, b".")
        signal.pause()
        os._exit(0)
    try:
        os.read(ready, 1)
        with pytest.raises(CollectorRuns):
            Lock(tmp_path)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(tell)
    with Lock(tmp_path):
        pass


def test_two_collectors_that_got_past_the_lock_still_count_nothing_twice(
    bootstrap: Bootstrap, loops: list[CollectorLoop]
) -> None:
    loops.append(CollectorLoop(bootstrap))
    (bootstrap.spool_dir / "collector.lock").unlink()  # by somebody who tidied up
    loops.append(CollectorLoop(bootstrap))
    first, second = loops
    first.collector._segments()
    leave(bootstrap, 1, entry("a", at=NOW), entry("b", at=NOW))
    first.collector._segments()  # has seen it, and will not ask again how far it was read
    turn_until_idle(second)
    leave(bootstrap, 1, entry("a", at=NOW), entry("b", at=NOW))
    with pytest.raises(LedgerBehind):
        turn_until_idle(first)
    assert sql(bootstrap, "ledger.db", "SELECT sum(requests) FROM usage") == [(2,)]


# --- Duties ------------------------------------------------------------------------------------------------


def test_uses_are_noted_and_caps_kept(bootstrap: Bootstrap, loops: list[CollectorLoop]) -> None:
    sql(bootstrap, "control.db", "UPDATE teams SET spending_cap = 3")
    leave(bootstrap, 1, *(entry(f"r{number}", at=NOW + number) for number in range(5)))
    loop = CollectorLoop(bootstrap)
    loops.append(loop)
    turn_until_idle(loop)
    loop.finish()
    assert loop.rows == 5
    assert sql(bootstrap, "ledger.db", "SELECT requests, cost FROM months") == [(5, 3)], "never above the cap"
    ((until,),) = sql(bootstrap, "control.db", "SELECT capped_until FROM teams")
    assert until > NOW
    assert sql(bootstrap, "control.db", "SELECT id, last_used_at FROM tokens ORDER BY id") == [
        ("tok_1", NOW + 4),
        ("tok_2", None),
    ]


def test_cap_that_was_set_a_moment_ago_holds_for_the_next_batch(
    bootstrap: Bootstrap, loops: list[CollectorLoop]
) -> None:
    loop = CollectorLoop(bootstrap)
    loops.append(loop)
    leave(bootstrap, 1, entry("a", at=NOW))
    turn_until_idle(loop)
    sql(bootstrap, "control.db", "UPDATE teams SET spending_cap = 2")
    leave(bootstrap, 2, entry("b", at=NOW), entry("c", at=NOW))
    turn_until_idle(loop)
    assert sql(bootstrap, "ledger.db", "SELECT requests, cost FROM months") == [(3, 2)]


def test_uses_that_a_collector_committed_before_it_died_are_noted_by_the_next(
    bootstrap: Bootstrap, loops: list[CollectorLoop]
) -> None:
    leave(bootstrap, 1, entry("a", at=NOW), entry("b", at=NOW + 1, source_id="tok_2"))
    dead = CollectorLoop(bootstrap)
    dead.collector.step()
    dead.close()
    loop = CollectorLoop(bootstrap)
    loops.append(loop)
    loop.turn()
    assert sql(bootstrap, "control.db", "SELECT last_used_at FROM tokens ORDER BY id") == [(NOW,), (NOW + 1,)]


def test_old_days_and_litter_are_thrown_away(bootstrap: Bootstrap, loops: list[CollectorLoop]) -> None:
    sql(bootstrap, "ledger.db", "INSERT INTO days VALUES ('20200101', 1)")
    sql(bootstrap, "ledger.db", "INSERT INTO segments VALUES (?, 24, 1, 1.0)", b"\1" * 16)
    litter = bootstrap.spool_dir / "00000000000001-aa.new"
    litter.touch()
    os.utime(litter, (1, 1))
    loop = CollectorLoop(bootstrap)
    loops.append(loop)
    loop.turn()
    assert sql(bootstrap, "ledger.db", "SELECT * FROM days") == []
    assert sql(bootstrap, "ledger.db", "SELECT * FROM segments") == []
    assert not litter.exists()


# --- The command -------------------------------------------------------------------------------------------


def settings_file(bootstrap: Bootstrap) -> str:
    file = bootstrap.data_dir.parent / "tollgate.toml"
    file.write_text(f'data_dir = "{bootstrap.data_dir}"\n')
    return str(file)


def test_command_collects_once_and_says_how_much(bootstrap: Bootstrap) -> None:
    leave(bootstrap, 1, entry("a", "ok", "ok", at=NOW), entry("b", at=NOW))
    said = CliRunner().invoke(cli, ["collect", "--once", "--config", settings_file(bootstrap)])
    assert (said.exit_code, said.stderr.splitlines()[-1]) == (0, "3 log rows were committed."), said.output
    assert sql(bootstrap, "ledger.db", "SELECT sum(requests) FROM usage") == [(3,)]
    assert [path.name for path in bootstrap.spool_dir.iterdir()] == ["collector.lock"]
    again = CliRunner().invoke(cli, ["collect", "--once", "--config", settings_file(bootstrap)])
    assert again.stderr.splitlines()[-1] == "0 log rows were committed."


def test_command_beside_another_collector_says_so_and_ends(bootstrap: Bootstrap) -> None:
    path = leave(bootstrap, 1, entry("a", at=NOW))
    with Lock(bootstrap.spool_dir):
        said = CliRunner().invoke(cli, ["collect", "--config", settings_file(bootstrap)])
    assert isinstance(said.exception, CollectorRuns)
    assert "tollgate serve" in str(said.exception), "what to do next"
    assert path.exists()
