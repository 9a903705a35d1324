"""A DNS server of the test's own: dnsmasq with nothing but the records that it is given.

It queries no other server, keeps nothing, and records every query.
"""

from __future__ import annotations

import re
import socket
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .need import need
from .ports import LOOPBACK, accepts, free_port
from .processes import eventually, running

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True)
class Nameserver:
    """A running DNS server: where it listens, its process, and its queries."""

    port: int
    pid: int
    log: Path

    @property
    def address(self) -> str:
        """Give it as a setting names it."""
        return f"{LOOPBACK}:{self.port}"

    def questions(self) -> list[tuple[str, str]]:
        """Give each question so far: the kind of record and the name."""
        return re.findall(r"query\[(\w+)\] (\S+) from", self.log.read_text())


@contextmanager
def nameserver(
    folder: Path,
    *,
    addresses: Mapping[str, Sequence[str]] | None = None,
    texts: Mapping[str, Sequence[str]] | None = None,
    refuses: bool = False,
    port: int = 0,
) -> Iterator[Nameserver]:
    """Run a DNS server with these addresses and TXT records; a comma parts the strings of one record.

    Other names do not exist, or are refused with `refuses`. A given port lets the records change: stop
    it, and start another there.
    """
    port = port or _free_for_both()
    argv = [
        *(str(need("dnsmasq")), "--no-daemon", "--conf-file=/dev/null", "--no-resolv", "--no-hosts"),
        *("--log-facility=-", "--log-queries", "--cache-size=0"),
        *("--bind-interfaces", f"--listen-address={LOOPBACK}", f"--port={port}"),
        *([] if refuses else ["--local=/#/"]),
        *(f"--host-record={name},{one}" for name, several in (addresses or {}).items() for one in several),
        *(f"--txt-record={name},{one}" for name, several in (texts or {}).items() for one in several),
    ]
    with running(argv, folder=folder, ready=lambda _: accepts(port)) as program:
        yield Nameserver(port, program.pid, program.err)


def _free_for_both() -> int:
    """Give a port that is free for TCP and for UDP."""

    def free() -> int | None:
        port = free_port()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            try:
                other.bind((LOOPBACK, port))
            except OSError:
                return None
        return port

    port = eventually(free, what="a port that is free for TCP and UDP")
    assert port is not None
    return port
