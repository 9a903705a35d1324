from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy.engine import URL

from tollgate.errors import StartError
from tollgate.processes.bootstrap import migrate_in_child, prepare
from tollgate.settings.model import Settings
from tollgate.store.upgrade import CONTROL


def test_a_migration_in_a_child_returns_its_steps_and_its_refusal(tmp_path: Path) -> None:
    url = URL.create("sqlite", database=str(tmp_path / "control.db"))
    assert migrate_in_child(url, CONTROL)[0].startswith("0001 ")
    assert migrate_in_child(url, CONTROL) == []
    with closing(sqlite3.connect(tmp_path / "control.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StartError, match=r"9999.*newer Tollgate"):
        migrate_in_child(url, CONTROL)


def test_what_is_made_can_be_read_by_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        prepare(Settings(data_dir=str(tmp_path / "data")))
    finally:
        os.umask(before)
    found = [tmp_path / "data", *(tmp_path / "data").rglob("*")]
    assert {"control.db", "ledger.db", "pepper", "spool"} <= {path.name for path in found}
    assert not [path.name for path in found if stat.S_IMODE(path.stat().st_mode) & 0o077]


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701])
def test_data_folder_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(StartError, match=f"chmod 700 {folder}"):
        prepare(Settings(data_dir=str(folder)))
    assert not list(folder.iterdir())
    folder.chmod(0o700)
    prepare(Settings(data_dir=str(folder)))
