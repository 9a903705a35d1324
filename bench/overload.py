"""Overload: three times what the nodes can do. Goodput stays near its peak, the rest is refused early.

Part of `python -m bench.soak`; alone: `python -m bench.overload`. The node does so much at once and no more, as
real ones do. First callers that wait for their answers show how much comes through (the peak), then callers that
do not wait bring three times that. Goodput is what is answered with a result within the callers' patience.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from bench import processes
from bench.gateway import find_tollgate
from bench.load import answers
from bench.seed import seed

PATH = "/x/eth/mainnet"
# So many calls at once, so long each: 400 calls a second.
NODE_CALLS, NODE_SECONDS = 20, 0.05
PEAK_SECONDS, OVERLOAD_SECONDS = 4.0, 15.0
TIMES = 3
PATIENCE_SECONDS = 5.0
MIN_GOODPUT, MAX_REFUSAL_SECONDS = 0.8, 1.0
SETTINGS = """\
data_dir = "{data_dir}"
[server]
port = {port}
metrics_port = {metrics_port}
workers = 2
[families.eth.mainnet]
cache = false
[[families.eth.mainnet.upstreams]]
name = "node"
url = "http://127.0.0.1:{node}"
connections = {connections}
"""


@dataclass
class Outcomes:
    """The answers that callers got."""

    results: list[float] = field(default_factory=list)
    """How long each took; so with the others."""
    refused: list[float] = field(default_factory=list)
    without_retry_after: int = 0
    others: dict[str, int] = field(default_factory=dict)

    def other(self, what: str) -> None:
        self.others[what] = self.others.get(what, 0) + 1


# --- The node ------------------------------------------------------------------------------------------------


@contextmanager
def _node(port: int) -> Iterator[None]:
    """A node in a process of its own."""
    pid = os.fork()
    if not pid:
        with suppress(KeyboardInterrupt):
            asyncio.run(_serve_node(port))
        os._exit(0)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


async def _serve_node(port: int) -> None:
    places = asyncio.Semaphore(NODE_CALLS)
    started = time.monotonic()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                size = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
                call = json.loads(await reader.readexactly(size))
                number = hex(100 + int(time.monotonic() - started))
                block = {"number": number, "hash": f"0x{int(number, 16):064x}", "parentHash": f"0x{0:064x}"}
                kinds = {"eth_chainId": "0x1", "eth_syncing": False, "eth_getBlockByNumber": block}
                result = kinds.get(call["method"], number)
                if call["method"] == "eth_call":
                    async with places:
                        await asyncio.sleep(NODE_SECONDS)
                body = json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": result}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port, backlog=1_024)
    await server.serve_forever()


# --- Callers -------------------------------------------------------------------------------------------------


class Callers:
    """Connections to the service, opened when none is free."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        lines = ["Host: a", "Content-Type: application/json", f"Authorization: Bearer {token}"]
        self._head = "\r\n".join([f"POST {PATH} HTTP/1.1", *lines, "Content-Length: "]).encode()
        # No two calls are the same: equal ones at the same time go upstream as one.
        self._numbers = count()
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def call(self, outcomes: Outcomes) -> None:
        """Call once."""
        started = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                status, head = await self._exchange()
        except TimeoutError:
            outcomes.other("no answer in time")
            return
        except (OSError, EOFError) as error:
            outcomes.other(type(error).__name__)
            return
        took = time.monotonic() - started
        if status == 200:
            outcomes.results.append(took)
        elif status == 503:
            outcomes.refused.append(took)
            outcomes.without_retry_after += b"\r\nretry-after: " not in head
        else:
            outcomes.other(f"HTTP {status}")

    async def _exchange(self) -> tuple[int, bytes]:
        reader, writer = self._free.pop() if self._free else await asyncio.open_connection("127.0.0.1", self._port)
        try:
            params = b'[{"to":"0x%x"},"latest"]' % next(self._numbers)
            body = b'{"jsonrpc":"2.0","id":1,"method":"eth_call","params":%b}' % params
            writer.write(b"%b%d\r\n\r\n%b" % (self._head, len(body), body))
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        except BaseException:
            writer.transport.abort()
            raise
        self._free.append((reader, writer))
        return int(head[9:12]), head

    def close(self) -> None:
        for _, writer in self._free:
            writer.transport.abort()


