"""What is known of a caller once it was let in: its limits, what it may call, and the parts of its answers and
records.

An `Admission` is kept with the connection under the worker's epoch, which every change of grants, settings, store
or spool raises: one comparison replaces all those checks. A `MethodPlan` is what a method means on one network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import compress
from typing import Any

from tollgate.chains.catalogue import Holds, Kind, Look
from tollgate.core.entries import MAX_METHOD_BYTES, MAX_TEXT_BYTES, pack, pack_subject
from tollgate.core.jsonrpc import MAX_REMEMBERED_METHOD
from tollgate.errors import Refusal
from tollgate.gateway.access.caller import Caller, hidden_numbers, limits_of, rate_headers_of
from tollgate.gateway.access.credentials import Credentials
from tollgate.gateway.access.limits import Limiter
from tollgate.gateway.call.pipeline import Pipeline
from tollgate.gateway.call.resolver import APART, NOTHING_KNOWN, Resolver
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
# Clients that are let in at the same time and share nothing, before those are forgotten that have gone.
_MAX_ADMISSIONS = 4_096

CACHE_RESULTS = ("bypass", "miss", "hit", "coalesced", "miss")
"""What the cache did for a call, as records and headers name it for the caller's team."""
_COUNTED = ("bypass", "miss", "hit", "coalesced", "hit")
"""As metrics name it."""
BYPASS, MISS, HIT, COALESCED, UNTOLD = _ALL = range(5)
"""`UNTOLD`: a hit that its team is not told of (`resolver.py`)."""


class MethodPlan:
    """A method of the fast path: a read of the catalogue."""

    __slots__ = (
        "_cache_cells",
        "_cells",
        "_ok_cell",
        "_requests_cell",
        "block",
        "cache",
        "counted",
        "counts",
        "key_prefix",
        "method",
        "name",
        "read",
        "reveals",
        "together",
        "validator",
    )

    def __init__(self, resolver: Resolver, writer: metrics.Writer, method: str) -> None:
        network = resolver.exchange.network
        names = (network.family, network.name)
        self.method = method
        self.name = method[:MAX_METHOD_BYTES]
        self.key_prefix = resolver.key_prefixes.get(method)
        """What keys of equal calls begin with; None: each is sent on its own."""
        self.cache = MISS if method in resolver.cached else BYPASS
        """What the cache does for a call that an upstream answers."""
        self.read = resolver.readers[method]
        """Reads from its parameters which blocks a call refers to."""
        known = network.catalogue.method(method)
        self.block = (known.block or 0) if known is not None and known.holds is Holds.BLOCK else None
        """The position of the block argument in a list of parameters."""
        self.reveals = known is not None and known.look is not Look.NOWHERE
        """Whether answers about the tip show where it is."""
        self.validator = resolver.validator(method, NOTHING_KNOWN)
        """Of answers that do not show the tip."""
        self.counts = [0] * len(CACHE_RESULTS)
        """Calls that were answered in this loop tick, by what the cache did; `count` adds them to the metrics."""
        self.counted = False
        """Whether there are any."""
        self.together = 0
        """Calls that came in a batch, but for its first: a batch is one request."""
        self._cells = writer.cells
        self._ok_cell = writer.cell(metrics.CALLS, *names, method, "ok")
        self._requests_cell = writer.cell(metrics.REQUESTS, *names, "200")
        self._cache_cells = [writer.cell(metrics.CACHE, *names, result) for result in _COUNTED]

    def count(self, _now: float) -> None:
        """Add what was answered in this loop tick to the metrics."""
        cells = self._cells
        calls = sum(self.counts)
        cells[self._requests_cell] += calls - self.together
        cells[self._ok_cell] += calls
        for result in compress(_ALL, self.counts):
            cells[self._cache_cells[result]] += self.counts[result]
            self.counts[result] = 0
        self.together = 0
        self.counted = False


