"""`tollgate invoices`: what a team owes for each month, on the terminal, as JSON and for spreadsheets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tollgate.cli import show
from tollgate.cli.lazy import Group
from tollgate.cli.options import for_team, page_options

if TYPE_CHECKING:
    from tollgate.cli.session import Session


@click.group(cls=Group, epilog="Example: tollgate invoices show 2026-11 --team acme")
def invoices() -> None:
    """What a team owes for each month."""


@invoices.command("list", epilog="Example: tollgate invoices list --team acme")
@page_options
@for_team
def list_(session: Session, limit: int, after: str | None) -> None:
    """List the invoices of a team, newest first. Drafts may still grow."""
    answer = session.client.invoices(session.team, limit, after)
    rows = [
        (each.month, each.number, each.status, f"{each.billable_requests:,}", each.total)
        for each in answer.value.items
    ]
    session.page(answer, ("MONTH", "NUMBER", "STATUS", "BILLABLE", "TOTAL"), rows, empty="No invoices yet.")


@invoices.command("show", epilog="Example: tollgate invoices show 2026-11 --team acme --csv")
@click.argument("month")
@click.option("--csv", "as_csv", is_flag=True, help="Print a table for spreadsheets.")
@for_team
def show_(session: Session, month: str, as_csv: bool) -> None:
    """Show the invoice of a MONTH such as 2026-11, with its lines."""
    if as_csv:
        if session.as_json:
            raise click.UsageError("Give --json or --csv, not both.")
        table = session.client.invoice_csv(session.team, month)
        click.echo(show.clean(table, keep="\r\n"), nl=False)
        return
    answer = session.client.invoice(session.team, month)
    found = answer.value
    session.thing(
        answer.raw,
        [
            ("number", found.number),
            ("team", found.team),
            ("month", found.month),
            ("status", found.status),
            ("issued", found.issued_at),
            ("total", found.total),
        ],
    )
    if session.as_json:
        return
    click.echo()
    show.table(
        ("WHAT", "REQUESTS", "AMOUNT"),
        [
            (line.text, None if line.requests is None else f"{line.requests:,}", line.amount)
            for line in found.lines
        ],
    )
