"""Equipment for the tool's tests: a scripted server on loopback, and ways to run the tool against it."""

from __future__ import annotations

import errno
import http.server
import json
import os
import pty
import select
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import pytest
from click.testing import CliRunner

from tollgate.cli.credentials import Credential, CredentialStore
from tollgate.cli.main import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

COMMAND = [sys.executable, "-c", "from tollgate.cli.main import main; main()"]
DEADLINE = 30.0


@dataclass
class SeenRequest:
    """A request as the server saw it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def form(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(self.body.decode()).items()}

    @property
    def bearer(self) -> str:
        return self.headers.get("authorization", "").removeprefix("Bearer ")


@dataclass
class Scripted:
    """One exchange: what is expected, and what is answered."""

    method: str
    path: str
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    drop: bool = False
    before: Callable[[], object] | None = None


class Api:
    """A server that answers what the test has written down, in that order, and nothing else."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[SeenRequest] = []
        self.surprises: list[str] = []
        self._script: deque[Scripted] = deque()

    def on(
        self,
        method: str,
        path: str,
        answer: object = None,
        *,
        status: int = 200,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        drop: bool = False,
        before: Callable[[], object] | None = None,
    ) -> Api:
        """Write down the next exchange; a path without a leading slash is one of the API's."""
        content = json.dumps(answer).encode() if body is None else body
        named = {"Content-Type": "application/json" if status < 400 else "application/problem+json"}
        where = path if path.startswith("/") else f"/api/v1/{path}"
        self._script.append(Scripted(method, where, status, content, {**named, **(headers or {})}, drop, before))
        return self

    def problem(self, method: str, path: str, status: int, reason: str, detail: str, **extras: Any) -> Api:
        """Write down an exchange that ends in a problem."""
        headers = {"Retry-After": str(extras["retry_after"])} if "retry_after" in extras else {}
        answer = {"type": "about:blank", "title": "x", "status": status, "detail": detail, "reason": reason}
        return self.on(method, path, {**answer, **extras}, status=status, headers=headers)

    def take(self, request: SeenRequest) -> Scripted:
        self.requests.append(request)
        expected = self._script.popleft() if self._script else None
        if expected is None or (expected.method, expected.path) != (request.method, request.path):
            self.surprises.append(f"{request.method} {request.path} came; expected was {expected}")
            return Scripted(request.method, request.path, 599)
        return expected

    def check(self) -> None:
        assert self.surprises == []
        assert [f"{left.method} {left.path}" for left in self._script] == []


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        scripted = self.server.api.take(SeenRequest(self.command, self.path, headers, body))
        if scripted.before is not None:
            scripted.before()
        if scripted.drop:
            self.close_connection = True
            return
        self.send_response(scripted.status)
        for name, value in scripted.headers.items():
            self.send_header(name, value)
        content = b"" if scripted.status == 204 else scripted.body
        if scripted.status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815 - names of the base class

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    api: Api

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # the tool may be killed while it is answered


