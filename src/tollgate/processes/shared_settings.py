"""Settings that change while the service runs: from the parent to its children, in memory made before the fork.

The parent alone writes settings (`SharedSettings.publish`). A child looks for new ones (`poll`), applies them, and
writes success or failure into a cell of its own; `SettingsFollower` does all three. Nothing here depends on what a
setting means, and no setting reaches a file: some are secret.
"""

from __future__ import annotations

import mmap
import time
import zlib
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from tollgate import log
from tollgate.errors import StartError
from tollgate.settings.mask import secrets_in
from tollgate.settings.model import Settings
from tollgate.shm.upstream_status import MAX_NETWORKS, MAX_UPSTREAMS, StatusSlots, assign_slots

# Some hundred bytes an upstream, and 256 of those at most: what is larger is a mistake.
MAX_BYTES = 8 * 1024 * 1024
# How often a child looks. One that serves callers waits a little longer, so that the prober has seen upstreams
# that are new.
POLL_SECONDS = 0.05
HEAD_START_SECONDS = 0.2

# Cells of the head. `_SEQUENCE` is odd while the parent writes, and twice the generation otherwise.
_SEQUENCE, _LENGTH, _CHECK, _AT = range(4)
_HEAD_CELLS = 4
# Cells of each follower.
_APPLIED, _FAILED = range(2)
_FOLLOWER_CELLS = 2
_log = log.get("reload")


class _Content(Struct, frozen=True):
    settings: Settings
    slots: StatusSlots


class Fresh(Struct, frozen=True):
    """Settings in force, and the status slots of networks and upstreams."""

    settings: Settings
    slots: StatusSlots
    generation: int = 0
    """How many times they were changed since the start."""


def slots_of(settings: Settings) -> StatusSlots:
    """The status slots of a service that starts; StartError if there are not enough."""
    try:
        return assign_slots(StatusSlots(), slot_names(settings))
    except ValueError as error:
        bounds = f"{MAX_NETWORKS} networks and {MAX_UPSTREAMS} upstreams"
        raise StartError(f"families: more than one service can watch, {bounds}: leave some to another.") from error


def slot_names(settings: Settings) -> dict[str, list[str]]:
    """What needs a status slot: the names of upstreams by the path of their network."""
    return {path: [each.name for each in network.upstreams] for path, network in settings.networks.items()}


class SettingsTooLarge(ValueError):
    """Settings that the memory does not hold."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Content).decode


class SharedSettings:
    """The memory. A process that is forked later begins with the newest settings, in `current`."""

    def __init__(
        self,
        settings: Settings,
        slots: StatusSlots,
        followers: Sequence[str],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.current = Fresh(settings, slots)
        """The newest settings that this process knows of."""
        self._followers = {name: _HEAD_CELLS + _FOLLOWER_CELLS * place for place, name in enumerate(followers)}
        self._now = now
        self._start = 8 * (_HEAD_CELLS + _FOLLOWER_CELLS * len(self._followers))
        # Memory is touched only where something is written.
        self._memory = mmap.mmap(-1, self._start + MAX_BYTES)
        self._cells = memoryview(self._memory)[: self._start].cast("q")
        for cell in self._followers.values():
            self._cells[cell + _FAILED] = -1

    # --- For the parent --------------------------------------------------------------------------------

    def publish(self, settings: Settings, slots: StatusSlots) -> None:
        """Publish settings to all children; after `SettingsTooLarge` nothing has changed."""
        content = _encode(_Content(settings, slots))
        if len(content) > MAX_BYTES:
            raise SettingsTooLarge(
                f"the settings take {len(content)} bytes, and {MAX_BYTES} can be changed in place: "
                "make them smaller, or restart the service."
            )
        _decode(content)  # what children could not read must not get there
        cells = self._cells
        generation = self.current.generation + 1
        cells[_SEQUENCE] = 2 * generation - 1
        self._memory[self._start : self._start + len(content)] = content
        cells[_LENGTH] = len(content)
        cells[_CHECK] = zlib.crc32(content)
        cells[_AT] = int(self._now() * 1000)
        cells[_SEQUENCE] = 2 * generation
        self.current = Fresh(settings, slots, generation)

    def failed(self) -> list[str]:
        """Followers that could not put the newest settings into effect."""
        return [name for name, cell in self._followers.items() if self._is_at(cell + _FAILED)]

    def waiting(self) -> list[str]:
        """Followers that have not reported on the newest settings yet."""
        return [
            name
            for name, cell in self._followers.items()
            if not self._is_at(cell + _APPLIED) and not self._is_at(cell + _FAILED)
        ]

    def _is_at(self, cell: int) -> bool:
        return self._cells[cell] == self.current.generation

    # --- For children ----------------------------------------------------------------------------------

    def poll(self, *, delay: float = 0.0) -> Fresh | None:
        """Settings that are new to this process, once they are this old."""
        cells = self._cells
        sequence = cells[_SEQUENCE]
        # Odd: they are being written, and will be there the next time.
        if sequence % 2 or sequence // 2 == self.current.generation:
            return None
        if delay and self._now() - cells[_AT] / 1000 < delay:
            return None
        length, check = cells[_LENGTH], cells[_CHECK]
        content = self._memory[self._start : self._start + length]
        # The sum as well: not every processor shows the writes of another in their order.
        if zlib.crc32(content) != check or cells[_SEQUENCE] != sequence:
            return None
        found = _decode(content)
        self.current = Fresh(found.settings, found.slots, sequence // 2)
        return self.current

    def applied(self, name: str, generation: int) -> None:
        """Report that these settings are in effect. Processes that are not followers are ignored."""
        if name in self._followers:
            self._cells[self._followers[name] + _APPLIED] = generation

    def refused(self, name: str, generation: int) -> None:
        """Report that these settings could not be applied."""
        if name in self._followers:
            self._cells[self._followers[name] + _FAILED] = generation


class SettingsFollower:
    """A child's side: applies new settings."""

    def __init__(
        self,
        shared: SharedSettings,
        name: str,
        apply: Callable[[Settings, StatusSlots], None] = lambda _settings, _slots: None,
        *,
        delay: float = 0.0,
    ) -> None:
        self._shared = shared
        self._name = name
        self._apply = apply
        self._delay = delay

    def ready(self) -> None:
        """Report `current` as applied: a child that was forked after a change started with it."""
        self._shared.applied(self._name, self._shared.current.generation)

    def tick(self) -> None:
        """Apply new settings, if there are any. A failure is logged and reported, and the child keeps running."""
        before = self._shared.current.settings.logging
        fresh = self._shared.poll(delay=self._delay)
        if fresh is None:
            return
        try:
            log.hide(secrets_in(fresh.settings).text)
            if fresh.settings.logging != before:
                log.configure(fresh.settings.logging.level, fresh.settings.logging.format)
            self._apply(fresh.settings, fresh.slots)
        except Exception:  # noqa: BLE001 - the border of a reload; it is reported to the parent
            _log.exception("new settings could not be put into effect", process=self._name)
            self._shared.refused(self._name, fresh.generation)
        else:
            self._shared.applied(self._name, fresh.generation)
