"""A soak: ten minutes of mixed load; memory and descriptors stay flat, and the ledger is exact.

    python -m bench.soak [--seconds 600]

Calls, batches, WebSockets with subscriptions, tokens made and deleted, an upstream that fails, clients that hang
in the midst of a request and clients that never read. Then some seconds of overload (`bench/overload.py`). All on
loopback, on free ports, in a folder that is removed.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from sqlalchemy import URL
from websockets.sync.client import connect

from bench import overload, processes
from bench.gateway import find_tollgate, worker_pids
from bench.load import answers
from bench.plan import BenchError
from bench.seed import seed
from tollgate.core import secrets
from tollgate.core.models import Token
from tollgate.core.people import PERSONAL, Account, Login, Member
from tollgate.processes.bootstrap import prepare
from tollgate.settings.model import Settings
from tollgate.store import sqlite

TEAM_ID = "team_bench"
PATH = "/x/eth/mainnet"
# What allocators keep, and what grows once: caches, tables of names.
MAX_GROWTH_BYTES = 48 * 1_048_576
MAX_MORE_DESCRIPTORS = 32
SETTINGS = """\
data_dir = "{data_dir}"
[server]
port = {port}
metrics_port = {metrics_port}
workers = 2
read_seconds = 5.0
[[families.eth.mainnet.upstreams]]
name = "steady"
url = "http://127.0.0.1:{steady}"
[[families.eth.mainnet.upstreams]]
name = "failing"
url = "http://127.0.0.1:{failing}"
"""


class Node(ThreadingHTTPServer):
    """A chain that grows by a block a second; a failing one answers one call in five with nonsense."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, *, fails: bool) -> None:
        self.fails = fails
        self.started = time.time()
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_: object) -> None:
        """Keep quiet: callers may leave whenever they like."""

    def result(self, method: str, params: Any) -> Any:
        """Answer a call."""
        head = int(time.time() - self.started) + 10
        if method == "eth_blockNumber":
            return hex(head)
        if method == "eth_getBlockByNumber":
            number = head if params[0] in {"latest", "finalized", "safe"} else int(params[0], 16)
            if number > head:
                return None
            return {"number": hex(number), "hash": f"0x{number:064x}", "parentHash": f"0x{number - 1:064x}"}
        return {"eth_chainId": "0x1", "eth_syncing": False, "eth_getLogs": []}.get(method, "0x1234")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Node

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        calls = request if isinstance(request, list) else [request]
        answer = [
            {"jsonrpc": "2.0", "id": each["id"], "result": self.server.result(each["method"], each["params"])}
            for each in calls
        ]
        body = json.dumps(answer if isinstance(request, list) else answer[0]).encode()
        probed = self.headers.get("User-Agent", "").startswith("tollgate-prober/")
        if self.server.fails and not probed and random.random() < 0.2:
            body = b"<html>busy</html>"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@dataclass
