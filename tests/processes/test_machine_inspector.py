"""What an operator sees of the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tollgate.ledger import segments
from tollgate.processes import control
from tollgate.processes.bootstrap import prepare
from tollgate.processes.control import MachineInspector
from tollgate.settings.model import Settings

# How often processes were started, by name.
STARTS: dict[str, int] = {}


@pytest.fixture
def looking(tmp_path: Path) -> MachineInspector:
    return MachineInspector(prepare(Settings(data_dir=str(tmp_path))), lambda: STARTS)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system reports nothing of processes")
def test_processes_are_the_parent_and_its_children(looking: MachineInspector) -> None:
    found = {each.pid: each for each in looking.processes()}
    assert found[os.getppid()].name == "parent"
    mine = found[os.getpid()]
    assert mine.memory_bytes > 1_000_000
    assert mine.started_at > 1_700_000_000


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system reports nothing of processes")
def test_starts_after_the_first_are_restarts(looking: MachineInspector, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = next(each for each in looking.processes() if each.pid == os.getpid())
    assert mine.restarts == 0
    monkeypatch.setitem(STARTS, mine.name, 3)
    assert next(each for each in looking.processes() if each.pid == os.getpid()).restarts == 2


def test_nothing_is_shown_where_there_is_no_proc(
    looking: MachineInspector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_PROC", tmp_path / "none")
    assert looking.processes() == []


def test_segment_that_was_just_begun_does_not_wait(looking: MachineInspector, tmp_path: Path) -> None:
    (tmp_path / "spool" / f"1{segments.SUFFIX}").write_bytes(segments.MAGIC + b"i" * 16)
    state = looking.spool()
    assert (state.segments, state.waiting_bytes, state.waiting_since) == (1, 0, None)


def test_new_ledger_agrees_and_nothing_waits(looking: MachineInspector) -> None:
    assert looking.spool().waiting_since is None
    assert [each.name for each in looking.examine() if not each.ok] == []
