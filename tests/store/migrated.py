"""Empty databases in a folder: migrated once a process and copied, because migrating takes a while."""

from __future__ import annotations

import functools
from pathlib import Path
from tempfile import TemporaryDirectory

from tollgate.store import sqlite, upgrade


def make_control(folder: Path) -> Path:
    made = folder / "control.db"
    made.write_bytes(_control())
    return made


def make_ledger(folder: Path) -> Path:
    made = folder / "ledger.db"
    made.write_bytes(_ledger())
    return made


@functools.cache
def _control() -> bytes:
    with TemporaryDirectory() as folder:
        upgrade.migrate(sqlite.store_url("", Path(folder)))
        return (Path(folder) / "control.db").read_bytes()


@functools.cache
def _ledger() -> bytes:
    with TemporaryDirectory() as folder:
        upgrade.migrate(sqlite.ledger_url(Path(folder)), upgrade.LEDGER)
        return (Path(folder) / "ledger.db").read_bytes()
