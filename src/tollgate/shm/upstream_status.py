"""What is known of upstreams, in memory that all processes of the machine share.

The prober writes heads, finality, reorganisations, and the state of each upstream. A worker writes its own
columns: the highest block that it has returned to callers, and the results of its own calls; and the head of an
upstream where it has seen a higher one than the prober, whose next probe overwrites that. All processes read
everything. So there is no lock that a killed process could hold; a cell is one number, written whole. After each
change of a network or its upstreams its epoch changes: who has read them need not look again before that.

Slots are assigned by name, by the parent (`assign_slots`): a slot keeps its name while the service runs, so that a
reload moves nothing. Memory only: nothing here decides.
"""

from __future__ import annotations

import mmap
import random
import struct
import time
from collections.abc import Callable

from msgspec import Struct

# With `as`: the gateway's modules still import them from here.
from tollgate.core.health import NOTHING as NOTHING  # noqa: PLC0414
from tollgate.core.health import State as State  # noqa: PLC0414

MAX_NETWORKS, MAX_UPSTREAMS = 64, 256
# Reorganisations that a worker may miss and still know how deep they went.
_REMEMBERED = 16
_NETWORK_CELLS = 8 + _REMEMBERED
_NETWORK_COLUMN = 4
_UPSTREAM_CELLS = 2
_UPSTREAM_COLUMN = 8
# What the prober has published is used for this long.
SILENCE_SECONDS = 10.0
_SILENCE_MILLIS = SILENCE_SECONDS * 1000
Stamp = tuple[int, int, int, int]
"""Version of a network, count of its reorganisations, head, finalised block; NOTHING while the prober is mute."""


class StatusSlots(Struct, frozen=True):
    """The slots of networks, by path, and of upstreams, by path and name."""

    networks: dict[str, int] = {}
    upstreams: dict[str, int] = {}
    """`family/network/name` -> slot."""


def assign_slots(before: StatusSlots, names: dict[str, list[str]]) -> StatusSlots:
    """Assign slots to networks and upstreams; those that have one keep it. ValueError where there are too many."""
    networks, upstreams = dict(before.networks), dict(before.upstreams)
    for path, members in names.items():
        _claim(networks, path, MAX_NETWORKS)
        for name in members:
            _claim(upstreams, f"{path}/{name}", MAX_UPSTREAMS)
    return StatusSlots(networks, upstreams)


def _claim(slots: dict[str, int], name: str, max_slots: int) -> None:
    if name not in slots:
        if len(slots) >= max_slots:
            raise ValueError(f"More than {max_slots} networks or upstreams since the start: restart the service.")
        slots[name] = len(slots)


class SharedStatus:
    """The shared memory. Made before the processes are forked."""

    def __init__(self, workers: int, now: Callable[[], float] = time.monotonic) -> None:
        self.workers = workers
        self._now = now
        self._network_size = _NETWORK_CELLS + workers * _NETWORK_COLUMN
        self._upstream_size = _UPSTREAM_CELLS + workers * _UPSTREAM_COLUMN
        size = MAX_NETWORKS * self._network_size + MAX_UPSTREAMS * self._upstream_size
        memory = memoryview(mmap.mmap(-1, 8 * (size + MAX_NETWORKS)))
        self._cells = memory[: 8 * size].cast("q")
        self._epochs = memory[8 * size :].cast("d")

    def network(self, slot: int, worker: int = 0) -> NetworkStatus:
        start, end = slot * self._network_size, (slot + 1) * self._network_size
        return NetworkStatus(
            self._cells[start:end], self._epochs[slot : slot + 1], self.workers, worker, self._now
        )

    def upstream(self, slot: int, worker: int = 0, *, network: int = 0) -> UpstreamStatus:
        """An upstream's status, as one worker sees it, with the slot of its network."""
        start = MAX_NETWORKS * self._network_size + slot * self._upstream_size
        cells, epoch = self._cells[start : start + self._upstream_size], self._epochs[network : network + 1]
        return UpstreamStatus(cells, epoch, self.workers, worker)


def _change(epoch: memoryview[float]) -> None:
    """Begin another epoch, after what has changed is written. At random: two at once must not write the same."""
    epoch[0] = random.random()


# Cells of a network's status.
_VERSION, _HEAD, _FINALIZED, _REORGS, _PULSE = range(5)
# All of these at once.
_first_cells = struct.Struct("=5q").unpack_from
# Cells of a worker's column in it.
_PROBE_REQUESTS, _SEEN, _SEEN_REORGS, _ACTIVE_AT = range(4)


