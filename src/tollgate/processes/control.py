"""The process of the control plane: one child, behind the workers, that holds the framework and hashes passwords.

It listens on a Unix socket that the parent has bound; workers forward to it (docs/decisions/0010). It loads the
framework, so no other process may import this module: `service` names it as a lazy module.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from tollgate.api.operator import CheckResult
from tollgate.control.app import control_app
from tollgate.control.plane import ControlPlane
from tollgate.control.services import alerts, invoices, reports, sweep
from tollgate.control.services.job_leases import JobLeases
from tollgate.control.services.operator import ProcessState, SpoolState
from tollgate.ledger import segments
from tollgate.ledger.doctor import examine
from tollgate.processes.bootstrap import Bootstrap
from tollgate.processes.control_proxy import ControlAddress, behind_workers
from tollgate.processes.node import node_id
from tollgate.processes.process_metrics import PARENT, read_stat
from tollgate.processes.serving import ServerProcess, serve
from tollgate.processes.shared_settings import SettingsFollower, SharedSettings
from tollgate.processes.status import App, Receive, Scope, Send
from tollgate.processes.supervisor import Lifeline
from tollgate.store import engines, retries
from tollgate.store.postgresql import is_postgresql

FOLLOW_SECONDS = 0.2
# How often a request is retried when the database undid its transaction.
MAX_RETRIES = 3
# Of each check of the ledger.
MAX_DIFFERENCES = 20
_PREFIX = "tg-"
_PROC = Path("/proc")


def run(
    lifeline: Lifeline,
    bootstrap: Bootstrap,
    shared: SharedSettings,
    address: ControlAddress,
    base_url: str,
    starts: Callable[[], Mapping[str, int]],
) -> None:
    """Serve the control plane, in the child. `starts` returns how often each process was started."""

    async def make() -> ServerProcess:
        store = engines.open_store(bootstrap.store_url)
        logbook = engines.open_logbook(bootstrap.ledger_url)
        accountbook = engines.open_accountbook(bootstrap.ledger_url)
        plane = ControlPlane(
            store,
            shared.current.settings,
            bootstrap.pepper,
            base_url,
            time.time,
            logbook=logbook,
            accountbook=accountbook,
            previous_pepper=bootstrap.previous_pepper,
            factor_key=bootstrap.factor_key,
            audit_key=bootstrap.audit_key,
            inspector=MachineInspector(bootstrap, starts),
        )
        leases = None
        if is_postgresql(bootstrap.store_url):
            leases = JobLeases(plane.context, node_id(bootstrap.data_dir))

        def once(every: float, job: Callable[[], Awaitable[object]]) -> tuple[float, Callable[[], Any]]:
            name = job.__qualname__.partition(".")[0].lower()
            return every, job if leases is None else leases.once(name, every, job)

        follower = SettingsFollower(shared, "control", lambda settings, _slots: plane.change(settings))
        return ServerProcess(
            behind_workers(retrying(cast("App", control_app(plane)))),
            background=(
                (FOLLOW_SECONDS, follower.tick),
                once(sweep.EVERY_SECONDS, plane.sweep.run),
                once(alerts.EVERY_SECONDS, plane.alerts.run),
                once(invoices.EVERY_SECONDS, plane.invoices.close_due),
                *([once(reports.EVERY_SECONDS, plane.reports.run)] if plane.reports else []),
            ),
            close=plane.close,
        )

    serve(make, [address.listener], lifeline, grace_seconds=bootstrap.settings.server.grace_seconds)


def retrying(app: App) -> App:
    """Retry a request when the database undid its transaction and nothing of it was committed."""

    async def retried(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        received: list[dict[str, Any]] = []
        for left in range(MAX_RETRIES, -1, -1):
            with retries.watching() as watch:
                answer = _Answer(send, lambda watch=watch, left=left: bool(left and watch.may_retry))  # type: ignore[misc]
                await app(dict(scope), _again(received, receive), answer.send)
            if not answer.is_dropped:
                return

    return retried


class _Answer:
    """What an app answers. A failure that will be tried again is not sent."""

    def __init__(self, send: Send, is_doomed: Callable[[], bool]) -> None:
        self._send = send
        self._is_doomed = is_doomed
        self.is_dropped = False

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.is_dropped = message["status"] >= 500 and self._is_doomed()
        if not self.is_dropped:
            await self._send(message)


def _again(received: list[dict[str, Any]], receive: Receive) -> Receive:
    """What was received before, then what comes; bodies are bounded by the workers."""
    place = 0

    async def next_message() -> dict[str, Any]:
        nonlocal place
        if place == len(received):
            message = await receive()
            if message["type"] != "http.request":
                return message
            received.append(message)
        place += 1
        return received[place - 1]

    return next_message


# --- The machine --------------------------------------------------------------------------------------------


class MachineInspector:
    """The state of this machine, for its operator: processes, the collector's lag, consistency checks. May block.

    The control plane's own packages know neither the spool nor the ledger's checks.
    """

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
