"""What a connection has shown once: who calls, which limits count, what its answers and records begin with.

Kept with the connection under the worker's epoch, which every change of grants, settings, store or spool raises:
one comparison replaces all those checks. Holds values; `straight.py` uses them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tollgate.core.entries import MAX_TEXT_BYTES, pack, pack_subject
from tollgate.core.jsonrpc import MAX_REMEMBERED_METHOD
from tollgate.gateway.access.caller import Caller, limits_of, rate_headers_of
from tollgate.gateway.access.credentials import Credentials
from tollgate.gateway.access.limits import Limiter
from tollgate.gateway.call.method_plan import CACHE_RESULTS, MethodPlan, plan_of
from tollgate.gateway.call.pipeline import Pipeline
from tollgate.gateway.call.resolver import Resolver
from tollgate.gateway.http import cors
from tollgate.gateway.http.worker_context import WorkerContext
from tollgate.gateway.messages import Request, ServedNetwork
from tollgate.gateway.recording.counters import OK
from tollgate.gateway.recording.journal import RecordSink
from tollgate.shm import metrics

# Subjects of records that are kept encoded: one for each method that is called, as a rule.
_MAX_SUBJECTS = 256
_UINT32 = b"\xce"
_MAX_OTHERS = 256


class Admission:
    """A caller on one connection that was let in."""

    __slots__ = (
        "_limiter",
        "_limits",
        "_rate_headers",
        "_request",
        "_writer",
        "caller",
        "context",
        "cors",
        "durations",
        "epoch",
        "exchange",
        "expires_at",
        "keep_alive",
        "limits",
        "network",
        "others",
        "pipeline",
        "plain",
        "plans",
        "rates",
        "records",
        "resolver",
        "sink",
        "start_batch",
        "subjects",
        "take_limits",
        "taken_at",
    )

    def __init__(
        self,
        context: WorkerContext,
        pipeline: Pipeline,
        credentials: Credentials,
        limiter: Limiter,
        writer: metrics.Writer,
        sink: RecordSink,
        request: Request,
        caller: Caller,
        network: ServedNetwork,
        resolver: Resolver,
        start_batch: Callable[[Any, Any, bytes, bytes], bool],
    ) -> None:
        self.context = context
        self.epoch = context.epoch
        self.pipeline = pipeline
        self._writer = writer
        self.sink = sink
        """Where records go: while it is full, nothing can be written down and nothing may be answered."""
        self.durations = context.journal.latencies.durations(network.path, OK)
        """Microseconds that answers of its network took."""
        self._request = request
        self.caller = caller
        self.network = network
        self.resolver = resolver
        self.exchange = resolver.exchange
        self.expires_at = caller.expires_at
        self.keep_alive = request.keep_alive
        # Domains may not call everything that tokens may.
        own = caller.restricted or caller.grant.domain is not None
        self.plans: dict[str, MethodPlan] = {} if own else resolver.plans
        quotas = limiter.quotas(caller, request)
        self._limiter = limiter
        self._limits = limits_of(quotas)
        self.limits = limiter.rows(self._limits, context.now())
        """Where its limits are counted."""
        self._rate_headers = rate_headers_of(quotas, len(quotas)) if quotas else b""
        """Header lines about the limits, to be filled with what each has left."""
        self.take_limits = limiter.take_all
        self.taken_at = 0.0
        """When a call was last taken out of the limits."""
        self.rates: bytes | None = None if quotas else b""
        """The lines of this loop tick: what is left is worked out once, for all its answers. None: not yet."""
        self.start_batch = start_batch
        self.cors = cors.headers(request.origin) if request.origin is not None else b""
        self.plain = self.keep_alive and not self.cors and not caller.shows
        """Whether its answers have no header beyond the usual ones."""
        self.others: set[str] = set()
        """Methods that it may call and that have no plan."""
        self.subjects: dict[MethodPlan | tuple[MethodPlan, ...] | tuple[str, str], bytes] = {}
        """What records count of answered calls, as `subject` encodes it."""
        address, agent = credentials.address(request), request.headers.get(b"user-agent", b"")[:MAX_TEXT_BYTES]
        client = pack(address) + pack(agent) + pack((request.origin or b"")[:MAX_TEXT_BYTES])
        self.records = [pack(result) + client for result in CACHE_RESULTS]
        """What records end with, by what the cache did."""

    def fits(self, request: Request, caller: Caller) -> bool:
        """Whether another request of the connection may use it."""
        own = self._request
        return (
            self.epoch == self.context.epoch
            and self.caller is caller
            and self.network is request.network
            and self.keep_alive == request.keep_alive
            and own.origin == request.origin
            and own.path_token == request.path_token
            and own.headers.get(b"user-agent") == request.headers.get(b"user-agent")
            and own.headers.get(b"x-forwarded-for") == request.headers.get(b"x-forwarded-for")
        )

    def plan(self, method: str) -> MethodPlan | None:
        """The plan of a method that this caller may call; None where its calls cannot go straight."""
        if method in self.others or not self.allows(method):
            return None
        plan = plan_of(self.resolver, self._writer, method)
        if plan is not None:
            self.plans[method] = plan
        elif len(method) <= MAX_REMEMBERED_METHOD:
            if len(self.others) >= _MAX_OTHERS:
                self.others.clear()
            self.others.add(method)
        return plan

    def allows(self, method: str) -> bool:
        """Whether this caller may call a method here."""
        return self.pipeline.policy(self.network, self.caller, method) is None

    def subject(self, plans: MethodPlan | tuple[MethodPlan, ...]) -> bytes:
        """What a record counts of an answered call, or of those of a batch, encoded as a byte string.

        With the byte that the duration behind it begins with: four bytes follow.
        """
        calls = [(plan.name, "ok") for plan in (plans if isinstance(plans, tuple) else (plans,))]
        return self._subject(plans, calls)

    def subject_of(self, method: str, outcome: str) -> bytes:
        """What a record counts of one call, likewise."""
        key = (method, outcome)
        return self.subjects.get(key) or self._subject(key, [key])

    def _subject(
        self, key: MethodPlan | tuple[MethodPlan, ...] | tuple[str, str], calls: list[tuple[str, str]]
    ) -> bytes:
        caller = self.caller
        counted = (caller.team_id, caller.source_id, self.network.path, caller.source_name, 200, 1)
        subject = pack(pack_subject((*counted, caller.cap), calls, caller.price)) + _UINT32
        if len(self.subjects) >= _MAX_SUBJECTS:
            self.subjects.clear()
        self.subjects[key] = subject
        return subject

    def charge(self, calls: int) -> None:
        """Count calls to upstreams that one call needs beyond the first, or refuse them."""
        self._limiter.admit_more(self.caller, self._request, calls)

    def find_limits(self) -> None:
        """Find the rows of the limits again, where they were given to others while nobody called."""
        if self._limiter.moved(self.limits):
            self.limits = self._limiter.rows(self._limits, self.context.now())

    def rates_left(self) -> bytes:
        """The header lines about the limits, as they stand."""
        if not self._rate_headers:
            return b""
        return self._rate_headers % self._limiter.left(self.limits, self.taken_at)

    def fill_rates(self) -> bytes:
        """Make the lines for the answers of this loop tick, of which one is about to be put into the outbox."""
        self.rates = rates = self.rates_left()
        self.context.outbox.counted.append(self)
        return rates

    def count(self, _now: float) -> None:
        """The loop tick ends."""
        self.rates = None

    def request(self, body: bytes, request_id: bytes) -> Request:
        """A request like the one that was let in, for the general way."""
        own = self._request
        request = Request(b"POST", own.headers, own.peer, request_id)
        request.network, request.caller, request.path_token = self.network, self.caller, own.path_token
        request.keep_alive, request.digest, request.admission = own.keep_alive, own.digest, self
        request.body = body
        return request
