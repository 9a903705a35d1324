"""Puts the processes together.

`run` makes in the parent what all processes share (sockets, shared memory), then hands over to the supervisor.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from tollgate import log
from tollgate.core import addresses, origins
from tollgate.core.nodes import ALL_ROLES, BEAT_SECONDS, COLLECTOR, CONTROL, GATEWAY, PROBER, UP
from tollgate.errors import StartError
from tollgate.lazy_module import LazyModule
from tollgate.processes import collector, leases, listeners, prober, status
from tollgate.processes.bootstrap import Bootstrap
from tollgate.processes.certificates import ExpiryWatch
from tollgate.processes.control_proxy import ControlAddress
from tollgate.processes.node import Heartbeat
from tollgate.processes.preflight import tls_files
from tollgate.processes.process_metrics import ProcessWatch, show_build
from tollgate.processes.reloader import Reloader
from tollgate.processes.service_lock import ServiceLock, suffix
from tollgate.processes.serving import ServerProcess, serve
from tollgate.processes.shared_settings import SettingsFollower, SharedSettings, slots_of
from tollgate.processes.supervisor import Child, Lifeline, StartFailed, Supervisor
from tollgate.processes.worker import Worker
from tollgate.shm import metrics
from tollgate.shm.allowances import Allowances
from tollgate.shm.leases import LeasedMeters
from tollgate.shm.limits import SharedMeters
from tollgate.shm.upstream_status import SharedStatus
from tollgate.store import valkey
from tollgate.store.postgresql import is_postgresql

if TYPE_CHECKING:
    from tollgate.processes import control, metrics_page
else:  # only the process that uses one of them pays for its imports
    control = LazyModule("tollgate.processes.control")
    metrics_page = LazyModule("tollgate.processes.metrics_page")

# A gateway must know its upstreams, so it has a prober of its own.
PROBING = frozenset({GATEWAY, PROBER})
_log = log.get("server")


class ServiceAddresses(Struct, frozen=True):
    """Where the running service can be reached."""

    base_url: str
    metrics_url: str


class _Shared(Struct, frozen=True):
    """What the parent has made for its children."""

    bootstrap: Bootstrap
    roles: frozenset[str]
    workers: int
    public: list[socket.socket]
    private: list[socket.socket]
    regions: metrics.Regions
    meters: SharedMeters
    leased: LeasedMeters | None
    allowances: Allowances | None
    tls: tuple[str, str] | None
    control_address: ControlAddress | None
    shared_status: SharedStatus
    shared: SharedSettings
    addresses: ServiceAddresses

    @property
    def sockets(self) -> list[socket.socket]:
        of_control = [] if self.control_address is None else [self.control_address.listener]
        return [*self.public, *self.private, *of_control]


def run(
    bootstrap: Bootstrap,
    *,
    on_ready: Callable[[ServiceAddresses], None],
    extra_children: Sequence[Child] = (),
    roles: frozenset[str] = ALL_ROLES,
) -> None:
    """Serve until SIGTERM or SIGINT, in some of the roles that nodes may have."""
    settings = bootstrap.settings
    if roles != ALL_ROLES and not is_postgresql(bootstrap.store_url):
        raise StartError("--role needs a store that nodes share: set `store.url` to a PostgreSQL database.")
    listeners.raise_descriptor_limit()
    listeners.warn_of_few_descriptors(settings)
    if settings.accounts.sign_up == "open" and not settings.mail.host:
        _log.warning("anyone can sign up with any mail address: set [mail], so that addresses are proved")
    tls = tls_files(settings)
    lock = ServiceLock(bootstrap.data_dir, roles)
    made = _share(bootstrap, roles, tls)
    reloader = Reloader(bootstrap.origin, made.shared, bootstrap.data_dir, service=suffix(roles))
    reloader.forget()
    children = [*extra_children, *_children(made)]
    counts = made.regions.writer(made.workers)
    expiry = ExpiryWatch(*tls, counts) if tls else None
    processes = ProcessWatch(children, counts)
    show_build(counts)

    def tick() -> bool:
        if expiry is not None:
            expiry.tick()
        processes.tick()
        return reloader.tick()

    def ready() -> None:
        lock.show()
        on_ready(made.addresses)
        notify("READY=1", f"STATUS=Serving at {made.addresses.base_url}")

    def stop() -> None:
        notify("STOPPING=1")
        lock.hide()
        for each in made.sockets:
            each.close()

    supervisor = Supervisor(
        children,
        grace_seconds=settings.server.grace_seconds,
        on_ready=ready,
        on_stop=stop,
        on_start=lambda child: counts.add(counts.cell(metrics.WORKER_STARTS, child.name)),
        on_hangup=reloader.request,
        on_tick=tick,
    )
    try:
        supervisor.run()
    except StartFailed as error:
        raise StartError(str(error)) from error
    finally:
        if made.control_address is not None:
            made.control_address.remove()
        lock.close()


def _share(bootstrap: Bootstrap, roles: frozenset[str], tls: tuple[str, str] | None) -> _Shared:
    """Make what all processes share: sockets and memory."""
    settings = bootstrap.settings
    server = settings.server
    workers = (server.workers or os.cpu_count() or 1) if GATEWAY in roles else 1
    # Inherited by the workers, whose refusals name the domain to whitelist.
    origins.preload()
    public = listeners.bind(server.host, server.port, workers, "server.port")
    private = listeners.bind(server.metrics_host, server.metrics_port, 1, "server.metrics_port")
    followers = [f"worker-{slot}" for slot in range(workers)] if GATEWAY in roles else []
    return _Shared(
        bootstrap=bootstrap,
        roles=roles,
        workers=workers,
        public=public,
        private=private,
        # One for each worker, then those of parent, collector, prober, lease keeper and metrics page.
        regions=metrics.Regions(workers + 5),
        meters=SharedMeters(settings.limits.limit_slots, workers, bootstrap.data_dir / "limits.lock"),
        leased=_leased(bootstrap, workers) if GATEWAY in roles else None,
        allowances=_allowances(bootstrap, workers) if {GATEWAY, COLLECTOR} <= roles else None,
        tls=tls,
        shared_status=SharedStatus(workers),
        shared=SharedSettings(
            settings, slots_of(settings), [*followers, *(["prober"] if roles & PROBING else [])]
        ),
        addresses=ServiceAddresses(
            server.base_url.rstrip("/") or listeners.url("https" if tls else "http", public[0]),
            listeners.url("http", private[0]) + "/metrics",
        ),
        # Last: it leaves a file behind, which would stay if something above failed.
        control_address=ControlAddress(bootstrap.data_dir) if CONTROL in roles else None,
    )


def _children(made: _Shared) -> Iterator[Child]:
    bootstrap, shared, roles, regions, address = (
        made.bootstrap, made.shared, made.roles, made.regions, made.control_address,
    )  # fmt: skip

    def child(name: str, run: Callable[[Lifeline], None], *kept: socket.socket) -> Child:
        """Make a child that has only these sockets of its parent's."""

        def start(lifeline: Lifeline) -> None:
            for each in made.sockets:
                if each not in kept:
                    each.close()
            run(lifeline)

        return Child(name, start)

    if GATEWAY in roles:
        for slot in range(made.workers):
            worker = Worker(
                bootstrap, slot, made.public, made.private, regions, made.meters,
                made.leased or made.meters, made.allowances, made.tls, address, made.shared_status, shared,
            )  # fmt: skip
            yield Child(f"worker-{slot}", worker.run)
    else:
        yield child(
            "front", lambda lifeline: _serve_front(lifeline, shared, made.public, made.tls, address), *made.public
        )
    if address is not None:
        # The parent's region, in which it counts them.
        starts = partial(regions.by_label, made.workers, metrics.WORKER_STARTS)
        yield child(
            "control",
            lambda lifeline: control.run(lifeline, bootstrap, shared, address, made.addresses.base_url, starts),
            address.listener,
        )
    if COLLECTOR in roles:
        yield child(
            "collector",
            lambda lifeline: collector.run(
                lifeline, bootstrap, shared, regions.writer(made.workers + 1), made.allowances
            ),
        )
    if roles & PROBING:
        yield child(
            "prober",
            lambda lifeline: prober.run(
                lifeline, bootstrap.data_dir, made.shared_status, shared, regions.writer(made.workers + 2)
            ),
        )
    if made.leased is not None:
        node, writer = secrets.token_hex(8), regions.writer(made.workers + 3)
        keep = partial(leases.run, bootstrap=bootstrap, meters=made.leased, writer=writer, node=node)
        yield child("leases", keep)
    writer_of_nodes = regions.writer(made.workers + 4)
    heart = None
    if is_postgresql(bootstrap.store_url):
        heart = partial(Heartbeat, bootstrap, roles, writer_of_nodes)
    else:
        # A file has one node.
        writer_of_nodes.set(writer_of_nodes.cell(metrics.NODES, UP), 1)
    yield child(
        "metrics", lambda lifeline: _serve_metrics(lifeline, regions, shared, made.private, heart), *made.private
    )


