"""Backups: what is in them, what restoring refuses. That nothing is lost under load: e2e/test_setup.py."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest

from tollgate.errors import TollgateError
from tollgate.processes import backup as backups
from tollgate.processes.bootstrap import prepare
from tollgate.processes.service_lock import ServiceLock
from tollgate.settings.model import SecretSettings, Settings, StoreSettings


@pytest.fixture
def made(tmp_path: Path) -> Path:
    settings = Settings(data_dir=str(tmp_path / "data"))
    prepare(settings)
    (tmp_path / "data" / "spool" / "x.seg").write_bytes(b"")
    backups.backup(settings, tmp_path / "copy", 1_000.0)
    return tmp_path / "copy"


def refused(settings: Settings, source: Path) -> str:
    with pytest.raises(TollgateError) as refusal:
        backups.restore(settings, source)
    return str(refusal.value)


def test_a_backup_is_readable_for_its_owner_alone_and_holds_everything(made: Path) -> None:
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    files = {path for path in made.rglob("*") if path.is_file()}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert {"control.db", "ledger.db", "pepper", "manifest.json"} <= {path.name for path in files}


def test_a_backup_is_restored_into_an_empty_folder_and_starts(made: Path, tmp_path: Path) -> None:
    elsewhere = Settings(data_dir=str(tmp_path / "elsewhere"))
    backups.restore(elsewhere, made)
    assert prepare(elsewhere).pepper == (tmp_path / "data" / "pepper").read_bytes()


def test_folders_may_have_any_name(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path / "50% of #1?"))
    prepare(settings)
    backups.backup(settings, tmp_path / "a?b#c%20", 1_000.0)
    assert backups.verify(tmp_path / "a?b#c%20").files


def test_nothing_is_written_over(made: Path, tmp_path: Path) -> None:
    mine = Settings(data_dir=str(tmp_path / "data"))
    assert "holds an installation already" in refused(mine, made)
    with pytest.raises(TollgateError, match="is not empty"):
        backups.backup(mine, made, 0.0)
    lock = ServiceLock(tmp_path / "data")
    try:
        assert "A service runs on" in refused(mine, made)
    finally:
        lock.close()


@pytest.mark.parametrize("name", ["control.db", "ledger.db", "pepper"])
def test_a_backup_that_was_changed_is_refused(made: Path, tmp_path: Path, name: str) -> None:
    (made / name).write_bytes((made / name).read_bytes()[:-1] + b"!")
    assert f"{name} is missing or was changed" in refused(Settings(data_dir=str(tmp_path / "new")), made)
    assert not (tmp_path / "new").exists()


def test_format_1_is_pinned_and_a_backup_of_another_format_is_refused(made: Path, tmp_path: Path) -> None:
    manifest = msgspec.json.decode((made / "manifest.json").read_bytes())
    assert list(manifest) == ["format", "version", "commit", "made_at", "pepper", "files"]
    assert manifest["format"] == backups.FORMAT == 1
    (made / "manifest.json").write_bytes(msgspec.json.encode({**manifest, "format": 2, "version": "9.1"}))
    with pytest.raises(TollgateError, match=r"format 2, and this version reads format 1: use Tollgate 9\.1"):
        backups.verify(made)


def test_keys_from_the_settings_are_in_no_backup(tmp_path: Path) -> None:
    pepper, factor_key = "p" * 40, "f" * 40
    secrets = SecretSettings(pepper=pepper, factor_key=factor_key)
    settings = Settings(data_dir=str(tmp_path / "data"), secrets=secrets)
    prepare(settings)
    backups.backup(settings, tmp_path / "copy", 1.0)
    for path in (tmp_path / "copy").rglob("*"):
        if path.is_file():
            assert pepper.encode() not in path.read_bytes()
            assert factor_key.encode() not in path.read_bytes()
    elsewhere = Settings(data_dir=str(tmp_path / "new"))
    assert "set secrets.pepper, then restore" in refused(elsewhere, tmp_path / "copy")
    elsewhere = Settings(data_dir=str(tmp_path / "new"), secrets=secrets)
    backups.restore(elsewhere, tmp_path / "copy")
    assert prepare(elsewhere).audit_key == prepare(settings).audit_key


def test_a_backup_under_another_pepper_is_refused(made: Path, tmp_path: Path) -> None:
    other = Settings(data_dir=str(tmp_path / "new"), secrets=SecretSettings(pepper="x" * 32))
    assert "secrets.pepper is not the pepper of this backup" in refused(other, made)


def test_a_folder_that_is_no_backup_is_refused(tmp_path: Path) -> None:
    assert "holds no backup" in refused(Settings(data_dir=str(tmp_path / "new")), tmp_path)


def test_another_engine_is_backed_up_by_its_own_tools(tmp_path: Path) -> None:
    elsewhere = Settings(data_dir=str(tmp_path), store=StoreSettings(url="postgresql://u:p@db/tollgate"))
    with pytest.raises(TollgateError, match="pg_dump"):
        backups.backup(elsewhere, tmp_path / "copy", 0.0)