class Soak:
    """A running service and what was seen of it."""

    port: int
    token: str
    pepper: bytes
    store_url: URL
    stopped: threading.Event = field(default_factory=threading.Event)
    seen: Counter[str] = field(default_factory=Counter)
    answered: int = 0
    """Calls that must be on the bill."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, what: str, billed: int = 0) -> None:
        """Count something."""
        with self.lock:
            self.seen[what] += 1
            self.answered += billed

    def headers(self, token: str | None = None) -> dict[str, str]:
        """The headers of a call."""
        return {"Content-Type": "application/json", "Authorization": f"Bearer {token or self.token}"}

    # --- Load --------------------------------------------------------------------------------------------

    def call(self, chance: random.Random) -> None:
        """Send calls and batches on one connection for a while."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=40)
        try:
            for _ in range(chance.randint(1, 50)):
                if self.stopped.is_set():
                    return
                method = chance.choice(["eth_call", "eth_gasPrice", "eth_getLogs", "eth_blockNumber"])
                one = {"jsonrpc": "2.0", "id": 1, "method": method, "params": [{"to": hex(chance.randrange(99))}]}
                size = chance.choice([1, 1, 1, 10])
                connection.request("POST", PATH, json.dumps(one if size == 1 else [one] * size), self.headers())
                answer = connection.getresponse()
                decoded = json.loads(answer.read())
                replies = decoded if isinstance(decoded, list) else [decoded]
                good = [each for each in replies if "result" in each]
                self.note(f"HTTP {answer.status}", len(good))
                for each in replies:
                    if "error" in each:
                        self.note(each["error"]["data"]["reason"])
        finally:
            connection.close()

    def subscribe(self, chance: random.Random) -> None:
        """Follow heads by a WebSocket for a while."""
        url = f"ws://127.0.0.1:{self.port}{PATH}"
        with connect(url, additional_headers=self.headers(), compression=None, open_timeout=20) as client:
            client.send('{"jsonrpc":"2.0","id":1,"method":"eth_subscribe","params":["newHeads"]}')
            until = time.monotonic() + chance.uniform(1, 5)
            while time.monotonic() < until and not self.stopped.is_set():
                with suppress(TimeoutError):
                    answer = json.loads(client.recv(timeout=1))
                    self.note("notification" if "method" in answer else "subscription", int("result" in answer))

    def hang(self, chance: random.Random) -> None:
        """Stop in the midst of a request."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as hung:
            hung.sendall(f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: 500\r\n\r\n{{".encode())
            self.stopped.wait(chance.uniform(0, 8))
        self.note("hung")

    def never_read(self, chance: random.Random) -> None:
        """Call without a token, again and again, and read nothing."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as deaf:
            body = b'{"jsonrpc":"2.0","id":1,"method":"eth_call"}'
            request = (
                b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            )
            with suppress(OSError):
                for _ in range(2_000):
                    deaf.sendall(request % (PATH.encode(), len(body), body))
            self.stopped.wait(chance.uniform(0, 2))
        self.note("unread")

    def turn_over(self, _: random.Random) -> None:
        """Make a token, use it, delete it, and see it refused."""
        secret, token_id = secrets.new_token(), secrets.new_id("tok")
        row = Token(token_id, TEAM_ID, token_id, secrets.shown_prefix(secret), time.time())
        digest = secrets.digest(secret.encode(), self.pepper)
        _do(self.store_url, lambda records: records.tokens.add(row, digest=digest))
        good = self._status(secret)
        self.note(f"fresh token {good}", int(good == 200))
        _do(self.store_url, lambda records: records.tokens.remove(id=token_id))
        time.sleep(1.5)
        self.note(f"deleted token {self._status(secret)}")

    def _status(self, token: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=40)
        try:
            body = '{"jsonrpc":"2.0","id":1,"method":"eth_gasPrice","params":[]}'
            connection.request("POST", PATH, body, self.headers(token))
            return connection.getresponse().status
        finally:
            connection.close()

    def worker(self, work: Callable[[random.Random], None], number: int) -> None:
        """Do something again and again."""
        chance = random.Random(number)
        while not self.stopped.is_set():
            try:
                work(chance)
            except Exception as error:  # noqa: BLE001 - whatever went wrong is what we are here for
                self.note(f"failed {work.__name__}: {type(error).__name__}")
                self.stopped.wait(0.2)


def _do(url: URL, act: Callable[[Any], Any]) -> Any:
    async def whole() -> Any:
        store = sqlite.open_store(url)
        try:
            async with store.changing() as records:
                return await act(records)
        finally:
            await store.close()

    return asyncio.run(whole())


