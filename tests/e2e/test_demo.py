"""`tollgate demo` for a first user: one line or one page, curl lines that work, and a clean end."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from websockets.sync.client import connect

from parts.processes import alive, descendants, eventually, running
from parts.raw_http import JSON, RawConnection, call
from parts.tollgate import TOLLGATE, Demo, bearer, demo
from parts.upstream import result, upstream
from parts.visitor import visitor

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

NETWORKS = {"eth/mainnet", "eth/sepolia", "starknet/mainnet", "starknet/sepolia"}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    with demo(tmp_path_factory.mktemp("demo"), "--workers", "1") as it:
        yield it


def exchange(it: Demo, network: str, body: bytes, headers: dict[str, str] | None = None) -> Any:
    with RawConnection.open(it.port) as connection:
        answer = connection.exchange(f"/x/{network}", body, {**JSON, **(headers or bearer(it.printed["token"]))})
    return answer.json()


# ---- the line


def test_one_line_once_ready(shown: Demo) -> None:
    assert len(shown.program.lines()) == 1
    assert shown.program.out.read_text().count("\n") == 1
    printed = shown.printed
    assert {"base_url", "team", "token", "data_dir", "pid"} <= set(printed)
    assert printed["team"] == "demo"
    assert printed["pid"] == shown.program.pid
    assert re.fullmatch(r"tg_[0-9A-Za-z]{38}", printed["token"])
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", printed["base_url"])
    assert Path(printed["data_dir"]).is_dir()
    assert set(printed["networks"]) == set(printed["simulated"]) == NETWORKS


def test_the_line_lets_its_reader_into_the_console_and_the_api(shown: Demo) -> None:
    printed = shown.printed
    assert printed["console_url"] == f"{printed['base_url']}/console"
    with visitor(printed["base_url"]) as browser:
        assert browser.sign_in(printed["email"], "not the password").status_code == 401
        assert browser.sign_in(printed["email"], printed["password"]).status_code == 303
        assert printed["email"] in browser.get("/console/account").text
    with RawConnection.open(shown.port) as connection:
        teams = connection.exchange(
            "/api/v1/teams", headers=bearer(printed["management_token"]), method="GET"
        ).json()
    assert [(team["name"], team["role"]) for team in teams["items"]] == [("demo", "owner")]


def test_words_on_standard_error_are_no_failures(shown: Demo) -> None:
    assert "Traceback" not in shown.program.err.read_text()


@pytest.mark.parametrize(
    ("network", "method", "expected"),
    [
        ("eth/mainnet", "eth_chainId", "0x1"),
        ("eth/sepolia", "eth_chainId", "0xaa36a7"),
        ("starknet/mainnet", "starknet_chainId", "0x534e5f4d41494e"),
        ("starknet/sepolia", "starknet_chainId", "0x534e5f5345504f4c4941"),
    ],
)
def test_all_networks_answer(shown: Demo, network: str, method: str, expected: str) -> None:
    assert exchange(shown, network, call(method))["result"] == expected


@pytest.mark.parametrize("origin", ["http://localhost:3000", "https://localhost", "http://app.localhost:1"])
def test_localhost_is_whitelisted(shown: Demo, origin: str) -> None:
    assert exchange(shown, "eth/mainnet", call("eth_chainId"), {"Origin": origin})["result"] == "0x1"
    elsewhere = exchange(shown, "eth/mainnet", call("eth_chainId"), {"Origin": "http://example.com"})
    assert elsewhere["error"]["data"]["reason"] == "origin_not_allowed"


def test_blocks_advance(shown: Demo) -> None:
    def block() -> int:
        return int(exchange(shown, "eth/mainnet", call("eth_blockNumber"))["result"], 16)

    before = block()
    eventually(lambda: block() > before, within=60, what="the next block")


@pytest.mark.parametrize(
    ("network", "subscribe", "number", "name", "parent"),
    [
        ("eth/mainnet", call("eth_subscribe", "newHeads"), "number", "hash", "parentHash"),
        ("starknet/sepolia", call("starknet_subscribeNewHeads"), "block_number", "block_hash", "parent_hash"),
    ],
)
def test_subscribers_get_the_new_blocks(
    shown: Demo, network: str, subscribe: bytes, number: str, name: str, parent: str
) -> None:
    url = shown.printed["networks"][network].replace("http", "ws", 1)
    with connect(url, additional_headers=bearer(shown.printed["token"])) as client:
        client.send(subscribe.decode())
        assert "result" in json.loads(client.recv(timeout=30))
        heads = [json.loads(client.recv(timeout=30))["params"]["result"] for _ in range(3)]
    assert all(new[parent] == old[name] and new[number] != old[number] for old, new in pairwise(heads))


# ---- the page


def test_page_lists_endpoints_and_curl_lines_that_work(tmp_path: Path) -> None:
    argv = [TOLLGATE, "demo", "--port", "0", "--workers", "1"]
    with running(argv, folder=tmp_path, ready=lambda it: "Ctrl-C" in it.out.read_text(), within=60) as program:
        page = program.out.read_text()
        base_url = re.search(r"http://127\.0\.0\.1:\d+", page)
        assert base_url is not None
        for network in NETWORKS:
            assert f"{base_url[0]}/x/{network}" in page
        assert page.lower().count("simulated") >= len(NETWORKS)
        assert str(program.pid) in page
        commands = re.findall(r"^ *(curl .*?'\{.*?\}')$", page, re.DOTALL | re.MULTILINE)
        assert len(commands) == 2
        for command in commands:
            argv = shlex.split(command.replace("\\\n", " "))
            printed = subprocess.run(argv, capture_output=True, timeout=60, check=True).stdout
            assert int(json.loads(printed)["result"], 16) > 0
        assert any("Authorization: Bearer tg_" in command for command in commands)
        assert any("Origin: http://localhost:3000" in command for command in commands)
        assert f"{base_url[0]}/console" in page
        script = "\n".join(re.findall(r"^  (export .*|.* rpc tokens list)$", page, re.MULTILINE))
        listed = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, timeout=60, check=True)
        assert "demo" in listed.stdout


# ---- options


def test_upstream_takes_the_place_of_a_simulated_chain(tmp_path: Path) -> None:
    with upstream() as node:
        node.on("eth_chainId", result("0x2a"))
        with demo(tmp_path, "--workers", "1", "--upstream", f"eth/mainnet={node.url}/key") as it:
            assert exchange(it, "eth/mainnet", call("eth_chainId"))["result"] == "0x2a"
            assert node.received[-1].path == "/key"
            assert exchange(it, "eth/sepolia", call("eth_chainId"))["result"] == "0xaa36a7"
            assert set(it.printed["simulated"]) == NETWORKS - {"eth/mainnet"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--upstream", "eth/mainnet"),
        ("--upstream", "mainnet=http://a"),
        ("--upstream", "eth/mainnet=ftp://a"),
        ("--upstream", "eth/mainnet="),
        ("--upstream", "Eth/Main Net=http://a"),
        ("--upstream", "eth/mainnet=http://127.0.0.1:notaport"),
        ("--port", "70000"),
        ("--port", "x"),
        ("--nonsense",),
    ],
)
def test_wrong_usage_is_reported_with_code_2(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    argv = [TOLLGATE, "demo", "--json", "--port", "0", "--data-dir", str(tmp_path / "data"), *arguments]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert arguments[0] in ended.stderr
    assert "--help" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_data_folder_can_be_used_again(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    tokens = []
    for number in range(2):
        with demo(tmp_path / str(number), "--workers", "1", "--data-dir", str(folder)) as it:
            assert it.printed["data_dir"] == str(folder)
            assert exchange(it, "eth/mainnet", call("eth_chainId"))["result"] == "0x1"
            tokens.append(it.printed["token"])
            for token in tokens:
                assert exchange(it, "eth/mainnet", call("eth_chainId"), bearer(token))["result"] == "0x1"
    assert folder.is_dir()
    assert tokens[0] == tokens[1], "a second token was made"


def test_data_folder_in_use_is_reported(tmp_path: Path) -> None:
    with demo(tmp_path, "--workers", "1") as it:
        argv = [TOLLGATE, "demo", "--json", "--port", "0", "--data-dir", it.printed["data_dir"]]
        ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert (ended.returncode, ended.stdout) == (1, "")
        assert it.printed["data_dir"] in ended.stderr
        assert "Traceback" not in ended.stderr


def test_port_in_use_is_reported(shown: Demo, tmp_path: Path) -> None:
    argv = [TOLLGATE, "demo", "--json", "--port", str(shown.port), "--metrics-port", "0"]
    ended = subprocess.run(
        argv, capture_output=True, text=True, timeout=60, check=False, env={"TMPDIR": str(tmp_path)}
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert str(shown.port) in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not list(tmp_path.iterdir()), "the temporary folder is gone"


# ---- the end


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("group", [False, True])
def test_signal_ends_it_with_code_0_and_nothing_left(tmp_path: Path, number: signal.Signals, group: bool) -> None:
    with demo(tmp_path, "--workers", "2") as it:
        data_dir = Path(it.printed["data_dir"])
        assert data_dir.parent == tmp_path, "a temporary folder"
        started = descendants(it.program.pid)
        assert len(started) >= 4  # two workers, the metrics, the chain
        # A terminal's Ctrl-C reaches the whole group.
        if group:
            os.killpg(it.program.pid, number)
        else:
            it.program.send(number)
        assert it.program.popen.wait(30) == 0
        assert not any(alive(pid) for pid in started)
        assert not data_dir.exists()
        assert "Traceback" not in it.program.err.read_text()
        assert len(it.program.lines()) == 1