class Snapshot(Struct, frozen=True, gc=False):
    """A network's status at one look."""

    stamp: Stamp
    version: int
    reorgs: int
    head: int
    floor: int
    believed_until: float
    """By the monotonic clock: what the prober wrote is not believed after this."""


class NetworkStatus:
    """What is known of a network. `NOTHING` is a number that is not known."""

    def __init__(
        self,
        cells: memoryview[int],
        epoch: memoryview[float],
        workers: int,
        worker: int,
        now: Callable[[], float],
    ) -> None:
        self._cells = cells
        self.epoch = epoch
        """Changes with the network and its upstreams. To be read before them."""
        self._columns = range(_NETWORK_CELLS, _NETWORK_CELLS + workers * _NETWORK_COLUMN, _NETWORK_COLUMN)
        self._mine = _NETWORK_CELLS + worker * _NETWORK_COLUMN
        self._probe_requests = cells[_NETWORK_CELLS + _PROBE_REQUESTS :: _NETWORK_COLUMN]
        self._alone = workers == 1
        self._now = now

    # --- For workers -----------------------------------------------------------------------------------

    @property
    def is_fresh(self) -> bool:
        """Whether the prober has seen the network's head lately."""
        pulse = self._cells[_PULSE]
        return pulse != 0 and self._now() * 1000 - pulse < _SILENCE_MILLIS

    @property
    def head_age(self) -> float:
        """Seconds since the prober has seen the network's head."""
        return max(0.0, self._now() - self._cells[_PULSE] / 1000)

    @property
    def version(self) -> int:
        """Another one for each new head, seen by the prober or by a worker, and after each transaction of ours.

        What holds for a tip holds for one of them.
        """
        return self._cells[_VERSION] + sum(self._probe_requests)

    @property
    def stamp(self) -> Stamp:
        """What is known now, to be noted before a call is sent: how long its answer holds depends on it."""
        # Before the rest: a reorganisation that is published meanwhile is then one that came after the call.
        probe_requests = self._cells[self._mine] if self._alone else sum(self._probe_requests)
        version, head, finalized, reorgs, pulse = _first_cells(self._cells)
        if pulse == 0 or self._now() * 1000 - pulse >= _SILENCE_MILLIS:
            return version + probe_requests, reorgs, NOTHING, NOTHING
        return version + probe_requests, reorgs, head - 1, finalized - 1

    def snapshot(self) -> Snapshot:
        """What is known now, as if the prober had written just now."""
        probe_requests = self._cells[self._mine] if self._alone else sum(self._probe_requests)
        version, head, finalized, reorgs, pulse = _first_cells(self._cells)
        until = pulse / 1000 + SILENCE_SECONDS if pulse else 0.0
        version, head = version + probe_requests, head - 1
        stamp = (version, reorgs, head, finalized - 1)
        return Snapshot(stamp, version, reorgs, head, max(head, self.shown), until)

    @property
    def head(self) -> int:
        """The number of the highest block that an upstream in rotation has."""
        return self._cells[_HEAD] - 1

    @property
    def finalized(self) -> int:
        """The number of the newest block that will not change any more."""
        return self._cells[_FINALIZED] - 1

    @property
    def reorgs(self) -> int:
        return self._cells[_REORGS]

    def ancestor(self, reorgs: int) -> int:
        """The newest block that all reorganisations since this count have left in place; NOTHING: not known."""
        cells = self._cells
        count = cells[_REORGS]
        if count == reorgs:
            return 1 << 62
        # One fewer than there are places: the oldest may be being written over just now.
        if count - reorgs >= _REMEMBERED:
            return NOTHING
        return min(cells[8 + number % _REMEMBERED] for number in range(reorgs + 1, count + 1))

    @property
    def shown(self) -> int:
        """The highest block that a caller was shown, by whichever worker, since the last reorganisation."""
        cells = self._cells
        reorgs = cells[_REORGS]
        return (
            max([cells[each + _SEEN] for each in self._columns if cells[each + _SEEN_REORGS] == reorgs] or [0]) - 1
        )

    @property
    def floor(self) -> int:
        """The highest block that callers may have seen, from any worker: no tip below it is returned."""
        return max(self.head, self.shown)

    def observe_head(self, number: int) -> None:
        """Note that a caller was shown that this block is there. Where that is news, tips have changed."""
        cells, mine = self._cells, self._mine
        reorgs = cells[_REORGS]
        if cells[mine + _SEEN_REORGS] != reorgs:
            cells[mine + _SEEN] = 0
            cells[mine + _SEEN_REORGS] = reorgs
        if number >= cells[mine + _SEEN]:
            if number > self.floor:
                self.request_probe()
            cells[mine + _SEEN] = number + 1
            _change(self.epoch)

    def request_probe(self) -> None:
        """Note that what was read of the tip may have changed: a transaction was sent, or a block was seen."""
        self._cells[self._mine + _PROBE_REQUESTS] += 1
        _change(self.epoch)

    def mark_active(self) -> None:
        """Note that there are callers or subscribers for whom the head must be fresh. Once a second is enough."""
        self._cells[self._mine + _ACTIVE_AT] = int(self._now() * 1000) or 1

    # --- For the prober --------------------------------------------------------------------------------

    @property
    def active_at(self) -> float:
        """When workers last had callers or subscribers; 0: never."""
        return max(self._cells[each + _ACTIVE_AT] for each in self._columns) / 1000

    def forget_tip(self) -> None:
        """Expire what was read of the tip: no process checks it any more."""
        self._cells[_VERSION] += 1
        _change(self.epoch)

    @property
    def probe_requests(self) -> int:
        """How often workers had a reason to look again at once: a transaction sent, a block seen."""
        return sum(self._probe_requests)

    @property
    def seen(self) -> int:
        """The highest block that workers have shown to callers, where it is above the head; NOTHING otherwise."""
        shown = self.shown
        return shown if shown > self.head else NOTHING

    def publish(self, head: int, finalized: int, *, changed: bool) -> None:
        """Publish the network's head and finality; `changed`: this head is another block than the last."""
        cells = self._cells
        cells[_HEAD] = head + 1
        cells[_FINALIZED] = finalized + 1
        if changed:
            cells[_VERSION] += 1
        self.pulse()

    def pulse(self) -> None:
        """Record that the network's head was seen just now."""
        self._cells[_PULSE] = int(self._now() * 1000) or 1
        _change(self.epoch)

    def publish_reorg(self, ancestor: int) -> None:
        """Record that blocks above this one were replaced. Before the new head is published."""
        cells = self._cells
        count = cells[_REORGS] + 1
        cells[8 + count % _REMEMBERED] = ancestor
        cells[_REORGS] = count
        cells[_VERSION] += 1
        _change(self.epoch)


