"""The process of the collector: from the spool of all workers to the ledger, and to the flags of caps.

Under `serve` it is a child that is replaced when it dies (`run`); `tollgate collect` is the same without it.
"""

from __future__ import annotations

import functools
import select
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

from tollgate import log
from tollgate.chains.catalogue import Catalogue
from tollgate.core.months import month_of
from tollgate.errors import StartError
from tollgate.ledger.collector import Collector, Rules
from tollgate.ledger.lock import CollectorRuns, Lock
from tollgate.processes.bootstrap import Bootstrap
from tollgate.processes.reload import SettingsFollower, SharedSettings
from tollgate.processes.supervisor import Lifeline
from tollgate.shm import metrics
from tollgate.store import sqlite
from tollgate.store.caps import Caps
from tollgate.store.ledger import BUSY_MILLISECONDS, open_ledger

# Nothing to read, or little: look again after this. A commit costs as much as reading hundreds of records, so they
# had better gather.
IDLE_SECONDS = 0.2
MANY_ROWS = 10_000
# At the end, while workers finish: look again after this.
LAST_SECONDS = 0.02
CAPS_SECONDS = 1.0
CHORES_SECONDS = 60.0
# A copy of a segment is recognised for so long.
REMEMBERED_SECONDS = 90 * 86_400.0
# Uses that a collector may have committed and not noted before it died.
UNNOTED_SECONDS = 10.0
_log = log.get("collector")


class CollectorLoop:
    """Collects until it is stopped. Holds the lock of the spool: `CollectorRuns` where another process has it."""

    def __init__(self, bootstrap: Bootstrap, writer: metrics.Writer | None = None) -> None:
        settings = bootstrap.settings
        self._lock = Lock(bootstrap.spool_dir)
        self._ledger = open_ledger(bootstrap.ledger_url)
        control = create_engine(bootstrap.store_url, hide_parameters=True)
        sqlite.set_pragmas(control, BUSY_MILLISECONDS)
        self._caps = Caps(control, self._ledger, settings.billing.price())
        self._writer = writer
        self._log_days = settings.ledger.log_days
        # By family: a network may be new, or gone by now.
        catalogue = functools.cache(Catalogue)
        rules = Rules(
            self._caps.terms,
            lambda network, method: catalogue(network.partition("/")[0]).label(method),
            billing_month,
            self._caps.renew,
        )
        self.collector = Collector(bootstrap.spool_dir, self._ledger, rules, time.time)
        self.rows = 0
        """Log rows that were committed."""
        self.is_behind = False
        """Whether so much was there the last time that there is likely more."""
        self._uses: dict[str, float] | None = None
        """Last uses that are not noted yet; None before the first look, at those of a collector that died."""
        self._due: dict[Callable[[], None], float] = {self._chores: 0.0, self._reconcile: 0.0}

    def turn(self) -> bool:
        """Collect once, and do the chores that are due; return whether there was something to collect."""
        now = time.monotonic()
        self.is_behind = False
        for job, at in list(self._due.items()):
            if now >= at:
                self._due[job] = now + (CAPS_SECONDS if job == self._reconcile else CHORES_SECONDS)
                job()
        posting = self.collector.step()
        if posting is None:
            return False
        self.is_behind = len(posting.rows) >= MANY_ROWS
        self.rows += len(posting.rows)
        if self._uses is not None:
            for key, at in posting.last_used.items():
                self._uses[key] = max(at, self._uses.get(key, 0.0))
        if self._writer is not None and posting.rows:
            self._writer.add(self._writer.cell(metrics.LEDGER_ROWS), len(posting.rows))
        return True

    def finish(self) -> bool:
        """Apply caps and last uses of the last rows, before the end."""
        self._reconcile()
        return False

    def close(self) -> None:
        """Close databases and free the lock."""
        self._ledger.close()
        self._caps.close()
        self._lock.close()

    def _reconcile(self) -> None:
        self._caps.reconcile(time.time())
        if self._uses is None:
            self._uses = self._ledger.last_uses(UNNOTED_SECONDS)
        self._caps.note_uses(self._uses)
        self._uses.clear()
        if self._writer is not None:
            for spec, value in (
                (metrics.LEDGER_LAG, self.collector.lag()),
                (metrics.LEDGER_DAMAGED, self.collector.damaged()),
                (metrics.LEDGER_TORN, self.collector.torn_bytes),
            ):
                self._writer.set(self._writer.cell(spec), value)

    def _chores(self) -> None:
        now = time.time()
        oldest = datetime.fromtimestamp(now, UTC) - timedelta(days=self._log_days)
        for day in self._ledger.drop_days(oldest.strftime("%Y%m%d")):
            _log.info("logs of a day were thrown away", day=day)
        self._ledger.forget_segments(now - REMEMBERED_SECONDS)
        self.collector.tidy()


