"""What a method means on one network, looked up once: its key, its scope, its counters, its part of a record."""

from __future__ import annotations

from itertools import compress

from tollgate.chains.catalogue import Holds, Kind, Look
from tollgate.core.entries import MAX_METHOD_BYTES
from tollgate.gateway.call.resolver import APART, Resolver
from tollgate.shm import metrics

CACHE_RESULTS = ("bypass", "miss", "hit", "coalesced")
BYPASS, MISS, HIT, COALESCED = _ALL = range(4)
"""What the cache did for a call, as records and metrics name it."""


class MethodPlan:
    """A method that may go straight: a read of the catalogue."""

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
    )

    def __init__(self, resolver: Resolver, writer: metrics.Writer, method: str) -> None:
        network = resolver.exchange.network
        names = (network.family, network.name)
        self.method = method
        self.name = method[:MAX_METHOD_BYTES]
        self.key_prefix = resolver.key_prefixes.get(method)
        """What keys of equal calls begin with; None: each is sent on its own."""
        self.cache = MISS if resolver.may_keep(method) else BYPASS
        """What the cache does for a call that an upstream answers."""
        self.read = resolver.readers[method]
        """Reads from its parameters which blocks a call refers to."""
        known = network.catalogue.method(method)
        self.block = (known.block or 0) if known is not None and known.holds is Holds.BLOCK else None
        """Where the block argument stands in a list of parameters."""
        self.reveals = known is not None and known.look is not Look.NOWHERE
        """Whether answers about the tip show where it is."""
        self.counts = [0] * len(CACHE_RESULTS)
        """Calls that were answered in this loop tick, by what the cache did; `count` adds them to the metrics."""
        self.counted = False
        """Whether there are any."""
        self.together = 0
        """Calls that came in a batch, but for its first: a batch is one request."""
        self._cells = writer.cells
        self._ok_cell = writer.cell(metrics.CALLS, *names, method, "ok")
        self._requests_cell = writer.cell(metrics.REQUESTS, *names, "200")
        self._cache_cells = [writer.cell(metrics.CACHE, *names, result) for result in CACHE_RESULTS]

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


def plan_of(resolver: Resolver, writer: metrics.Writer, method: str) -> MethodPlan | None:
    """The plan of a method; None where its calls need the general way."""
    plan = resolver.plans.get(method)
    if plan is None:
        catalogue = resolver.exchange.network.catalogue
        if method in APART or catalogue.kind(method) is not Kind.READ or method not in resolver.readers:
            return None
        plan = resolver.plans[method] = MethodPlan(resolver, writer, method)
    return plan
