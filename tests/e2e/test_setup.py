"""From a built wheel to a service that is backed up and restored elsewhere, by commands alone, as new users do.

Dependencies are taken from the environment of the tests: what is tried is the wheel, not the package index. So
`pipx install WHEEL` and `uvx --from WHEEL tollgate --version`, which resolve them there and take minutes, are not
run here; both were run by hand with the wheel of 0.1.0 (pipx 1.18.4 and uv 0.13.7, Python 3.11).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.request
import venv
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from parts.anvil import anvil
from parts.need import ROOT
from parts.ports import accepts, free_ports
from parts.processes import eventually, running
from parts.tollgate import linux_only

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.e2e, linux_only]

SITE = next(path for path in sys.path if path.endswith("site-packages"))


def build(folder: Path) -> Path:
    """Build the wheel in a copy of the tree that lies elsewhere and has other modes."""
    for name in ("src", "requirements"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "src" / "tollgate" / "COMMIT").write_text("0123456789ab\n")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"],
        cwd=folder,
        env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
        check=True,
        capture_output=True,
        timeout=120,
    )
    (wheel,) = (folder / "dist").glob("tollgate_rpc-*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("build"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `tollgate` of a fresh virtual environment."""
    folder = tmp_path_factory.mktemp("venv") / "env"
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    install = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "-q"]
    subprocess.run(
        [*install, "--no-deps", "--no-index", "--disable-pip-version-check", str(wheel)], check=True, timeout=120
    )
    # Behind the environment's own packages, so that `tollgate` is the wheel's.
    (packages / "dependencies.pth").write_text(f"{SITE}\n")
    return folder / "bin" / "tollgate"


