"""The prober against real nodes: the state each is found in, what is reported, what an operator sees."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import threading
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pytest

from parts.anvil import SEPOLIA, anvil
from parts.anvils import Chain, chain
from parts.processes import alive, eventually
from parts.tollgate import TOLLGATE, Gateway, linux_only, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

NETWORK = "eth/sepolia"
# As quick without calls as with them.
QUICK = {"probe_seconds": 0.1, "idle_probe_seconds": 0.1, "timeout_seconds": 0.5}


@dataclass(frozen=True)
class ProberSetup:
    """Nodes of one chain behind a gateway; upstreams are named a, b, c."""

    chain: Chain
    gateway: Gateway
    settings: Path

    def upstreams(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `tollgate upstreams`."""
        argv = [TOLLGATE, "upstreams", "--config", str(self.settings), *arguments]
        return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)

    def shown(self, name: str) -> dict[str, Any]:
        """What it shows of one upstream."""
        (network,) = json.loads(self.upstreams("--json").stdout)["networks"]
        found: dict[str, Any] = next(each for each in network["upstreams"] if each["name"] == name)
        return found

    def metric(self, name: str, **labels: str) -> float:
        family, _, network = NETWORK.partition("/")
        wanted = {"family": family, "network": network, **labels}
        text = ",".join(f'{label}="{value}"' for label, value in sorted(wanted.items()))
        return self.gateway.metrics().get(f"{name}{{{text}}}", 0.0)

    def becomes(self, name: str, state: str) -> None:
        """Wait until the prober finds an upstream in a state."""
        eventually(
            lambda: self.metric("tollgate_upstream_state", upstream=name, state=state) == 1,
            what=f"{name} being {state}",
        )

    def reaches(self, height: int) -> None:
        """Wait until the network's head is this one."""
        eventually(lambda: self.metric("tollgate_network_head") == height, what=f"the head being {height}")

    @property
    def reorgs(self) -> float:
        return self.metric("tollgate_reorgs_total")


@contextmanager
def prober_setup(
    folder: Path, count: int, *, health: dict[str, object] | None = None, listen: bool = False
) -> Iterator[ProberSetup]:
    with chain(folder, count) as nodes:
        nodes.mine(5)
        upstreams: list[dict[str, object]] = []
        for name, node in zip("abc", nodes.nodes, strict=False):
            options = {"ws_url": node.url.replace("http", "ws")} if listen else {}
            upstreams.append({"name": name, "url": node.url, **options})
        tables = {"health": health or QUICK}
        with serving(folder / "gateway", {NETWORK: upstreams}, tables) as gateway:
            yield ProberSetup(nodes, gateway, folder / "gateway" / "tollgate.toml")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProberSetup]:
    """Two nodes; each test leaves both in rotation."""
    with prober_setup(tmp_path_factory.mktemp("pair"), 2) as it:
        yield it


def test_two_nodes_of_one_chain_are_up(pair: ProberSetup) -> None:
    pair.becomes("a", "up")
    pair.becomes("b", "up")
    pair.chain.mine()
    pair.reaches(pair.chain.height)
    assert pair.reorgs == 0


def test_a_node_that_stays_behind_is_lagging_until_it_comes_along(pair: ProberSetup) -> None:
    node = pair.chain.nodes[1]
    pair.chain.leave(node)
    pair.chain.mine(10)
    pair.becomes("b", "lagging")
    pair.reaches(pair.chain.height)
    eventually(lambda: pair.shown("b")["reason"] == "10 blocks behind", what="the reason")
    assert pair.shown("b")["behind"] == 10
    pair.chain.join(node)
    pair.becomes("b", "up")
    assert pair.reorgs == 0


def test_a_node_that_hangs_is_down_until_it_answers_and_delays_no_call(pair: ProberSetup) -> None:
    node = pair.chain.nodes[1]
    pair.chain.leave(node)
    with node.paused():
        pair.becomes("b", "down")
        eventually(lambda: pair.shown("b")["reason"] == "does not answer in time", what="the reason")
        pair.chain.mine(3)
        pair.reaches(pair.chain.height)
    pair.chain.join(node)
    pair.becomes("b", "up")


def test_a_node_on_another_chain_is_never_in_rotation(pair: ProberSetup) -> None:
    node = pair.chain.nodes[1]
    # Its chain id is read when it comes back: by then it is on another one.
    node.call("anvil_setChainId", 5)
    with node.paused():
        pair.becomes("b", "down")
    pair.becomes("b", "wrong_chain")
    eventually(lambda: pair.shown("b")["reason"] == f"reports chain id 0x5, not {SEPOLIA:#x}", what="the reason")
    node.call("anvil_setChainId", SEPOLIA)
    with node.paused():
        pair.becomes("b", "down")
    pair.becomes("b", "up")


def test_a_reorganisation_is_noticed_once(pair: ProberSetup) -> None:
    pair.chain.mine(6)
    pair.reaches(pair.chain.height)
    before = pair.reorgs
    pair.chain.reorganise(3)
    eventually(lambda: pair.reorgs > before, what="the reorganisation")
    pair.chain.mine()
    pair.reaches(pair.chain.height)
    pair.becomes("a", "up")
    pair.becomes("b", "up")
    assert pair.reorgs == before + 1


