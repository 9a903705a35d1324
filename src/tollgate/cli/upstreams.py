"""`tollgate upstreams`: how the running service finds its upstreams. For the operator, on the data folder.

Owns words and columns; what is shown is what the prober wrote down (`core/upstreams.py`).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import click
import msgspec

from tollgate.cli import show
from tollgate.cli.failures import Failure
from tollgate.core.upstreams import FILE, STALE_SECONDS, Shown, ShownUpstream
from tollgate.settings import file as settings_file

_TITLES = ("network", "upstream", "state", "reason", "head", "behind", "errors", "latency", "breaker")


@click.command(epilog="Example: tollgate upstreams --config /etc/tollgate/tollgate.toml")
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    help="Settings file. Default: $TOLLGATE_CONFIG, or tollgate.toml in this folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def upstreams(config_file: str | None, as_json: bool) -> None:
    """Show which upstreams are in rotation, and why the others are not.

    Errors are those of the last minute. Latency is that of calls in the worker that waits longest, and falls as it
    makes new ones; where there were no calls, that of probes. Exits with 1 where no service runs on the data
    folder.
    """
    settings = settings_file.load(settings_file.find(config_file, os.environ), os.environ).settings
    shown = _read(Path(settings.data_dir))
    if as_json:
        show.as_json(msgspec.to_builtins(shown))
        return
    rows = [
        (network.network, each.name, each.state, each.reason, each.head, each.behind, *_fared(each))
        for network in shown.networks
        for each in network.upstreams
    ]
    show.table(_TITLES, rows)


def _read(data_dir: Path) -> Shown:
    file = data_dir / FILE
    try:
        shown = msgspec.json.decode(file.read_bytes(), type=Shown)
    except FileNotFoundError as error:
        raise Failure(
            f"No service runs on {data_dir}. Start it with `tollgate serve`, or give the settings of the one that "
            "runs with --config, or TOLLGATE_DATA_DIR."
        ) from error
    except OSError as error:
        raise Failure(f"{file} cannot be read: {error.strerror}. Run this as the user of the service.") from error
    except msgspec.DecodeError as error:
        raise Failure(f"{file} was written by another version: use the `tollgate` of the service.") from error
    age = time.time() - shown.at
    if age > STALE_SECONDS:
        raise Failure(
            f"What is written in {file} is {age:.0f} s old: the service has ended, or its prober hangs. "
            "Look at the service's log."
        )
    return shown


def _fared(each: ShownUpstream) -> tuple[str | None, str, str]:
    errors = None if each.error_rate is None else f"{100 * each.error_rate:.1f} %"
    latency = each.probe_ms if each.latency_ms is None else each.latency_ms
    breaker = each.breaker.replace("_", " ")
    return errors, f"{latency:.1f} ms", f"{breaker} ({each.open_workers})" if each.open_workers else breaker