def run(tollgate: Path, *arguments: str, cwd: Path, code: int = 0, **environ: str) -> str:
    """Run a command as in a new shell; give what it printed."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("TOLLGATE_", "PYTHON"))}
    ran = subprocess.run(
        [str(tollgate), *arguments], cwd=cwd, env={**own, **environ}, capture_output=True, text=True, timeout=60,
        check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert ran.returncode == code, ran.stdout + ran.stderr
    return ran.stdout if code == 0 else ran.stderr


@contextmanager
def serving(tollgate: Path, folder: Path, port: int, **environ: str) -> Iterator[None]:
    with running(
        [str(tollgate), "serve"],
        folder=folder,
        cwd=folder,
        env=environ,
        ready=lambda _: accepts(port),
        within=40.0,
    ):
        eventually(lambda: is_ready(port), within=60, what="being ready")
        yield


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def call(url: str, token: str) -> Any:
    body = b'{"jsonrpc":"2.0","id":7,"method":"eth_chainId","params":[]}'
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30) as response:
        return json.load(response)


def test_the_wheel_is_the_same_wherever_it_is_built_and_brings_its_bill_of_materials(
    wheel: Path, tmp_path: Path
) -> None:
    again = build(tmp_path)
    assert hashlib.sha256(again.read_bytes()).digest() == hashlib.sha256(wheel.read_bytes()).digest()
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if "/sboms/" in each)
        bill = json.loads(archive.read(name))
    pins = re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / "requirements" / "runtime.txt").read_text(), re.MULTILINE)
    assert {(each["name"], each["version"]) for each in bill["components"]} == set(pins)
    assert all(each["hashes"] for each in bill["components"])


def test_a_new_user_goes_from_a_wheel_to_a_service_and_moves_it(installed: Path, tmp_path: Path) -> None:
    assert run(installed, "--version", cwd=tmp_path) == "tollgate 0.1.0 (0123456789ab)\n"
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    port, metrics, port_2, metrics_2 = free_ports(4)
    with anvil(tmp_path) as node:
        made = json.loads(
            run(
                installed, "init", "--upstream", f"eth/mainnet={node.url}", "--email", "ada@example.com", "--team",
                "acme", "--generate", "--personal-token", "--set", f"server.port={port}", "--set",
                f"server.metrics_port={metrics}", "--set", "server.workers=1", "--json", cwd=one,
            )
        )  # fmt: skip
        person = {"TOLLGATE_URL": made["url"], "TOLLGATE_TOKEN": made["personal_token"], "TOLLGATE_TEAM": "acme"}
        with serving(installed, one, port):
            token = json.loads(run(installed, "rpc", "tokens", "create", "first", "--json", cwd=one, **person))
            url = f"{made['url']}/x/eth/mainnet"
            assert call(url, token["secret"]) == {"jsonrpc": "2.0", "id": 7, "result": hex(node.chain_id)}
            answered = _backed_up_under_load(installed, one, tmp_path / "copy", url, token["secret"])
            assert json.loads(run(installed, "doctor", "--json", cwd=one))["ok"]
        # Elsewhere: another folder, other ports, the same token.
        settings = (one / "tollgate.toml").read_text()
        changed = settings.replace(f"= {port}\n", f"= {port_2}\n").replace(f"= {metrics}\n", f"= {metrics_2}\n")
        (two / "tollgate.toml").write_text(changed)
        run(installed, "restore", str(tmp_path / "copy"), cwd=two)
        assert "holds an installation already" in run(
            installed, "restore", str(tmp_path / "copy"), cwd=two, code=1
        )
        person["TOLLGATE_URL"] = f"http://127.0.0.1:{port_2}"
        with serving(installed, two, port_2):
            assert call(f"http://127.0.0.1:{port_2}/x/eth/mainnet", token["secret"])["id"] == 7
            eventually(lambda: _requests(installed, two, person) > answered, what="usage")
            assert json.loads(run(installed, "doctor", "--json", cwd=two))["ok"]
            # Every call that was answered before the backup started is in it, and no more than were made in all.
            assert answered < _requests(installed, two, person)


def _requests(tollgate: Path, cwd: Path, person: dict[str, str]) -> int:
    usage = json.loads(run(tollgate, "usage", "--json", cwd=cwd, code=0, **person))
    return int(usage["requests"])


def _backed_up_under_load(tollgate: Path, cwd: Path, target: Path, url: str, token: str) -> int:
    """Back up while calls are made; give how many were answered before it started."""
    stop, calls, failures = threading.Event(), [0], list[BaseException]()

    def load() -> None:
        try:
            while not stop.is_set():
                call(url, token)
                calls[0] += 1
        except BaseException as failure:  # noqa: BLE001 - reported below
            failures.append(failure)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        eventually(lambda: calls[0] > 200, within=60, what="load")
        before = calls[0]
        run(tollgate, "backup", str(target), cwd=cwd)
        assert calls[0] > before, "no call was answered during the backup"
    finally:
        stop.set()
        thread.join()
    assert not failures
    return before


def test_the_command_of_the_image_serves_and_its_health_check_is_content(installed: Path, tmp_path: Path) -> None:
    """As in the Dockerfile: its variables, entry point and health check; on other ports, and as ourselves."""
    dockerfile = re.sub(r"\\\n\s*", " ", (ROOT / "Dockerfile").read_text())
    (line,) = re.findall(r"^ENV (PATH=.*)$", dockerfile, re.MULTILINE)
    variables = dict(pair.split("=", 1) for pair in line.split())
    variables = {name: value for name, value in variables.items() if name.startswith("TOLLGATE_")}
    port, metrics = free_ports(2)
    (tmp_path / "data").mkdir()
    (tmp_path / "tollgate.toml").write_text(
        '[[families.eth.mainnet.upstreams]]\nname = "a"\nurl = "http://127.0.0.1:1"\n'
    )
    variables |= {
        "TOLLGATE_CONFIG": str(tmp_path / "tollgate.toml"),
        "TOLLGATE_DATA_DIR": str(tmp_path / "data"),
        "TOLLGATE_SERVER__PORT": str(port),
        "TOLLGATE_SERVER__METRICS_PORT": str(metrics),
        "TOLLGATE_SERVER__WORKERS": "1",
    }
    check = json.loads(re.findall(r"^HEALTHCHECK .*CMD (\[.*\])$", dockerfile, re.MULTILINE)[0])
    notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notices.bind(str(tmp_path / "notify"))
    notices.settimeout(40.0)
    variables["NOTIFY_SOCKET"] = str(tmp_path / "notify")
    try:
        with running(
            [str(installed), "serve"], folder=tmp_path, cwd=tmp_path, env=variables, ready=lambda _: accepts(port)
        ):
            # As systemd waits for `Type=notify`.
            assert notices.recv(1000).startswith(b"READY=1\n")
            healthy = [sys.executable, *check[1:-1], check[-1].replace("8402", str(port))]
            assert subprocess.run(healthy, check=False, timeout=20).returncode == 0
        assert notices.recv(1000) == b"STOPPING=1"
    finally:
        notices.close()


def test_secrets_come_from_systemds_credentials(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "credentials").mkdir()
    name = "settings_TOLLGATE_FAMILIES__ETH__MAINNET__UPSTREAMS__0__URL"
    (tmp_path / "credentials" / name).write_text("https://node.example.com/SECRET\n")
    (tmp_path / "tollgate.toml").write_text('[[families.eth.mainnet.upstreams]]\nname = "a"\nurl = "http://x"\n')
    shown = run(
        installed, "config", "show", "--json", cwd=tmp_path, CREDENTIALS_DIRECTORY=str(tmp_path / "credentials")
    )
    (value,) = (row["value"] for key, row in json.loads(shown).items() if key.endswith("upstreams[0].url"))
    assert value == "https://node.example.com/…"
