"""A PostgreSQL of the benchmark's own, in a temporary folder. Writes are synced to disk, as an operator's are."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import processes
from bench.plan import BenchError

if TYPE_CHECKING:
    from collections.abc import Iterator

USER = "tollgate"
SETTINGS = {"shared_buffers": "256MB", "max_wal_size": "4GB", "max_connections": "100"}


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    pid: int
    port: int
    _programs: Path
    _identity: dict[str, Any]

    def url(self, database: str) -> str:
        """Return the address of a database."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def make(self, database: str) -> str:
        """Make a database; return its address."""
        self._run("createdb", database)
        return self.url(database)

    def seconds(self) -> float:
        """Return the seconds of CPU that all of its processes have taken."""
        return processes.family_seconds(self.pid)

    def backends(self) -> list[int]:
        """Return the processes that serve connections."""
        pids = processes.tree(self.pid)[1:]
        return [pid for pid in pids if b"127.0.0.1" in (processes.PROC / str(pid) / "cmdline").read_bytes()]

    def _run(self, program: str, *arguments: str) -> None:
        where = ("-h", "127.0.0.1", "-p", str(self.port), "-U", USER)
        _run([str(self._programs / program), *where, *arguments], self._identity)


@contextlib.contextmanager
def made() -> Iterator[Path]:
    """Make the folder of a server, and take it away at the end."""
    folder = Path(tempfile.mkdtemp(prefix="tollgate-bench-postgresql-"))
    try:
        initdb = [str(_programs() / "initdb"), "-D", str(folder / "data"), "-U", USER, "-A", "trust", "-E", "UTF8"]
        _run([*initdb, "--no-sync", "--locale=C.UTF-8"], _identity(folder))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def serve(folder: Path, cores: set[int]) -> Iterator[Server]:
    """Run a server on some cores, with nothing of its tables in memory. It stops when nobody is connected."""
    programs, identity = _programs(), _identity(folder)
    for file in (folder / "data" / "base").rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
    port, log = processes.free_port(), folder / "log"
    command = [str(programs / "postgres"), "-D", str(folder / "data"), "-k", str(folder), "-h", "127.0.0.1"]
    command += ["-p", str(port), *(f"--{name}={value}" for name, value in SETTINGS.items())]
    ready = [str(programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    with processes.running(command, cores, log, identity) as process:
        processes.wait_until(lambda: subprocess.run(ready, check=False).returncode == 0, process, log)
        yield Server(process.pid, port, programs, identity)


def _programs() -> Path:
    """Find the programs of the newest server, which Debian keeps off the path."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parts[-2]))
    if found:
        return found[-1]
    on_path = shutil.which("postgres")
    if on_path is None:
        raise BenchError("PostgreSQL is not installed (Debian: apt install postgresql)")
    return Path(on_path).parent


def _identity(folder: Path) -> dict[str, Any]:
    """Hand the folder to an ordinary user where we are root: as root the server refuses to run."""
    if os.getuid():
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            account = pwd.getpwnam(name)
            os.chown(folder, account.pw_uid, account.pw_gid)
            return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": [], "cwd": folder}
    raise BenchError("PostgreSQL does not run as root, and there is no user postgres or nobody")


def _run(command: list[str], identity: dict[str, Any]) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, check=False, **identity)
    if ran.returncode:
        raise BenchError(f"{command[0]} ended with {ran.returncode}: {ran.stderr}")
