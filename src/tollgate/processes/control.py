"""The process of the control plane: one child, behind the workers, that holds the framework and hashes passwords.

It listens on a Unix socket that the parent has bound; workers forward to it (docs/decisions/0010).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import cast

from tollgate.core import addresses
from tollgate.processes import listeners
from tollgate.processes.bootstrap import Bootstrap
from tollgate.processes.control_proxy import ControlProxy, behind_workers
from tollgate.processes.reload import SettingsFollower, SharedSettings
from tollgate.processes.serving import ServerProcess, serve
from tollgate.processes.status import App
from tollgate.processes.supervisor import Lifeline
from tollgate.store import engines

# As in `control/app.py`, which cannot be imported here without its framework.
MAX_BODY_BYTES = 262_144
MAX_AT_ONCE = 64
# Longer than the slowest honest answer: a domain's proof is looked for in seconds.
ANSWER_SECONDS = 35.0
FOLLOW_SECONDS = 0.2


class ControlAddress:
    """Where the control process listens. Made by the parent, inherited by all."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self.listener = listeners.bind_unix(data_dir, "control.sock")
        self._path: str = self.listener.getsockname()

    def app(self, trusted: tuple[addresses.Network, ...]) -> App:
        """The app of a worker: it forwards to the control process."""
        return ControlProxy(
            self._path,
            trusted=trusted,
            max_bytes=MAX_BODY_BYTES,
            max_at_once=MAX_AT_ONCE,
            seconds=ANSWER_SECONDS,
        )

    def remove(self) -> None:
        """Remove the socket's file, and its folder where one was made for it."""
        path = Path(self._path)
        path.unlink(missing_ok=True)
        if path.parent != self._data_dir:
            path.parent.rmdir()


def run(
    lifeline: Lifeline,
    bootstrap: Bootstrap,
    shared: SharedSettings,
    address: ControlAddress,
    base_url: str,
) -> None:
    """Serve the control plane, in the child."""

    async def make() -> ServerProcess:
        # Imported here: no other process needs the framework.
        from tollgate.control.app import control_app  # noqa: PLC0415
        from tollgate.control.plane import ControlPlane  # noqa: PLC0415
        from tollgate.control.services import alerts, invoices, reports, sweep  # noqa: PLC0415
        from tollgate.processes.inspector import MachineInspector  # noqa: PLC0415

        store = engines.open_store(bootstrap.store_url)
        logbook = engines.open_logbook(bootstrap.ledger_url)
        accountbook = engines.open_accountbook(bootstrap.ledger_url)
        plane = ControlPlane(
            store,
            shared.current.settings,
            bootstrap.pepper,
            base_url,
            time.time,
            logbook=logbook,
            accountbook=accountbook,
            previous_pepper=bootstrap.previous_pepper,
            inspector=MachineInspector(bootstrap),
        )
        follower = SettingsFollower(shared, "control", lambda settings, _slots: plane.change(settings))
        return ServerProcess(
            behind_workers(cast("App", control_app(plane))),
            background=(
                (FOLLOW_SECONDS, follower.turn),
                (sweep.EVERY_SECONDS, plane.sweep.run),
                (alerts.EVERY_SECONDS, plane.alerts.run),
                (invoices.EVERY_SECONDS, plane.invoices.close_due),
                *([(reports.EVERY_SECONDS, plane.reports.run)] if plane.reports else []),
            ),
            close=plane.close,
        )

    serve(make, [address.listener], lifeline, grace_seconds=bootstrap.settings.server.grace_seconds)
