"""Free loopback ports. The kernel chooses them; nothing holds one between the choice and its use."""

from __future__ import annotations

import socket
from contextlib import ExitStack

LOOPBACK = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Give ports that differ from each other: all are held open until the last is chosen."""
    with ExitStack() as held:
        ports: list[int] = []
        for _ in range(count):
            listener = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            listener.bind((LOOPBACK, 0))
            ports.append(listener.getsockname()[1])
        return ports


def free_port() -> int:
    """Give one port that nothing listens on."""
    return free_ports(1)[0]


def accepts(port: int) -> bool:
    """Whether something accepts connections on a loopback port."""
    try:
        socket.create_connection((LOOPBACK, port), timeout=1).close()
    except OSError:
        return False
    return True
