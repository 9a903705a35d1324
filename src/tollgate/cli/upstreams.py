"""`tollgate upstreams`: upstream health in the running service. For the operator, on the data folder.

Owns output and columns; the data is what the prober stored (`core/upstreams.py`).
"""

from __future__ import annotations

import time
from pathlib import Path

import click
import msgspec

from tollgate.api.operator import ShownUpstream
from tollgate.cli import show
from tollgate.cli.failures import Failure
from tollgate.cli.options import config_option, json_option
from tollgate.core.upstreams import FILE, STALE_SECONDS, Shown
from tollgate.settings import file as settings_file

_TITLES = ("network", "upstream", "state", "reason", "head", "behind", "errors", "latency", "breaker", "probes")
_MINUTES_A_MONTH = 43_200


@click.command(epilog="Example: tollgate upstreams --config /etc/tollgate/tollgate.toml")
@config_option
@json_option
def upstreams(config_file: str | None, as_json: bool) -> None:
    """Show which upstreams are in rotation, and why the others are not.

    Errors are those of the last minute. Latency is the highest of all workers and decays with new calls; that of
    probes if there were no calls. Probes are calls per minute. Exits with 1 if no service runs on the data folder.
    """
    settings = settings_file.settings_from(config_file)
    shown = _read(Path(settings.data_dir))
    if as_json:
        show.as_json(msgspec.to_builtins(shown))
        return
    rows = [
        (network.network, each.name, each.state, each.reason, each.head, *_health(each))
        for network in shown.networks
        for each in network.upstreams
    ]
    show.table(_TITLES, rows)
    calls = sum(each.probe_calls for network in shown.networks for each in network.upstreams) * _MINUTES_A_MONTH
    dollars = calls / 1e6 * settings.billing.micros_per_million / 1e6
    show.note(
        f"At the current rate, probing takes about {calls / 1e6:.1f} million calls a month, {dollars:.2f} USD at "
        "this service's own price. Idle upstreams, and those with a ws_url, are probed rarely."
    )


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
            f"{file} is {age:.0f} s old: the service has ended, or its prober hangs. See the service's log."
        )
    return shown


def _health(each: ShownUpstream) -> tuple[int | None, str | None, str | None, str, str | None]:
    errors = None if each.error_rate is None else f"{100 * each.error_rate:.1f} %"
    latency = each.probe_ms if each.latency_ms is None else each.latency_ms
    breaker = each.breaker.replace("_", " ")
    return (
        None if each.head is None else each.behind,
        errors,
        f"{latency:.1f} ms" if latency else None,
        f"{breaker} ({each.open_workers})" if each.open_workers else breaker,
        f"{each.probe_calls:g}" if each.probe_calls else None,
    )
