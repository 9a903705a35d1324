"""The collector's process: alone on its spool, its duties beside collecting, and `tollgate collect`."""

import asyncio
import gc
import itertools
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
from sqlalchemy import create_engine
from tests.ledger.harness import entry, segment_bytes

from tollgate.cli.main import cli
from tollgate.core.entries import Entry
from tollgate.core.months import month_of
from tollgate.ledger.lock import CollectorRuns, Lock
from tollgate.processes.bootstrap import Bootstrap, prepare
from tollgate.processes.collector import (
    CHORES_SECONDS,
    MANY_ENTRIES,
    MAX_TURN_SECONDS,
    CollectorLoop,
    Pulse,
    collect,
)
from tollgate.settings.model import PricingSettings, Settings
from tollgate.store import sqlite
from tollgate.store.base import ClockDoubted
from tollgate.store.ledger import LedgerBehind
from tollgate.store.ledger_blocks import Days

NOW = time.time()


@pytest.fixture(autouse=True)
def _no_garbage_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chore collects it, and this process holds that of thousands of tests."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


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
    """Leave the segment of an ended worker."""
    path = bootstrap.spool_dir / f"{number:014d}.seg"
    path.write_bytes(segment_bytes(number, entries))
    os.utime(path, (NOW - 60, NOW - 60))
    return path


def sql(bootstrap: Bootstrap, database: str, query: str, *values: Any) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(bootstrap.data_dir / database)) as connection, connection:
        return connection.execute(query, values).fetchall()


def turn_until_idle(loop: CollectorLoop) -> None:
    while loop.tick():
        pass


# --- Batching ----------------------------------------------------------------------------------------------


def test_few_records_are_batched_and_many_are_collected_at_once(
    bootstrap: Bootstrap, loops: list[CollectorLoop]
) -> None:
    loops.append(loop := CollectorLoop(bootstrap))
    behind = []
    for number, count in ((1, 1), (2, MANY_ENTRIES), (3, 1)):
        leave(bootstrap, number, *[entry(f"{number}-{each}") for each in range(count)])
        assert loop.tick()
        behind.append(loop.is_behind)
        turn_until_idle(loop)
        behind.append(loop.is_behind)
    assert behind == [False, False, True, False, False, False]
    assert loop.entries == MANY_ENTRIES + 2


# --- Alone -------------------------------------------------------------------------------------------------


def test_second_collector_is_refused(bootstrap: Bootstrap) -> None:
    first = CollectorLoop(bootstrap)
    with pytest.raises(CollectorRuns, match=r"Another collector works on .*spool"):
        CollectorLoop(bootstrap)
    with pytest.raises(CollectorRuns):
        collect(bootstrap, once=True)
    first.close()
    CollectorLoop(bootstrap).close()


def test_lock_of_a_killed_collector_is_free(tmp_path: Path) -> None:
    ready, started = os.pipe()
    pid = os.fork()
    if pid == 0:
        Lock(tmp_path)
        os.write(started, b".")
        signal.pause()
        os._exit(0)
    try:
        os.read(ready, 1)
        open_files = sorted(Path("/proc/self/fd").iterdir())
        with pytest.raises(CollectorRuns):
            Lock(tmp_path)
        assert sorted(Path("/proc/self/fd").iterdir()) == open_files
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(started)
    for _ in range(2):
        with Lock(tmp_path):
            pass


def test_two_collectors_that_got_past_the_lock_still_count_nothing_twice(
    bootstrap: Bootstrap, loops: list[CollectorLoop]
) -> None:
    loops.append(CollectorLoop(bootstrap))
    (bootstrap.spool_dir / "collector.lock").unlink()  # by an operator
    loops.append(CollectorLoop(bootstrap))
    first, second = loops
    first.collector._segments()
    leave(bootstrap, 1, entry("a", at=NOW), entry("b", at=NOW))
    first.collector._segments()  # has seen it, and will not read again how far it was read
    turn_until_idle(second)
    leave(bootstrap, 1, entry("a", at=NOW), entry("b", at=NOW))
    with pytest.raises(LedgerBehind):
        turn_until_idle(first)
    assert sql(bootstrap, "ledger.db", "SELECT sum(requests) FROM usage_all") == [(2,)]