@pytest.fixture
def api() -> Iterator[Api]:
    """A scripted server; at the end everything written down must have happened, and nothing else."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        it = server.api = Api(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield it
        finally:
            server.shutdown()
            thread.join(DEADLINE)
    it.check()


@dataclass
class Ran:
    """How the tool ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Terminal:
    """The tool on a pseudo-terminal: what a person sees, and can type."""

    def __init__(self, popen: subprocess.Popen[bytes], master: int) -> None:
        self.popen = popen
        self._master = master
        self._seen = b""
        self._expected = 0

    @property
    def seen(self) -> str:
        return self._seen.decode().replace("\r\n", "\n")

    def until(self, text: str) -> str:
        """Read until a text has appeared."""
        deadline = time.monotonic() + DEADLINE
        while text not in self.seen:
            assert self._more(deadline), f"{text!r} never came; seen was:\n{self.seen}"
        return self.seen

    def expect(self, text: str) -> None:
        """Read until a text has appeared behind what was expected before."""
        deadline = time.monotonic() + DEADLINE
        while (found := self.seen.find(text, self._expected)) < 0:
            assert self._more(deadline), f"{text!r} never came; seen was:\n{self.seen}"
        self._expected = found + len(text)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> int:
        """Read to the end, and give the exit code."""
        deadline = time.monotonic() + DEADLINE
        while self._more(deadline):
            pass
        return self.popen.wait(DEADLINE)

    def interrupt(self) -> int:
        """Do what Ctrl-C does, and give the exit code."""
        for _ in range(10):
            self.popen.send_signal(signal.SIGINT)
            try:
                self.popen.wait(3.0)
            except subprocess.TimeoutExpired:
                continue  # it came just before Python read the terminal, and was lost
            return self.end()
        raise AssertionError(f"it did not end; seen was:\n{self.seen}")

    def _more(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"nothing came in time; seen was:\n{self.seen}"
        try:
            part = os.read(self._master, 65536)
        except OSError as error:
            if error.errno != errno.EIO:  # Linux returns this when the other side is closed
                raise
            part = b""
        self._seen += part
        return bool(part)


class Tool:
    """Runs the tool with a home of its own."""

    def __init__(self, home: Path, url: str) -> None:
        self.home = home
        self.url = url
        self.env = {
            "XDG_CONFIG_HOME": str(home),
            "TOLLGATE_URL": url,
            "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",
        }

    @property
    def keep(self) -> CredentialStore:
        return CredentialStore(self.home / "tollgate", keyring=lambda: None)

    def log_in(self, access: str = "tga_one", *, team: str | None = "acme", **more: Any) -> Tool:
        """Let there be a login, with a team to act for."""
        kind = more.pop("kind", "tool")
        refresh = more.pop("refresh", "tgr_one" if kind == "tool" else None)
        self.keep.put(self.url, Credential(kind, access, refresh=refresh, **more))
        self.keep.choose(self.url, team)
        return self

    def run(self, *arguments: str, stdin: str = "", env: dict[str, str | None] | None = None) -> Ran:
        """Run it in this process; stdout and stderr are no terminals."""
        with CliRunner().isolation(input=stdin, env={**self.env, **(env or {})}) as (out, err, _):
            try:
                code = run(arguments)
            except SystemExit as end:
                code = int(end.code or 0)
            return Ran(code, out.getvalue().decode(), err.getvalue().decode())

    def process(
        self, *arguments: str, stdin: str = "", env: dict[str, str] | None = None, stdout: int = subprocess.PIPE
    ) -> Ran:
        """Run it as a process of its own, to its end."""
        done = subprocess.run(
            [*COMMAND, *arguments],
            input=stdin.encode(),
            stdout=stdout,
            stderr=subprocess.PIPE,
            env=self.environ(env),
            timeout=DEADLINE,
            check=False,
        )
        return Ran(done.returncode, (done.stdout or b"").decode(), done.stderr.decode())

    @contextmanager
    def started(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """Start it as a process of its own, with pipes; it is killed in the end if it still runs."""
        with subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environ(),
        ) as popen:
            try:
                yield popen
            finally:
                popen.kill()

    @contextmanager
    def terminal(
        self, *arguments: str, env: dict[str, str] | None = None, columns: int = 120, stderr: int | None = None
    ) -> Iterator[Terminal]:
        """Start it on a pseudo-terminal; `stderr` may go elsewhere."""
        master, slave = pty.openpty()
        environ = self.environ({"TERM": "xterm", "COLUMNS": str(columns), "LINES": "24", **(env or {})})
        popen = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave if stderr is None else stderr,
            env=environ,
            start_new_session=True,
        )
        os.close(slave)
        try:
            yield Terminal(popen, master)
        finally:
            popen.kill()
            popen.wait(DEADLINE)
            if popen.stderr is not None:
                popen.stderr.close()
            os.close(master)

    def environ(self, more: dict[str, str] | None = None) -> dict[str, str]:
        return {**os.environ, **self.env, **(more or {})}


@pytest.fixture
def tool(tmp_path: Path, api: Api, clean_environment: None) -> Tool:
    """The tool, pointed at the scripted server, with nothing kept."""
    return Tool(tmp_path / "home", api.url)


@pytest.fixture
def acme(tool: Tool) -> Tool:
    """The tool with a login, acting for the team acme."""
    return tool.log_in()


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    unwanted = ("NO_COLOR", "CLICOLOR_FORCE", "DISPLAY", "WAYLAND_DISPLAY", "BROWSER", "COLUMNS", "FORCE_COLOR")
    for name in list(os.environ):
        if name.startswith("TOLLGATE_") or name in unwanted or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
