"""Composition root: puts the processes together. With `prepared`, `worker`, `control_process` and
`collector_process` the only modules that name concrete backends.

`run` makes in the parent what all processes share (sockets, shared memory), then hands over to the supervisor.
"""

from __future__ import annotations

import fcntl
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from msgspec import Struct

from tollgate import collector_process, control_process, listeners, metrics, status
from tollgate.config import Settings
from tollgate.control_process import ControlAddress
from tollgate.errors import StartError
from tollgate.prepared import Prepared
from tollgate.serving import Service, serve
from tollgate.store.shared import SharedMeters
from tollgate.supervisor import Child, Lifeline, StartFailed, Supervisor
from tollgate.worker import Worker


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
    lock = _lock(prepared.data_dir)
    public = listeners.bind(settings.server.host, settings.server.port, workers, "server.port")
    private = listeners.bind(settings.server.metrics_host, settings.server.metrics_port, 1, "server.metrics_port")
    # One for each worker, then the parent's and the collector's.
    regions = metrics.Regions(workers + 2)
    meters = SharedMeters(settings.limits.limit_rows, workers, prepared.data_dir / "limits.lock")
    where = Addresses(
        settings.server.base_url.rstrip("/") or listeners.url("https" if tls else "http", public[0]),
        listeners.url("http", private[0]) + "/metrics",
    )
    control = ControlAddress()
    all_sockets = [*public, *private, control.listener]
    children = [
        *extra_children,
        *(
            Child(f"worker-{slot}", Worker(prepared, slot, public, private, regions, meters, tls, control).run)
            for slot in range(workers)
        ),
        Child(
            "control",
            lambda lifeline: control_process.run(lifeline, prepared, control, where.base_url, [*public, *private]),
        ),
        Child(
            "collector", lambda lifeline: _collect(lifeline, prepared, regions.writer(workers + 1), all_sockets)
        ),
        Child("metrics", lambda lifeline: _serve_metrics(lifeline, regions, private, [*public, control.listener])),
    ]
    counts = regions.writer(workers)

    def close_listeners() -> None:
        for each in all_sockets:
            each.close()

    supervisor = Supervisor(
        children,
        grace_seconds=settings.server.grace_seconds,
        on_ready=lambda: on_ready(where),
        on_stop=close_listeners,
        on_start=lambda child: counts.add(counts.cell(metrics.WORKER_STARTS, child.name)),
    )
    try:
        supervisor.run()
    except StartFailed as error:
        raise StartError(str(error)) from error
    finally:
        lock.close()


def _collect(
    lifeline: Lifeline, prepared: Prepared, writer: metrics.Writer, sockets: Sequence[socket.socket]
) -> None:
    for each in sockets:
        each.close()
    collector_process.run(lifeline, prepared, writer)


def _serve_metrics(
    lifeline: Lifeline, regions: metrics.Regions, private: list[socket.socket], others: list[socket.socket]
) -> None:
    for each in others:
        each.close()

    async def make() -> Service:
        # Imported here: no other process needs it.
        from tollgate.metrics_page import CONTENT_TYPE_LATEST, render  # noqa: PLC0415

        return Service(status.metrics_app(lambda: render(regions), CONTENT_TYPE_LATEST))

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


def _lock(data_dir: Path) -> TextIO:
    """One service for one data folder. The kernel frees the lock however the service ends."""
    file = (data_dir / "service.lock").open("w", encoding="ascii")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise StartError(f"Another Tollgate runs on {data_dir}: stop it, or set another data_dir.") from error
    return file
