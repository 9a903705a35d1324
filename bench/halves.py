"""Tollgate that records in every other slice of time only, to measure what recording costs.

The service has no such switch. A slice is so short that whatever else goes on in the machine meets both halves
alike; two services, side by side or one after the other, differ by more than recording costs. Without recording,
answers leave at once and nothing is written down. Run as a program, it is `tollgate`; each slice becomes a line in
the file that `FILE` names: whether it recorded, its requests, its CPU in seconds.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tollgate.cli.main import main
from tollgate.gateway.journal import Journal
from tollgate.gateway.lane import Lane, Leaving

if TYPE_CHECKING:
    from tollgate.gateway.messages import Request

FILE = "BENCH_SLICES"
SLICE_SECONDS = 0.1


class Halves:
    """Switches recording on and off in a worker."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._note, self._send, self._tick = Journal.note, Lane.send, Lane.tick
        self._recording = True
        self._requests = 0
        self._cpu = 0.0
        self._begun = False

    def install(self) -> None:
        """Stand between the edge and what records."""

        def note(journal: Journal, request: Request, status: int) -> None:
            self._requests += 1
            if self._recording:
                self._note(journal, request, status)

        def send(lane: Lane, connection: Leaving, data: bytes, *, close: bool) -> None:
            if self._recording:
                self._send(lane, connection, data, close=close)
            else:
                connection.leave(data, close=close)

        def tick(lane: Lane) -> None:
            # The first thing that runs in a worker's loop.
            if not self._begun:
                self._begun = True
                asyncio.get_running_loop().call_later(SLICE_SECONDS, self._switch)
            self._tick(lane)

        for owner, name, instead in ((Journal, "note", note), (Lane, "send", send), (Lane, "tick", tick)):
            setattr(owner, name, instead)

    def _switch(self) -> None:
        spent = time.process_time()
        if self._requests:
            with self._file.open("a") as file:
                file.write(f"{int(self._recording)} {self._requests} {spent - self._cpu:.9f}\n")
        self._recording = not self._recording
        self._requests = 0
        asyncio.get_running_loop().call_later(SLICE_SECONDS, self._switch)
        self._cpu = time.process_time()


def run() -> None:
    """Be `tollgate`, recording every other slice."""
    Halves(Path(os.environ[FILE])).install()
    main()
