"""`tollgate rpc networks`: what is served, where, and how it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tollgate.cli.options import logged_in

if TYPE_CHECKING:
    from tollgate.cli.session import Session


@click.command(epilog="Example: tollgate rpc networks")
@logged_in
def networks(session: Session) -> None:
    """List the networks that are served: address, chain id, newest block and state."""
    answer = session.client.networks()
    rows = [(each.network, each.state, each.chain_id, each.head, each.url) for each in answer.value.items]
    session.page(answer, ("NETWORK", "STATE", "CHAIN", "HEAD", "ADDRESS"), rows, empty="No network is served.")