def _weight(pids: list[int]) -> tuple[int, int]:
    """Bytes and descriptors of processes."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE"), sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids)


def _billed(soak: Soak) -> int:
    """The billable requests of the team, as its members see them."""
    account = Account(secrets.new_id("acc"), "soak@example.com", time.time(), verified_at=time.time())
    secret = secrets.new_token(secrets.PERSONAL)
    digest = secrets.digest(secret.encode(), soak.pepper)

    async def add(records: Any) -> None:
        await records.accounts.add(account)
        await records.members.add(Member(secrets.new_id("mem"), TEAM_ID, account.id, "owner", time.time()))
        await records.logins.add(Login(secrets.new_id("log"), account.id, PERSONAL, "soak", time.time(), digest))

    _do(soak.store_url, add)
    until, found = time.monotonic() + 60, -1
    while time.monotonic() < until and found != soak.answered:
        connection = http.client.HTTPConnection("127.0.0.1", soak.port, timeout=20)
        connection.request("GET", "/api/v1/teams/bench/usage", headers={"Authorization": f"Bearer {secret}"})
        found = json.loads(connection.getresponse().read())["billable_requests"]
        connection.close()
        time.sleep(1)
    return found


def _problems(soak: Soak, before: tuple[int, int], after: tuple[int, int], billed: int) -> list[str]:
    """What is not as it should be."""
    found = []
    if after[0] - before[0] > MAX_GROWTH_BYTES:
        found.append(f"memory grew by {(after[0] - before[0]) >> 20} MiB")
    if after[1] - before[1] > MAX_MORE_DESCRIPTORS:
        found.append(f"{after[1] - before[1]} descriptors more")
    if billed != soak.answered:
        found.append(f"{soak.answered} calls were answered, {billed} are billed")
    causes = {"upstream_error", "upstream_unavailable", "upstream_timeout"}
    good = ("HTTP 200", "notification", "subscription", "hung", "unread", "fresh token 200", "deleted token 401")
    for what, count in soak.seen.items():
        if what not in causes and what not in good and not what.startswith(("HTTP 50", "failed never_read")):
            found.append(f"{what}: {count}")
    return found


def _run(folder: Path, seconds: float) -> int:
    steady, failing = Node(fails=False), Node(fails=True)
    data_dir = folder / "data"
    data_dir.mkdir(0o700, parents=True)
    token = seed(data_dir, 1)
    made = prepare(Settings(data_dir=str(data_dir)))
    port, metrics_port = processes.free_port(), processes.free_port()
    file, log = folder / "tollgate.toml", folder / "log"
    ports = {"steady": steady.server_address[1], "failing": failing.server_address[1]}
    file.write_text(SETTINGS.format(data_dir=data_dir, port=port, metrics_port=metrics_port, **ports))
    program, cores = find_tollgate(None), {max(os.sched_getaffinity(0))}
    with processes.running([str(program), "serve", "--config", str(file)], cores, log) as process:
        processes.wait_until(lambda: answers(port, "/readyz"), process, log)
        soak = Soak(port, token, made.pepper, made.store_url)
        works = [soak.call] * 8 + [soak.subscribe] * 4 + [soak.hang] * 4 + [soak.never_read, soak.turn_over]
        threads = [threading.Thread(target=soak.worker, args=(work, at)) for at, work in enumerate(works)]
        for thread in threads:
            thread.start()
        # What is set up once is not growth.
        soak.stopped.wait(min(60.0, seconds / 4))
        pids = worker_pids(process.pid)
        before = _weight(pids)
        soak.stopped.wait(seconds - min(60.0, seconds / 4))
        soak.stopped.set()
        for thread in threads:
            thread.join(60)
        time.sleep(2)
        after = _weight(pids) if worker_pids(process.pid) == pids else (1 << 60, 0)
        billed = _billed(soak)
    doctor = subprocess.run([program, "doctor", "--config", file], capture_output=True, text=True, check=False)
    found = _problems(soak, before, after, billed)
    if doctor.returncode:
        found.append(f"doctor: {doctor.stdout}{doctor.stderr}")
    if "Traceback" in log.read_text():
        found.append("a traceback in the log")
    sys.stdout.write(f"{dict(sorted(soak.seen.items()))}\n")
    sys.stdout.write(
        f"{soak.answered} calls answered, {billed} billed; memory {before[0] >> 20} -> {after[0] >> 20} MiB, "
        f"descriptors {before[1]} -> {after[1]}\n"
    )
    sys.stdout.write("".join(f"NOT GOOD: {each}\n" for each in found) or "nothing found\n")
    return 1 if found else 0


def main() -> int:
    """Soak, and report what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    given = parser.parse_args()
    if sys.platform != "linux":
        raise BenchError("the soak reads /proc, so it needs Linux")
    with tempfile.TemporaryDirectory() as folder:
        failed = _run(Path(folder) / "soak", given.seconds)
        found = overload.run(Path(folder) / "overload")
        sys.stdout.write("".join(f"NOT GOOD: {each}\n" for each in found))
        return failed or int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
