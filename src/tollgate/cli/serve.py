"""`tollgate serve`, `tollgate migrate` and `tollgate collect`: settings in, service out."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from tollgate import log
from tollgate.gateway.call.networks import build_networks
from tollgate.processes import collector, preflight, service
from tollgate.processes.bootstrap import migrate_in_child, prepare
from tollgate.settings import file as settings_file
from tollgate.store import engines
from tollgate.store.upgrade import CONTROL, LEDGER

_config_option = click.option(
    "--config",
    "config_file",
    metavar="FILE",
    help="Settings file. Default: $TOLLGATE_CONFIG, or tollgate.toml in this folder.",
)


@click.command(epilog="Example: tollgate serve --config /etc/tollgate/tollgate.toml")
@_config_option
def serve(config_file: str | None) -> None:
    """Run the service until it is stopped (Ctrl-C or SIGTERM)."""
    origin = settings_file.Origin(settings_file.find(config_file, os.environ), dict(os.environ))
    settings = origin.load()
    log.configure(settings.logging.level, settings.logging.format)

    for words in preflight.warnings(settings, time.time()):
        log.get("server").warning(words)
    bootstrap = prepare(settings, origin)
    has_accounts = engines.has_accounts(bootstrap.store_url)

    def ready(where: service.ServiceAddresses) -> None:
        networks = [f"{where.base_url}/x/{network.path}" for network in build_networks(settings)]
        log.get("server").info(
            "ready",
            endpoints=networks,
            console=f"{where.base_url}/console",
            metrics=where.metrics_url,
            pid=os.getpid(),
            data_dir=settings.data_dir,
        )

        if not has_accounts:
            file = f" --config {origin.path}" if origin.path is not None else ""
            log.get("server").warning(
                "there is no account yet, so nobody can log in: make one with "
                f"`tollgate admin create-account EMAIL --team NAME{file}`"
            )

    service.run(bootstrap, on_ready=ready)


@click.command(epilog="Example: tollgate migrate --config /etc/tollgate/tollgate.toml")
@_config_option
def migrate(config_file: str | None) -> None:
    """Bring the databases to this version's schema. `serve` does this by itself."""
    settings = settings_file.load(settings_file.find(config_file, os.environ), os.environ).settings
    log.configure(settings.logging.level, settings.logging.format)
    data_dir = Path(settings.data_dir)
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    databases = (
        (url := engines.store_url(settings.store.url, data_dir), CONTROL),
        (engines.ledger_url(url, data_dir), LEDGER),
    )
    for url, scripts in databases:
        for step in migrate_in_child(url, scripts):
            click.echo(f"done: {step}", err=True)
        click.echo(f"{url.database} is up to date.", err=True)


@click.command(epilog="Example: tollgate collect --once")
@click.option("--once", is_flag=True, help="End when everything that workers left is collected.")
@_config_option
def collect(once: bool, config_file: str | None) -> None:
    """Bring what workers recorded into the ledger, until stopped (Ctrl-C or SIGTERM).

    `serve` does this by itself; this is for a service that is down, so that nothing waits for its return.
    """
    settings = settings_file.load(settings_file.find(config_file, os.environ), os.environ).settings
    log.configure(settings.logging.level, settings.logging.format)
    rows = collector.collect(prepare(settings), once=once)
    click.echo(f"{rows} log rows were committed.", err=True)
