"""Who serves a data folder: one at most, and found only while it is there."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from parts.processes import eventually
from tollgate.errors import StartError
from tollgate.processes.service_lock import NAME, Holder, ServiceLock, holder, holders


def test_folder_without_a_service_has_no_holder(tmp_path: Path) -> None:
    assert holder(tmp_path) is None
    assert holder(tmp_path / "nowhere") is None
    assert not (tmp_path / NAME).exists()


def test_holder_is_reported_while_it_can_be_spoken_to(tmp_path: Path) -> None:
    lock = ServiceLock(tmp_path)
    assert holder(tmp_path) == Holder(0, is_near=True)
    lock.show()
    assert holder(tmp_path) == Holder(os.getpid(), is_near=True)
    lock.hide()
    assert holder(tmp_path) == Holder(0, is_near=True)
    lock.show()
    lock.close()
    assert holder(tmp_path) is None
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600


def test_second_service_is_refused_and_leaves_the_first_to_be_found(tmp_path: Path) -> None:
    lock = ServiceLock(tmp_path)
    lock.show()
    with pytest.raises(StartError, match="Another Tollgate runs on"):
        ServiceLock(tmp_path)
    assert holder(tmp_path) == Holder(os.getpid(), is_near=True)
    lock.close()


def test_next_service_begins_unknown(tmp_path: Path) -> None:
    first = ServiceLock(tmp_path)
    first.show()
    first.close()
    second = ServiceLock(tmp_path)
    assert holder(tmp_path) == Holder(0, is_near=True)
    second.close()


def test_service_that_was_killed_is_not_found(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        ServiceLock(tmp_path).show()
        while True:
            signal.pause()
    eventually(lambda: holder(tmp_path) == Holder(pid, is_near=True))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert (tmp_path / NAME).read_text().startswith(str(pid))
    assert holder(tmp_path) is None


def test_service_of_another_container_is_not_near(tmp_path: Path) -> None:
    lock = ServiceLock(tmp_path)
    (tmp_path / NAME).write_text("1 pid:[4026539999]\n")
    assert holder(tmp_path) == Holder(1, is_near=False)
    lock.close()


def test_reader_of_the_lock_does_not_keep_a_service_from_starting(tmp_path: Path) -> None:
    ServiceLock(tmp_path).close()
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            holder(tmp_path)
            over.wait(0.001)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(50):
            ServiceLock(tmp_path).close()
    finally:
        over.set()
        thread.join()


def test_services_of_one_folder_are_found_by_their_roles(tmp_path: Path) -> None:
    locks = [ServiceLock(tmp_path, frozenset({role})) for role in ("gateway", "collector", "prober")]
    for lock in locks:
        lock.show()
    here = Holder(os.getpid(), is_near=True)
    assert holders(tmp_path) == {"": here, "-collector": here, "-prober": here}
    locks[0].close()
    assert holders(tmp_path) == {"-collector": here, "-prober": here}
    assert holder(tmp_path) == here, "a process that needs the folder for itself must not get it"
    for lock in locks[1:]:
        lock.close()
    assert holder(tmp_path) is None
