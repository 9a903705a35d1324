"""`tollgate config`: check the settings, and show them with where each came from.

Owns the output and exit codes of these two commands. Rules of settings are in `settings/check.py`, masks in
`settings/mask.py`; no value may be printed unmasked.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any, NoReturn

import click

from tollgate.lazy_module import LazyModule
from tollgate.settings.file import Loaded, SettingsError, find, load, require_networks
from tollgate.settings.mask import effective

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tollgate.cli import upstream_checks
    from tollgate.processes import preflight
else:
    # Not for `config show`.
    preflight = LazyModule("tollgate.processes.preflight")
    upstream_checks = LazyModule("tollgate.cli.upstream_checks")

# Longer values do not widen the column.
_MAX_ALIGNED = 60

_file_option = click.option(
    "--config",
    "file",
    metavar="FILE",
    help="Settings file. Default: $TOLLGATE_CONFIG, else ./tollgate.toml if there is one.",
)


@click.group()
def config() -> None:
    """Check and show the settings of the service."""


@config.command()
@_file_option
@click.option("--online", is_flag=True, help="Also query every upstream for its chain id, head and methods.")
def check(file: str | None, online: bool) -> None:
    """Show what is wrong with the settings, or which networks they serve.

    Exits with 1 if `tollgate serve` would refuse them: also for unreadable files, ports in use and a data folder
    that is not writable. With --online also if an upstream cannot be used.

    Example: tollgate config check --online --config /etc/tollgate/tollgate.toml
    """
    path, loaded = _load(file)
    settings = loaded.settings
    try:
        require_networks(settings)
    except SettingsError as error:
        _fail(error.problems)
    problems = preflight.problems(settings)
    for warning in preflight.warnings(settings, time.time()):
        click.echo(f"warning: {warning}", err=True)
    if online:
        problems += upstream_checks.try_all(settings)
    if problems:
        _fail(problems)
    click.echo(f"{path or 'The environment'} is fine; networks served: {', '.join(settings.networks)}")


@config.command()
@_file_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: key to value and source.")
def show(file: str | None, as_json: bool) -> None:
    """List every setting in effect and where it came from, secrets masked.

    Example: tollgate config show | grep server
    """
    _, loaded = _load(file)
    values = effective(loaded.settings)
    if as_json:
        rows = {key: {"value": value, "source": loaded.sources[key]} for key, value in values.items()}
        click.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    click.echo(_aligned(values, loaded.sources))


def _aligned(values: dict[str, Any], sources: dict[str, str]) -> str:
    rows = [(key, json.dumps(value, ensure_ascii=False), sources[key]) for key, value in values.items()]
    key_width = max(len(key) for key, _, _ in rows)
    value_width = max(len(value) for _, value, _ in rows if len(value) <= _MAX_ALIGNED)
    return "\n".join(f"{key:{key_width}}  {value:{value_width}}  {source}" for key, value, source in rows)


def _load(file: str | None) -> tuple[Path | None, Loaded]:
    path = find(file, os.environ)
    try:
        return path, load(path, os.environ)
    except SettingsError as error:
        _fail(error.problems)


def _fail(problems: Iterable[str]) -> NoReturn:
    for problem in problems:
        click.echo(problem, err=True)
    raise SystemExit(1)
