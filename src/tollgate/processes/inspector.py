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

from tollgate.api.operator import CheckResult
from tollgate.control.services.operator import ProcessState, SpoolState
from tollgate.ledger import segments
from tollgate.ledger.doctor import examine
from tollgate.processes.bootstrap import Bootstrap
from tollgate.processes.process_metrics import PARENT, read_stat
from tollgate.store import engines
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
        files = segments.find_all(self._spool)
        facts = engines.open_facts(self._ledger)
        try:
            marks = facts.marks()
        finally:
            facts.close()
        waiting = segments.backlog(files, marks)
        return SpoolState(len(files), waiting.bytes, waiting.oldest)

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
    for pid in (str(parent), *children):
        with suppress(OSError, ValueError, IndexError):
            stat = read_stat(_PROC / pid)
            yield ProcessState(
                PARENT if int(pid) == parent else stat.name.removeprefix(_PREFIX),
                int(pid),
                booted + stat.start_seconds,
                stat.cpu_milliseconds / 1_000,
                stat.memory_bytes,
            )
