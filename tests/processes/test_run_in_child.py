"""Work in a forked child."""

import errno
import os

import pytest

from tollgate.errors import StartError
from tollgate.processes.run_in_child import run_in_child


def test_result_and_reason_come_back() -> None:
    assert run_in_child(lambda: [os.getpid()], list[int], "Looking") != [os.getpid()]

    def fail() -> None:
        raise StartError("the disk is full")

    with pytest.raises(StartError, match=r"^the disk is full$"):
        run_in_child(fail, type(None), "Looking")


def test_child_that_dies_is_told() -> None:
    with pytest.raises(StartError, match=r"^Looking failed; the lines above show why\.$"):
        run_in_child(lambda: os._exit(3), type(None), "Looking")


def test_refused_fork_names_what_to_do_and_leaves_no_descriptor_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fork)
    free = os.dup(0)
    os.close(free)
    with pytest.raises(
        StartError, match=r"^Looking failed: Resource temporarily unavailable\. Allow this user more"
    ):
        run_in_child(lambda: None, type(None), "Looking")
    after = os.dup(0)
    os.close(after)
    assert after == free
