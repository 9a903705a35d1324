"""`tollgate collect --drain` and `tollgate nodes`: what they refuse, and the error messages."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tollgate.cli.failures import Failure
from tollgate.cli.serve import collect, migrate, nodes, serve
from tollgate.errors import StartError


def run(command: object, folder: Path, *arguments: str) -> Result:
    environment = {"TOLLGATE_DATA_DIR": str(folder), "TOLLGATE_LOGGING__LEVEL": "error"}
    return CliRunner().invoke(command, arguments, env=environment)  # type: ignore[arg-type]


def test_drained_spool_is_empty_and_one_with_a_damaged_file_is_not(tmp_path: Path) -> None:
    assert run(collect, tmp_path, "--drain").exit_code == 0
    (tmp_path / "spool" / "00000000000001.damaged").write_bytes(b"x")
    ended = run(collect, tmp_path, "--drain")
    assert isinstance(ended.exception, Failure)
    assert "00000000000001.damaged" in str(ended.exception)


def test_nodes_and_roles_need_a_store_that_is_shared(tmp_path: Path) -> None:
    ended = run(nodes, tmp_path)
    assert isinstance(ended.exception, Failure)
    assert "PostgreSQL" in str(ended.exception)
    file = tmp_path / "tollgate.toml"
    file.write_text('[[families.eth.mainnet.upstreams]]\nname = "n0"\nurl = "http://127.0.0.1:1/"\n')
    ended = run(serve, tmp_path, "--role", "gateway", "--config", str(file))
    assert isinstance(ended.exception, StartError)
    assert "store.url" in str(ended.exception)


def test_plan_of_a_new_folder_makes_nothing(tmp_path: Path) -> None:
    ended = run(migrate, tmp_path, "--plan")
    assert ended.exit_code == 0
    assert "will be created" in ended.output
    assert not list(tmp_path.glob("*.db"))
    assert run(migrate, tmp_path).exit_code == 0
    assert "no steps" in run(migrate, tmp_path, "--plan").output


def test_plan_is_a_summary_and_sql_shows_the_statements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(migrate, tmp_path).exit_code == 0
    steps = [("0002 a column", ["ALTER TABLE teams ADD COLUMN x"])]
    monkeypatch.setattr("tollgate.store.upgrade.plan", lambda *_: steps)
    summary = run(migrate, tmp_path, "--plan").output
    assert "0002 a column (1 statement)" in summary
    assert "ALTER TABLE" not in summary
    assert "    ALTER TABLE teams ADD COLUMN x" in run(migrate, tmp_path, "--plan", "--sql").output
    assert run(migrate, tmp_path, "--sql").exit_code == 2


def test_move_needs_both_ends(tmp_path: Path) -> None:
    assert run(migrate, tmp_path, "--from", "sqlite:///x.db").exit_code == 2
    ended = run(migrate, tmp_path, "--from", f"sqlite:///{tmp_path}/none.db", "--to", "postgresql://u@h/d")
    assert isinstance(ended.exception, Failure)
    assert "none.db" in str(ended.exception)


def test_move_without_the_ledger_is_refused(tmp_path: Path) -> None:
    (tmp_path / "control.db").touch()
    ended = run(migrate, tmp_path, "--from", f"sqlite:///{tmp_path}/control.db", "--to", "postgresql://u@h/d")
    assert isinstance(ended.exception, Failure)
    assert f"There is no {tmp_path}/ledger.db" in str(ended.exception)
    assert not (tmp_path / "ledger.db").exists()
