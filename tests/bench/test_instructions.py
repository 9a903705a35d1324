"""What a call costs must not creep up: instructions, Python frames, and that it takes the straight way."""

from __future__ import annotations

import pytest

from bench import drive, instructions
from parts.need import need

COUNTED = ("call", "hit", "batch")
SAME_BUILD = 0.05
OTHER_BUILD = 0.25
"""Another Python takes more or fewer instructions for the same code; this much more only our own code takes."""


@pytest.mark.e2e
@pytest.mark.timeout(600)  # cachegrind is slow, and the machine may be busy
def test_instructions_of_a_call_are_those_of_the_file() -> None:
    need("valgrind")
    python, kept = instructions.written()
    counted = instructions.count(COUNTED, rounds=20)
    again = "`make bench ARGS='--instructions --write'` writes the file again, where that is meant"
    if python == instructions.PYTHON:
        wrong = [case for case in COUNTED if abs(counted[case] / kept[case] - 1) > SAME_BUILD]
    else:
        wrong = [case for case in COUNTED if counted[case] / kept[case] - 1 > OTHER_BUILD]
    assert not wrong, f"{wrong}: counted {counted}, the file has {kept} of {python}; {again}"


def test_every_case_has_a_count_in_the_file() -> None:
    _, kept = instructions.written()
    assert set(kept) == set(drive.CASES)


@pytest.mark.parametrize("case", drive.CASES)
def test_healthy_call_stays_on_the_straight_way(case: str) -> None:
    """In `bench.drive` every other way raises."""
    assert instructions.frames(case)[0] > 0


def test_call_passes_few_frames() -> None:
    frames, files, _shared = instructions.frames("call")
    assert frames <= instructions.MAX_FRAMES
    assert files <= instructions.MAX_FILES
