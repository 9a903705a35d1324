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
from bench.plan import BATCH, BODIES, SINGLE, BenchError
from bench.seed import seed

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKER = "tg-worker"

# Two networks, because the stub tells a call from a batch by its path; without a cache, which would answer
# the same call over and over. And one with a cache.
SETTINGS = """\
data_dir = "{data_dir}"

[server]
port = {port}
metrics_port = {metrics_port}
workers = 1

[families.eth.mainnet]
cache = false

[[families.eth.mainnet.upstreams]]
name = "stub"
url = "http://127.0.0.1:{stub}{single}"

[families.eth.sepolia]
cache = false

[[families.eth.sepolia.upstreams]]
name = "stub"
url = "http://127.0.0.1:{stub}{batch}"

[families.eth.cached]
cache = true

[[families.eth.cached.upstreams]]
name = "stub"
url = "http://127.0.0.1:{stub}{single}"
"""


@dataclass(frozen=True, slots=True)
class Gateway:
    """How to run Tollgate in this benchmark."""

    program: Path
    folder: Path
    core: int
    stub_port: int

    @contextlib.contextmanager
    def serve(self, tokens: int) -> Iterator[Subject]:
        """Run it over a store with that many tokens, filled on the first use."""
        folder = self.folder / f"tollgate-{tokens}"
        token = _filled(folder, tokens)
        port, metrics_port = processes.free_port(), processes.free_port()
        settings, log = folder / "tollgate.toml", folder / "log"
        settings.write_text(
            SETTINGS.format(
                data_dir=folder / "data",
                port=port,
                metrics_port=metrics_port,
                stub=self.stub_port,
                single=SINGLE.stub_path,
                batch=BATCH.stub_path,
            )
        )
        command = [str(self.program), "serve", "--config", str(settings)]
        with processes.running(command, self.core, log) as process:
            processes.wait_until(lambda: answers(port, "/readyz"), process, log)
            processes.wait_until(lambda: _all_up(folder / "data" / "upstreams.json"), process, log)
            subject = _subject(process.pid, port, metrics_port, token)
            for missing in _missing(subject):
                print(f"warning: not everything is on: no {missing}", file=sys.stderr)
            yield subject


def worker_pids(parent_pid: int) -> list[int]:
    """Return the processes that serve, among the descendants of the one that was started."""
    return processes.named(processes.tree(parent_pid)[1:], WORKER)


def leave_alone(subject: Subject, elsewhere: int) -> None:
    """Leave a worker's core to the worker: the others would empty its caches."""
    for pid in processes.tree(subject.pid):
        if pid != subject.worker:
            os.sched_setaffinity(pid, {elsewhere})


def find_tollgate(given: Path | None) -> Path:
    """Return the program: the given one, or that of the environment which runs the benchmark."""
    program = given or Path(sys.executable).with_name("tollgate")
    if not os.access(program, os.X_OK):
        raise BenchError(f"{program} cannot be run; `make setup` makes it")
    return program


def _filled(folder: Path, tokens: int) -> str:
    secret = folder / "secret"
    if not secret.exists():
        data_dir = folder / "data"
        data_dir.mkdir(parents=True)
        secret.write_text(seed(data_dir, tokens))
    return secret.read_text()


def _all_up(file: Path) -> bool:
    """Say whether the prober has found every upstream well: others are served differently."""
    shown = json.loads(file.read_text()) if file.exists() else {"networks": []}
    states = [upstream["state"] for network in shown["networks"] for upstream in network["upstreams"]]
    return bool(states) and set(states) == {"up"}


def _subject(pid: int, port: int, metrics_port: int, token: str) -> Subject:
    workers = worker_pids(pid)
    if len(workers) != 1:
        raise BenchError(f"one process named {WORKER}… was expected, there are {len(workers)}")
    paths = {body.name: body.gateway_path for body in BODIES}
    return Subject("tollgate", port, paths, token, pid, workers[0], keeps_ids=True, metrics_port=metrics_port)


def _missing(subject: Subject) -> list[str]:
    """Return what a measured call should carry and does not: cheap is easy with half of it off."""
    headers = look(subject, SINGLE).headers
    missing = [f"{name} header" for name in ("X-Request-Id", "RateLimit") if name.lower() not in headers]
    return missing if answers(subject.metrics_port, "/metrics") else [*missing, "metrics"]
