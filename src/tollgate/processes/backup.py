"""A copy of an installation that can be started elsewhere: databases and spool, taken while it serves.

The pepper is in it only where it lies in the data folder. Keys from the settings are not copied.

What a call is charged must be in the copy exactly once. So segments of the spool are opened first, then the ledger
is copied, then what was opened is read: a record is in the ledger's copy, or in a segment's behind the offset that
the ledger's copy knows, or it is younger than the backup. A segment that was collected in between is recognised by
the restored collector as one that it has seen.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from tollgate import __version__, commit
from tollgate.errors import TollgateError
from tollgate.ledger.segments import DAMAGED_SUFFIX, SUFFIX
from tollgate.processes.bootstrap import PEPPER, PREVIOUS_PEPPER, fingerprint, read_pepper, write_pepper
from tollgate.processes.service_lock import holder
from tollgate.settings.model import Settings
from tollgate.store import sqlite

FORMAT = 1
"""The version of the format."""
MANIFEST = "manifest.json"
CONTROL, LEDGER, SPOOL = "control.db", "ledger.db", "spool"
_PIECE = 1_048_576


class BackupFailed(TollgateError):
    """A backup could not be made or used; the message includes what to do."""


class Manifest(Struct, frozen=True):
    """What a backup consists of."""

    format: int
    version: str
    commit: str
    made_at: float
    pepper: str
    """The fingerprint of the pepper."""
    files: dict[str, str]
    """SHA-256 by relative path."""


def backup(settings: Settings, target: Path, now: float) -> Manifest:
    """Copy an installation into a new or empty folder."""
    source = Path(settings.data_dir)
    control = _control_file(settings)
    if not control.exists():
        raise BackupFailed(f"There is no installation in {source}: nothing to back up. Give its --config.")
    if target.exists() and any(target.iterdir()):
        raise BackupFailed(f"{target} is not empty: give a new folder.")
    os.umask(0o077)
    (target / SPOOL).mkdir(mode=0o700, parents=True, exist_ok=True)
    target.chmod(0o700)
    opened: dict[str, BinaryIO] = {}
    try:
        _open_segments(source / SPOOL, opened)
        ledger = source / LEDGER
        if ledger.exists():
            _copy_database(ledger, target / LEDGER)
        # Segments that were opened since; none of the first may be missing.
        _open_segments(source / SPOOL, opened)
        for name, file in opened.items():
            _write(target / SPOOL / name, file)
    finally:
        for file in opened.values():
            file.close()
    _copy_database(control, target / CONTROL)
    configured = settings.secrets.pepper.encode()
    pepper = configured or read_pepper(source / PEPPER)
    if not configured:
        write_pepper(target / PEPPER, pepper)
    if not configured and (source / PREVIOUS_PEPPER).exists():
        write_pepper(target / PREVIOUS_PEPPER, read_pepper(source / PREVIOUS_PEPPER))
    files = sorted(path for path in target.rglob("*") if path.is_file())
    digests = {str(path.relative_to(target)): _digest(path) for path in files}
    manifest = Manifest(FORMAT, __version__, commit(), now, fingerprint(pepper), digests)
    content = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    _write_with(target / MANIFEST, lambda file: file.write(content))
    verify(target)
    return manifest


def verify(folder: Path) -> Manifest:
    """Check that a backup is whole, and that its databases are sound."""
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except FileNotFoundError as error:
        raise BackupFailed(f"{folder} holds no backup: there is no {MANIFEST}.") from error
    except (OSError, msgspec.DecodeError) as error:
        raise BackupFailed(f"{folder / MANIFEST} cannot be read: {error}.") from error
    if manifest.format != FORMAT:
        raise BackupFailed(
            f"{folder} is a backup of format {manifest.format}, and this version reads format {FORMAT}: "
            f"use Tollgate {manifest.version}, which made it."
        )
    for name, digest in manifest.files.items():
        path = folder / name
        if ".." in Path(name).parts or Path(name).is_absolute():
            raise BackupFailed(f"{folder / MANIFEST} names a file outside of the backup: {name}.")
        if not path.is_file() or _digest(path) != digest:
            raise BackupFailed(f"{path} is missing or was changed: use another backup.")
    for name in (CONTROL, LEDGER):
        if name in manifest.files:
            _check_database(folder / name)
    if PEPPER in manifest.files and fingerprint(read_pepper(folder / PEPPER)) != manifest.pepper:
        raise BackupFailed(f"{folder / PEPPER} is not the pepper of this backup: use another backup.")
    return manifest


def restore(settings: Settings, source: Path) -> Manifest:
    """Put a backup into the data folder of the settings, which must hold no installation."""
    manifest = verify(source)
    target = Path(settings.data_dir)
    configured = settings.secrets.pepper.encode()
    if configured and fingerprint(configured) != manifest.pepper:
        raise BackupFailed("secrets.pepper is not the pepper of this backup: remove it, or set the right one.")
    if not configured and PEPPER not in manifest.files:
        raise BackupFailed(
            "The pepper of this backup came from the settings and is not in it: set secrets.pepper, then restore."
        )
    if target.exists() and holder(target) is not None:
        raise BackupFailed(f"A service runs on {target}: stop it, or give other settings.")
    taken = [name for name in (CONTROL, LEDGER, PEPPER) if (target / name).exists()]
    control = _control_file(settings)
    if taken or control.exists():
        raise BackupFailed(
            f"{target} holds an installation already ({', '.join(taken) or control}): set another data_dir, or "
            "move it away first."
        )
    os.umask(0o077)
    (target / SPOOL).mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in manifest.files:
        to = control if name == CONTROL else target / name
        to.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (source / name).open("rb") as file:
            _write(to, file)
    return manifest


def _control_file(settings: Settings) -> Path:
    configured = settings.store.url
    if configured and not configured.startswith("sqlite:"):
        raise BackupFailed(
            "The store is not SQLite: back it up with the tools of its engine (pg_dump), then copy the folders "
            "`spool` and the file `pepper` of every node's data folder. docs/upgrade.md has the commands."
        )
    return Path(sqlite.store_url(configured, Path(settings.data_dir)).database or "")


def _open_segments(folder: Path, opened: dict[str, BinaryIO]) -> None:
    """Open what is new in the spool: what is open can be read even after the collector has deleted it."""
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            # One that is hidden has no record of an answered call yet.
            if path.suffix in (SUFFIX, DAMAGED_SUFFIX) and path.name not in opened:
                try:
                    opened[path.name] = path.open("rb")
                except FileNotFoundError:
                    continue


def _copy_database(source: Path, target: Path) -> None:
    """Copy a database as it is at one moment, while others write to it."""
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    reading = sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True, timeout=30.0)
    writing = sqlite3.connect(target)
    try:
        reading.backup(writing)
        # One file, without a log beside it.
        writing.execute("PRAGMA journal_mode=DELETE")
    except sqlite3.Error as error:
        raise BackupFailed(f"{source} cannot be copied: {error}.") from error
    finally:
        writing.close()
        reading.close()


def _check_database(path: Path) -> None:
    database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    try:
        (result,) = database.execute("PRAGMA integrity_check(1)").fetchone()
    except sqlite3.Error as error:
        result = str(error)
    finally:
        database.close()
    if result != "ok":
        raise BackupFailed(f"{path} is damaged ({result}): use another backup.")


def _write(target: Path, source: BinaryIO) -> None:
    _write_with(target, lambda file: shutil.copyfileobj(source, file, _PIECE))


def _write_with(target: Path, fill: Callable[[BinaryIO], object]) -> None:
    """Write a file for its owner alone, to the disk."""
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        fill(file)
        file.flush()
        os.fsync(file.fileno())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