def test_the_operator_sees_a_table(pair: ProberSetup) -> None:
    pair.becomes("b", "up")
    eventually(lambda: pair.shown("b")["state"] == "up", what="the file")
    ran = pair.upstreams()
    titles, *rows = ran.stdout.splitlines()
    assert titles.split() == [
        "NETWORK", "UPSTREAM", "STATE", "REASON", "HEAD", "BEHIND", "ERRORS", "LATENCY", "BREAKER", "PROBES",
    ]  # fmt: skip
    assert [row.split()[:4] for row in rows] == [[NETWORK, name, "up", "-"] for name in "ab"]
    assert ran.returncode == 0
    assert "probing takes about" in ran.stderr


@linux_only
def test_a_prober_that_is_killed_is_replaced_and_goes_on(pair: ProberSetup) -> None:
    before = pair.reorgs, pair.metric("tollgate_heads_lost_total")
    killed = pair.gateway.children()["tg-prober"]
    os.kill(killed, signal.SIGKILL)
    pair.chain.mine(2)
    eventually(lambda: not alive(killed), what="its end")
    pair.reaches(pair.chain.height)
    pair.becomes("a", "up")
    pair.becomes("b", "up")
    assert (pair.reorgs, pair.metric("tollgate_heads_lost_total")) == before


def test_killed_nodes_are_down_and_their_head_is_given_up_after_a_while(tmp_path: Path) -> None:
    with prober_setup(tmp_path, 2) as it:
        it.becomes("b", "up")
        it.chain.leave(it.chain.nodes[1])
        it.chain.mine(2)
        it.reaches(7)
        it.chain.nodes[0].kill()
        it.becomes("a", "down")
        eventually(lambda: it.shown("a")["reason"] == "refuses connections", what="the reason")
        it.becomes("b", "up")
        it.reaches(5)
        assert (it.metric("tollgate_heads_lost_total"), it.reorgs) == (1, 0)
        file = it.settings.parent / "data" / "upstreams.json"
        assert file.stat().st_mode & 0o777 == 0o600
    assert not file.exists()
    ran = it.upstreams()
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "No service runs on" in ran.stderr


def test_a_revert_of_the_only_node_is_noticed(tmp_path: Path) -> None:
    with prober_setup(tmp_path, 1) as it:
        node = it.chain.nodes[0]
        snapshot = node.call("evm_snapshot")
        it.chain.mine(8)
        it.reaches(13)
        assert node.call("evm_revert", snapshot)
        it.reaches(5)
        assert it.reorgs == 1
        node.call("evm_mine")
        it.reaches(6)
        node.call("anvil_reorg", 1, [])
        eventually(lambda: it.reorgs == 2, what="the reorganisation")
        it.becomes("a", "up")
        assert it.metric("tollgate_heads_lost_total") == 0


def test_heads_that_are_reported_by_websocket_are_known_long_before_the_next_probe(tmp_path: Path) -> None:
    with prober_setup(tmp_path, 1, health={"probe_seconds": 60.0}, listen=True) as it:
        eventually(lambda: it.shown("a")["listening"], what="the subscription")
        it.chain.mine()
        it.reaches(6)
        it.chain.mine(20)
        it.reaches(26)
        assert it.reorgs == 0


# ---- what probing costs


class Counting(http.server.BaseHTTPRequestHandler):
    """Passes calls on to a node, and notes when each came."""

    protocol_version = "HTTP/1.1"
    node = ""
    came: ClassVar[list[float]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        calls = json.loads(body)
        self.came.extend([time.monotonic()] * (len(calls) if isinstance(calls, list) else 1))
        request = urllib.request.Request(self.node, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            content = answer.read()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def counting(node: str) -> Iterator[tuple[str, list[float]]]:
    """An address that leads to a node, and the times of the calls that came."""
    came: list[float] = []
    handler = type("Handler", (Counting,), {"node": node, "came": came})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", came
        finally:
            server.shutdown()
            thread.join(30)


def test_an_idle_upstream_is_called_at_most_twelve_times_a_minute(tmp_path: Path) -> None:
    """With the settings as they are by default: an anvil behind a server that counts."""
    with (
        anvil(tmp_path) as node,
        counting(node.url) as (url, came),
        serving(tmp_path / "gateway", {NETWORK: [{"name": "a", "url": url}]}) as gateway,
    ):
        at = ProberSetup(cast("Chain", None), gateway, tmp_path / "gateway" / "tollgate.toml")
        at.becomes("a", "up")
        first = len(came)
        # The bound holds for any time; a check makes up to two calls at once, and rests for each of them.
        eventually(lambda: len(came) >= first + 4, within=60, what="four more calls")
        minutes = (came[first + 3] - came[first - 1]) / 60
        assert (4 - 2) / minutes <= 12
        assert 0 < at.shown("a")["probe_calls"] <= 12
