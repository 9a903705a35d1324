"""What a call takes in instructions, and the Python frames and files that it passes: no clock, no noise.

Instructions are counted by cachegrind for N and for 2 N rounds of `bench.drive`; the difference is what the calls
took. `instructions.json` keeps what they took when it was written last, and the Python that took it: another build
takes a few per cent more or less. A test compares.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from bench.drive import CASES, WIDTH, Drive, drive
from bench.plan import BenchError

ROOT = Path(__file__).resolve().parents[1]
FILE = Path(__file__).with_name("instructions.json")
PYTHON = f"{sys.version}, {platform.machine()}"
ROUNDS = 60
TIMEOUT = 600.0
# To reach; the other cases have no bar.
BARS = {"call": 80_000, "miss": 95_000, "hit": 58_000, "batch": 200_000}
MAX_FRAMES = 40
MAX_FILES = 12
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
        counts = [_total(Path(folder, line.split()[1])) for line in ran.stdout.splitlines()]
    return {
        case: (many - few) // (rounds * WIDTH)
        for case, few, many in zip(cases, counts[::2], counts[1::2], strict=True)
    }


def _total(log: Path) -> int:
    text = log.read_text()
    found = _COUNT.search(text)
    if found is None:
        raise BenchError(f"cachegrind gave no count: {text[-500:]}")
    return int(found[1].replace(",", ""))


class Profile:
    """The Python functions of Tollgate that are called, and how often."""

    def __init__(self) -> None:
        self.functions: Counter[tuple[str, str]] = Counter()

    def __call__(self, frame: FrameType, event: str, _arg: Any) -> None:
        if event == "call" and _SOURCE in frame.f_code.co_filename:
            self.functions[frame.f_code.co_filename.rpartition(_SOURCE)[2], frame.f_code.co_qualname] += 1


def profile(case: str) -> Profile:
    """Follow one round of calls, of callers that have called before."""
    found = Profile()

    def follow(driven: Drive, requests: list[bytes], responses: list[bytes]) -> None:
        driven.run(requests[:-WIDTH], responses[:-WIDTH])
        before = sys.getprofile()
        sys.setprofile(found)
        try:
            driven.run(requests[-WIDTH:], responses[-WIDTH:])
        finally:
            sys.setprofile(before)

    drive(case, 12, 12, follow)
    return found


def frames(case: str) -> tuple[int, int, int]:
    """Return the Python frames of one healthy call, its files, and those that all calls of a loop turn share."""
    functions = profile(case).functions
    own = {file for (file, _), count in functions.items() if count >= WIDTH}
    return round(sum(functions.values()) / WIDTH), len(own), len({file for file, _ in functions} - own)


def written() -> tuple[str, dict[str, int]]:
    """Return the Python that took the counts in the file, and the counts."""
    if not FILE.exists():
        return "", {}
    kept = json.loads(FILE.read_text())
    return kept["python"], kept["instructions"]


def run(progress: Callable[[str], None], *, write: bool) -> int:
    """Count all cases and print them beside the bars and the file."""
    progress("counting the instructions of a call under cachegrind, about a minute")
    counted = count(CASES)
    python, before = written()
    print("| case | instructions | bar | | in the file | frames | files |")
    print("|---|---|---|---|---|---|---|")
    for case in CASES:
        print("| " + " | ".join(_cells(case, counted[case], before.get(case))) + " |")
    print(
        f"\nFor one call the bars are {MAX_FRAMES} frames in {MAX_FILES} files. Files behind the plus: records and"
    )
    print("metrics, which are written once for all calls of a loop turn.")
    if python and python != PYTHON:
        print(f"The counts in the file are of another Python: {python}")
    if write:
        FILE.write_text(json.dumps({"python": PYTHON, "instructions": counted}, indent=2) + "\n")
        print(f"written: {FILE.relative_to(ROOT)}")
    return 0


def _cells(case: str, counted: int, before: int | None) -> tuple[str, ...]:
    bar = BARS.get(case)
    passed, own, shared = frames(case)
    verdict = "" if bar is None else "reached" if counted <= bar else "missed"
    return (
        case,
        f"{counted:,}",
        f"{bar:,}" if bar else "",
        verdict,
        f"{before:,}" if before else "",
        *(str(passed), f"{own} + {shared}"),
    )
