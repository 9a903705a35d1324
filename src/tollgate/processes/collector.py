"""The process of the collector: from the spool of all workers to the ledger, and to the flags of caps.

Under `serve` it is a child that is replaced when it ends (`run`); `tollgate collect` is the same without it.
"""

from __future__ import annotations

import functools
import gc
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain

from sqlalchemy.exc import OperationalError

from tollgate import log
from tollgate.chains.catalogue import Catalogue
from tollgate.core.months import end_of, month_of
from tollgate.core.posting import Posting
from tollgate.errors import StartError
from tollgate.ledger.collector import Collector, CollectorRules
from tollgate.ledger.granting import Granting
from tollgate.ledger.lock import CollectorRuns, Lock
from tollgate.processes.bootstrap import Bootstrap
from tollgate.processes.node import node_id
from tollgate.processes.shared_settings import SettingsFollower, SharedSettings
from tollgate.processes.supervisor import Lifeline
from tollgate.shm import metrics
from tollgate.shm.allowances import Allowances
from tollgate.store import engines
from tollgate.store.caps import Caps
from tollgate.store.ledger import BUSY_MILLISECONDS, open_ledger

# Nothing to read, or little: look again after this.
IDLE_SECONDS = 0.2
# Under load: a commit costs as much as reading hundreds of records, so they had better gather.
COMMIT_SECONDS = 0.5
SOME_ENTRIES, MANY_ENTRIES = 100, 10_000
# Lines of usage that are folded before the minute is over: readers of usage read them one by one.
MANY_LINES = 40_000
# At the end, while workers finish: look again after this.
LAST_SECONDS = 0.02
CAPS_SECONDS = 1.0
# Longer than a file takes to be settled (`ledger/collector.py`).
DRAIN_SECONDS = 10.0
CHORES_SECONDS = 60.0
# Chores between two looks at the spool, unless one slice of them alone takes longer.
SLICE_SECONDS = 0.1
# How long one iteration may take before the supervisor assumes a hang. The slowest is a disk that hangs.
MAX_TURN_SECONDS = 300.0
PULSE_SECONDS = 1.0
# A copy of a segment is recognised for so long.
REMEMBERED_SECONDS = 90 * 86_400.0
# A call that was taken out of an allowance and is not recorded so long after its time is up was lost.
LOST_SECONDS = 30.0
# Uses that a collector may have committed and not noted before it was killed.
UNNOTED_SECONDS = 10.0
_HOUR = 3_600
_log = log.get("collector")


