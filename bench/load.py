"""Load on one server: a look at one answer, then a wrk run whose answers must weigh the same."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bench.plan import SINGLE, BenchError, Body

if TYPE_CHECKING:
    from collections.abc import Mapping

SCRIPT = Path(__file__).with_name("post.lua")
RESULT = "0x1234"
TIMEOUT = 10.0
# wrk sees statuses only. An error inside a 200 shows in the mean size; header values vary by a few digits.
SIZE_TOLERANCE = 0.10


@dataclass(frozen=True, slots=True)
class Subject:
    """A server under load: where it listens, and the processes whose cost is counted."""

    name: str
    port: int
    paths: Mapping[str, str]
    token: str = field(repr=False)
    pid: int
    workers: tuple[int, ...]
    keeps_ids: bool = False
    metrics_port: int = 0

    def headers(self) -> dict[str, str]:
        """Return the headers of a call."""
        headers = {"Content-Type": "application/json"}
        return headers | {"Authorization": f"Bearer {self.token}"} if self.token else headers


@dataclass(frozen=True, slots=True)
class Answer:
    """One whole answer: its headers in lower case, and its size on the wire."""

    headers: dict[str, str]
    size: int


@dataclass(frozen=True, slots=True)
class Load:
    """What wrk saw in one run."""

    requests: int
    seconds: float
    p50_us: int
    p99_us: int
    max_us: int
    problems: tuple[str, ...]


def answers(port: int, path: str) -> bool:
    """Whether a GET is answered with 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def metrics(subject: Subject) -> str:
    """Return what a server reports of itself."""
    connection = http.client.HTTPConnection("127.0.0.1", subject.metrics_port, timeout=TIMEOUT)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def look(subject: Subject, body: Body) -> Answer:
    """Make two calls on one connection; refuse a server that answers wrongly or does not keep it open."""
    connection = http.client.HTTPConnection("127.0.0.1", subject.port, timeout=TIMEOUT)
    try:
        for _ in range(2):
            connection.request("POST", subject.paths[body.name], body.text, subject.headers())
            socket = connection.sock
            response = connection.getresponse()
            content = response.read()
            plain = gzip.decompress(content) if response.headers["Content-Encoding"] == "gzip" else content
            _check(subject, body, response.status, plain)
            if connection.sock is not socket:
                raise BenchError(f"{subject.name} closes the connection after a {body.name} call")
    finally:
        connection.close()
    lines = [f"{name}: {value}\r\n" for name, value in response.getheaders()]
    start = f"HTTP/1.1 {response.status} {response.reason}\r\n\r\n"
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Answer(headers, len(start) + sum(map(len, lines)) + len(content))


def _check(subject: Subject, body: Body, status: int, content: bytes) -> None:
    where = f"{subject.name}, {body.name}: HTTP {status}"
    if status != http.client.OK:
        raise BenchError(f"{where}: {content[:300]!r}")
    replies = json.loads(content)
    if isinstance(replies, dict):
        replies = [replies]
    if [reply.get("result") for reply in replies] != [RESULT] * len(body.ids):
        raise BenchError(f"{where}, but not the stub's results: {content[:300]!r}")
    if subject.keeps_ids and sorted(reply["id"] for reply in replies) != sorted(body.ids):
        raise BenchError(f"{where}, but not the caller's ids: {content[:300]!r}")


def beside(text: str) -> Subject:
    """Read `NAME,PID,URL`: a server that already runs in front of the stub, to measure in the same rounds."""
    name, pid, url = [*text.split(","), "", ""][:3]
    found = urlsplit(url)
    if (
        not name
        or not pid.isdecimal()
        or found.scheme != "http"
        or found.hostname != "127.0.0.1"
        or not found.port
    ):
        raise BenchError(f"{text}: NAME,PID,URL is needed, and a URL of this machine: http://127.0.0.1:PORT/PATH")
    if not Path("/proc", pid).exists():
        raise BenchError(f"{name}: there is no process {pid}")
    return Subject(name, found.port, {SINGLE.name: found.path or "/"}, "", int(pid), (int(pid),))


def find_wrk() -> str:
    """Return the program."""
    program = shutil.which("wrk")
    if program is None:
        raise BenchError("wrk is not installed (Debian: apt install wrk)")
    return program


def load(subject: Subject, body: Body, connections: int, seconds: int, size: int) -> Load:
    """Put a server under load; `size` is what one answer weighs."""
    url = f"http://127.0.0.1:{subject.port}{subject.paths[body.name]}"
    command = [
        find_wrk(),
        "-t1",
        f"-c{connections}",
        f"-d{seconds}s",
        f"--timeout={TIMEOUT:.0f}s",
        "-s",
        str(SCRIPT),
    ]
    done = subprocess.run(
        [*command, url],
        env=os.environ | {"BENCH_BODY": body.text, "BENCH_TOKEN": subject.token, "BENCH_COUNTED": body.counted},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds + 3 * TIMEOUT,
    )
    if done.returncode != 0:
        raise BenchError(f"wrk ended with {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
    seen = json.loads(done.stdout.strip().splitlines()[-1])
    return Load(
        requests=seen["requests"],
        seconds=seen["microseconds"] / 1e6,
        p50_us=seen["p50_us"],
        p99_us=seen["p99_us"],
        max_us=seen["max_us"],
        problems=_problems(seen, size),
    )


def _problems(seen: dict[str, Any], size: int) -> tuple[str, ...]:
    found = [f"{count} {kind} errors" for kind, count in seen["errors"].items() if count]
    if not seen["requests"]:
        return (*found, "no answer at all")
    mean = seen["bytes"] / seen["requests"]
    if abs(mean - size) > SIZE_TOLERANCE * size:
        found.append(f"answers of {mean:.0f} bytes where {size} were expected")
    return tuple(found)
