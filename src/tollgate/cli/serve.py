"""`tollgate serve`, `migrate`, `collect` and `nodes`: settings in, service out."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import click
import msgspec
from sqlalchemy.engine import URL

from tollgate import log
from tollgate.cli import show
from tollgate.cli.failures import Failure
from tollgate.cli.options import config_option, json_option
from tollgate.core.nodes import ALL_ROLES, GONE, Node
from tollgate.core.nodes import CONTROL as CONTROL_ROLE
from tollgate.gateway.call.networks import build_networks
from tollgate.ledger.lock import NAME as LOCK
from tollgate.processes import collector, preflight, service
from tollgate.processes.bootstrap import make_data_dir, migrate_in_child, prepare
from tollgate.processes.service_lock import holder
from tollgate.settings import file as settings_file
from tollgate.settings.mask import secrets_in
from tollgate.store import engines, upgrade
from tollgate.store.base import StoreUnavailable, cause_of
from tollgate.store.move import Move
from tollgate.store.postgresql import is_postgresql
from tollgate.store.upgrade import CONTROL, LEDGER


@click.command(epilog="Example: tollgate serve --config /etc/tollgate/tollgate.toml")
@click.option(
    "--role",
    "roles",
    multiple=True,
    type=click.Choice([*sorted(ALL_ROLES), "all"]),
    help="What this node does; may be repeated. Others need a PostgreSQL store. Default: all.",
)
@config_option
def serve(config_file: str | None, roles: tuple[str, ...]) -> None:
    """Run the service until it is stopped (Ctrl-C or SIGTERM)."""
    origin = settings_file.Origin(settings_file.find(config_file, os.environ), dict(os.environ))
    settings = origin.load()
    log.configure(settings.logging.level, settings.logging.format)
    log.hide(secrets_in(settings).text)

    for message in preflight.warnings(settings, time.time()):
        log.get("server").warning(message)
    bootstrap = prepare(settings, origin)
    has_accounts = engines.has_accounts(bootstrap.store_url)
    given = ALL_ROLES if not roles or "all" in roles else frozenset(roles)

    def ready(where: service.ServiceAddresses) -> None:
        networks = [f"{where.base_url}/x/{network.path}" for network in build_networks(settings)]
        log.get("server").info(
            "ready",
            endpoints=networks,
            **({"console": f"{where.base_url}/console"} if CONTROL_ROLE in given else {}),
            metrics=where.metrics_url,
            pid=os.getpid(),
            data_dir=settings.data_dir,
        )

        if not has_accounts:
            file = f" --config {origin.path}" if origin.path is not None else ""
            log.get("server").warning(
                f"no account exists yet: create one with `tollgate admin create-account EMAIL --team NAME{file}`"
            )

    service.run(bootstrap, on_ready=ready, roles=given)


@click.command(epilog="Example: tollgate migrate --plan")
@click.option("--plan", is_flag=True, help="Show the steps, and change nothing.")
@click.option("--sql", is_flag=True, help="With --plan: also their statements.")
@click.option("--from", "source", metavar="URL", help="Move an installation: its control.db, as sqlite:///PATH.")
@click.option("--to", "target", metavar="URL", help="Where to: postgresql://user:password@host/database.")
@config_option
def migrate(plan: bool, sql: bool, source: str | None, target: str | None, config_file: str | None) -> None:
    """Bring the databases to this version's schema. `serve` does this by itself.

    With --from and --to, move a whole installation from SQLite to PostgreSQL, while no service runs on it. An
    interrupted move continues when it is started again.
    """
    if sql and not plan:
        raise click.UsageError("--sql goes with --plan.")
    if (source is None) != (target is None):
        raise click.UsageError("Give --from and --to together.")
    if source is not None and target is not None:
        _move(source, target)
        return
    settings = settings_file.settings_from(config_file)
    log.configure(settings.logging.level, settings.logging.format)
    log.hide(secrets_in(settings).text)
    data_dir = make_data_dir(settings)
    databases = (
        (url := engines.store_url(settings.store.url, data_dir), CONTROL),
        (engines.ledger_url(url, data_dir), LEDGER),
    )
    for url, scripts in databases:
        if plan:
            _show_plan(url, scripts, sql=sql)
            continue
        for step in migrate_in_child(url, scripts):
            click.echo(f"done: {step}", err=True)
        click.echo(f"{url.database} is up to date.", err=True)


def _show_plan(url: URL, scripts: str, *, sql: bool) -> None:
    if not engines.exists(url):
        click.echo(f"{url.database}: will be created.")
        return
    steps = upgrade.plan(url, scripts)
    click.echo(f"{url.database} ({'ledger' if scripts == LEDGER else 'control data'}): {len(steps) or 'no'} steps")
    for step, statements in steps:
        count = f"{len(statements)} statement{'' if len(statements) == 1 else 's'}"
        click.echo(f"  {step} ({count})")
        for statement in statements if sql else ():
            click.echo(f"    {statement}")


def _move(source: str, target: str) -> None:
    log.configure("warning", "text")
    control, to = (engines.store_url(each, Path()) for each in (source, target))
    if is_postgresql(control) or not is_postgresql(to):
        raise Failure("Move --from sqlite:///path/to/control.db --to postgresql://user:password@host/database.")
    folder = Path(control.database or "").parent
    ledger = engines.ledger_url(control, folder)
    if not engines.exists(control):
        raise Failure(f"There is no {control.database}: give the control.db of the installation.")
    if not engines.exists(ledger):
        # Otherwise an empty one would be created and moved, without logs, usage and invoices.
        raise Failure(f"There is no {ledger.database}: put the ledger.db of the installation there first.")
    if holder(folder) is not None:
        raise Failure(f"A service runs on {folder}: stop it, so that nothing changes while it is moved.")
    for url, scripts in ((control, CONTROL), (ledger, LEDGER), (to, CONTROL), (to, LEDGER)):
        migrate_in_child(url, scripts)
    move = Move(control, to, lambda message: click.echo(message, err=True))
    try:
        move.run()
    except engines.DATABASE_ERRORS as error:
        raise Failure(f"The move was interrupted: {cause_of(error)}. Start it again to continue.") from error
    finally:
        move.close()
    click.echo(
        f"Moved. Next: set store.url to the new address, keep {folder / 'pepper'} (or set secrets.pepper to its "
        "content), then `tollgate serve`. The spool is collected then. Keep the SQLite files until "
        "you have checked the result: they are unchanged.",
        err=True,
    )


@click.command(epilog="Example: tollgate collect --once")
@click.option("--once", is_flag=True, help="Stop when everything that workers left is collected.")
@click.option(
    "--drain", is_flag=True, help="Empty the spool of a node before it is removed; fail if some is left."
)
@config_option
def collect(once: bool, drain: bool, config_file: str | None) -> None:
    """Collect what workers recorded into the ledger, until stopped (Ctrl-C or SIGTERM).

    `serve` does this by itself; use this while the service is stopped.
    """
    settings = settings_file.settings_from(config_file)
    log.configure(settings.logging.level, settings.logging.format)
    log.hide(secrets_in(settings).text)
    bootstrap = prepare(settings)
    rows = collector.collect(bootstrap, once=once or drain, drain=drain)
    click.echo(f"{rows} log rows were committed.", err=True)
    if drain:
        left = sorted(path.name for path in bootstrap.spool_dir.iterdir() if path.name != LOCK)
        if left:
            raise Failure(
                f"{len(left)} files are left in {bootstrap.spool_dir}, such as {left[0]}: a worker still writes, "
                "or a file is damaged. Stop the service; see `tollgate doctor`."
            )
        click.echo(f"Nothing is left in {bootstrap.spool_dir}.", err=True)


@click.command(epilog="Example: tollgate nodes --config /etc/tollgate/tollgate.toml")
@json_option
@config_option
def nodes(as_json: bool, config_file: str | None) -> None:
    """List the nodes that share this store: roles, version, last heartbeat, bytes in the spool."""
    settings = settings_file.settings_from(config_file)
    url = engines.store_url(settings.store.url, Path(settings.data_dir))
    if not is_postgresql(url):
        raise Failure(
            "This store is SQLite, which has one node. Several nodes need a PostgreSQL store: docs/scaling.md."
        )

    async def listed() -> list[Node]:
        store = engines.open_store(url)
        try:
            async with store.reading() as records:
                return await records.nodes.page(1_000)
        finally:
            await store.close()

    try:
        found = asyncio.run(listed())
    except StoreUnavailable as error:
        raise Failure(f"The database {url.database} cannot be reached: try again.") from error
    now = time.time()
    if as_json:
        show.as_json({"items": [{**msgspec.to_builtins(each), "state": each.state(now)} for each in found]})
        return
    titles = ("node", "host", "roles", "version", "state", "seen", "spool")
    rows = [
        (each.id.partition("-")[0], each.name, each.roles, each.version, each.state(now),
         f"{max(0.0, now - each.seen_at):.0f} s ago", f"{each.spool_bytes} B")
        for each in found
    ]  # fmt: skip
    show.table(titles, rows)
    if all(each.state(now) == GONE for each in found):
        show.note("No node is alive: start one with `tollgate serve`." if found else "No node has started yet.")
