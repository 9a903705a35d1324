"""What a call costs must not creep up: instructions, frames, files, tasks, and that it stays on the fast path."""

from __future__ import annotations

import pytest
from bench.cases import CASES

from bench import instructions
from parts.need import need

COUNTED = ("call", "hit", "batch", "failover after 503", "node error")
AGAIN = "`make bench ARGS='--instructions --write'` writes the file again, where that is meant"


@pytest.mark.e2e
@pytest.mark.timeout(600)  # cachegrind is slow, and the machine may be busy
def test_instructions_of_a_call_are_those_of_the_file() -> None:
    need("valgrind")
    python, kept = instructions.written()
    counted = instructions.count(COUNTED)
    more = {case: counted[case] / kept[case]["instructions"] - 1 for case in COUNTED}
    if python == instructions.PYTHON:
        wrong = [case for case in COUNTED if abs(more[case]) > instructions.SAME_BUILD]
    else:
        wrong = [case for case in COUNTED if more[case] > instructions.OTHER_BUILD]
    assert not wrong, f"{wrong}: counted {counted}, the file has {kept} of {python}; {AGAIN}"


def test_every_case_has_counts_in_the_file() -> None:
    _, kept = instructions.written()
    assert set(kept) == set(CASES)


@pytest.mark.parametrize("case", CASES)
def test_call_passes_no_more_frames_and_files_than_in_the_file(case: str) -> None:
    """Fewer are welcome: another Python has no frames for comprehensions."""
    kept = instructions.written()[1][case]
    passed = instructions.passed(case)
    assert 0 < passed.frames <= kept["frames"], AGAIN
    assert 0 < passed.files <= kept["files"], AGAIN
    assert passed.tasks == kept["tasks"], AGAIN


@pytest.mark.parametrize("case", CASES)
def test_only_cases_of_the_slow_path_leave_the_fast_path(case: str) -> None:
    files = {file for file, _ in instructions.profile(case).per_call}
    slow = {"gateway/call/pipeline.py", "gateway/call/batch_resolution.py", "gateway/upstream/attempts.py"}
    assert CASES[case].fast == files.isdisjoint(slow)


def test_call_passes_few_frames() -> None:
    passed = instructions.passed("call")
    assert passed.frames <= instructions.MAX_FRAMES
    assert passed.files <= instructions.MAX_FILES
    assert instructions.profile("call").per_tick, "what a loop tick does once is counted for each call"
