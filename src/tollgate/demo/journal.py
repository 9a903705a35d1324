"""Where the deeds of a chain are kept: in memory for one node, in a file for several that share the chain.

Owns the file's format and its lock. A line is one deed; the first line says which chain it is, so that nodes of
different chains cannot be mixed up. Only for tests and demonstrations: it waits for the lock inside the event
loop, for a bounded time.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from tollgate.demo.chain import Chain
from tollgate.demo.chain_params import RpcError
from tollgate.demo.course import Deed
from tollgate.errors import StartError

INTERNAL_ERROR = -32603
LARGEST_JOURNAL = 64 * 1024 * 1024
# Longer than a node that runs takes to read a line that another has written, even on a busy machine.
SLACK_SECONDS = 0.1
_LOCK_SECONDS = 2.0
_RETRY_SECONDS = 0.002

_encode = msgspec.json.Encoder().encode
_deed = msgspec.json.Decoder(Deed)


class Journal(Protocol):
    """The deeds of one chain, in one order for all who read them."""

    slack: float
    """How late a deed may be read, in seconds."""

    def news(self) -> list[Deed]:
        """Return the deeds since the last time."""

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Keep everybody else from adding."""
        yield

    def add(self, deed: Deed) -> None:
        """Add a deed; only in one's turn."""


class OwnJournal:
    """The deeds of a chain that only one node has."""

    slack = 0.0

    def __init__(self) -> None:
        self._news: list[Deed] = []

    def news(self) -> list[Deed]:
        """Return the deeds since the last time."""
        if not self._news:
            return self._news
        found, self._news = self._news, []
        return found

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Nobody else adds."""
        yield

    def add(self, deed: Deed) -> None:
        """Add a deed."""
        self._news.append(deed)


class SharedJournal:
    """The deeds of a chain in a file, which several nodes read and add to."""

    slack = SLACK_SECONDS

    def __init__(self, file: Path, chain: Chain) -> None:
        self._file = file
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._read = 0
        title = _encode(chain.trunk) + b"\n"
        with self.turn():
            if not os.fstat(self._descriptor).st_size:
                os.write(self._descriptor, title)
        if os.pread(self._descriptor, len(title), 0) != title:
            raise StartError(
                f"{file} is the journal of another chain: give it the same seed, genesis and block time."
            )
        self._read = len(title)

    def news(self) -> list[Deed]:
        """Return the deeds that anybody has added since the last time."""
        size = os.fstat(self._descriptor).st_size
        if size == self._read:
            return []
        # A line that is still being written has no end yet.
        whole, end, _ = os.pread(self._descriptor, size - self._read, self._read).rpartition(b"\n")
        self._read += len(whole) + len(end)
        return [_deed.decode(line) for line in whole.splitlines()]

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Lock the file; a node that was stopped while it held the lock must not stop the others for ever."""
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RpcError(INTERNAL_ERROR, f"Another node keeps {self._file.name} locked") from None
                time.sleep(_RETRY_SECONDS)
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def add(self, deed: Deed) -> None:
        """Append a deed."""
        line = _encode(deed) + b"\n"
        if os.fstat(self._descriptor).st_size + len(line) > LARGEST_JOURNAL:
            raise RpcError(INTERNAL_ERROR, f"{self._file.name} is full: start the nodes with a new one")
        os.write(self._descriptor, line)
