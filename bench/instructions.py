"""What a call takes in instructions, Python frames, files and tasks: no clock, no noise.

Instructions are counted by cachegrind for N and for 2 N rounds of `bench.drive`; the difference is what the calls
took. `instructions.json` keeps what they took when it was written last, and the Python that took it: another build
takes a few per cent more or less. A test compares.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from bench.cases import CASES
from bench.drive import SHARED, Drive, drive
from bench.plan import BenchError

ROOT = Path(__file__).resolve().parents[1]
FILE = Path(__file__).with_name("instructions.json")
PYTHON = f"{sys.version}, {platform.machine()}"
ROUNDS = 20
TIMEOUT = 600.0
# Bars of one call on the fast path.
MAX_FRAMES = 40
MAX_FILES = 12
# How far a count may be from the file: with the Python of the file, either way; another build takes more or fewer
# instructions for the same code, and only our own code takes this much more.
SAME_BUILD = 0.05
OTHER_BUILD = 0.25
_CACHEGRIND = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
_COUNT = re.compile(r"I\s+refs:\s+([0-9,]+)")
_SOURCE = f"{os.sep}tollgate{os.sep}"


def count(cases: Sequence[str], rounds: int = ROUNDS) -> dict[str, int]:
    """Count the instructions of one call of each case, in process."""
    if shutil.which("valgrind") is None:
        raise BenchError("valgrind is not installed (Debian: apt install valgrind)")
    with tempfile.TemporaryDirectory(prefix="tollgate-bench-") as folder:
        ran = subprocess.run(
            [*_CACHEGRIND, f"--log-file={folder}/%p", sys.executable, "-m", "bench.drive", str(rounds), *cases],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT,
        )
        if ran.returncode:
            raise BenchError(f"counting ended with {ran.returncode}: {ran.stderr[-2000:]}")
        counts = [_total(Path(folder, pid)) for pid in ran.stdout.split()]
    return {
        case: (many - few) // (rounds * CASES[case.removesuffix(SHARED)].width)
        for case, few, many in zip(cases, counts[::2], counts[1::2], strict=True)
    }


def _total(log: Path) -> int:
    text = log.read_text()
    found = _COUNT.search(text)
    if found is None:
        raise BenchError(f"cachegrind gave no count: {text[-500:]}")
    return int(found[1].replace(",", ""))


# What a loop tick does once for all of its calls, and the parts of it that belong to one call.
_PER_TICK = frozenset({"flush_later", "_flush", "_answer_all", "fill_rates"})
_PER_CALL = frozenset({"record", "_record", "leave"})


class Profile:
    """The Python functions of Tollgate that are called, in order: those of calls, and those once a loop tick."""

    def __init__(self) -> None:
        self.per_call: list[tuple[str, str]] = []
        self.per_tick: list[tuple[str, str]] = []
        self.tasks = 0

    def __call__(self, frame: FrameType, event: str, _arg: Any) -> None:
        if event == "call" and _SOURCE in frame.f_code.co_filename:
            called = self.per_tick if _is_per_tick(frame) else self.per_call
            called.append((frame.f_code.co_filename.rpartition(_SOURCE)[2], frame.f_code.co_qualname))


def _is_per_tick(frame: FrameType | None) -> bool:
    while frame is not None:
        name = frame.f_code.co_name
        if name in _PER_TICK or name in _PER_CALL:
            return name in _PER_TICK
        frame = frame.f_back
    return False


@functools.cache
def profile(case: str) -> Profile:
    """Follow one round of calls, of callers that have called before."""
    found = Profile()

    def follow(driven: Drive, play: Callable[[], None]) -> None:
        tasks, before = driven.loop.tasks, sys.getprofile()
        sys.setprofile(found)
        try:
            play()
        finally:
            sys.setprofile(before)
        found.tasks = driven.loop.tasks - tasks

    drive(case, 1, 1, follow)
    return found


@dataclass(frozen=True)
class Passed:
    """What one call passes in Python, without what a loop tick does once for all of its calls."""

    frames: int
    files: int
    tasks: int


def passed(case: str) -> Passed:
    """Count the frames, files and tasks of one call."""
    found = profile(case)
    return Passed(
        round(len(found.per_call) / CASES[case].width), len({file for file, _ in found.per_call}), found.tasks
    )


def written() -> tuple[str, dict[str, dict[str, int]]]:
    """Return the Python that took the counts in the file, and the counts of each case."""
    kept = json.loads(FILE.read_text())
    return kept["python"], kept["cases"]


def run(progress: Callable[[str], None], *, write: bool) -> int:
    """Count all cases and print them beside the bars and the file."""
    progress("counting the instructions of a call under cachegrind, a few minutes")
    instructions = count(list(CASES))
    counted = {case: {"instructions": instructions[case], **asdict(passed(case))} for case in CASES}
    python, before = written()
    print("| case | instructions | bar | | in the file | frames | files | tasks |")
    print("|---|--:|--:|---|--:|--:|--:|--:|")
    for case, found in counted.items():
        print("| " + " | ".join(_cells(case, found, before.get(case))) + " |")
    print(f"\nThe bars of one call are {MAX_FRAMES} frames in {MAX_FILES} files, without what is done once for")
    print("all calls of a loop tick: records and metrics.")
    if python and python != PYTHON:
        print(f"The counts in the file are of another Python: {python}")
    if write:
        FILE.write_text(json.dumps({"python": PYTHON, "cases": counted}, indent=2) + "\n")
        print(f"written: {FILE.relative_to(ROOT)}")
    return 0


def _cells(case: str, found: dict[str, int], before: dict[str, int] | None) -> tuple[str, ...]:
    bar = CASES[case].bar
    verdict = "" if bar is None else "reached" if found["instructions"] <= bar else "missed"
    return (
        case,
        f"{found['instructions']:,}",
        f"{bar:,}" if bar else "",
        verdict,
        f"{before['instructions']:,}" if before else "",
        *(str(found[key]) for key in ("frames", "files", "tasks")),
    )
