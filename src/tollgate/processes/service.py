"""Composition root: puts the processes together. With `prepared`, `worker`, `control_process`, `collector_process`
and `prober_process` the only modules that name concrete backends.

`run` makes in the parent what all processes share (sockets, shared memory), then hands over to the supervisor.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Sequence

from msgspec import Struct

from tollgate.errors import StartError
from tollgate.processes import collector, control, listeners, prober, status
from tollgate.processes.bootstrap import Prepared
from tollgate.processes.control import ControlAddress
from tollgate.processes.reload import Follower, Shared, row_names
from tollgate.processes.reloader import Reloader
from tollgate.processes.service_lock import ServiceLock
from tollgate.processes.serving import Service, serve
from tollgate.processes.supervisor import Child, Lifeline, StartFailed, Supervisor
from tollgate.processes.worker import Worker
from tollgate.settings.model import Settings
from tollgate.shm import metrics
from tollgate.shm.limits import SharedMeters
from tollgate.shm.upstream_status import MOST_NETWORKS, MOST_UPSTREAMS, Board, Places, place


class Addresses(Struct, frozen=True):
    """Where the running service can be reached."""

    base_url: str
    metrics_url: str


def run(
    prepared: Prepared,
    *,
    on_ready: Callable[[Addresses], None],
    extra_children: Sequence[Child] = (),
) -> None:
    """Serve until told to stop."""
    settings = prepared.settings
    workers = settings.server.workers or os.cpu_count() or 1
    tls = _tls(settings)
    lock = ServiceLock(prepared.data_dir)
    public = listeners.bind(settings.server.host, settings.server.port, workers, "server.port")
    private = listeners.bind(settings.server.metrics_host, settings.server.metrics_port, 1, "server.metrics_port")
    # One for each worker, then the parent's, the collector's and the prober's.
    regions = metrics.Regions(workers + 3)
    board, places = Board(workers), _places(settings)
    shared = Shared(settings, places, [*(f"worker-{slot}" for slot in range(workers)), "prober"])
    reloader = Reloader(prepared.origin, shared, prepared.data_dir)
    reloader.forget()
    meters = SharedMeters(settings.limits.limit_rows, workers, prepared.data_dir / "limits.lock")
    where = Addresses(
        settings.server.base_url.rstrip("/") or listeners.url("https" if tls else "http", public[0]),
        listeners.url("http", private[0]) + "/metrics",
    )
    control_address = ControlAddress()
    all_sockets = [*public, *private, control_address.listener]
    children = [
        *extra_children,
        *(
            Child(
                f"worker-{slot}",
                Worker(prepared, slot, public, private, regions, meters, tls, control_address, board, shared).run,
            )
            for slot in range(workers)
        ),
        Child(
            "control",
            lambda lifeline: control.run(
                lifeline, prepared, shared, control_address, where.base_url, [*public, *private]
            ),
        ),
        Child(
            "collector",
            lambda lifeline: _collect(lifeline, prepared, shared, regions.writer(workers + 1), all_sockets),
        ),
        Child(
            "prober",
            lambda lifeline: _probe(lifeline, prepared, board, shared, regions.writer(workers + 2), all_sockets),
        ),
        Child(
            "metrics",
            lambda lifeline: _serve_metrics(
                lifeline, regions, shared, private, [*public, control_address.listener]
            ),
        ),
    ]
    counts = regions.writer(workers)

    def ready() -> None:
        lock.show()
        on_ready(where)

    def stop() -> None:
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
        on_turn=reloader.turn,
    )
    try:
        supervisor.run()
    except StartFailed as error:
        raise StartError(str(error)) from error
    finally:
        lock.close()


def _collect(
    lifeline: Lifeline,
    prepared: Prepared,
    shared: Shared,
    writer: metrics.Writer,
    sockets: Sequence[socket.socket],
) -> None:
    for each in sockets:
        each.close()
    collector.run(lifeline, prepared, shared, writer)


def _probe(
    lifeline: Lifeline,
    prepared: Prepared,
    board: Board,
    shared: Shared,
    writer: metrics.Writer,
    sockets: Sequence[socket.socket],
) -> None:
    for each in sockets:
        each.close()
    prober.run(lifeline, prepared.data_dir, board, shared, writer)


def _places(settings: Settings) -> Places:
    try:
        return place(Places(), row_names(settings))
    except ValueError as error:
        most = f"{MOST_NETWORKS} networks and {MOST_UPSTREAMS} upstreams"
        raise StartError(f"families: more than one service can watch, {most}: leave some to another.") from error


def _serve_metrics(
    lifeline: Lifeline,
    regions: metrics.Regions,
    shared: Shared,
    private: list[socket.socket],
    others: list[socket.socket],
) -> None:
    for each in others:
        each.close()

    async def make() -> Service:
        # Imported here: no other process needs it.
        from tollgate.processes.metrics_page import CONTENT_TYPE_LATEST, render  # noqa: PLC0415

        return Service(
            status.metrics_app(lambda: render(regions), CONTENT_TYPE_LATEST),
            background=((1.0, Follower(shared, "metrics").turn),),
        )

    serve(make, private, lifeline, grace_seconds=1.0)


def _tls(settings: Settings) -> tuple[str, str] | None:
    certificate, key = settings.server.tls_certificate, settings.server.tls_key
    if not certificate:
        return None
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise StartError(
            f"server.tls_certificate or server.tls_key cannot be used ({error}): "
            "give PEM files of a certificate chain and its key."
        ) from error
    return certificate, key
