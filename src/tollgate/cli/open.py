"""`tollgate open`: a page of the console in the browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tollgate.cli import show
from tollgate.cli.options import for_team
from tollgate.lazy_module import LazyModule

if TYPE_CHECKING:
    import webbrowser

    from tollgate.cli.session import Session
else:
    webbrowser = LazyModule("webbrowser")  # not for help

_OWN = {"account": "/console/account", "operator": "/console/operator", "docs": "/api/v1/docs"}
_OF_TEAM = (
    "overview", "endpoints", "tokens", "domains", "logs", "usage", "invoices", "members", "audit", "settings",
)  # fmt: skip


@click.command("open", epilog="Example: tollgate open logs --team acme")
@click.argument("page", type=click.Choice([*_OF_TEAM, *_OWN]), default="overview", metavar="[PAGE]")
@for_team
def open_(session: Session, page: str) -> None:
    """Open a page of the console in the browser, and print its address.

    PAGE is overview, endpoints, tokens, domains, logs, usage, invoices, members, audit, settings, account,
    operator or docs.
    """
    path = _OWN.get(page) or f"/console/teams/{session.team}" + ("" if page == "overview" else f"/{page}")
    address = session.url + path
    if session.as_json:
        show.as_json({"url": address})
        return
    click.echo(address)
    if show.on_terminal():
        try:
            webbrowser.open(address)
        except (webbrowser.Error, OSError):
            show.note("No browser could be started: open the address yourself.")
