"""`tollgate reload`: makes the services of a data folder read their settings again, and shows the result.

For the operator, on the machine of the service, as its user. Owns output and exit codes; the service itself reads
and checks the settings, because its environment may differ.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import click
import msgspec

from tollgate.cli import show
from tollgate.cli.failures import Failure
from tollgate.cli.options import json_option
from tollgate.processes.reloader import ReloadOutcome, read_record
from tollgate.processes.service_lock import Holder, holders
from tollgate.settings import file as settings_file

# For a reload to start, which waits for one in progress; and again for its result.
WAIT_SECONDS = 15.0
_POLL_SECONDS = 0.05


class NotRunning(Failure):
    """No service has this data folder."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(
            f"No Tollgate runs on {data_dir}. Name the settings of the one that runs with --config, or its folder "
            "with TOLLGATE_DATA_DIR. If you have changed data_dir: that needs a restart."
        )


@click.command(epilog="Example: tollgate reload --config /etc/tollgate/tollgate.toml")
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    help="Settings file, which names the data folder. Default: as for `serve`.",
)
@json_option
def reload(config_file: str | None, as_json: bool) -> None:
    """Apply changed settings to the running service, without a restart.

    Upstreams and networks, [limits], [cache], [health], [websocket] and logging.level take effect immediately;
    calls in progress and WebSockets continue. Other changes are listed and need a restart. Exits with 1 if the
    settings are refused, or a process could not apply them. If two services share a data folder, such as a gateway
    and its collector, both reload; --json prints an object for each.
    """
    path = settings_file.find(config_file, os.environ)
    try:
        outcomes = _reload_all(settings_file.data_folder(path, os.environ))
    except NotRunning as failure:
        raise _explained(failure, path) from None
    for service, outcome in outcomes.items():
        if as_json:
            show.as_json(msgspec.to_builtins(outcome))
        else:
            if len(outcomes) > 1:
                show.note(f"{service.removeprefix('-') or 'gateway'}:")
            _show(outcome)
    if not all(outcome.ok for outcome in outcomes.values()):
        click.get_current_context().exit(1)


def _reload_all(data_dir: Path, patience: float = WAIT_SECONDS) -> dict[str, ReloadOutcome]:
    try:
        found = holders(data_dir)
        if not found:
            raise NotRunning(data_dir)
        return {service: _reload(data_dir, service, each, patience) for service, each in found.items()}
    except ProcessLookupError:
        raise NotRunning(data_dir) from None
    except PermissionError:
        raise Failure(
            f"The Tollgate on {data_dir} belongs to another user: run this as that user, or as root."
        ) from None


def _explained(failure: NotRunning, path: Path | None) -> Failure:
    """Add the mistakes of the file, which may be why it names another folder."""
    try:
        settings_file.load(path, os.environ)
    except settings_file.SettingsError as error:
        return Failure(f"{failure}\nThe settings have mistakes:\n{error}")
    return failure


def _reload(data_dir: Path, service: str, found: Holder, patience: float) -> ReloadOutcome:
    if not found.is_near:
        raise Failure(f"The Tollgate on {data_dir} runs in another container: run this there.")
    if not found.pid:
        raise Failure(f"The Tollgate on {data_dir} is starting or stopping: try again in a moment.")
    # A reload that starts after this reads the current settings.
    before = read_record(data_dir, service).started
    os.kill(found.pid, signal.SIGHUP)
    return _wait(data_dir, service, found.pid, before, patience)


def _wait(data_dir: Path, service: str, pid: int, before: int, patience: float) -> ReloadOutcome:
    started = False
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        record = read_record(data_dir, service)
        ours = [outcome for outcome in record.outcomes if outcome.asked > before]
        if ours:
            return ours[-1]  # the first after our request
        if record.started > before and not started:
            started, deadline = True, time.monotonic() + patience
        found = holders(data_dir).get(service)
        if found is None or found.pid != pid:
            raise Failure(f"The Tollgate on {data_dir} ended before it reported the result: see its log.")
        time.sleep(_POLL_SECONDS)
    raise Failure(f"The Tollgate on {data_dir} has not reported within {patience:g} s: see its log.")


def _show(outcome: ReloadOutcome) -> None:
    show.note(_headline(outcome))
    for line in outcome.changed:
        show.note(f"  {line}")
    if outcome.error:
        show.note(outcome.error)
    for key in outcome.restart_needed:
        show.note(f"{key} needs a restart")


def _headline(outcome: ReloadOutcome) -> str:
    if outcome.changed:
        return f"{outcome.file}: applied" if outcome.ok else f"{outcome.file}: not applied by every process"
    if outcome.error:
        return "Nothing was changed:"
    rest = "nothing else has changed" if outcome.restart_needed else "nothing has changed"
    return f"{outcome.file}: {rest}"