# --- Duties ------------------------------------------------------------------------------------------------


def test_uses_are_recorded_and_caps_enforced(bootstrap: Bootstrap, loops: list[CollectorLoop]) -> None:
    sql(bootstrap, "control.db", "UPDATE teams SET spending_cap = 3")
    leave(bootstrap, 1, *(entry(f"r{number}", at=NOW + number, cap=3) for number in range(5)))
    loop = CollectorLoop(bootstrap)
    loops.append(loop)
    turn_until_idle(loop)
    loop.finish()
    assert loop.entries == 5
    assert sql(bootstrap, "ledger.db", "SELECT requests, cost FROM months") == [(5, 3)], "never above the cap"
    ((until,),) = sql(bootstrap, "control.db", "SELECT capped_until FROM teams")
    assert until > NOW
    assert sql(bootstrap, "control.db", "SELECT id, last_used_at FROM tokens ORDER BY id") == [
        ("tok_1", NOW + 4),
        ("tok_2", None),
    ]


def test_cap_that_is_set_or_toggled_while_the_collector_is_behind_frees_nothing(
    bootstrap: Bootstrap, loops: list[CollectorLoop]
) -> None:
    loop = CollectorLoop(bootstrap)
    loops.append(loop)
    leave(bootstrap, 1, entry("a", at=NOW), entry("b", at=NOW), entry("c", at=NOW))
    sql(bootstrap, "control.db", "UPDATE teams SET spending_cap = 0")
    turn_until_idle(loop)
    assert sql(bootstrap, "ledger.db", "SELECT requests, cost FROM months") == [(3, 3)]
    sql(bootstrap, "control.db", "UPDATE teams SET spending_cap = NULL")
    leave(bootstrap, 2, entry("d", at=NOW, cap=4), entry("e", at=NOW, cap=4))
    turn_until_idle(loop)
    assert sql(bootstrap, "ledger.db", "SELECT requests, cost FROM months") == [(5, 4)], "by the cap of their time"


def test_uses_committed_by_a_killed_collector_are_recorded_by_the_next(
    bootstrap: Bootstrap, loops: list[CollectorLoop]
) -> None:
    leave(bootstrap, 1, entry("a", at=NOW), entry("b", at=NOW + 1, source_id="tok_2"))
    dead = CollectorLoop(bootstrap)
    dead.collector.step()
    dead.close()
    loop = CollectorLoop(bootstrap)
    loops.append(loop)
    loop.tick()
    assert sql(bootstrap, "control.db", "SELECT last_used_at FROM tokens ORDER BY id") == [(NOW,), (NOW + 1,)]


def test_old_days_and_leftover_files_are_deleted(bootstrap: Bootstrap, loops: list[CollectorLoop]) -> None:
    engine = create_engine(bootstrap.ledger_url)
    with engine.begin() as connection:
        Days(connection).at("20200101", None)
    engine.dispose()
    sql(bootstrap, "ledger.db", "INSERT INTO segments VALUES (?, 24, 1, 1.0)", b"\1" * 16)
    litter = bootstrap.spool_dir / "00000000000001-aa.new"
    litter.touch()
    os.utime(litter, (1, 1))
    loop = CollectorLoop(bootstrap)
    loops.append(loop)
    loop.tick()
    assert sql(bootstrap, "ledger.db", "SELECT * FROM days") == []
    assert sql(bootstrap, "ledger.db", "SELECT * FROM segments") == []
    assert not litter.exists()


