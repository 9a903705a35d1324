"""Tollgate that records calls in every other slice of time only, to measure what that costs.

The service has no such switch. A slice is so short that whatever else goes on in the machine meets both halves
alike; two services, side by side or one after the other, differ by more than what is to be measured.

Run as a program, it is `tollgate`; each slice becomes a line in the file that `FILE` names: whether it
recorded, its requests, its CPU in seconds. `slices.py` drives it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path

from bench.slices import FILE
from tollgate.cli.main import main
from tollgate.gateway.http.worker_context import WorkerContext
from tollgate.gateway.recording.journal import Journal, Recordable

SLICE_SECONDS = 0.1


class Halves:
    """Counts the requests and the CPU of each slice in a worker."""

    def __init__(self, file: Path) -> None:
        self.on = True
        """Whether calls are recorded in this slice; nothing is written down of the others."""
        self._file = file
        self._requests = 0
        self._cpu = 0.0
        self._begun = False

    def install(self) -> None:
        """Take the place of what every request passes."""
        write_before, tick_before = Journal.write, WorkerContext.tick

        def write(journal: Journal, answered: Sequence[Recordable]) -> None:
            self._requests += len(answered)
            if self.on:
                write_before(journal, answered)

        def tick(context: WorkerContext) -> None:
            # The first thing that runs in a worker's loop.
            if not self._begun:
                self._begun = True
                asyncio.get_running_loop().call_later(SLICE_SECONDS, self._switch)
            tick_before(context)

        # The checker is right, and this is a measurement.
        for owner, name, instead in ((Journal, "write", write), (WorkerContext, "tick", tick)):
            setattr(owner, name, instead)

    def _switch(self) -> None:
        spent = time.process_time()
        if self._requests:
            with self._file.open("a") as file:
                file.write(f"{int(self.on)} {self._requests} {spent - self._cpu:.9f}\n")
        self.on = not self.on
        self._requests = 0
        asyncio.get_running_loop().call_later(SLICE_SECONDS, self._switch)
        self._cpu = time.process_time()


def run() -> None:
    """Be `tollgate`, recording in every other slice."""
    halves = Halves(Path(os.environ[FILE]))
    halves.install()
    main()
