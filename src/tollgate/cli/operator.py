"""`tollgate operator`: the whole service, for accounts that `tollgate admin operator` has marked. Over the API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tollgate.cli import show
from tollgate.cli.failures import Failure
from tollgate.cli.lazy import Group
from tollgate.cli.options import NoLimit, NumberOrNone, logged_in, page_options

if TYPE_CHECKING:
    from tollgate.cli.session import Session


@click.group(cls=Group, epilog="Example: tollgate operator teams")
def operator() -> None:
    """All teams, processes, upstreams and checks of the service."""


@operator.command(epilog="Example: tollgate operator teams --json")
@page_options
@logged_in
def teams(session: Session, limit: int, after: str | None) -> None:
    """List all teams with what they used this month."""
    from tollgate.core.pricing import dollars  # noqa: PLC0415 - brings msgspec, which help must not

    answer = session.client.operator_teams(limit, after)
    rows = [
        (
            each.name,
            "suspended" if each.suspended_at else "active",
            each.billable_requests,
            dollars(each.cost_micros or 0),
            each.requests_per_second,
        )
        for each in answer.value.items
    ]
    session.page(answer, ("TEAM", "STATE", "BILLABLE", "COST", "A SECOND"), rows, empty="There is no team yet.")


@operator.command("set", epilog="Example: tollgate operator set acme --suspend")
@click.argument("name", metavar="TEAM")
@click.option("--suspend/--lift", default=None, help="Refuse all its calls, or let it call again.")
@click.option("--rps", type=NumberOrNone(), metavar="N|none", help="Requests a second for the whole team.")
@logged_in
def set_terms(session: Session, name: str, suspend: bool | None, rps: int | NoLimit | None) -> None:
    """Suspend a team, or limit its requests a second. Takes effect within a second."""
    body: dict[str, Any] = {}
    if suspend is not None:
        body["suspended"] = suspend
    if rps is not None:
        body["requests_per_second"] = rps if isinstance(rps, int) else None
    if not body:
        raise click.UsageError("Say what to set: --suspend, --lift or --rps.")
    answer = session.client.set_terms(name, body)
    found = answer.value
    session.thing(
        answer.raw,
        [
            ("team", found.name),
            ("suspended", found.suspended_at),
            ("requests a second", found.requests_per_second),
        ],
    )


@operator.command(epilog="Example: tollgate operator processes")
@logged_in
def processes(session: Session) -> None:
    """Show the processes of the service, and how far the collector is behind."""
    answer = session.client.processes()
    found = answer.value
    if session.as_json:
        show.as_json(answer.raw)
        return
    rows = [
        (
            each.name,
            each.pid,
            each.started_at,
            each.restarts,
            f"{each.cpu_seconds:.1f} s",
            f"{each.memory_bytes / 1e6:.0f} MB",
        )
        for each in found.processes
    ]
    show.table(("PROCESS", "PID", "STARTED", "RESTARTS", "CPU", "MEMORY"), rows)
    show.note(f"{found.spool_waiting_bytes:,} bytes in {found.spool_segments} segments wait for the collector.")


@operator.command(epilog="Example: tollgate operator history")
@logged_in
def history(session: Session) -> None:
    """Show how upstreams fared over the last day, by quarters of an hour that had a fault."""
    answer = session.client.upstream_history()
    rows = [
        (each.network, each.upstream, step.start, step.state, step.calls, step.failures, step.behind)
        for each in answer.value.items
        for step in each.steps
        if step.state != "up" or step.failures
    ]
    titles = ("NETWORK", "UPSTREAM", "FROM", "STATE", "CALLS", "FAILED", "BEHIND")
    session.page(answer, titles, rows, empty="No upstream had a fault in the last day.")


@operator.command(epilog="Example: tollgate operator check")
@logged_in
def check(session: Session) -> None:
    """Check that spool, logs, usage and invoices agree; as `tollgate doctor`, from anywhere."""
    answer = session.client.run_checks()
    if session.as_json:
        show.as_json(answer.raw)
    else:
        for each in answer.value.checks:
            click.echo(f"{'ok' if each.ok else 'differs':8} {each.name:10} {each.looked_at}")
            for words in each.differences:
                click.echo(f"{'':8} {show.clean(words)}")
    if not answer.value.ok:
        raise Failure("Something disagrees. `tollgate doctor` on the machine of the service says more.")
