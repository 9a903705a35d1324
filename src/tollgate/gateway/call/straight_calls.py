"""Lets callers in and sends their calls on the straight way, for one worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from tollgate.errors import Refusal
from tollgate.gateway.access.caller import Caller
from tollgate.gateway.access.credentials import Credentials
from tollgate.gateway.access.limits import Limiter
from tollgate.gateway.call.admission import Admission
from tollgate.gateway.call.pipeline import Pipeline
from tollgate.gateway.call.resolver import Resolver
from tollgate.gateway.call.straight import StraightCall
from tollgate.gateway.call.straight_batch import start_batch
from tollgate.gateway.http.under_way import ConnectionCall, HttpCaller
from tollgate.gateway.http.worker_context import WorkerContext
from tollgate.gateway.messages import Request, ServedNetwork
from tollgate.gateway.recording.journal import RecordSink
from tollgate.shm import metrics

# Clients that are let in at the same time and share nothing, before those are forgotten that have gone.
_MAX_ADMISSIONS = 4_096


class StraightCalls:
    """Begins straight calls."""

    def __init__(
        self,
        context: WorkerContext,
        pipeline: Pipeline,
        credentials: Credentials,
        limiter: Limiter,
        networks: Mapping[str, Resolver],
        writer: metrics.Writer,
        sink: RecordSink,
    ) -> None:
        self._context = context
        self._pipeline = pipeline
        self._credentials = credentials
        self._limiter = limiter
        self._networks = networks
        self._writer = writer
        self._sink = sink
        self._admissions: dict[tuple[object, ...], Admission] = {}
        self._epoch = context.epoch
        context.admit = self.admit

    def begin(self, connection: HttpCaller, request: Request) -> bool:
        """Send a request that was read whole on its way; False: nothing was done, it needs the general way."""
        if request.held or request.method != b"POST" or not request.body:
            return False
        before = connection.admission
        admission = self.admit(request, before if isinstance(before, Admission) else None)
        if admission is None:
            return False
        connection.admission = admission
        # A connection gives its call the admissions that are made here, and no others.
        call = cast("StraightCall | None", connection.call)
        if call is None:
            call = StraightCall(connection)
            connection.call = cast("ConnectionCall", call)
        if self._context.tracer is None:
            # Otherwise each request is looked at: it may be one that is traced.
            request.admission = admission
        return call.start(admission, request.body, request.request_id) or call.go(
            admission, request.body, request.request_id
        )

    def admit(self, request: Request, before: Admission | None = None) -> Admission | None:
        """Let a caller in that is in memory; None: its calls need the general way. `before`: let in last."""
        network = request.network
        resolver = self._networks.get(network.path) if network is not None else None
        if network is None or resolver is None:
            return None
        try:
            caller = self._credentials.recall(request)
        except Refusal:
            return None
        if (
            caller is None
            or caller.contracts
            or (caller.capped_until and caller.capped_until > self._context.time())
        ):
            # Unknown, or its calls must be looked at one by one, or it has spent what it may.
            return None
        if before is not None and before.fits(request, caller):
            return before
        return self._admit(request, caller, network, resolver)

    def _admit(self, request: Request, caller: Caller, network: ServedNetwork, resolver: Resolver) -> Admission:
        """The admission of a caller; connections of one client share it."""
        if self._epoch != self._context.epoch or len(self._admissions) >= _MAX_ADMISSIONS:
            self._admissions.clear()
            self._epoch = self._context.epoch
        client = (self._credentials.address(request), request.headers.get(b"user-agent"), request.origin)
        key = (caller, network.path, request.path_token, request.keep_alive, *client)
        admission = self._admissions.get(key)
        if admission is None:
            admission = self._admissions[key] = Admission(
                self._context,
                self._pipeline,
                self._credentials,
                self._limiter,
                self._writer,
                self._sink,
                request,
                caller,
                network,
                resolver,
                start_batch,
            )
        return admission
