from __future__ import annotations

import os
from pathlib import Path

from tollgate.file_lock import lock_within, open_lock_file, try_lock


def test_an_exclusive_lock_keeps_everybody_out_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first, second = open_lock_file(path), open_lock_file(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert try_lock(first)
    assert not try_lock(second)
    assert not try_lock(second, shared=True)
    assert not lock_within(second, 0.0)
    os.close(first)
    assert lock_within(second, 0.0)
    os.close(second)


def test_shared_locks_keep_out_only_an_exclusive_one(tmp_path: Path) -> None:
    descriptors = [open_lock_file(tmp_path / "lock") for _ in range(3)]
    assert all(try_lock(each, shared=True) for each in descriptors[:2])
    assert not try_lock(descriptors[2])
    for each in descriptors:
        os.close(each)
