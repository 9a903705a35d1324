"""`tollgate doctor`: its output and its exit codes. What it finds is tested in tests/ledger/test_doctor.py."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from tests.store.account_rows import Books, calls
from tests.store.migrated import make_ledger

from tollgate.core.audit_chain import AuditChain, linked
from tollgate.core.people import AuditEntry
from tollgate.processes.bootstrap import prepare
from tollgate.settings.model import Settings
from tollgate.store import sqlite

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import URL
    from tests.cli.conftest import Ran, Tool


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder in which something was recorded."""
    made = tmp_path / "data"
    (made / "spool").mkdir(parents=True)
    make_ledger(made)
    books = Books(made)
    books.commit(calls(3))
    books.close()
    return made


def run(tool: Tool, folder: Path, *arguments: str) -> Ran:
    return tool.run("doctor", *arguments, env={"TOLLGATE_DATA_DIR": str(folder)})


def test_a_line_for_each_check_and_nothing_else(tool: Tool, folder: Path) -> None:
    ran = run(tool, folder)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        "spool     ok       0 segments, 0 records wait for the collector",
        "logs      ok       against usage, 2026-11 to 2026-11",
        "blocks    ok       blocks and records of logs",
        "usage     ok       against months of teams, 1",
        "tokens    ok       against months of tokens and domains, 1",
        "invoices  ok       0 final ones, 0 closed months",
        "clock     ok       the ledger was never written",
    ]


def test_a_disagreement_is_reported_and_ends_with_1(tool: Tool, folder: Path) -> None:
    books = Books(folder)
    books.sql("UPDATE months SET requests = 5")
    books.close()
    ran = run(tool, folder)
    assert ran.code == 1
    assert ran.out.splitlines()[3:5] == [
        "usage     1 wrong  against months of teams, 1",
        "  team_acme000000000 2026-11: usage 3, months 5 billable requests (-2)",
    ]


def test_json_has_everything(tool: Tool, folder: Path) -> None:
    for number in range(25):
        (folder / "spool" / f"{number:02d}.damaged").touch()
    ran = run(tool, folder, "--json")
    assert (ran.code, ran.json["ok"]) == (1, False)
    spool, *rest = ran.json["checks"]
    assert (spool["name"], spool["ok"], len(spool["differences"])) == ("spool", False, 25)
    assert all(check["ok"] and check["differences"] == [] for check in rest)


def test_of_many_the_first_are_shown_and_the_rest_is_a_number(tool: Tool, folder: Path) -> None:
    for number in range(25):
        (folder / "spool" / f"{number:02d}.damaged").touch()
    out = run(tool, folder).out
    assert "  and 5 more: see --json\n" in out
    assert out.count("was put aside") == 20


def test_settings_may_come_from_a_file(tool: Tool, folder: Path) -> None:
    file = folder.parent / "tollgate.toml"
    file.write_text(f'data_dir = "{folder}"\n')
    assert tool.run("doctor", "--config", str(file)).code == 0


def test_a_folder_without_a_ledger_is_reported(tool: Tool, tmp_path: Path) -> None:
    ran = run(tool, tmp_path / "nowhere")
    assert (ran.code, ran.out) == (1, "")
    assert "There is no ledger in" in ran.err
    assert not (tmp_path / "nowhere").exists()


def test_another_kind_of_file_in_its_place_is_reported(tool: Tool, tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_text("no database, but long enough to be examined " * 20)
    ran = run(tool, tmp_path)
    assert (ran.code, ran.out) == (1, "")
    assert "The ledger cannot be read" in ran.err


def test_it_needs_no_login_and_no_server(tool: Tool, folder: Path) -> None:
    assert not (tool.home / "tollgate").exists()
    assert run(tool, folder).code == 0
    assert os.environ.get("TOLLGATE_TOKEN") is None


# ---- the audit log


def chained(folder: Path, count: int) -> URL:
    """A store with entries of one team."""
    url = sqlite.store_url("", folder)
    key = prepare(Settings(data_dir=str(folder))).audit_key

    async def fill() -> None:
        store, chain = sqlite.open_store(url), AuditChain("team_1", 0.0)
        # In slices: a change has a deadline.
        for start in range(0, count, 100):
            async with store.changing() as records:
                for number in range(start, min(start + 100, count)):
                    made = AuditEntry(f"aud_{number}", 1.5, "x", "ann", team_id="team_1")
                    entry, chain = linked(made, chain, key)
                    await records.audit.add(entry)
        async with store.changing() as records:
            await records.audit_chains.add(chain)
        await store.close()

    asyncio.run(fill())
    return url


def audit_lines(tool: Tool, folder: Path) -> list[str]:
    return run(tool, folder).out.splitlines()[7:]


def test_audit_chains_pass_after_their_oldest_entries_are_swept(tool: Tool, folder: Path) -> None:
    url = chained(folder, 1_500)
    assert audit_lines(tool, folder) == ["audit     ok       1500 entries in 1 chains"]
    change(url, "DELETE FROM audit WHERE number < 7")
    assert audit_lines(tool, folder) == ["audit     ok       1494 entries in 1 chains"]


@pytest.mark.parametrize(
    ("statement", "finding"),
    [
        ("UPDATE audit SET actor = 'eve' WHERE number = 2", "team_1 entry 2: its content was changed"),
        ("DELETE FROM audit WHERE number = 2", "team_1 entry 3: it comes after entry 1, others are missing"),
        ("DELETE FROM audit WHERE number = 4", "team_1 entry 4: the newest entries are missing, 3 is the last"),
    ],
)
def test_tampering_with_the_audit_log_is_reported(tool: Tool, folder: Path, statement: str, finding: str) -> None:
    change(chained(folder, 4), statement)
    assert run(tool, folder).code == 1
    assert audit_lines(tool, folder)[1:] == [f"  {finding}"]


def change(url: URL, statement: str) -> None:
    with closing(sqlite3.connect(url.database or "")) as connection:
        connection.execute(statement)
        connection.commit()


def test_entries_that_were_written_without_the_services_key_show(tool: Tool, folder: Path) -> None:
    """One who can write to the database, and nothing else, makes a chain that fits."""
    url = chained(folder, 3)
    entry, end = linked(AuditEntry("aud_9", 2.5, "x", "eve", team_id="team_1"), _end(url), b"no key")
    change(
        url,
        "INSERT INTO audit SELECT 'aud_9', 2.5, action, 'eve', actor_id, team_id, target, name, details, address,"
        f" via, request_id, chain, 4, '{entry.previous}', '{entry.hash}', '{entry.mac}' FROM audit WHERE number=3",
    )
    change(url, f"UPDATE audit_chains SET count = 4, hash = '{end.hash}'")
    assert "  team_1 entry 4: it was not written by this service" in audit_lines(tool, folder)
    # Without the sealed key none can be checked, so none is believed.
    change(url, "DELETE FROM facts WHERE name = 'audit key'")
    assert len([line for line in audit_lines(tool, folder) if "not written by this service" in line]) == 4


def _end(url: URL) -> AuditChain:
    with closing(sqlite3.connect(url.database or "")) as database:
        return AuditChain(*database.execute("SELECT id, created_at, count, hash FROM audit_chains").fetchone())