def test_clock_that_jumps_far_ahead_drops_nothing_and_closes_nothing_until_it_has_run_for_a_day(
    bootstrap: Bootstrap, loops: list[CollectorLoop]
) -> None:
    clock = [NOW]
    ticks = itertools.count(step=CHORES_SECONDS)
    loops.append(loop := CollectorLoop(bootstrap, now=lambda: clock[0], monotonic=lambda: float(next(ticks))))
    leave(bootstrap, 1, entry("a", at=NOW))
    turn_until_idle(loop)

    def days() -> int:
        for _ in range(3):
            loop.tick()
        return len(sql(bootstrap, "ledger.db", "SELECT * FROM days"))

    async def closes() -> bool:
        book = sqlite.open_accountbook(bootstrap.ledger_url)
        try:
            return await book.close_month(month_of(NOW), clock[0], lambda _: pytest.fail("drawn")) is not None
        except ClockDoubted:
            return False
        finally:
            await book.close()

    clock[0] += 40 * 86_400
    assert not asyncio.run(closes()), "the control plane may be first to see it"
    assert days() == 1
    leave(bootstrap, 2, entry("b", at=clock[0]))
    turn_until_idle(loop)
    clock[0] += 3_600
    assert days() == 2, "calls that go on at the wrong time prove nothing"
    assert not asyncio.run(closes())
    clock[0] -= 40 * 86_400 + 3_600
    assert days() == 2
    with pytest.raises(pytest.fail.Exception, match="drawn"):
        asyncio.run(closes())
    clock[0] += 40 * 86_400
    for _ in range(26):
        clock[0] += 3_600
        loop.tick()
    assert days() == 1, "a service that was down for long goes on after a day"


def test_heartbeats_come_from_a_timer_and_stop_when_a_tick_takes_too_long() -> None:
    now, beats = [0.0], []
    pulse = Pulse(lambda: beats.append(now[0]), lambda: now[0])
    for seconds in (0, 30, 200, MAX_TURN_SECONDS - 1, MAX_TURN_SECONDS, MAX_TURN_SECONDS + 50):
        now[0] = float(seconds)
        pulse.check()
    assert beats == [0.0, 30.0, 200.0, MAX_TURN_SECONDS - 1], "a turn may take long, and not for ever"
    pulse.turned()
    now[0] += 5
    pulse.check()
    assert len(beats) == 6


def test_collecting_goes_before_chores_and_between_their_slices(
    bootstrap: Bootstrap, loops: list[CollectorLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    loops.append(loop := CollectorLoop(bootstrap, monotonic=itertools.count(step=CHORES_SECONDS).__next__))

    def step() -> None:
        done.append("collect")

    def sweep(_: int) -> bool:
        done.append("sweep")
        return len(done) < 9

    monkeypatch.setattr(loop.collector, "step", step)
    monkeypatch.setattr(loop._ledger, "sweep", sweep)
    for _ in range(8):
        loop.tick()
    assert done[0] == "collect"
    assert done.count("sweep") >= 3
    assert "sweep sweep" not in " ".join(done)


# --- The command -------------------------------------------------------------------------------------------


def settings_file(bootstrap: Bootstrap) -> str:
    file = bootstrap.data_dir.parent / "tollgate.toml"
    file.write_text(f'data_dir = "{bootstrap.data_dir}"\n')
    return str(file)


def test_command_collects_once_and_shows_how_much(bootstrap: Bootstrap) -> None:
    leave(bootstrap, 1, entry("a", "ok", "ok", at=NOW), entry("b", at=NOW))
    ran = CliRunner().invoke(cli, ["collect", "--once", "--config", settings_file(bootstrap)])
    assert (ran.exit_code, ran.stderr.splitlines()[-1]) == (0, "3 log rows were committed."), ran.output
    assert sql(bootstrap, "ledger.db", "SELECT sum(requests) FROM usage_all") == [(3,)]
    assert [path.name for path in bootstrap.spool_dir.iterdir()] == ["collector.lock"]
    again = CliRunner().invoke(cli, ["collect", "--once", "--config", settings_file(bootstrap)])
    assert again.stderr.splitlines()[-1] == "0 log rows were committed."


def test_command_beside_another_collector_reports_it_and_ends(bootstrap: Bootstrap) -> None:
    path = leave(bootstrap, 1, entry("a", at=NOW))
    with Lock(bootstrap.spool_dir):
        ran = CliRunner().invoke(cli, ["collect", "--config", settings_file(bootstrap)])
    assert isinstance(ran.exception, CollectorRuns)
    assert "tollgate serve" in str(ran.exception), "what to do next"
    assert path.exists()
