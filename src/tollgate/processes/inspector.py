"""The state of a machine, for its operator: processes, the collector's lag, consistency checks.

For the control process, whose packages know neither the spool nor the ledger's checks. Everything here may block:
it is called in a thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from tollgate.control.services.operations import CheckResult, ProcessState, SpoolState
from tollgate.ledger import segments
from tollgate.ledger.doctor import examine
from tollgate.processes.bootstrap import Bootstrap
from tollgate.store import engines
from tollgate.store.base import Mark
from tollgate.store.postgresql import is_postgresql

# Of each check.
MAX_DIFFERENCES = 20
_PREFIX = "tg-"
_PROC = Path("/proc")


class MachineInspector:
    """Looks at the processes of this service and at its data folder."""

    def __init__(self, bootstrap: Bootstrap, starts: Callable[[], Mapping[str, int]]) -> None:
        """`starts` returns how often each process was started."""
        self._spool = bootstrap.spool_dir
        self._ledger = bootstrap.ledger_url
        self._parent = os.getppid()
        self._starts = starts

    def processes(self) -> Sequence[ProcessState]:
        """The processes of the service; none where the system does not report them."""
        starts = self._starts()
        found = (replace(each, restarts=max(0, starts.get(each.name, 1) - 1)) for each in _processes(self._parent))
        return sorted(found, key=lambda each: each.name)

    def spool(self) -> SpoolState:
        """What of the spool the collector has not read yet."""
        files = 0
        waiting = 0
        oldest: float | None = None
        facts = engines.open_facts(self._ledger)
        try:
            marks = facts.marks()
        finally:
            facts.close()
        for path in self._spool.glob(f"*{segments.SUFFIX}"):
            # A segment may be finished and deleted between two looks.
            with suppress(OSError):
                identity, status = segments.read_id(path), path.stat()
                mark = marks.get(identity or b"", Mark(segments.HEADER_BYTES))
                left = max(0, status.st_size - mark.offset)
                files += 1
                waiting += left
                if left and not mark.done:
                    oldest = min(oldest or status.st_mtime, status.st_mtime)
        return SpoolState(files, waiting, oldest)

    def examine(self) -> Sequence[CheckResult]:
        """What `tollgate doctor` checks of the ledger."""
        facts = engines.open_facts(self._ledger)
        try:
            checks = examine(self._spool, facts, time.time(), is_shared=is_postgresql(self._ledger))
        finally:
            facts.close()
        return [
            CheckResult(each.name, each.ok, each.looked_at, list(each.differences[:MAX_DIFFERENCES]))
            for each in checks
        ]


def _processes(parent: int) -> Iterator[ProcessState]:
    try:
        children = (_PROC / str(parent) / "task" / str(parent) / "children").read_text().split()
        booted = next(
            float(line.split()[1]) for line in (_PROC / "stat").read_text().splitlines() if line[:6] == "btime "
        )
    except (OSError, StopIteration):
        return
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    for pid in (str(parent), *children):
        with suppress(OSError, ValueError, IndexError):
            # The name stands in parentheses and may have spaces; what follows is numbers (proc(5)).
            name, _, rest = (_PROC / pid / "stat").read_text().rpartition(")")
            fields = rest.split()
            comm = name.partition("(")[2]
            yield ProcessState(
                "parent" if int(pid) == parent else comm.removeprefix(_PREFIX),
                int(pid),
                booted + int(fields[19]) / tick,
                (int(fields[11]) + int(fields[12])) / tick,
                int(fields[21]) * page,
            )
