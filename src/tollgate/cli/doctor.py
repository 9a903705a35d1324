"""`tollgate doctor`: whether what is kept agrees with itself. For the operator, on the data folder; never writes.

Owns words and exit codes; the checks are in `ledger/doctor.py`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from tollgate.cli import show
from tollgate.cli.failures import Failure
from tollgate.ledger.doctor import Check, examine
from tollgate.settings import file as settings_file
from tollgate.store import sqlite
from tollgate.store.ledger_facts import LedgerFacts

# Of each check; the rest is a number.
MAX_SHOWN = 20


@click.command(epilog="Example: tollgate doctor --config /etc/tollgate/tollgate.toml")
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    help="Settings file. Default: $TOLLGATE_CONFIG, or tollgate.toml in this folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(config_file: str | None, as_json: bool) -> None:
    """Compare spool, logs, usage and invoices, and say where they disagree.

    Works beside a running service and changes nothing. Exits with 1 where something disagrees.
    """
    settings = settings_file.load(settings_file.find(config_file, os.environ), os.environ).settings
    checks = _examine(Path(settings.data_dir))
    healthy = all(check.ok for check in checks)
    if as_json:
        show.as_json({"ok": healthy, "checks": [_shown(check) for check in checks]})
    else:
        for check in checks:
            _print(check)
    if not healthy:
        click.get_current_context().exit(1)


def _examine(data_dir: Path) -> list[Check]:
    file = Path(sqlite.ledger_url(data_dir).database or "")
    if not file.exists():
        raise Failure(
            f"There is no ledger in {data_dir}: nothing was ever recorded there. "
            "Give the settings of the service with --config, or TOLLGATE_DATA_DIR."
        )
    ledger = LedgerFacts(file)
    try:
        return examine(data_dir / "spool", ledger, time.time())
    finally:
        ledger.close()


def _shown(check: Check) -> dict[str, object]:
    return {
        "name": check.name,
        "ok": check.ok,
        "looked_at": check.looked_at,
        "differences": list(check.differences),
    }


def _print(check: Check) -> None:
    state = "ok" if check.ok else f"{len(check.differences)} wrong"
    click.echo(show.clean(f"{check.name:<9} {state:<8} {check.looked_at}"))
    for difference in check.differences[:MAX_SHOWN]:
        click.echo(show.clean(f"  {difference}"))
    if len(check.differences) > MAX_SHOWN:
        click.echo(f"  and {len(check.differences) - MAX_SHOWN} more: see --json")
