"""What the workers of a service weigh while something is done to it (Linux)."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .tollgate import Gateway

EVERY_SECONDS = 0.02
# Beside what is weighed against the budget: buffers of sockets, small bodies, what allocators keep.
SLACK_BYTES = 64 << 20
# A large answer is there several times while it is put together: as read, decoded, encoded, with its head.
COPIES = 3


def resident(pid: int) -> int:
    """Bytes of a process that are its own; 0 for one that is gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
    return 0


@contextmanager
def within_budget(gateway: Gateway, budget: int = 0, processes: str = "tg-worker-") -> Iterator[None]:
    """Weigh processes of this kind again and again: none grows beyond what its budget allows, and none dies."""
    if sys.platform != "linux":
        yield
        return
    before = {pid: resident(pid) for pid in gateway.children(processes).values()}
    peak, done = dict(before), threading.Event()

    def weigh() -> None:
        while not done.wait(EVERY_SECONDS):
            for pid, most in peak.items():
                peak[pid] = max(most, resident(pid))

    sampling = threading.Thread(target=weigh)
    sampling.start()
    started = time.monotonic()
    try:
        yield
    finally:
        done.set()
        sampling.join()
    assert set(gateway.children(processes).values()) == set(before), "a process died"
    grown = {pid: (peak[pid] - before[pid]) >> 20 for pid in peak}
    most = (COPIES * budget + SLACK_BYTES) >> 20
    assert max(grown.values()) <= most, f"{grown} MiB more, {most} allowed, in {time.monotonic() - started:.1f} s"
