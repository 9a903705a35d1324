"""Puts a worker under load that records in every other slice of time, and compares the slices.

`halves.py` is what runs in the worker.

The CPU of the worker alone is counted; the other processes are on nobody's hot path, and leave its core to it.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench import gateway
from bench.load import load, look
from bench.plan import FEW_TOKENS, BenchError, Case
from bench.rounds import middle

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.load import Subject
    from bench.processes import Cores

FILE = "BENCH_SLICES"
SETTLE_SECONDS = 0.3
FEWEST = 6
# Differences share slices, so they are fewer than they look. Where a slice has a deviation s of its own, one
# difference has sqrt(1.5) s, but the mean of n has 2 s / sqrt(n).
_SHARED = 2 / math.sqrt(1.5)


@dataclass(frozen=True, slots=True)
class Compared:
    """CPU of a call in a worker, in µs: medians of the slices in which it recorded and of the others.

    `added` is the median over neighbouring slices of the difference, `margin` twice its standard error.
    """

    with_it: float
    without: float
    added: float
    margin: float
    slices: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Halved:
    """Tollgate that records half of the time."""

    subject: Subject
    file: Path

    def warm_up(self, case: Case, seconds: int) -> None:
        """Put it under load without counting."""
        load(self.subject, case.body, case.connections, seconds, look(self.subject, case.body).size)

    def measure(self, case: Case, seconds: int) -> Compared:
        """Put it under load and compare its slices."""
        size = look(self.subject, case.body).size
        # What came before is written down, and taken away.
        time.sleep(SETTLE_SECONDS)
        self.file.unlink(missing_ok=True)
        seen = load(self.subject, case.body, case.connections, seconds, size)
        time.sleep(SETTLE_SECONDS)
        return compared(self.file.read_text().splitlines(), seen.problems)


@contextlib.contextmanager
def serve(folder: Path, cores: Cores, stub_port: int) -> Iterator[Halved]:
    """Run Tollgate so that it records half of the time."""
    file = folder / "slices"
    os.environ[FILE] = str(file)
    served = gateway.Gateway(_program(folder), folder, cores, stub_port)
    with served.serve(FEW_TOKENS) as subject:
        yield Halved(subject, file)


def compared(lines: Sequence[str], problems: tuple[str, ...]) -> Compared:
    """Compare slices, each of them a line: `1` or `0`, requests, seconds of CPU."""
    # The first and the last are not whole.
    slices = [line.split() for line in lines][1:-1]
    costs = [(mode == "1", float(cpu) * 1e6 / int(requests)) for mode, requests, cpu in slices]
    if len(costs) < FEWEST:
        raise BenchError(f"only {len(costs)} slices of time were counted; measure for longer (--seconds)")
    # Each is held against both of its neighbours: a drift of the machine cancels out.
    added, margin = middle(
        [
            here - (before + after) / 2 if mode else (before + after) / 2 - here
            for (_, before), (mode, here), (_, after) in zip(costs, costs[1:], costs[2:], strict=False)
        ]
    )
    return Compared(
        median(cost for mode, cost in costs if mode),
        median(cost for mode, cost in costs if not mode),
        added,
        _SHARED * margin,
        len(costs),
        problems,
    )


def _program(folder: Path) -> Path:
    """Write the program."""
    script = folder / "halves"
    top = str(Path(__file__).resolve().parents[1])
    lines = ("import sys", f"sys.path.insert(0, {top!r})", "from bench.halves import run", "run()")
    script.write_text("\n".join([f"#!{sys.executable}", *lines, ""]))
    script.chmod(0o755)
    return script
