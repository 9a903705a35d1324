"""`tollgate demo`: the whole service on one machine, and a page that shows how to call it."""

from __future__ import annotations

import os
import re
import shutil
import sys

import click
import msgspec

from tollgate import log
from tollgate.demo import run as demo_run
from tollgate.errors import StartError
from tollgate.settings.model import DEFAULT_METRICS_PORT, DEFAULT_PORT
from tollgate.settings.rules import rules_for

_NETWORK = re.compile(r"[a-z0-9-]{1,32}/[a-z0-9-]{1,32}")
_SETTING = re.compile(r"\bserver\.(host|port|metrics_port)\b")


@click.command(epilog="Example: tollgate demo --upstream eth/sepolia=http://127.0.0.1:8545")
@click.option(
    "--port", default=DEFAULT_PORT, show_default=True, type=click.IntRange(0, 65535), help="0 picks a free one."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help=f"Default: {DEFAULT_METRICS_PORT}, or a free one with --port 0.",
)
@click.option(
    "--workers", default=0, type=click.IntRange(0, 256), help="Worker processes. Default: one for each core."
)
@click.option(
    "--data-dir", type=click.Path(file_okay=False), help="Default: a temporary folder, removed at the end."
)
@click.option(
    "--upstream",
    "upstreams",
    multiple=True,
    metavar="FAMILY/NETWORK=URL",
    help="A real node instead of a simulated chain. Can be repeated.",
)
@click.option("--past/--no-past", default=True, help="Fill a new team with two months of invented usage.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON once ready, and nothing else.")
def demo(
    port: int,
    host: str,
    metrics_port: int | None,
    workers: int,
    data_dir: str | None,
    upstreams: tuple[str, ...],
    past: bool,
    as_json: bool,
) -> None:
    """Run the service with a filled team and a SIMULATED chain, without a network."""
    log.configure("warning", "auto")
    given = dict(_upstream(text) for text in upstreams)
    try:
        demo_run.run(
            host=host,
            port=port,
            metrics_port=metrics_port if metrics_port is not None else DEFAULT_METRICS_PORT if port else 0,
            workers=workers,
            data_dir=data_dir,
            upstreams=given,
            past=past,
            on_ready=_print_json if as_json else _print_page,
        )
    except StartError as error:
        raise in_options(error) from error


def in_options(error: StartError) -> StartError:
    """The same error, with the option's name instead of the setting's."""
    message = _SETTING.sub(lambda found: "--" + found[1].replace("_", "-"), str(error))
    return error if message == str(error) else StartError(message)


def _upstream(text: str) -> tuple[str, str]:
    network, separator, url = text.partition("=")
    if not separator or not _NETWORK.fullmatch(network) or not re.match(r"https?://[^/\s]", url):
        raise click.BadParameter(
            f"{text!r} must be FAMILY/NETWORK=URL, such as eth/sepolia=http://127.0.0.1:8545.",
            param_hint="--upstream",
        )
    family, _, name = network.partition("/")
    for _, problem in rules_for(("families", family, name, "upstreams", 0, "url"), url):
        raise click.BadParameter(f"{text!r}: {problem}.", param_hint="--upstream")
    return network, url


def _print_json(running: demo_run.Demo) -> None:
    click.echo(msgspec.json.encode(running).decode())


_PAGE = """
Tollgate runs at {base_url}

  {networks}

With a token:

  curl -s {example} -H 'Content-Type: application/json' \\
    -H 'Authorization: Bearer {token}' \\
    -d '{call}'

From a whitelisted domain (localhost), without a token:

  curl -s {example} -H 'Content-Type: application/json' \\
    -H 'Origin: http://localhost:3000' \\
    -d '{call}'

Console   {console_url}
          {email}, password {password}

From the command line, without logging in:

  export TOLLGATE_URL={base_url} TOLLGATE_TEAM={team}
  export TOLLGATE_TOKEN={management_token}
  {program} rpc tokens list

metrics {metrics_url} | data {data_dir} | pid {pid}
Stop with Ctrl-C.
"""


def _print_page(running: demo_run.Demo) -> None:
    networks = "\n  ".join(
        f"POST {url:<44}"
        + (" (simulated chain: not real money, not real blocks)" if name in running.simulated else "")
        for name, url in running.networks.items()
    )
    click.echo(
        _PAGE.format(
            base_url=running.base_url,
            networks=networks,
            example=running.networks["eth/mainnet"],
            token=running.token,
            call='{"jsonrpc":"2.0","id":1,"method":"eth_blockNumber","params":[]}',
            team=running.team,
            console_url=running.console_url,
            # Its path if the shell would not find it.
            program="tollgate" if shutil.which("tollgate") else os.path.relpath(sys.argv[0]),
            email=running.email,
            password=running.password,
            management_token=running.management_token,
            metrics_url=running.metrics_url,
            data_dir=running.data_dir,
            pid=running.pid,
        )
    )
