"""`tollgate collect`: the collector alone, for an operator, on the data folder. `serve` brings its own."""

from __future__ import annotations

import os

import click

from tollgate import log
from tollgate.processes import collector
from tollgate.processes.bootstrap import prepare
from tollgate.settings import file as settings_file


@click.command(epilog="Example: tollgate collect --once")
@click.option("--once", is_flag=True, help="End when everything that workers left is collected.")
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    help="Settings file. Default: $TOLLGATE_CONFIG, or tollgate.toml in this folder.",
)
def collect(once: bool, config_file: str | None) -> None:
    """Bring what workers recorded into the ledger, until told to stop (Ctrl-C or SIGTERM).

    `serve` does this by itself; this is for a service that is down, so that nothing waits for its return.
    """
    settings = settings_file.load(settings_file.find(config_file, os.environ), os.environ).settings
    log.configure(settings.logging.level, settings.logging.format)
    rows = collector.collect(prepare(settings), once=once)
    click.echo(f"{rows} log rows were committed.", err=True)
