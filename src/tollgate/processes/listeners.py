"""Sockets to listen on, bound by the parent before its workers are forked.

On Linux each worker has a socket of its own on the same port (SO_REUSEPORT), so the kernel spreads connections
evenly. The parent and the workers keep all of them open: what the kernel gives to a worker that is dead
or hangs is accepted by the others. Elsewhere the workers share one socket.
"""

from __future__ import annotations

import errno
import os
import socket
import sys

from tollgate.errors import StartError

BACKLOG = 2048
_REUSE_PORT = sys.platform == "linux"


def bind(host: str, port: int, count: int, setting: str) -> list[socket.socket]:
    """Bind `count` sockets to one address; `setting` names it in errors."""
    family, address = _resolve(host, port, setting)
    # Without SO_REUSEPORT: so that a second service on the same port is told, and does not share it silently.
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


def url(scheme: str, bound: socket.socket) -> str:
    """The address of a bound socket as a URL, with a host that a local client can use."""
    host, port = bound.getsockname()[:2]
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
