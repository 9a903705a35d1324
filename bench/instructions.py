"""What a call takes in instructions, and the Python frames and files that it passes: the same on every machine.

Instructions are counted by cachegrind for N and for 2 N rounds of `bench.drive`; the difference is what the calls
took. `EXPECTED` is what they took when it was written last; a test compares within a few per cent.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from bench.drive import CASES, WIDTH, Drive, drive
from bench.plan import BenchError

FILE = Path(__file__).with_name("instructions.json")
ROUNDS = 60
# To reach; batches and the rest are held against the file alone.
GOALS = {"call": 80_000, "miss": 95_000, "hit": 58_000, "batch": 200_000}
FRAME_GOALS = {"frames": 40, "files": 12}
_CACHEGRIND = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
_SOURCE = f"{os.sep}tollgate{os.sep}"


def instructions(case: str, rounds: int = ROUNDS) -> int:
    """The instructions of one call, in process."""
    if shutil.which("valgrind") is None:
        raise BenchError("valgrind is needed: make test-deps installs it where it can")
    few, many = (_count(case, each, 2 * rounds) for each in (rounds, 2 * rounds))
    return (many - few) // (rounds * WIDTH)


def _count(case: str, rounds: int, build: int) -> int:
    ran = subprocess.run(
        [*_CACHEGRIND, sys.executable, "-m", "bench.drive", case, str(rounds), str(build)],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    found = re.search(r"I\s+refs:\s+([0-9,]+)", ran.stderr)
    if ran.returncode or found is None:
        raise BenchError(f"counting failed: {ran.stderr[-500:]}")
    return int(found[1].replace(",", ""))


class Passed:
    """The Python functions of ours that a call passes."""

    def __init__(self) -> None:
        self.functions: Counter[tuple[str, str]] = Counter()

    def __call__(self, frame: FrameType, event: str, _arg: Any) -> None:
        if event == "call" and _SOURCE in frame.f_code.co_filename:
            self.functions[frame.f_code.co_filename.partition(_SOURCE)[2], frame.f_code.co_qualname] += 1


def passed(case: str) -> Passed:
    """Follow one call of a caller that was let in before."""
    seen = Passed()

    def follow(driven: Drive, requests: list[bytes], responses: list[bytes]) -> None:
        driven.run(requests[: -WIDTH * 2], responses[: -WIDTH * 2])
        counts = []
        for start in (-2 * WIDTH, -WIDTH):
            end = start + WIDTH or None
            sys.setprofile(seen)
            try:
                driven.run(requests[start:end], responses[start:end])
            finally:
                sys.setprofile(None)
            counts.append(seen.functions)
            seen.functions = Counter() if start != -WIDTH else seen.functions

    drive(case, 12, 12, follow)
    return seen


def frames(case: str) -> tuple[int, int]:
    """Python frames and files of one healthy call."""
    seen = passed(case)
    # What is done once a loop turn counts once for all of its calls.
    return round(sum(seen.functions.values()) / WIDTH), len({file for file, _ in seen.functions})


def run(tell: Callable[[str], None], *, write: bool) -> int:
    """Count all cases and print them beside what is to be reached."""
    counted = {}
    for case in CASES:
        tell(f"counting {case}")
        counted[case] = instructions(case)
    followed = {case: frames(case) for case in CASES}
    print("| case | instructions | to reach | before | frames | files |")
    print("|---|---|---|---|---|---|")
    before = json.loads(FILE.read_text()) if FILE.exists() else {}
    for case in CASES:
        goal, last = GOALS.get(case), before.get(case)
        print(
            f"| {case} | {counted[case]:,} | {f'{goal:,}' if goal else ''} | {f'{last:,}' if last else ''}"
            f" | {followed[case][0]} | {followed[case][1]} |"
        )
    if write:
        FILE.write_text(json.dumps(counted, indent=2) + "\n")
    return 1 if any(counted[case] > goal for case, goal in GOALS.items()) else 0