# Cells of an upstream's status.
_STATE, _UP_HEAD = range(2)
# Cells of a worker's column in it.
_CALLS, _FAILURES, _EWMA, _OPEN_UNTIL, _IN_FLIGHT, _P95 = range(6)


class WorkerStats(Struct, frozen=True):
    """Statistics of one worker's calls to an upstream."""

    calls: int
    failures: int
    ewma_micros: int
    p95_micros: int
    open_until: float
    """The circuit breaker is open until then, by the monotonic clock; 0: closed."""
    in_flight: int


class UpstreamStatus:
    """What is known of an upstream."""

    def __init__(self, cells: memoryview[int], epoch: memoryview[float], workers: int, worker: int) -> None:
        self._cells = cells
        self._epoch = epoch
        """Its network's."""
        self._workers = workers
        self._mine = _UPSTREAM_CELLS + worker * _UPSTREAM_COLUMN

    @property
    def state(self) -> int:
        """A `State`, as the integer it is."""
        return self._cells[_STATE]

    @property
    def head(self) -> int:
        """The number of its newest block; NOTHING: not known."""
        return self._cells[_UP_HEAD] - 1

    def observe_head(self, number: int) -> None:
        """Note that it has shown us this block: it may be ahead of the last probe."""
        if number >= self._cells[_UP_HEAD]:
            self._cells[_UP_HEAD] = number + 1
            _change(self._epoch)

    def report(self, stats: WorkerStats) -> None:
        """Publish, once a second, the statistics of our calls."""
        cells, mine = self._cells, self._mine
        cells[mine + _CALLS] = stats.calls
        cells[mine + _FAILURES] = stats.failures
        cells[mine + _EWMA] = stats.ewma_micros
        cells[mine + _P95] = stats.p95_micros
        cells[mine + _OPEN_UNTIL] = int(stats.open_until * 1000)
        cells[mine + _IN_FLIGHT] = stats.in_flight

    # --- For the prober --------------------------------------------------------------------------------

    def publish(self, state: State, head: int) -> None:
        self._cells[_UP_HEAD] = head + 1
        self._cells[_STATE] = state
        _change(self._epoch)

    def worker_stats(self) -> list[WorkerStats]:
        cells = self._cells
        return [
            WorkerStats(
                cells[column + _CALLS],
                cells[column + _FAILURES],
                cells[column + _EWMA],
                cells[column + _P95],
                cells[column + _OPEN_UNTIL] / 1000,
                cells[column + _IN_FLIGHT],
            )
            for column in range(
                _UPSTREAM_CELLS, _UPSTREAM_CELLS + self._workers * _UPSTREAM_COLUMN, _UPSTREAM_COLUMN
            )
        ]
