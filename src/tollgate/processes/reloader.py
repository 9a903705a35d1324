"""The parent's side of `tollgate reload`: reads the settings again, publishes what may change, reports back.

A small state machine in the parent's loop: it never waits, because children may exit meanwhile. The outcome goes
to `reload.json` in the data folder, for the command to read; no secret may get there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tollgate import log
from tollgate.processes.shared_settings import SettingsTooLarge, SharedSettings, slot_names
from tollgate.settings.changes import SettingsChanges, compare
from tollgate.settings.file import Origin, SettingsError
from tollgate.settings.mask import secrets_in
from tollgate.settings.model import Settings
from tollgate.shm.upstream_status import assign_slots

FILE = "reload.json"
# For all children to have put new settings into effect.
APPLY_SECONDS = 10.0
# Outcomes that are kept for commands that have not read theirs yet.
_EARLIER = 8
_NO_FILE = (
    "this service was started without a settings file, so there is nothing to read again: "
    "stop it, and start it with other settings"
)
_log = log.get("reload")


class ReloadOutcome(Struct, frozen=True, kw_only=True):
    """What came of a reload."""

    asked: int
    """Reloads are counted from the start of the service."""
    generation: int
    """Of the settings that are published."""
    at: float
    ok: bool
    file: str
    changed: tuple[str, ...] = ()
    restart_needed: tuple[str, ...] = ()
    """Keys of settings that differ in the file and are left as they were."""
    error: str = ""


class ReloadRecord(Struct, frozen=True):
    """The contents of the file."""

    started: int = 0
    """The number of the reload that started last. It reads the settings after this is written."""
    outcomes: tuple[ReloadOutcome, ...] = ()
    """The newest first."""


def read_record(data_dir: Path, service: str = "") -> ReloadRecord:
    """Read the file; an empty record where there is none."""
    try:
        return msgspec.json.decode(_file(data_dir, service).read_bytes(), type=ReloadRecord)
    except FileNotFoundError:
        return ReloadRecord()


def _file(data_dir: Path, service: str) -> Path:
    """The file of a service; a folder may have several, of which all but the gateway have a suffix."""
    return data_dir / FILE.replace(".", f"{service}.")


class _Pending(Struct, frozen=True):
    changes: SettingsChanges
    deadline: float


class Reloader:
    """Reads settings again on request."""

    def __init__(
        self,
        origin: Origin | None,
        shared: SharedSettings,
        data_dir: Path,
        *,
        service: str = "",
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._origin = origin
        self._shared = shared
        self._file = _file(data_dir, service)
        self._now = now
        self._wall = wall
        self._requested = False
        self._pending: _Pending | None = None
        self._record = ReloadRecord()

    def forget(self) -> None:
        self._file.unlink(missing_ok=True)

    def request(self) -> None:
        """Request a reload; it starts when the current one has ended."""
        self._requested = True

    def tick(self) -> bool:
        """Advance without waiting; return whether a reload is in progress."""
        try:
            if self._pending is None and self._requested:
                self._requested = False
                self._begin()
            if self._pending is not None:
                self._look(self._pending)
        except Exception:  # noqa: BLE001 - whatever it is, the service continues
            _log.exception("a reload failed")
            self._end(error="it failed for a reason that is in the service's log: report this")
        return self._pending is not None or self._requested

    def _begin(self) -> None:
        self._record = replace(self._record, started=self._record.started + 1)
        # Before the settings are read: a command that comes later than this must not take this outcome for its
        # own.
        self._write()
        try:
            changes = compare(self._shared.current.settings, self._load())
            if changes.changed or self._shared.waiting() or self._shared.failed():
                self._publish(changes.settings)
        except (SettingsError, SettingsTooLarge) as error:
            self._end(error=str(error))
        except ValueError as error:  # no slot of the shared status is left
            self._end(error=f"families: {error}")
        else:
            self._pending = _Pending(changes, self._now() + APPLY_SECONDS)

    def _load(self) -> Settings:
        if self._origin is None or self._origin.path is None:
            raise SettingsError([_NO_FILE])
        return self._origin.load()

    def _publish(self, settings: Settings) -> None:
        before = self._shared.current
        self._shared.publish(settings, assign_slots(before.slots, slot_names(settings)))
        log.hide(secrets_in(settings).text)
        if settings.logging != before.settings.logging:
            log.configure(settings.logging.level, settings.logging.format)

    def _look(self, pending: _Pending) -> None:
        waiting, failed = self._shared.waiting(), self._shared.failed()
        if waiting and self._now() < pending.deadline:
            return
        problems = [f"{name} could not apply it: the reason is in the service's log" for name in failed]
        problems += [f"{name} did not apply it within {APPLY_SECONDS:g} s" for name in waiting]
        if problems:
            problems.append("run `tollgate reload` again; if that does not help, restart the service")
        self._end(pending.changes, error="\n".join(problems))

    def _end(self, changes: SettingsChanges | None = None, *, error: str = "") -> None:
        self._pending = None
        outcome = ReloadOutcome(
            asked=self._record.started,
            generation=self._shared.current.generation,
            at=self._wall(),
            ok=not error,
            file=str(self._origin.path or "") if self._origin else "",
            changed=changes.changed if changes else (),
            restart_needed=changes.restart_needed if changes else (),
            error=error,
        )
        if error:
            _log.error("settings were not reloaded", error=error)
        else:
            _log.info("settings reloaded", changed=outcome.changed, restart_needed=outcome.restart_needed)
        self._record = replace(self._record, outcomes=(outcome, *self._record.outcomes)[:_EARLIER])
        self._write()

    def _write(self) -> None:
        beside = self._file.with_suffix(".new")
        try:
            beside.unlink(missing_ok=True)
            with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(msgspec.json.encode(self._record))
            beside.replace(self._file)
        except OSError as error:
            # The settings are in effect all the same.
            _log.error("the outcome of a reload cannot be written", file=str(self._file), error=error.strerror)
