"""PostgreSQL and PgBouncer for tests: a cluster of its own in a temporary folder, run by an ordinary user.

PostgreSQL refuses to run as root, so root hands the folder to another account. Nothing is synced to disk: a test's
cluster need not survive a power cut. Text is sorted as English is, not by bytes, as on many an operator's server.
"""

from __future__ import annotations

import atexit
import functools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine, text
from sqlalchemy.engine import URL

from .need import need
from .ports import accepts, free_port
from .processes import eventually, running

if TYPE_CHECKING:
    from collections.abc import Iterator

USER = "tollgate"
_SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "listen_addresses": "127.0.0.1",
    "deadlock_timeout": "100ms",
}


class Cluster:
    """A running server. `stop` and `start` may be called in the middle of a test."""

    def __init__(self) -> None:
        self._bin = need("postgresql").parent
        self.folder = Path(tempfile.mkdtemp(prefix="tollgate-pg-"))
        self._account = _account()
        if self._account is not None:
            os.chown(self.folder, self._account.pw_uid, self._account.pw_gid)
        self._run(
            "initdb", "-D", str(self.folder / "data"), "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync",
            "--locale-provider=icu", "--icu-locale=en-US", "--locale=C.UTF-8",
        )  # fmt: skip
        self.port = free_port()
        self._server: subprocess.Popen[bytes] | None = None
        self._made = 0
        self.start()

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        options = {**_SETTINGS, "port": str(self.port), "unix_socket_directories": str(self.folder)}
        argv = [str(self._bin / "postgres"), "-D", str(self.folder / "data")]
        argv += [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as output:
            self._server = subprocess.Popen(argv, stdout=output, stderr=output, **self._identity())
        eventually(self._answers, within=60, what="PostgreSQL")

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: at once, with all connections cut (SIGINT), or as a crash would (SIGQUIT)."""
        if self._server is not None:
            self._server.send_signal(how)
            self._server.wait(30)
            self._server = None

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str = "postgres", **query: str) -> URL:
        """The address of a database."""
        return URL.create("postgresql", USER, host="127.0.0.1", port=self.port, database=database, query=query)

    def make(self, template: str = "template1") -> str:
        """Make a database; its name."""
        self._made += 1
        name = f"test_{os.getpid()}_{self._made}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def drop(self, database: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")

    def execute(self, statement: str, database: str = "postgres") -> list[Any]:
        """Run a statement by itself, past all our code."""
        engine = create_engine(
            self.url(database).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT"
        )
        try:
            with engine.connect() as connection:
                result = connection.execute(text(statement))
                return list(result) if result.returns_rows else []
        finally:
            engine.dispose()

    def _answers(self) -> bool:
        ran = subprocess.run(
            [str(self._bin / "pg_isready"), "-h", "127.0.0.1", "-p", str(self.port), "-q"], check=False
        )
        return ran.returncode == 0

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run([str(self._bin / program), *arguments], check=True, capture_output=True, **self._identity())

    def _identity(self) -> dict[str, Any]:
        if self._account is None:
            return {}
        return {
            "user": self._account.pw_uid,
            "group": self._account.pw_gid,
            "extra_groups": [],
            "cwd": self.folder,
        }


def _account() -> pwd.struct_passwd | None:
    """The account that runs the server: none of its own where we are ordinary."""
    if os.getuid():
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise AssertionError("PostgreSQL needs an account that is not root: none was found")


@functools.cache
def cluster() -> Cluster:
    """The server that the tests of a process share; it ends with the process."""
    made = Cluster()
    atexit.register(made.close)
    return made


@functools.cache
def pooler() -> int:
    """The port of PgBouncer in transaction mode before the shared server; it ends with the process."""
    server = cluster()
    stack = ExitStack()
    port = stack.enter_context(pgbouncer(server))
    atexit.register(stack.close)
    return port


@contextmanager
def pgbouncer(server: Cluster) -> Iterator[int]:
    """Run PgBouncer in transaction mode before all databases of a server."""
    folder = server.folder / "pgbouncer"
    folder.mkdir()
    port = free_port()
    (folder / "users.txt").write_text(f'"{USER}" ""\n')
    configuration = folder / "pgbouncer.ini"
    configuration.write_text(
        f"[databases]\n* = host=127.0.0.1 port={server.port} user={USER}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = trust\n"
        f"auth_file = {folder / 'users.txt'}\npool_mode = transaction\ndefault_pool_size = 5\n"
        "max_client_conn = 200\nserver_login_retry = 0.5\nquery_wait_timeout = 1\n"
    )
    argv = [str(need("pgbouncer")), str(configuration)]
    account = _account()
    if account is not None:
        argv = [*argv, "-u", account.pw_name]
    with running(argv, folder=folder, ready=lambda _: accepts(port)):
        yield port
