"""`tollgate backup` and `tollgate restore`: output and exit codes; the copying is `processes/backup.py`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from tollgate.cli import show
from tollgate.cli.options import config_option, json_option
from tollgate.processes import backup as backups
from tollgate.settings.file import settings_from

_folder = click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))


@click.command(epilog="Example: tollgate backup /var/backups/tollgate/2026-11-15")
@_folder
@json_option
@config_option
def backup(folder: Path, as_json: bool, config_file: str | None) -> None:
    """Copy databases, spool and pepper into a new folder, while the service runs.

    The copy is checked. It contains the pepper, with which guesses at tokens can be checked. Settings files are
    not part of it.
    """
    made = backups.backup(settings_from(config_file), folder, time.time())
    _show(folder, made, as_json=as_json)
    show.note(f"Backed up to {folder}, and checked. Keep it where only you can read it: it contains the pepper.")


@click.command(epilog="Example: tollgate restore /var/backups/tollgate/2026-11-15")
@_folder
@json_option
@config_option
def restore(folder: Path, as_json: bool, config_file: str | None) -> None:
    """Put a backup into the data folder of the settings, which must be empty.

    Checks the backup first. `tollgate serve` brings an older one to this version's schema.
    """
    settings = settings_from(config_file)
    made = backups.restore(settings, folder)
    _show(folder, made, as_json=as_json)
    show.note(f"Restored into {settings.data_dir}. Next: tollgate doctor, then tollgate serve")


def _show(folder: Path, made: backups.Manifest, *, as_json: bool) -> None:
    shown = {"folder": str(folder), "version": made.version, "made_at": made.made_at, "files": len(made.files)}
    if as_json:
        show.as_json(shown)
