"""Whether a service could start: what `tollgate config check` finds beyond the settings themselves."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from parts.certs import make_certificate
from tollgate.errors import StartError
from tollgate.processes import preflight
from tollgate.processes.certificates import expires_at
from tollgate.processes.service_lock import ServiceLock
from tollgate.settings.model import ServerSettings, Settings


def settings(data_dir: Path, **server: str | int) -> Settings:
    return Settings(data_dir=str(data_dir), server=ServerSettings(**{"port": 0, "metrics_port": 0, **server}))  # type: ignore[arg-type]


def test_nothing_keeps_good_settings_from_starting(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    files = {"tls_certificate": str(made.certificate), "tls_key": str(made.key)}
    assert preflight.problems(settings(tmp_path / "new" / "folder", **files)) == []
    assert not (tmp_path / "new").exists()


def test_a_key_that_is_missing_or_belongs_to_another_certificate_is_named(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one, two = make_certificate(tmp_path / "one"), make_certificate(tmp_path / "two")
    missing = settings(tmp_path, tls_certificate=str(one.certificate), tls_key=str(tmp_path / "no.pem"))
    (problem,) = preflight.problems(missing)
    assert problem.startswith(f"server.tls_key: {tmp_path}/no.pem cannot be read (No such file or directory)")
    mismatched = settings(tmp_path, tls_certificate=str(one.certificate), tls_key=str(two.key))
    (problem,) = preflight.problems(mismatched)
    assert "KEY_VALUES_MISMATCH" in problem
    with pytest.raises(StartError):
        preflight.tls_files(mismatched)


def test_a_data_folder_that_is_a_file_or_cannot_be_written_to_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    assert preflight.problems(settings(tmp_path / "file")) == [
        f"data_dir: {tmp_path}/file is a file: give a folder."
    ]
    # Root may write everywhere.
    monkeypatch.setattr(os, "access", lambda *_: False)
    (problem,) = preflight.problems(settings(tmp_path / "new"))
    assert problem.startswith(f"data_dir: {tmp_path}/new cannot be made: {tmp_path} cannot be written to")


def test_a_pepper_that_others_can_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "pepper").write_text("x" * 64)
    (tmp_path / "pepper").chmod(0o644)
    assert preflight.problems(settings(tmp_path)) == [
        f"{tmp_path}/pepper can be read by others: run `chmod 600 {tmp_path}/pepper`."
    ]


def test_ports_of_the_service_itself_are_no_problem(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        mine = settings(tmp_path, port=taken.getsockname()[1])
        assert "is in use" in preflight.problems(mine)[0]
        lock = ServiceLock(tmp_path)
        lock.show()
        try:
            assert preflight.problems(mine) == []
        finally:
            lock.close()


def test_a_certificate_that_ends_soon_is_warned_of(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    mine = settings(tmp_path, tls_certificate=str(made.certificate), tls_key=str(made.key))
    ends = expires_at(made.certificate)
    assert preflight.warnings(mine, ends - 22 * 86_400) == []
    (soon,) = preflight.warnings(mine, ends - 3.5 * 86_400)
    assert soon.startswith("server.tls_certificate expires in 3 days: renew it")
    (late,) = preflight.warnings(mine, ends + 1.5 * 86_400)
    assert late.startswith("server.tls_certificate expired 2 days ago: renew it")
