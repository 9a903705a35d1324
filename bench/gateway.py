"""Tollgate as a real process: its settings, its start, its worker. The store is filled by `seed.py`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench import processes
from bench.load import Subject, answers, look
from bench.plan import BODIES, CACHED, HEALTHY, MIXED, SINGLE, BenchError, Body
from bench.seed import seed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.processes import Cores

WORKER = "tg-worker"

SETTINGS = """\
data_dir = "{data_dir}"

[server]
connections_per_address = 100000
port = {port}
metrics_port = {metrics_port}
workers = {workers}
"""
# A network for each body, because the stub distinguishes them by the path. Without a cache, which would answer the
# same call over and over; those that measure the cache have two upstreams too.
NETWORK = """
[families.eth.{network}]
cache = {cache}
"""
UPSTREAM = """
[[families.eth.{network}.upstreams]]
name = "stub-{number}"
url = "http://127.0.0.1:{stub}{path}"
"""


@dataclass(frozen=True, slots=True)
class Gateway:
    """How to run Tollgate in this benchmark."""

    program: Path
    folder: Path
    cores: Cores
    stub_port: int
    more: str = ""
    """Settings beside those of every run."""
    token: str = ""
    """One that the store has already, which another node has filled."""

    @contextlib.contextmanager
    def serve(self, tokens: int, workers: int = 1, *, one_core: bool = False) -> Iterator[Subject]:
        """Run it over a store with that many tokens, filled on the first use.

        A single worker has its core to itself, and so have several with `one_core`: the other processes run beside
        the load.
        """
        folder = self.folder / f"tollgate-{tokens}"
        folder.mkdir(parents=True, exist_ok=True)
        token = self.token or _filled(folder, tokens, self.more)
        port, metrics_port = processes.free_port(), processes.free_port()
        settings, log = folder / "tollgate.toml", folder / "log"
        settings.write_text(
            SETTINGS.format(data_dir=folder / "data", port=port, metrics_port=metrics_port, workers=workers)
            + "".join(_network(body, self.stub_port) for body in BODIES)
            + self.more
        )
        command = [str(self.program), "serve", "--config", str(settings)]
        with processes.running(command, self.cores.servers(1 if one_core else workers), log) as process:
            processes.wait_until(lambda: answers(port, "/readyz"), process, log)
            processes.wait_until(lambda: _all_up(folder / "data" / "upstreams.json"), process, log)
            subject = _subject(process.pid, port, metrics_port, token, workers)
            if workers == 1 or one_core:
                leave_alone(subject, self.cores.load)
            for missing in _missing(subject):
                print(f"warning: not everything is on: no {missing}", file=sys.stderr)
            yield subject


def worker_pids(parent_pid: int) -> list[int]:
    """Return the processes that serve, among the descendants of the one that was started."""
    return processes.named(processes.tree(parent_pid)[1:], WORKER)


def leave_alone(subject: Subject, elsewhere: int) -> None:
    """Leave a worker's core to the worker: the others would empty its caches."""
    for pid in processes.tree(subject.pid):
        if pid not in subject.workers:
            os.sched_setaffinity(pid, {elsewhere})


def find_tollgate(given: Path | None) -> Path:
    """Return the program: the given one, or that of the environment which runs the benchmark."""
    program = given or Path(sys.executable).with_name("tollgate")
    if not os.access(program, os.X_OK):
        raise BenchError(f"{program} cannot be run; `make setup` makes it")
    return program


def _filled(folder: Path, tokens: int, more: str) -> str:
    secret = folder / "secret"
    if not secret.exists():
        data_dir = folder / "data"
        data_dir.mkdir(0o700, parents=True)
        secret.write_text(seed(data_dir, tokens, more))
    return secret.read_text()


def _all_up(file: Path) -> bool:
    """Whether the prober has found every upstream well: others are served differently."""
    shown = json.loads(file.read_text()) if file.exists() else {"networks": []}
    states = [upstream["state"] for network in shown["networks"] for upstream in network["upstreams"]]
    return bool(states) and set(states) == {"up"}


def _network(body: Body, stub_port: int) -> str:
    network = body.gateway_path.rpartition("/")[2]
    cached = body in CACHED
    upstreams = (
        UPSTREAM.format(network=network, number=number, stub=stub_port, path=body.stub_path)
        for number in range(1, 3 if cached or body in (HEALTHY, MIXED) else 2)
    )
    return NETWORK.format(network=network, cache="true" if cached else "false") + "".join(upstreams)


def _subject(pid: int, port: int, metrics_port: int, token: str, workers: int) -> Subject:
    found = tuple(worker_pids(pid))
    if len(found) != workers:
        raise BenchError(f"{workers} processes named {WORKER}… were expected, there are {len(found)}")
    paths = {body.name: body.gateway_path for body in BODIES}
    return Subject("tollgate", port, paths, token, pid, found, keeps_ids=True, metrics_port=metrics_port)


def _missing(subject: Subject) -> list[str]:
    """Return what a measured call should carry and does not: cheap is easy with half of it off."""
    headers = look(subject, SINGLE).headers
    missing = [f"{name} header" for name in ("X-Request-Id", "RateLimit") if name.lower() not in headers]
    return missing if answers(subject.metrics_port, "/metrics") else [*missing, "metrics"]
