"""One collector for one spool. The kernel frees the lock however the collector ends."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from tollgate.errors import StartError
from tollgate.file_lock import open_lock_file, try_lock

NAME = "collector.lock"


class CollectorRuns(StartError):
    """Another collector holds the spool."""


class Lock:
    """Held from its making to `close`; `CollectorRuns` when another has it."""

    def __init__(self, folder: Path) -> None:
        self._descriptor = open_lock_file(folder / NAME)
        if not try_lock(self._descriptor):
            os.close(self._descriptor)
            raise CollectorRuns(
                f"Another collector works on {folder}: `tollgate serve` brings its own. "
                "Stop that first, or let it do the work."
            )

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()
