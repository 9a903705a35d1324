"""`tollgate audit`: who changed what in a team."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tollgate.cli.options import for_team, page_options

if TYPE_CHECKING:
    from tollgate.cli.session import Session


@click.command(epilog="Example: tollgate audit --team acme --limit 20")
@page_options
@for_team
def audit(session: Session, limit: int, after: str | None) -> None:
    """Show who changed what in a team, newest first. For owners and admins."""
    answer = session.client.audit(session.team, limit, after)
    rows = [
        (entry.at, entry.actor, entry.action, entry.target, entry.name, entry.via, entry.address)
        for entry in answer.value.items
    ]
    session.page(
        answer,
        ("TIME", "WHO", "ACTION", "TARGET", "NAME", "VIA", "ADDRESS"),
        rows,
        empty="Nothing has been changed yet.",
    )
