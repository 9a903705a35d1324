"""What a method means on one network, looked up once: its key, its scope, its counters, its part of a record."""

from __future__ import annotations

from tollgate.chains.catalogue import Holds, Kind
from tollgate.core.entries import LONGEST_METHOD
from tollgate.gateway.call.resolver import APART, Resolver
from tollgate.shm import metrics


class MethodPlan:
    """A method that may go straight: a read of the catalogue."""

    __slots__ = (
        "block",
        "bypass",
        "cache",
        "cache_cell",
        "coalesced_cell",
        "hit_cell",
        "key_prefix",
        "method",
        "name",
        "ok_cell",
        "read",
    )

    def __init__(self, resolver: Resolver, writer: metrics.Writer, method: str) -> None:
        network = resolver.exchange.network
        names = (network.family, network.name)
        self.method = method
        self.name = method[:LONGEST_METHOD]
        self.key_prefix = resolver.key_prefixes.get(method)
        """What keys of equal calls begin with; None: each is sent on its own."""
        self.cache = "miss" if resolver.may_keep(method) else "bypass"
        """What a record says of a call that an upstream has answered."""
        self.read = resolver.readers[method]
        """Reads what a call asks about from its parameters."""
        known = network.catalogue.method(method)
        self.block = (known.block or 0) if known is not None and known.holds is Holds.BLOCK else None
        """Where the block argument stands in a list of parameters."""
        self.ok_cell = writer.cell(metrics.CALLS, *names, method, "ok")
        self.cache_cell = writer.cell(metrics.CACHE, *names, self.cache)
        self.hit_cell = writer.cell(metrics.CACHE, *names, "hit")
        self.coalesced_cell = writer.cell(metrics.CACHE, *names, "coalesced")


def plan_of(resolver: Resolver, writer: metrics.Writer, method: str) -> MethodPlan | None:
    """The plan of a method; None where its calls need the general way."""
    plan = resolver.plans.get(method)
    if plan is None:
        catalogue = resolver.exchange.network.catalogue
        if method in APART or catalogue.kind(method) is not Kind.READ or method not in resolver.readers:
            return None
        plan = resolver.plans[method] = MethodPlan(resolver, writer, method)
    return plan