def _leased(bootstrap: Bootstrap, workers: int) -> LeasedMeters | None:
    """The table of callers' limits where nodes share them."""
    settings = bootstrap.settings
    if not settings.shared.url:
        return None
    valkey.checked(settings.shared.url)
    lock = bootstrap.data_dir / "leased-limits.lock"
    return LeasedMeters(settings.limits.limit_slots, workers, lock, bootstrap.pepper)


def _allowances(bootstrap: Bootstrap, workers: int) -> Allowances:
    """The table of what teams may still call, which the collector fills."""
    return Allowances(bootstrap.settings.limits.limit_slots, workers, bootstrap.data_dir / "allowances.lock")


def _serve_front(
    lifeline: Lifeline,
    shared: SharedSettings,
    public: list[socket.socket],
    tls: tuple[str, str] | None,
    control_address: ControlAddress | None,
) -> None:
    """Serve the public port of a node that is no gateway: health, and the control plane where it is here."""

    async def make() -> ServerProcess:
        settings = shared.current.settings
        trusted = addresses.parse_networks(settings.server.trusted_proxies)
        rest = None if control_address is None else control_address.app(trusted)
        return ServerProcess(
            status.public_app(lambda: None, rest), background=((1.0, SettingsFollower(shared, "front").tick),)
        )

    serve(make, public, lifeline, grace_seconds=shared.current.settings.server.grace_seconds, tls=tls)


def _serve_metrics(
    lifeline: Lifeline,
    regions: metrics.Regions,
    shared: SharedSettings,
    private: list[socket.socket],
    heart: Callable[[], Heartbeat] | None,
) -> None:
    async def make() -> ServerProcess:
        beats = None if heart is None else heart()
        return ServerProcess(
            status.metrics_app(lambda: metrics_page.render(regions), metrics_page.CONTENT_TYPE_LATEST),
            background=(
                (1.0, SettingsFollower(shared, "metrics").tick),
                *([(BEAT_SECONDS, beats.beat)] if beats is not None else []),
            ),
            close=None if beats is None else beats.close,
        )

    serve(make, private, lifeline, grace_seconds=1.0)


def notify(*lines: str) -> None:
    """Send states such as `READY=1` to systemd (`sd_notify`), where there is a $NOTIFY_SOCKET."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    # A service manager that is gone is no reason to fail; nor is one that is slow to wait.
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.settimeout(1.0)
        sender.sendto("\n".join(lines).encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)
