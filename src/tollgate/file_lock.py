"""Locks on files (flock), which the kernel frees however their holder ends.

A lock belongs to an open file: it is freed when its last descriptor is closed, and a forked child shares it.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

_RETRY_SECONDS = 0.02


def open_lock_file(path: Path) -> int:
    """Open a file to lock, made readable by its owner alone; return the descriptor."""
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Take the lock unless another has it. It is exclusive, or shared with others that are."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_within(descriptor: int, seconds: float) -> bool:
    """Take the lock, waiting at most so long for its holder."""
    deadline = time.monotonic() + seconds
    while not try_lock(descriptor):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_RETRY_SECONDS)
    return True
