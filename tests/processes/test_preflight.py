"""Whether a service could start: what `tollgate config check` finds beyond the settings themselves."""

from __future__ import annotations

import os
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.store.migrated import make_control

from parts.certs import make_certificate
from tollgate.errors import StartError
from tollgate.processes import preflight
from tollgate.processes.bootstrap import prepare
from tollgate.processes.certificates import expires_at
from tollgate.processes.service_lock import ServiceLock
from tollgate.settings.model import (
    NetworkSettings,
    SecretSettings,
    ServerSettings,
    Settings,
    StoreSettings,
    UpstreamSettings,
    ValkeySettings,
    WhitelistSettings,
)
from tollgate.shm.upstream_status import MAX_NETWORKS


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


def test_a_data_folder_that_others_can_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    assert preflight.problems(settings(tmp_path / "open")) == [
        f"data_dir: {tmp_path / 'open'} can be read by others: run `chmod 700 {tmp_path / 'open'}`."
    ]


def test_a_pepper_that_others_can_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "pepper").write_text("x" * 64)
    (tmp_path / "pepper").chmod(0o644)
    assert preflight.problems(settings(tmp_path)) == [
        f"{tmp_path}/pepper can be read by others: run `chmod 600 {tmp_path}/pepper`."
    ]


def refused_by_both(chosen: Settings) -> str:
    """What `config check` finds and `serve` refuses: one problem, in the same words."""
    (problem,) = preflight.problems(chosen)
    with pytest.raises(StartError) as refused:
        prepare(chosen)
    assert str(refused.value) == problem
    return problem


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("nonsense", "store.url is not a database URL"),
        ("mysql://root@127.0.0.1/tollgate", "store.url"),
        ("postgresql://tollgate@127.0.0.1:5432", "store.url names no database"),
    ],
)
def test_store_that_cannot_be_used_is_named_as_serve_names_it(tmp_path: Path, url: str, problem: str) -> None:
    assert problem in refused_by_both(replace(settings(tmp_path), store=StoreSettings(url=url)))


def test_missing_client_of_postgresql_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    chosen = replace(settings(tmp_path), store=StoreSettings(url="postgresql://tollgate@127.0.0.1/tollgate"))
    assert "needs psycopg: pip install" in refused_by_both(chosen)


def test_missing_client_of_valkey_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    (problem,) = preflight.problems(replace(settings(tmp_path), shared=ValkeySettings(url="valkey://127.0.0.1")))
    assert "needs redis-py: pip install" in problem


def test_postgresql_that_is_away_is_named(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"postgresql://tollgate@127.0.0.1:{closed.getsockname()[1]}/tollgate"
        (problem,) = preflight.problems(replace(settings(tmp_path), store=StoreSettings(url=address)))
    assert "The database tollgate cannot be used" in problem


def test_database_that_is_none_or_of_a_newer_version_is_named(tmp_path: Path) -> None:
    (tmp_path / "control.db").write_bytes(b"no database at all " * 100)
    assert "cannot be used" in refused_by_both(settings(tmp_path))
    (tmp_path / "control.db").unlink()
    make_control(tmp_path)
    with closing(sqlite3.connect(tmp_path / "control.db")) as store, store:
        store.execute("UPDATE alembic_version SET version_num = '9999'")
    assert "made by a newer Tollgate" in refused_by_both(settings(tmp_path))


def test_pepper_of_another_store_or_a_missing_one_is_named(tmp_path: Path) -> None:
    prepare(settings(tmp_path))
    assert preflight.problems(settings(tmp_path)) == []
    other = replace(settings(tmp_path), secrets=SecretSettings(pepper="x" * 64))
    assert "is not the one that this store's tokens were hashed with" in refused_by_both(other)
    (tmp_path / "pepper").unlink()
    (problem,) = preflight.problems(settings(tmp_path))
    assert "pepper is missing" in problem
    assert not (tmp_path / "pepper").exists()


def test_resolver_that_is_no_address_is_named(tmp_path: Path) -> None:
    wrong = replace(settings(tmp_path), whitelist=WhitelistSettings(resolvers=("dns.example",)))
    (problem,) = preflight.problems(wrong)
    assert "'dns.example' is not a DNS server" in problem


def test_more_networks_than_one_service_can_watch_are_named(tmp_path: Path) -> None:
    upstreams = (UpstreamSettings(name="node", url="http://127.0.0.1:1"),)
    many = {f"net-{number}": NetworkSettings(upstreams=upstreams) for number in range(MAX_NETWORKS + 1)}
    (problem,) = preflight.problems(replace(settings(tmp_path), families={"eth": many}))
    assert "more than one service can watch" in problem


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
