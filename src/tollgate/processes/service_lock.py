"""One service for one data folder, and who it is: `service.lock`, or `service-control.lock` and so on.

Owns the files. The kernel frees the lock however the service ends; the content of the file is believed only while
the lock is held.
"""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

from tollgate.core.nodes import ALL_ROLES, GATEWAY, named
from tollgate.errors import StartError
from tollgate.file_lock import lock_within, open_lock_file, try_lock

NAME = "service.lock"
# A process that checks whether the lock is free holds it for a moment.
_WAIT_SECONDS = 0.2


class ServiceLock:
    """Held from its making to `close`; StartError where another has it.

    A gateway and a collector, say, may share a folder as two services: each role has it once.
    """

    def __init__(self, data_dir: Path, roles: frozenset[str] = ALL_ROLES) -> None:
        self._descriptor = open_lock_file(data_dir / f"service{suffix(roles)}.lock")
        if not lock_within(self._descriptor, _WAIT_SECONDS):
            os.close(self._descriptor)
            raise StartError(f"Another Tollgate runs on {data_dir}: stop it, or set another data_dir.")
        self.hide()

    def show(self) -> None:
        """Record this process. Only a process that has a handler for signals may be found."""
        os.pwrite(self._descriptor, f"{os.getpid()} {_namespace()}\n".encode("ascii"), 0)

    def hide(self) -> None:
        """Take it back, before the handlers are gone."""
        os.ftruncate(self._descriptor, 0)

    def close(self) -> None:
        """Let another service have the folder."""
        os.close(self._descriptor)


class Holder(Struct, frozen=True):
    """The service of a data folder."""

    pid: int
    """Of its parent process; 0 while it starts or stops."""
    is_near: bool
    """Whether its process ids are ours: not so from another container."""


def suffix(roles: frozenset[str]) -> str:
    """What the names of a service's files end with, where a folder may have several services."""
    return "" if GATEWAY in roles else f"-{named(roles)}"


def holders(data_dir: Path) -> dict[str, Holder]:
    """Find the services of a data folder, by the suffix of their files. OSError where we may not look."""
    found = {path.stem.removeprefix("service"): _holder(path) for path in data_dir.glob("service*.lock")}
    return {name: each for name in sorted(found) if (each := found[name]) is not None}


def holder(data_dir: Path) -> Holder | None:
    """Find a service of a data folder; None where there is none. OSError where we may not look."""
    return next(iter(holders(data_dir).values()), None)


def _holder(path: Path) -> Holder | None:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    with file:
        if try_lock(file.fileno(), shared=True):
            return None
        pid, _, namespace = file.read(256).decode("ascii", "replace").strip().partition(" ")
    return Holder(int(pid), namespace == _namespace()) if pid.isdecimal() else Holder(0, is_near=True)


def _namespace() -> str:
    """Which process ids these are, where there are several (Linux)."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
