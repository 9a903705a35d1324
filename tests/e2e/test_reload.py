"""`tollgate reload` on a service under load: upstreams and limits change in place, and no call fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from parts.load import load
from parts.processes import eventually
from parts.raw_http import JSON, call, request
from parts.stack import reason
from parts.tollgate import TOLLGATE, Gateway, bearer, demo, linux_only, serving, write_settings
from parts.tool import Ran, Tool
from parts.upstream import Received, Reply, Upstream, upstream

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

pytestmark = [pytest.mark.e2e, linux_only]

READ, SLOW = "eth_getBalance", "eth_call"
NETWORK = "eth/mainnet"
# Every call is to reach an upstream, and that of its turn alone.
PLAIN: dict[str, dict[str, object]] = {
    "families.eth.mainnet": {"cache": False, "hedge": False},
    "cache": {"bytes": 0},
}


def node(name: str) -> Any:
    """A node that stays at one block, and otherwise answers with its name."""
    block = {"number": "0x10", "hash": "0x" + "10" * 32, "parentHash": "0x" + "0f" * 32}
    known = {"eth_getBlockByNumber": block, "eth_chainId": "0x1", "eth_syncing": False, "eth_blockNumber": "0x10"}

    def one(ran: dict[str, Any]) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": ran["id"], "result": known.get(ran["method"], name)}

    def reply(received: Received) -> Reply:
        ran = received.json()
        return Reply(json.dumps([one(each) for each in ran] if isinstance(ran, list) else one(ran)).encode())

    return reply


@dataclass
class ReloadSetup:
    """A service with two workers, two nodes, and its settings file."""

    folder: Path
    gateway: Gateway
    first: Upstream
    second: Upstream
    token: str

    def write(self, *names: str, settings: Mapping[str, Mapping[str, object]] | None = None) -> Path:
        """Write the settings anew, with these upstreams."""
        urls = {"first": self.first.url, "second": self.second.url}
        networks = {NETWORK: [{"name": name, "url": f"{urls[name]}/very-secret"} for name in names]}
        return write_settings(self.folder, networks, merged(settings))

    def reload(self, *arguments: str) -> Ran:
        return reload("--config", str(self.folder / "tollgate.toml"), *arguments)

    def request(self, body: bytes) -> bytes:
        return request(f"/x/{NETWORK}", body, {**JSON, **bearer(self.token)})

    def statuses(self, body: bytes) -> set[int]:
        """Call every worker."""
        found: set[int] = set()
        with self.gateway.spread(1) as held:
            for connection in (connections[0] for connections in held.values()):
                connection.send(self.request(body))
                found.add(connection.read().status)
        return found

    def answers(self, method: str = READ) -> set[str]:
        """Who answers, at every worker."""
        found: set[str] = set()
        with self.gateway.spread(1) as held:
            for connection in (connections[0] for connections in held.values()):
                connection.send(self.request(call(method, "0x" + "00" * 20, "latest")))
                found.add(connection.read().json()["result"])
        return found


def merged(settings: Mapping[str, Mapping[str, object]] | None) -> dict[str, dict[str, object]]:
    tables: dict[str, dict[str, object]] = {"server": {"workers": 2}, **{key: {**PLAIN[key]} for key in PLAIN}}
    for name, table in (settings or {}).items():
        tables[name] = {**tables.get(name, {}), **table}
    return tables


def reload(*arguments: str, env: Mapping[str, str] | None = None) -> Ran:
    """Run the command as the operator does."""
    ended = subprocess.run(
        [TOLLGATE, "reload", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **(env or {})},
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    return Ran(ended.returncode, ended.stdout, ended.stderr)


@contextmanager
def opened(folder: Path) -> Iterator[ReloadSetup]:
    with upstream() as first, upstream() as second:
        first.on("*", node("first"))
        second.on("*", node("second"))
        networks = {NETWORK: [{"name": "first", "url": f"{first.url}/very-secret"}]}
        with serving(folder, networks, merged(None)) as gateway:
            token, _ = gateway.books.token(gateway.books.team(), requests_per_second=1_000_000)
            yield ReloadSetup(folder, gateway, first, second, token)


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[ReloadSetup]:
    with opened(tmp_path) as it:
        yield it


def reads(node: Upstream) -> int:
    return sum(READ in received.methods() for received in list(node.received))


def test_upstream_is_replaced_under_load_and_no_call_fails(setup: ReloadSetup) -> None:
    body = call(READ, "0x" + "00" * 20, "latest")
    with setup.gateway.spread(4) as held:
        connections = [connection for each in held.values() for connection in each]
        with load(connections, setup.request(body)) as callers:
            eventually(lambda: len(callers) > 200, what="load")
            setup.write("second", "first")
            assert setup.reload().code == 0
            eventually(lambda: reads(setup.second) > 50, what="calls at the second")
            setup.write("second")
            ran = setup.reload()
            done = time.monotonic()
            pending = reads(setup.first)
            eventually(lambda: len(callers.since(done)) > 200, what="load afterwards")
            # What was under way when the answer came may still have arrived.
            assert reads(setup.first) <= pending + len(connections)
    assert (ran.code, ran.err.splitlines()[1:]) == (0, ["  families.eth.mainnet.upstreams: - first"])
    assert {(outcome.status, outcome.closing) for outcome in callers.since(0.0)} == {(200, False)}
    assert setup.answers() == {"second"}


def test_both_at_once_added_and_removed_under_load(setup: ReloadSetup) -> None:
    body = call(READ, "0x" + "00" * 20, "latest")
    with setup.gateway.spread(4) as held:
        connections = [connection for each in held.values() for connection in each]
        with load(connections, setup.request(body)) as callers:
            eventually(lambda: len(callers) > 200, what="load")
            for names in (["second"], ["first"], ["second"]):
                setup.write(*names)
                assert setup.reload().code == 0
                done = time.monotonic()
                eventually(lambda done=done: len(callers.since(done)) > 100, what="load")  # type: ignore[misc]
    assert {(outcome.status, outcome.closing) for outcome in callers.since(0.0)} == {(200, False)}
    assert setup.answers() == {"second"}


def test_call_under_way_at_an_upstream_that_is_removed_is_answered_by_it(setup: ReloadSetup) -> None:
    gate = threading.Event()
    body = b'{"jsonrpc":"2.0","id":1,"result":"late"}'
    setup.first.on(SLOW, lambda received: Reply(body, gate=gate))
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(setup.gateway.exchange, call(SLOW, {}, "latest"), token=setup.token)
        try:
            eventually(lambda: setup.first.bodies(SLOW), what="the call at the first")
            setup.write("second")
            assert setup.reload().code == 0
            assert setup.answers() == {"second"}
        finally:
            gate.set()
        answer = pending.result(10)
    assert (answer.status, answer.json()["result"]) == (200, "late")


def test_many_callers_at_once_are_still_known(setup: ReloadSetup) -> None:
    """No caller is looked up again, which is bounded."""
    team = setup.gateway.books.team("many")
    tokens = [setup.gateway.books.token(team)[0] for _ in range(200)]
    with ExitStack() as opened:
        connections = [opened.enter_context(setup.gateway.connect()) for _ in tokens]

        def exchange(at_once: int) -> set[int]:
            found: set[int] = set()
            pairs = list(zip(connections, tokens, strict=True))
            for start in range(0, len(pairs), at_once):
                for connection, token in pairs[start : start + at_once]:
                    connection.send(request(f"/x/{NETWORK}", call("eth_chainId"), {**JSON, **bearer(token)}))
                found |= {connection.read().status for connection, _ in pairs[start : start + at_once]}
            return found

        assert exchange(at_once=20) == {200}
        for limits in ({}, {"limits": {"batch_calls": 4, "domain_per_minute": 7}}):
            setup.write("first", "second", settings=limits)
            assert setup.reload().code == 0
            assert exchange(at_once=200) == {200}


def test_limit_changes_for_every_worker(setup: ReloadSetup) -> None:
    batch = b"[%b]" % b",".join(call("eth_chainId", id=number) for number in range(5))
    assert setup.statuses(batch) == {200}
    setup.write("first", settings={"limits": {"batch_calls": 4}})
    ran = setup.reload("--json")
    assert (ran.code, ran.json["ok"], ran.json["changed"]) == (0, True, ["limits.batch_calls: 100 -> 4"])
    assert setup.statuses(batch) == {413}
    assert reason(setup.gateway.exchange(batch, token=setup.token)) == "batch_too_large"
    setup.write("first")
    assert setup.reload().code == 0
    assert setup.statuses(batch) == {200}


def test_worker_that_is_replaced_later_begins_with_the_newest_settings(setup: ReloadSetup) -> None:
    setup.write("second", settings={"limits": {"batch_calls": 4}})
    assert setup.reload().code == 0
    before = setup.gateway.workers()
    for pid in before.values():
        os.kill(pid, signal.SIGKILL)

    def replaced() -> bool:
        now = setup.gateway.workers()
        return len(now) == 2 and not set(now.values()) & set(before.values())

    eventually(replaced, what="both replaced")
    batch = b"[%b]" % b",".join(call("eth_chainId", id=number) for number in range(5))
    assert setup.statuses(batch) == {413}
    assert setup.answers() == {"second"}
    setup.write("first")
    assert setup.reload().code == 0, "they count as well"
    assert setup.answers() == {"first"}


def test_bound_on_messages_of_websockets_changes_for_those_opened_afterwards(setup: ReloadSetup) -> None:
    def closes(size: int) -> bool:
        """Whether a message of this size ends a new connection; otherwise it is answered."""
        url = f"ws://127.0.0.1:{setup.gateway.port}/x/{NETWORK}"
        with connect(url, additional_headers=bearer(setup.token), compression=None, close_timeout=2) as client:
            client.send(call(READ, "0x" + "00" * 20, "latest").ljust(size).decode())
            try:
                return "result" not in json.loads(client.recv(timeout=30))
            except ConnectionClosed as end:
                return end.rcvd is not None and end.rcvd.code == 1009

    assert (closes(1_000_000), closes(1_500_000)) == (False, True)
    for most in (2_000_000, 500_000):
        setup.write("first", settings={"limits": {"body_bytes": most}})
        assert setup.reload().code == 0
        assert [(closes(most), closes(most + 1)) for _ in range(4)] == [(False, True)] * 4


SEPOLIA = '[[families.starknet.sepolia.upstreams]]\nname = "n"\nurl = "{}"\n'


def test_network_comes_and_goes(setup: ReloadSetup) -> None:
    def status() -> int:
        return setup.gateway.exchange(
            call("starknet_chainId"), token=setup.token, path="/x/starknet/sepolia"
        ).status

    assert status() == 404
    file = setup.write("first")
    text = file.read_text()
    file.write_text(text + SEPOLIA.format(setup.second.url))
    assert "families.starknet.sepolia: added, with n" in setup.reload().err
    assert status() == 200
    file.write_text(text)
    assert "families.starknet.sepolia: removed" in setup.reload().err
    assert status() == 404


def test_new_network_is_known_to_tokens_and_to_usage(setup: ReloadSetup, tmp_path: Path) -> None:
    books = setup.gateway.books
    books.account("ada@example.com", acme="owner")
    tool = Tool(tmp_path / "home", setup.gateway.base_url).with_token(books.personal_token("ada@example.com"))
    file = setup.write("first")
    file.write_text(file.read_text() + SEPOLIA.format(setup.second.url))
    assert setup.reload().code == 0

    def token() -> str | None:
        """Made as soon as the control plane knows of it, too."""
        ran = tool("rpc", "tokens", "create", "new", "--team", "acme", "--network", "starknet/sepolia", "--json")
        return str(ran.json["secret"]) if ran.code == 0 else None

    secret = eventually(token, what="a token for the network")
    pending = setup.gateway.exchange(call("starknet_chainId"), token=secret, path="/x/starknet/sepolia")
    assert pending.status == 200
    items = eventually(
        lambda: tool("usage", "--team", "acme", "--by", "method", "--json").json["items"], what="usage"
    )
    assert "starknet_chainId" in json.dumps(items)


@pytest.mark.parametrize("text", ["[limits]\nbatch_calls = 0\n", "[limits\n", "[limit]\nbatch_calls = 4\n"])
def test_bad_file_changes_nothing_and_shows_why(setup: ReloadSetup, text: str) -> None:
    file = setup.write("second")
    file.write_text(file.read_text() + text)
    ran = setup.reload()
    assert ran.code == 1
    checked = subprocess.run(
        [TOLLGATE, "config", "check", "--config", str(file)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert checked.stderr
    assert checked.stderr in ran.err
    setup.gateway.program.send(signal.SIGHUP)
    eventually(lambda: "settings were not reloaded" in setup.gateway.program.err.read_text(), what="the log line")
    assert setup.answers() == {"first"}


def test_change_that_needs_a_restart_is_named_and_the_rest_counts(setup: ReloadSetup) -> None:
    setup.write("second", settings={"server": {"port": 1}, "limits": {"limit_slots": 4096}})
    ran = setup.reload()
    assert ran.code == 0
    assert ran.err.splitlines()[1:] == [
        "  families.eth.mainnet.upstreams: + second, - first",
        "server.port needs a restart",
        "limits.limit_slots needs a restart",
    ]
    assert setup.answers() == {"second"}


def test_no_secret_is_reported_or_written(setup: ReloadSetup) -> None:
    setup.write("first", "second")
    ran = setup.reload("--json")
    written = setup.folder / "data" / "reload.json"
    assert ran.code == 0
    assert written.stat().st_mode & 0o777 == 0o600
    written_out = ran.out + ran.err + written.read_text() + setup.gateway.program.err.read_text()
    assert "very-secret" not in written_out


def test_demo_has_nothing_to_reload_and_goes_on(tmp_path: Path) -> None:
    with demo(tmp_path, "--workers", "1", "--data-dir", str(tmp_path / "data")) as running:
        ran = reload(env={"TOLLGATE_DATA_DIR": str(tmp_path / "data")})
        assert ran.code == 1
        assert "without a settings file" in ran.err
        assert running.program.running


def test_stopped_service_is_not_found(tmp_path: Path) -> None:
    with opened(tmp_path) as setup:
        assert setup.reload().code == 0
    ran = setup.reload()
    assert ran.code == 1
    assert f"No Tollgate runs on {tmp_path / 'data'}" in ran.err
