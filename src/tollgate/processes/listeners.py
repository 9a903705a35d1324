"""Sockets to listen on, bound by the parent before its workers are forked.

On Linux each worker has a socket of its own on the same port (SO_REUSEPORT), so the kernel spreads connections
evenly. The parent and the workers keep all of them open: what the kernel gives to a worker that is dead
or hangs is accepted by the others. Elsewhere the workers share one socket.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import sys
import tempfile
from pathlib import Path

from tollgate import log
from tollgate.errors import StartError
from tollgate.settings.model import Settings

_log = log.get("server")

BACKLOG = 2048
# For the spool, the store, logs, listeners and what libraries open.
RESERVED_DESCRIPTORS = 96
# Enough for one busy program, whatever the limit on open files.
MIN_PER_ADDRESS = 64
_REUSE_PORT = sys.platform == "linux"


def raise_descriptor_limit() -> None:
    """Let this process and its children open as many files as the system allows: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            # Unlimited is not always taken (macOS).
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def fitting_connections(settings: Settings) -> int:
    """Callers that a worker takes in: fewer than set where it may not open so many files.

    Some are kept for upstreams, the spool and the store, so that every accepted connection can be served.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return settings.server.connections
    upstreams = sum(each.connections for network in settings.networks.values() for each in network.upstreams)
    kept = RESERVED_DESCRIPTORS + min(upstreams, soft // 2)
    return max(1, min(settings.server.connections, soft - kept))


def fitting_connections_per_address(settings: Settings) -> int:
    """Of one client address: where few are accepted altogether, one address gets a quarter of them at most."""
    share = max(MIN_PER_ADDRESS, fitting_connections(settings) // 4)
    return min(settings.server.connections_per_address, share)


def warn_of_few_descriptors(settings: Settings) -> None:
    """Warn where far fewer connections are possible than the settings allow."""
    fitting = fitting_connections(settings)
    if fitting < settings.server.connections // 2:
        _log.warning(
            "the limit on open files allows fewer connections than server.connections: raise it (ulimit -n)",
            connections=fitting,
            wanted=settings.server.connections,
        )


def bind(host: str, port: int, count: int, setting: str) -> list[socket.socket]:
    """Bind `count` sockets to one address; `setting` names it in errors."""
    family, address = _resolve(host, port, setting)
    # Without SO_REUSEPORT: so that a second service on the same port fails, and does not share it silently.
    probe = _bound(family, address, setting, shared=False)
    if not _REUSE_PORT:
        probe.listen(BACKLOG)
        return [probe] * count
    address = probe.getsockname()
    probe.close()
    sockets = [_bound(family, address, setting, shared=True) for _ in range(count)]
    for each in sockets:
        each.listen(BACKLOG)
    return sockets


def bind_unix(folder: Path, name: str) -> socket.socket:
    """Bind a Unix socket that our own user alone can open, in this folder or in a new one of the system's."""
    path = folder / name
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(str(path))
    except OSError:
        # A path has some 100 bytes, and not every file system takes a socket.
        path = Path(tempfile.mkdtemp(prefix="tollgate-")) / name
        bound.bind(str(path))
    path.chmod(0o600)
    bound.listen(BACKLOG)
    return bound


def url(scheme: str, bound: socket.socket) -> str:
    return url_of(scheme, *bound.getsockname()[:2])


def url_of(scheme: str, host: str, port: int) -> str:
    """A URL that a local client can use, also where the host is all of this machine's addresses."""
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _resolve(host: str, port: int, setting: str) -> tuple[socket.AddressFamily, tuple[object, ...]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise StartError(f"{setting}: {host!r} is not an address of this machine.") from error
    return found[0][0], found[0][4]


def _bound(
    family: socket.AddressFamily, address: tuple[object, ...], setting: str, *, shared: bool
) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise StartError(_why(error, address, setting)) from error
    return bound


def _why(error: OSError, address: tuple[object, ...], setting: str) -> str:
    host, port = address[0], address[1]
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} on {host} is in use: stop what listens there, or set another {setting}."
    if error.errno == errno.EACCES:
        return f"Port {port} needs a privilege: choose one above 1023 for {setting}, or run behind a proxy."
    return f"{setting}: cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}."