class Admission:
    """A caller that was let in, with one network, address and set of headers."""

    __slots__ = (
        "_allowance",
        "_hidden",
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
        "metered",
        "network",
        "others",
        "pipeline",
        "plain",
        "plans",
        "rates",
        "records",
        "resolver",
        "share",
        "sink",
        "subjects",
        "take_limits",
        "taken_at",
        "team",
        "teams",
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
        self.team = caller.team_id
        self.teams = (caller.team_id,)
        """Those that have had an answer which a call of this caller brings."""
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
        self.limits = limiter.slots(self._limits, context.now())
        """Where its limits are counted."""
        self._rate_headers = rate_headers_of(quotas, len(quotas)) if quotas else b""
        """Header lines about the limits, to be filled with what each has left."""
        self._hidden = hidden_numbers(quotas)
        """Which of the numbers are not in them."""
        self.share = 2 if caller.grant.domain is None else 4
        """While fewer than one in so many connections of an upstream are busy, shares need not be counted."""
        self.take_limits: Callable[..., bool] = limiter.take_all
        self._allowance = limiter.allowance(caller)
        """What its team may still call under its spending cap; None: it has none."""
        if self._allowance is not None:
            self.take_limits = self._take_allowed
        self.metered = bool(quotas) or self._allowance is not None
        """Whether `take_limits` is to be called."""
        self.taken_at = 0.0
        """When a call was last taken out of the limits."""
        self.rates: bytes | None = None if quotas else b""
        """The lines of this loop tick: what is left is worked out once, for all its answers. None: not yet."""
        self.cors = cors.headers(request.origin) if request.origin is not None else b""
        self.plain = self.keep_alive and not self.cors and not caller.shows
        """Whether its answers have no header beyond the usual ones."""
        self.others: set[str] = set()
        """Methods that it may call and that have no plan."""
        self.subjects: dict[MethodPlan | tuple[MethodPlan, ...] | tuple[str, str, int], bytes] = {}
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
        """The plan of a method that this caller may call; None where its calls need the slow path."""
        if method in self.others or not self.allows(method):
            return None
        resolver = self.resolver
        plan: MethodPlan | None = resolver.plans.get(method)
        is_read = resolver.exchange.network.catalogue.kind(method) is Kind.READ
        if plan is None and is_read and method not in APART and method in resolver.readers:
            plan = resolver.plans[method] = MethodPlan(resolver, self._writer, method)
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

    def subject_of(self, call: tuple[str, str, int]) -> bytes:
        """What a record counts of one call, by its method, its outcome and the status, likewise."""
        return self._subject(call, [call[:2]], call[2])

    def _subject(
        self,
        key: MethodPlan | tuple[MethodPlan, ...] | tuple[str, str, int],
        calls: list[tuple[str, str]],
        status: int = 200,
    ) -> bytes:
        caller = self.caller
        counted = (caller.team_id, caller.source_id, self.network.path, caller.source_name, status, 1)
        subject = pack(pack_subject((*counted, caller.cap), calls, caller.price, caller.payer)) + _UINT32
        if len(self.subjects) >= _MAX_SUBJECTS:
            self.subjects.clear()
        self.subjects[key] = subject
        return subject

    def _take_allowed(self, limits: Any, now: float, calls: float = 1) -> bool:
        """Take calls out of the limits, where there are any, and out of the team's allowance."""
        allowance, count = self._allowance, int(calls)
        assert allowance is not None  # noqa: S101 - set for those that have one
        if not allowance.take(count):
            return False
        if limits and not self._limiter.take_all(limits, now, calls):
            allowance.give_back(count)
            return False
        return True

    def charge(self, calls: int, request: Request | None) -> None:
        """Count calls to upstreams that one call needs beyond the first, or refuse them."""
        self.pipeline.admit_more(self.caller, request or self._request, calls)

    def find_limits(self) -> None:
        """Find the slots of the limits again, where they were given to others in a time without calls."""
        if self._limiter.moved(self.limits):
            self.limits = self._limiter.slots(self._limits, self.context.now())

    def rates_left(self) -> bytes:
        """The header lines about the limits, as they are now."""
        if not self._rate_headers:
            return b""
        left = self._limiter.left(self.limits, self.taken_at)
        if self._hidden is not None:
            left = left[: self._hidden.start] + left[self._hidden.stop :]
        return self._rate_headers % left

    def fill_rates(self) -> bytes:
        """Make the lines for the answers of this loop tick, of which one is about to be put into the outbox."""
        self.rates = rates = self.rates_left()
        self.context.outbox.counted.append(self)
        return rates

    def count(self, _now: float) -> None:
        """The loop tick ends."""
        self.rates = None

    def request(self, body: bytes, request_id: bytes) -> Request:
        """A request like the one that was let in."""
        own = self._request
        request = Request(b"POST", own.headers, own.peer, request_id)
        request.network, request.caller, request.path_token = self.network, self.caller, own.path_token
        request.keep_alive, request.digest = own.keep_alive, own.digest
        request.admission, request.body = self, body
        return request


class Admissions:
    """The callers that a worker has let in."""

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

    def admit(self, request: Request, before: Admission | None = None) -> Admission | None:
        """Let a caller in that is in memory; None: the pipeline decides. `before`: let in last."""
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
            # Unknown, or its calls must be checked one by one, or it has spent what it may.
            return None
        if before is not None and before.fits(request, caller):
            return before
        return self.of(request, caller, network, resolver)

    def of(self, request: Request, caller: Caller, network: ServedNetwork, resolver: Resolver) -> Admission:
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
            )
        return admission
