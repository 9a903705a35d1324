"""`tollgate rpc call`, `rpc networks`, `tollgate api`: one call to a network, the networks, one API request."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from tollgate.cli import show
from tollgate.cli.failures import Failure, WrongUsage
from tollgate.cli.options import complete_networks, for_team, logged_in
from tollgate.lazy_module import LazyModule

if TYPE_CHECKING:
    import json

    from tollgate.api import service as service_api
    from tollgate.api import tokens
    from tollgate.cli import transport as transports
    from tollgate.cli.session import Session
else:
    # Not for help.
    json, transports = LazyModule("json"), LazyModule("tollgate.cli.transport")
    service_api, tokens = LazyModule("tollgate.api.service"), LazyModule("tollgate.api.tokens")


@click.command(epilog="Example: tollgate rpc call eth/mainnet eth_blockNumber")
@click.argument("network", shell_complete=complete_networks)
@click.argument("method")
@click.argument("params", nargs=-1)
@click.option("--token", envvar="TOLLGATE_RPC_TOKEN", help="API token (tg_…). Default: one of your account.")
@for_team
def call(session: Session, network: str, method: str, params: tuple[str, ...], token: str | None) -> None:
    """Call METHOD of a NETWORK; PARAMS are JSON, or plain strings.

    Prints the result, its duration and the upstream that answered. Exits with 1 for an error.
    """
    if token is None:
        token = session.client.call(tokens.PLAYGROUND, session.team).value.secret
    with transports.Transport(session.url) as transport:
        values = [_value(text) for text in params]
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": values}).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        started = time.monotonic()
        reply = transport.send("POST", f"/x/{network}", headers=headers, body=body)
        took = time.monotonic() - started
    try:
        answer = json.loads(reply.body)
    except ValueError as error:
        raise Failure(f"HTTP {reply.status} without JSON: is {session.url} a Tollgate?") from error
    if not isinstance(answer, dict):
        raise Failure(f"HTTP {reply.status} without a JSON-RPC response: is {session.url} a Tollgate?")
    failed = "error" in answer
    show.as_json(answer if session.as_json else answer.get("error" if failed else "result"))
    where = [f"{1_000 * took:.1f} ms", f"HTTP {reply.status}"]
    headers = {"cache": "x-tollgate-cache", "upstream": "x-tollgate-upstream", "request": "x-request-id"}
    where += [f"{name} {reply.headers[header]}" for name, header in headers.items() if reply.headers.get(header)]
    show.note(", ".join(where))
    if failed:
        click.get_current_context().exit(1)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@click.command(epilog="Example: tollgate api GET teams/acme/tokens")
@click.argument("method", type=click.Choice(["GET", "POST", "PATCH", "PUT", "DELETE"], case_sensitive=False))
@click.argument("path")
@click.option("--data", metavar="JSON", help="Body of the request; - reads standard input.")
@logged_in
def api(session: Session, method: str, path: str, data: str | None) -> None:
    """Send a request to the management API, and print its answer.

    PATH is what follows /api/v1. Exits with 1 for an error, 3 for not found, 5 for not allowed.
    """
    body = None
    if data is not None:
        try:
            body = json.loads(sys.stdin.read() if data == "-" else data)
        except ValueError as error:
            raise WrongUsage(f"--data is not JSON: {error}") from error
    target = "/api/v1/" + path.removeprefix("/").removeprefix("api/v1/")
    if any(character in target for character in " \r\n#"):
        raise WrongUsage("PATH has a character that must be percent-encoded.")
    reply = session.client.raw(method.upper(), target, body)
    text = reply.body.decode("utf-8", "replace")
    if "json" in reply.headers.get("content-type", ""):
        show.as_json(json.loads(text))
    elif text:
        click.echo(show.clean(text, keep="\n\t"))
    if reply.status >= 400:
        show.note(f"HTTP {reply.status}")
        click.get_current_context().exit({404: 3, 401: 4, 403: 5}.get(reply.status, 1))


@click.command(epilog="Example: tollgate rpc networks")
@logged_in
def networks(session: Session) -> None:
    """List the networks that are served: address, chain id, newest block and state."""
    answer = session.client.call(service_api.NETWORKS)
    rows = [(each.network, each.state, each.chain_id, each.head, each.url) for each in answer.value.items]
    session.page(answer, ("NETWORK", "STATE", "CHAIN", "HEAD", "ADDRESS"), rows, empty="No network is served.")
