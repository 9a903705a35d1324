from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy.engine import URL

from tollgate.errors import StartError
from tollgate.processes.bootstrap import migrate_in_child
from tollgate.store.upgrade import CONTROL


def test_a_migration_in_a_child_returns_its_steps_and_its_refusal(tmp_path: Path) -> None:
    url = URL.create("sqlite", database=str(tmp_path / "control.db"))
    assert migrate_in_child(url, CONTROL)[0].startswith("0001 ")
    assert migrate_in_child(url, CONTROL) == []
    with closing(sqlite3.connect(tmp_path / "control.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StartError, match=r"9999.*newer Tollgate"):
        migrate_in_child(url, CONTROL)
