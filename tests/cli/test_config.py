from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tollgate.cli.config import config

GOOD = """\
data_dir = "data"
[secrets]
pepper = "hunter2-hunter2-hunter2-hunter2-hunter2"
[[families.eth.mainnet.upstreams]]
name = "node"
url = "https://node.example.com/hunter2"
headers = { Authorization = "Bearer hunter2" }
[[families.eth.sepolia.upstreams]]
name = "node"
url = "http://127.0.0.1:8545"
"""


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("TOLLGATE_")]:
        monkeypatch.delenv(name)


def run(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(config, arguments, env=environ, catch_exceptions=False)


def check(*arguments: str, **environ: str) -> Result:
    """Check with ports that are free."""
    return run(*arguments, TOLLGATE_SERVER__PORT="0", TOLLGATE_SERVER__METRICS_PORT="0", **environ)


def test_check_of_good_settings_shows_in_one_line_which_networks_are_served() -> None:
    Path("tollgate.toml").write_text(GOOD, encoding="utf-8")
    result = check("check")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "tollgate.toml is fine; networks served: eth/mainnet, eth/sepolia\n"


def test_check_of_bad_settings_lists_the_problems_on_stderr_and_exits_with_1() -> None:
    Path("other.toml").write_text("[server]\nprot = 1\nworkers = 999\n", encoding="utf-8")
    result = check("check", "--config", "other.toml")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines() == [
        "other.toml:2: unknown key `server.prot`; did you mean `server.port`?",
        "other.toml:3: `server.workers` must be an integer from 0 to 256, not 999",
    ]


def test_check_of_settings_that_serve_nothing_fails_as_serve_would() -> None:
    result = check("check")
    assert result.exit_code == 1
    assert result.stderr.startswith("no networks are set: run `tollgate init`, or add [[families.eth.")


def test_check_works_from_the_environment_alone() -> None:
    result = check("check", TOLLGATE_FAMILIES__ETH__MAINNET__UPSTREAMS='[{name = "a", url = "http://a"}]')
    assert result.exit_code == 0
    assert result.stdout == "The environment is fine; networks served: eth/mainnet\n"


@pytest.mark.parametrize("command", ["check", "show"])
def test_a_file_that_is_not_there_is_a_clear_error(command: str) -> None:
    result = run(command, TOLLGATE_CONFIG="nowhere.toml")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("nowhere.toml: there is no such file")


def test_show_aligns_every_value_with_its_source() -> None:
    Path("tollgate.toml").write_text(GOOD, encoding="utf-8")
    result = run("show", TOLLGATE_SERVER__PORT="9000")
    rows = {line.split()[0]: line.split()[-1] for line in result.stdout.splitlines()}
    assert rows["data_dir"] == "tollgate.toml:1"
    assert rows["server.port"] == "TOLLGATE_SERVER__PORT"
    assert rows["server.host"] == "default"
    starts = {line.index(rows[line.split()[0]], 60) for line in result.stdout.splitlines()}
    assert len(starts) == 1


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_show_masks_secrets(options: list[str]) -> None:
    Path("tollgate.toml").write_text(GOOD, encoding="utf-8")
    result = run("show", *options, TOLLGATE_STORE__URL="postgresql://user:hunter2@host/db")
    assert result.exit_code == 0
    assert "hunter2" not in result.output
    assert "https://node.example.com/…" in result.stdout
    assert "postgresql://user:…@host/db" in result.stdout


def test_show_as_json_maps_each_key_to_value_and_source() -> None:
    Path("tollgate.toml").write_text(GOOD, encoding="utf-8")
    shown = json.loads(run("show", "--json").stdout)
    assert shown["server.port"] == {"value": 8402, "source": "default"}
    assert shown["secrets.pepper"] == {"value": "…", "source": "tollgate.toml:3"}
    assert shown["families.eth.mainnet.upstreams[0].headers"] == {
        "value": {"Authorization": "…"},
        "source": "tollgate.toml:7",
    }


@pytest.mark.parametrize("command", ["check", "show"])
def test_help_gives_an_example(command: str) -> None:
    assert f"Example: tollgate config {command}" in run(command, "--help").stdout


@pytest.mark.e2e
def test_the_commands_load_without_table_and_server_libraries() -> None:
    code = "import sys, tollgate.cli.config; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"rich", "sqlalchemy", "uvicorn", "asyncio"} & set(loaded.stdout.split())


def test_check_refuses_a_port_that_is_taken() -> None:
    Path("tollgate.toml").write_text(GOOD, encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("check", TOLLGATE_SERVER__PORT=str(port), TOLLGATE_SERVER__METRICS_PORT="0")
    assert (result.exit_code, result.stdout) == (1, "")
    words = f"Port {port} on 127.0.0.1 is in use: stop what listens there, or set another server.port.\n"
    assert result.stderr == words


def test_check_warns_of_links_that_lead_nowhere_and_of_passwords_in_clear() -> None:
    Path("tollgate.toml").write_text(GOOD, encoding="utf-8")
    everywhere = check("check", TOLLGATE_SERVER__HOST="0.0.0.0")
    assert (everywhere.exit_code, "lead to 127.0.0.1" in everywhere.stderr) == (0, True)
    set_right = check(
        "check", TOLLGATE_SERVER__HOST="0.0.0.0", TOLLGATE_SERVER__BASE_URL="https://rpc.example.com"
    )
    assert (set_right.exit_code, set_right.stderr) == (0, "")
    in_clear = check("check", TOLLGATE_SERVER__BASE_URL="http://rpc.example.com")
    assert "cross the network in clear" in in_clear.stderr
    behind = check("check", TOLLGATE_SERVER__TRUSTED_PROXIES='["10.0.0.1"]')
    assert "Set server.base_url to the address of the proxy." in behind.stderr