class CollectorLoop:
    """Collects until it is stopped. Holds the lock of the spool: `CollectorRuns` where another process has it."""

    def __init__(
        self,
        bootstrap: Bootstrap,
        writer: metrics.Writer | None = None,
        allowances: Allowances | None = None,
        *,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        settings = bootstrap.settings
        self._lock = Lock(bootstrap.spool_dir)
        self._ledger = open_ledger(bootstrap.ledger_url)
        control = engines.open_control(bootstrap.store_url, BUSY_MILLISECONDS)
        price = settings.billing.price()
        self._caps = Caps(control, self._ledger, price)
        self._granting = None
        if allowances is not None:
            idle = settings.limits.request_seconds + LOST_SECONDS
            self._granting = Granting(allowances, self._ledger, price, node_id(bootstrap.data_dir), idle)
        self._writer = writer
        self._log_days = settings.ledger.log_days
        self._now = now
        self._monotonic = monotonic
        # By family: a network may be new, or gone by now.
        catalogue = functools.cache(Catalogue)
        rules = CollectorRules(
            lambda _: price,
            lambda network, method: catalogue(network.partition("/")[0]).label(method),
            billing_month,
        )
        self.collector = Collector(bootstrap.spool_dir, self._ledger, rules, now)
        self.entries = 0
        """Log entries that were committed."""
        self.pause = IDLE_SECONDS
        """How long to wait before the next iteration."""
        self.is_behind = False
        """Whether so much was there the last time that there is likely more."""
        self._uses: dict[str, float] | None = None
        """Last uses that are not noted yet; None before the first look, at a killed collector's."""
        self._reconcile_at = self._chores_at = 0.0
        self._round: Iterator[None] = iter(())
        """What is left of this minute's chores."""

    def tick(self) -> bool:
        """Collect, then do what else is to be done; whether there was something to collect."""
        started = self._monotonic()
        self.is_behind, self.pause = False, IDLE_SECONDS
        posting = self.collector.step()
        if posting is not None:
            self._note(posting)
        if started >= self._reconcile_at:
            self._reconcile_at = started + CAPS_SECONDS
            self._reconcile()
        self._do_chores()
        self.pause = max(0.0, self.pause - (self._monotonic() - started))
        return posting is not None

    def finish(self) -> bool:
        """Apply caps and last uses of the last entries, before the end."""
        self._reconcile()
        return False

    def close(self) -> None:
        """Close databases and free the lock."""
        self._ledger.close()
        self._caps.close()
        self._lock.close()

    def _note(self, posting: Posting) -> None:
        self.is_behind = posting.entries >= MANY_ENTRIES
        if posting.entries >= SOME_ENTRIES:
            self.pause = 0.0 if self.is_behind else COMMIT_SECONDS
        self.entries += posting.entries
        if self._granting is not None:
            self._granting.recorded(posting.admitted)
        if (uses := self._uses) is not None:
            for key, at in posting.last_used.items():
                if at > uses.get(key, 0.0):
                    uses[key] = at
        if self._writer is not None and posting.entries:
            self._writer.add(self._writer.cell(metrics.LEDGER_ROWS), posting.entries)

    def _reconcile(self) -> None:
        capped = self._caps.reconcile(self._now())
        if self._granting is not None:
            self._granting.tick(capped, self._now())
        if self._uses is None:
            self._uses = self._ledger.last_uses(UNNOTED_SECONDS)
        self._caps.note_uses(self._uses)
        self._uses.clear()
        self._gauge(metrics.LEDGER_LAG, self.collector.lag())
        self._gauge(metrics.LEDGER_DAMAGED, self.collector.damaged())
        self._gauge(metrics.LEDGER_TORN, self.collector.torn_bytes)

    def _gauge(self, spec: metrics.Spec, value: int) -> None:
        if self._writer is not None:
            self._writer.set(self._writer.cell(spec), value)

    # --- Chores --------------------------------------------------------------------------------------------

    def _do_chores(self) -> None:
        """Do some chores, slice by slice, for a short time: collecting comes first."""
        end = self._monotonic() + SLICE_SECONDS
        while self._ledger.join() or self._ledger.fold(MANY_LINES):
            if self._monotonic() >= end:
                return
        if self._monotonic() >= self._chores_at:
            self._chores_at = self._monotonic() + CHORES_SECONDS
            self._round = chain(self._round, self._chores())
        for _ in self._round:
            if self._monotonic() >= end:
                return

    def _chores(self) -> Iterator[None]:
        """One round of them, slice by slice."""
        now = self._now()
        is_doubtful = self._ledger.clock().is_doubtful(now)
        self._ledger.tick(now)
        self._gauge(metrics.LEDGER_CLOCK, int(is_doubtful))
        oldest = datetime.fromtimestamp(now, UTC) - timedelta(days=self._log_days)
        if is_doubtful:
            _log.error("the clock is far beyond what the ledger has seen: no logs are dropped, no month is closed")
        else:
            for day in self._ledger.drop_days(oldest.strftime("%Y%m%d")):
                _log.info("logs of a day were dropped", day=day)
            self._ledger.forget_segments(now - REMEMBERED_SECONDS)
        self.collector.tidy()
        gc.collect()
        yield
        oldest_hour = 0 if is_doubtful else int(oldest.timestamp()) // _HOUR
        for chore in (self._ledger.fold, self._ledger.settle, lambda: self._ledger.sweep(oldest_hour)):
            while chore():
                yield


def billing_month(at: float, closed: frozenset[str]) -> str:
    """The month in which a request is billed: its own, or, when that is closed, the first open one after it."""
    month = month_of(at)
    while month in closed:
        month = month_of(end_of(month))
    return month


def run(
    lifeline: Lifeline,
    bootstrap: Bootstrap,
    shared: SharedSettings,
    writer: metrics.Writer,
    allowances: Allowances | None,
) -> None:
    """Collect, in the child, until SIGTERM or until the parent is gone; then what workers write last."""
    stop = _Stop(signal.SIGTERM)
    follower = SettingsFollower(shared, "collector")
    # What a batch makes is in no circle, and looking for circles costs a tenth of the work: a chore does it.
    gc.freeze()
    gc.disable()
    pulse = Pulse(lifeline.beat)
    pulse.start()

    def rest(seconds: float) -> None:
        pulse.turned()
        follower.tick()
        if stop.requested:
            time.sleep(seconds)
            return
        # Readable when the parent is gone; otherwise a short rest.
        gone, _, _ = select.select([lifeline.parent_pipe], [], [], seconds)
        if gone:
            stop.requested = True

    loop = _once_free(lambda: CollectorLoop(bootstrap, writer, allowances), rest, stop)
    if loop is None:
        return
    try:
        _until_stopped(loop, rest, stop)
        # Workers answer calls in progress within their grace. What they write later is read at the next start.
        end = time.monotonic() + bootstrap.settings.server.grace_seconds
        while (_unless_busy(loop.tick) or loop.collector.has_writers()) and time.monotonic() < end:
            rest(LAST_SECONDS)
        _unless_busy(loop.finish)
    finally:
        loop.close()


def collect(bootstrap: Bootstrap, *, once: bool = False, drain: bool = False) -> int:
    """Collect without the service, until stopped or (`once`) until nothing is left; return the entries committed.

    `drain` also waits until files that have no writer any more are settled, so that they go as well.
    """
    loop = CollectorLoop(bootstrap)
    try:
        if not once:
            stop = _Stop(signal.SIGTERM, signal.SIGINT)
            _until_stopped(loop, time.sleep, stop)
        while loop.tick():
            pass
        end = time.monotonic() + DRAIN_SECONDS
        while drain and loop.collector.has_segments() and time.monotonic() < end:
            time.sleep(IDLE_SECONDS)
            loop.tick()
        loop.collector.tidy()
        loop.finish()
    except OperationalError as error:
        raise StartError(
            f"The ledger cannot be written: {error.orig}. What is not collected stays in the spool: try again."
        ) from error
    finally:
        loop.close()
    return loop.entries


class _Stop:
    """Whether SIGTERM or SIGINT has come."""

    def __init__(self, *signals: signal.Signals) -> None:
        self.requested = False
        for number in signals:
            signal.signal(number, self._request)

    def _request(self, *_: object) -> None:
        self.requested = True


class Pulse(threading.Thread):
    """Heartbeats from a timer: an iteration may take longer than the supervisor waits, but not for ever."""

    def __init__(self, beat: Callable[[], None], monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__(name="pulse", daemon=True)
        self._beat = beat
        self._monotonic = monotonic
        self._turned_at = monotonic()

    def turned(self) -> None:
        self._turned_at = self._monotonic()
        self._beat()

    def run(self) -> None:
        """Beat, for as long as the process lives."""
        while True:
            time.sleep(PULSE_SECONDS)
            self.check()

    def check(self) -> None:
        """Beat, unless an iteration takes too long."""
        if self._monotonic() - self._turned_at < MAX_TURN_SECONDS:
            self._beat()


def _until_stopped(loop: CollectorLoop, rest: Callable[[float], None], stop: _Stop) -> None:
    while not stop.requested:
        _unless_busy(loop.tick)
        rest(loop.pause)


def _once_free(
    make: Callable[[], CollectorLoop], rest: Callable[[float], None], stop: _Stop
) -> CollectorLoop | None:
    """Wait for a `tollgate collect` that has the spool: what it does is what we would do."""
    warned = False
    while not stop.requested:
        try:
            return make()
        except CollectorRuns as error:
            if not warned:
                warned = True
                _log.warning("another collector is at work; waiting for its end", error=str(error))
        rest(IDLE_SECONDS)
    return None


def _unless_busy(tick: Callable[[], bool]) -> bool:
    """A database that is busy or away is retried; everything else ends the process, and it is replaced."""
    try:
        return tick()
    except OperationalError as error:
        _log.error("the ledger cannot be written now", error=str(error.orig))
        return False