def billing_month(at: float, closed: frozenset[str]) -> str:
    """The month in which a request is billed: its own, or, when that is closed, the first open one after it."""
    month = month_of(at)
    while month in closed:
        year, number = int(month[:4]), int(month[5:])
        month = f"{year + number // 12}-{number % 12 + 1:02d}"
    return month


def run(lifeline: Lifeline, bootstrap: Bootstrap, shared: SharedSettings, writer: metrics.Writer) -> None:
    """Collect, in the child, until SIGTERM or until the parent is gone; then what workers write last."""
    stop = _Stop(signal.SIGTERM)
    follower = SettingsFollower(shared, "collector")

    def rest(seconds: float) -> None:
        lifeline.beat()
        follower.turn()
        if stop.asked:
            time.sleep(seconds)
            return
        # Readable when the parent is gone; otherwise a short rest.
        gone, _, _ = select.select([lifeline.parent_pipe], [], [], seconds)
        if gone:
            stop.asked = True

    loop = _patiently(lambda: CollectorLoop(bootstrap, writer), rest, stop)
    if loop is None:
        return
    try:
        _until_stopped(loop, rest, stop)
        # Workers have their grace to answer what is under way. What they write later waits for the next start.
        end = time.monotonic() + bootstrap.settings.server.grace_seconds
        while (_careful(loop.turn) or loop.collector.has_writers()) and time.monotonic() < end:
            rest(LAST_SECONDS)
        _careful(loop.finish)
    finally:
        loop.close()


def collect(bootstrap: Bootstrap, *, once: bool = False) -> int:
    """Collect without the service, until stopped or (`once`) until nothing is left; return the rows committed."""
    loop = CollectorLoop(bootstrap)
    try:
        if not once:
            stop = _Stop(signal.SIGTERM, signal.SIGINT)
            _until_stopped(loop, time.sleep, stop)
        while loop.turn():
            pass
        loop.finish()
    except OperationalError as error:
        raise StartError(
            f"The ledger cannot be written: {error.orig}. What is not collected stays in the spool: try again."
        ) from error
    finally:
        loop.close()
    return loop.rows


class _Stop:
    """Whether SIGTERM or SIGINT has come."""

    def __init__(self, *signals: signal.Signals) -> None:
        self.asked = False
        for number in signals:
            signal.signal(number, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True


def _until_stopped(loop: CollectorLoop, rest: Callable[[float], None], stop: _Stop) -> None:
    while not stop.asked:
        _careful(loop.turn)
        rest(0 if loop.is_behind else IDLE_SECONDS)


def _patiently(
    make: Callable[[], CollectorLoop], rest: Callable[[float], None], stop: _Stop
) -> CollectorLoop | None:
    """Wait for a `tollgate collect` that has the spool: what it does is what we would do."""
    told = False
    while not stop.asked:
        try:
            return make()
        except CollectorRuns as error:
            if not told:
                told = True
                _log.warning("another collector is at work; waiting for its end", error=str(error))
        rest(IDLE_SECONDS)
    return None


def _careful(turn: Callable[[], bool]) -> bool:
    """A database that is busy or away is asked again; everything else ends the process, and it is replaced."""
    try:
        return turn()
    except OperationalError as error:
        _log.error("the ledger cannot be written now", error=str(error.orig))
        return False