async def _drive(port: int, token: str) -> tuple[float, Outcomes, float]:
    """The peak a second; the answers under overload, and for how long that went on."""
    callers = Callers(port, token)
    # Several times, also afterwards: what else the machine does must not make the peak look low.
    rate = max([await _peak(callers) for _ in range(3)])
    outcomes, started, sent = Outcomes(), time.monotonic(), 0
    async with asyncio.TaskGroup() as group:
        while (now := time.monotonic() - started) < OVERLOAD_SECONDS:
            due = int(now * TIMES * rate)
            for _ in range(due - sent):
                group.create_task(callers.call(outcomes))
            sent = due
            await asyncio.sleep(0.005)
    seconds = time.monotonic() - started
    rate = max(rate, await _peak(callers))
    callers.close()
    return rate, outcomes, seconds


async def _peak(callers: Callers) -> float:
    """Results a second for callers that wait for their answers."""
    outcomes = Outcomes()

    async def one_after_another(until: float) -> None:
        while time.monotonic() < until:
            await callers.call(outcomes)

    async with asyncio.TaskGroup() as group:
        until = time.monotonic() + PEAK_SECONDS
        for _ in range(4 * NODE_CALLS):
            group.create_task(one_after_another(until))
    return len(outcomes.results) / PEAK_SECONDS


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def run(folder: Path) -> list[str]:
    """Overload a service, print what came of it, and return what is not as it should be."""
    data_dir = folder / "data"
    data_dir.mkdir(0o700, parents=True)
    token = seed(data_dir, 1)
    port, metrics_port, node = (processes.free_port() for _ in range(3))
    file, log = folder / "tollgate.toml", folder / "log"
    chosen = {"port": port, "metrics_port": metrics_port, "node": node, "connections": NODE_CALLS // 2}
    file.write_text(SETTINGS.format(data_dir=data_dir, **chosen))
    command = [str(find_tollgate(None)), "serve", "--config", str(file)]
    with _node(node), processes.running(command, set(os.sched_getaffinity(0)), log) as process:
        processes.wait_until(lambda: answers(port, "/readyz"), process, log)
        peak, outcomes, seconds = asyncio.run(_drive(port, token))
    goodput = len(outcomes.results) / seconds
    sent = len(outcomes.results) + len(outcomes.refused) + sum(outcomes.others.values())
    share, slow = goodput / peak if peak else 0.0, _percentile(outcomes.refused, 0.99)
    sys.stdout.write(
        f"overload: peak {peak:.0f} calls a second; {sent / OVERLOAD_SECONDS:.0f} offered, goodput {goodput:.0f} "
        f"({share:.0%} of the peak), {len(outcomes.refused)} refused "
        f"after {_percentile(outcomes.refused, 0.5):.3f} s (p99 {slow:.3f}), "
        f"results after {_percentile(outcomes.results, 0.5):.2f} s "
        f"(p99 {_percentile(outcomes.results, 0.99):.2f}); others: {outcomes.others or 'none'}\n"
    )
    found = [f"{what}: {count}" for what, count in outcomes.others.items()]
    if share < MIN_GOODPUT:
        found.append(f"goodput falls to {share:.0%} of the peak")
    if outcomes.without_retry_after:
        found.append(f"{outcomes.without_retry_after} refusals without Retry-After")
    if slow > MAX_REFUSAL_SECONDS:
        found.append(f"refusals come late: {slow:.2f} s")
    if "Traceback" in log.read_text():
        found.append("a traceback in the log")
    return found


def main() -> int:
    """Overload the service, and report the findings."""
    with tempfile.TemporaryDirectory() as folder:
        found = run(Path(folder))
    sys.stdout.write("".join(f"NOT GOOD: {each}\n" for each in found) or "nothing found\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
