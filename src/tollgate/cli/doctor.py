"""`tollgate doctor`: checks that stored data is consistent. For the operator, on the data folder; never writes.

Owns output and exit codes, and the check of the audit log; all others are in `ledger/doctor.py`.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import click
from sqlalchemy import URL

from tollgate.cli import show
from tollgate.cli.failures import Failure
from tollgate.cli.options import config_option, json_option
from tollgate.control.service_context import MAX_ROWS, every
from tollgate.core.audit_chain import AuditChain, Line, fault_of, is_authentic
from tollgate.core.audit_chain import shown as shown_line
from tollgate.ledger.doctor import Check, examine
from tollgate.processes.bootstrap import known_audit_key
from tollgate.settings import file as settings_file
from tollgate.settings.model import Settings
from tollgate.store import engines
from tollgate.store.base import StoreUnavailable
from tollgate.store.postgresql import is_postgresql

# Differences shown of each check; the rest is counted.
MAX_SHOWN = 20


@click.command(epilog="Example: tollgate doctor --config /etc/tollgate/tollgate.toml")
@config_option
@json_option
def doctor(config_file: str | None, as_json: bool) -> None:
    """Compare spool, logs, usage and invoices, and show where they disagree.

    Works beside a running service and changes nothing. Exits with 1 if something disagrees.
    """
    settings = settings_file.settings_from(config_file)
    checks = _examine(settings)
    healthy = all(check.ok for check in checks)
    if as_json:
        members = ("name", "ok", "looked_at", "differences")
        shown = [{member: getattr(check, member) for member in members} for check in checks]
        show.as_json({"ok": healthy, "checks": shown})
    else:
        for check in checks:
            _print(check)
    if not healthy:
        click.get_current_context().exit(1)


def _examine(settings: Settings) -> list[Check]:
    data_dir = Path(settings.data_dir)
    url = engines.store_url(settings.store.url, data_dir)
    ledger_url = engines.ledger_url(url, data_dir)
    if not engines.exists(ledger_url):
        raise Failure(
            f"There is no ledger in {data_dir}: no call was ever recorded there. "
            "Give the settings of the service with --config, or TOLLGATE_DATA_DIR."
        )
    ledger = engines.open_facts(ledger_url)
    try:
        checks = examine(data_dir / "spool", ledger, time.time(), is_shared=is_postgresql(url))
    finally:
        ledger.close()
    if not engines.exists(url):
        return checks
    return [*checks, asyncio.run(_check_audit(url, known_audit_key(settings, data_dir, url)))]


async def _check_audit(url: URL, key: bytes | None) -> Check:
    """Check the chains of the audit log and the codes of their entries, from the oldest stored to the newest."""
    store, wrong, looked_at = engines.open_store(url), list[str](), 0
    chains: list[AuditChain] = []
    try:
        async with store.reading() as records:
            chains = [chain async for chain in every(records.audit_chains, AuditChain)]
        for chain in chains:
            before: Line | None = None
            place = 0
            while place < chain.count:
                # A transaction per page: none lasts as long as a large log takes.
                async with store.reading() as records:
                    page = await records.audit.numbered(place, MAX_ROWS, chain=chain.id)
                if not page:
                    break
                for entry in page:
                    line = shown_line(entry)
                    fault = fault_of(line, before)
                    if not fault and key is not None and not is_authentic(entry, key):
                        fault = f"entry {entry.number}: it was not written by this service"
                    wrong += [f"{chain.id} {fault}"] if fault else []
                    before = line
                place, looked_at = page[-1].number, looked_at + len(page)
            if before is not None and place < chain.count:
                wrong.append(
                    f"{chain.id} entry {chain.count}: the newest entries are missing, {place} is the last"
                )
    except StoreUnavailable:
        wrong.append("the database cannot be read, or is of an older version: run `tollgate migrate`")
    finally:
        await store.close()
    unchecked = ", their authors not checked: the pepper is not here" if key is None else ""
    return Check("audit", f"{looked_at} entries in {len(chains)} chains{unchecked}", tuple(wrong))


def _print(check: Check) -> None:
    state = "ok" if check.ok else f"{len(check.differences)} wrong"
    click.echo(show.clean(f"{check.name:<9} {state:<8} {check.looked_at}"))
    for difference in check.differences[:MAX_SHOWN]:
        click.echo(show.clean(f"  {difference}"))
    if len(check.differences) > MAX_SHOWN:
        click.echo(f"  and {len(check.differences) - MAX_SHOWN} more: see --json")
