"""Puts the processes together.

`run` makes in the parent what all processes share (sockets, shared memory), then hands over to the supervisor.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence

from msgspec import Struct

from tollgate import log
from tollgate.core import origins
from tollgate.errors import StartError
from tollgate.processes import collector, control, listeners, prober, status
from tollgate.processes.bootstrap import Bootstrap
from tollgate.processes.certificates import ExpiryWatch
from tollgate.processes.control import ControlAddress
from tollgate.processes.preflight import tls_files
from tollgate.processes.process_metrics import ProcessWatch, show_build
from tollgate.processes.reload import SettingsFollower, SharedSettings, row_names
from tollgate.processes.reloader import Reloader
from tollgate.processes.service_lock import ServiceLock
from tollgate.processes.service_manager import notify
from tollgate.processes.serving import ServerProcess, serve
from tollgate.processes.supervisor import Child, Lifeline, StartFailed, Supervisor
from tollgate.processes.worker import Worker
from tollgate.settings.model import Settings
from tollgate.shm import metrics
from tollgate.shm.limits import SharedMeters
from tollgate.shm.upstream_status import MAX_NETWORKS, MAX_UPSTREAMS, SharedStatus, StatusSlots, assign_slots

_log = log.get("server")


class ServiceAddresses(Struct, frozen=True):
    """Where the running service can be reached."""

    base_url: str
    metrics_url: str


def run(
    bootstrap: Bootstrap,
    *,
    on_ready: Callable[[ServiceAddresses], None],
    extra_children: Sequence[Child] = (),
) -> None:
    """Serve until SIGTERM or SIGINT."""
    settings = bootstrap.settings
    workers = settings.server.workers or os.cpu_count() or 1
    listeners.raise_descriptor_limit()
    listeners.warn_of_few_descriptors(settings)
    if settings.accounts.sign_up == "open" and not settings.mail.host:
        _log.warning("anyone can sign up with any mail address: set [mail], so that addresses are proved")
    tls = tls_files(settings)
    lock = ServiceLock(bootstrap.data_dir)
    # Inherited by the workers, which need it to tell a stranger what to whitelist.
    origins.preload()
    public = listeners.bind(settings.server.host, settings.server.port, workers, "server.port")
    private = listeners.bind(settings.server.metrics_host, settings.server.metrics_port, 1, "server.metrics_port")
    # One for each worker, then the parent's, the collector's and the prober's.
    regions = metrics.Regions(workers + 3)
    shared_status, slots = SharedStatus(workers), _slots(settings)
    shared = SharedSettings(settings, slots, [*(f"worker-{slot}" for slot in range(workers)), "prober"])
    reloader = Reloader(bootstrap.origin, shared, bootstrap.data_dir)
    reloader.forget()
    meters = SharedMeters(settings.limits.limit_rows, workers, bootstrap.data_dir / "limits.lock")
    where = ServiceAddresses(
        settings.server.base_url.rstrip("/") or listeners.url("https" if tls else "http", public[0]),
        listeners.url("http", private[0]) + "/metrics",
    )
    control_address = ControlAddress(bootstrap.data_dir)
    all_sockets = [*public, *private, control_address.listener]

    def child(name: str, run: Callable[[Lifeline], None], *kept: socket.socket) -> Child:
        """Make a child that has only these sockets of its parent's."""

        def start(lifeline: Lifeline) -> None:
            for each in all_sockets:
                if each not in kept:
                    each.close()
            run(lifeline)

        return Child(name, start)

    children = [
        *extra_children,
        *(
            Child(
                f"worker-{slot}",
                Worker(
                    bootstrap, slot, public, private, regions, meters, tls, control_address, shared_status, shared
                ).run,
            )
            for slot in range(workers)
        ),
        child(
            "control",
            lambda lifeline: control.run(lifeline, bootstrap, shared, control_address, where.base_url),
            control_address.listener,
        ),
        child(
            "collector",
            lambda lifeline: collector.run(lifeline, bootstrap, shared, regions.writer(workers + 1)),
        ),
        child(
            "prober",
            lambda lifeline: prober.run(
                lifeline, bootstrap.data_dir, shared_status, shared, regions.writer(workers + 2)
            ),
        ),
        child("metrics", lambda lifeline: _serve_metrics(lifeline, regions, shared, private), *private),
    ]
    counts = regions.writer(workers)
    expiry = ExpiryWatch(*tls, counts) if tls else None
    processes = ProcessWatch(children, counts)
    show_build(counts)

    def turn() -> bool:
        if expiry is not None:
            expiry.turn()
        processes.turn()
        return reloader.turn()

    def ready() -> None:
        lock.show()
        on_ready(where)
        notify("READY=1", f"STATUS=Serving at {where.base_url}")

    def stop() -> None:
        notify("STOPPING=1")
        lock.hide()
        for each in all_sockets:
            each.close()

    supervisor = Supervisor(
        children,
        grace_seconds=settings.server.grace_seconds,
        on_ready=ready,
        on_stop=stop,
        on_start=lambda child: counts.add(counts.cell(metrics.WORKER_STARTS, child.name)),
        on_hangup=reloader.ask,
        on_turn=turn,
    )
    try:
        supervisor.run()
    except StartFailed as error:
        raise StartError(str(error)) from error
    finally:
        control_address.remove()
        lock.close()


def _slots(settings: Settings) -> StatusSlots:
    try:
        return assign_slots(StatusSlots(), row_names(settings))
    except ValueError as error:
        bounds = f"{MAX_NETWORKS} networks and {MAX_UPSTREAMS} upstreams"
        raise StartError(f"families: more than one service can watch, {bounds}: leave some to another.") from error


def _serve_metrics(
    lifeline: Lifeline,
    regions: metrics.Regions,
    shared: SharedSettings,
    private: list[socket.socket],
) -> None:
    async def make() -> ServerProcess:
        # Imported here: no other process needs it.
        from tollgate.processes.metrics_page import CONTENT_TYPE_LATEST, render  # noqa: PLC0415

        return ServerProcess(
            status.metrics_app(lambda: render(regions), CONTENT_TYPE_LATEST),
            background=((1.0, SettingsFollower(shared, "metrics").turn),),
        )

    serve(make, private, lifeline, grace_seconds=1.0)
