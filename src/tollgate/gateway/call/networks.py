"""The networks that a worker serves, with all that answers for them. Changed in place by a reload.

What stays the same goes on: connections, what is known of an upstream, what is cached. An upstream that is taken
away still answers its pending calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tollgate.chains.catalogue import Catalogue
from tollgate.core.methods import Policy
from tollgate.gateway.call.cache import Cache
from tollgate.gateway.call.resolver import Resolver
from tollgate.gateway.memory_budget import Budget
from tollgate.gateway.messages import ServedNetwork
from tollgate.gateway.upstream.exchange import Exchange
from tollgate.gateway.upstream.health import Upstream
from tollgate.gateway.upstream.pool import Pool
from tollgate.settings.model import NetworkSettings, Settings, UpstreamSettings
from tollgate.shm import metrics
from tollgate.shm.upstream_status import NOTHING, SharedStatus, State, StatusSlots
from tollgate.store.base import Meters


class Networks:
    """What a worker serves."""

    def __init__(
        self,
        shared_status: SharedStatus,
        worker: int,
        meters: Meters,
        writer: metrics.Writer,
        budget: Budget,
        now: Callable[[], float],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._shared_status = shared_status
        self._worker = worker
        self._meters = meters
        self._writer = writer
        self._budget = budget
        self._now = now
        self._loop = loop
        self.all: dict[str, Resolver] = {}
        """By path; the same dictionary for good."""
        self._leaving: list[tuple[Pool, float]] = []
        """Pools of upstreams that were taken away, until no call can know them any more."""
        self._request_seconds = 0.0

    @property
    def served(self) -> list[ServedNetwork]:
        """The networks as they are now."""
        return [each.exchange.network for each in self.all.values()]

    def apply(self, settings: Settings, slots: StatusSlots) -> None:
        """Serve the networks of the settings."""
        # Calls that are under way have the deadline of the settings before.
        self._request_seconds = max(self._request_seconds, settings.limits.request_seconds)
        networks = {network.path: network for network in build_networks(settings)}
        for path in self.all.keys() - networks.keys():
            for upstream in self.all.pop(path).exchange.upstreams:
                self._retire(upstream.pool)
        share = settings.cache.bytes // (len(networks) or 1)
        for path, network in networks.items():
            known = self.all.get(path)
            upstreams = self._upstreams(network, known.exchange.upstreams if known else (), settings, slots)
            cache = self._cache(known, network, slots, share, settings.cache.entry_bytes)
            if known is None:
                status = self._shared_status.network(slots.networks[path], self._worker)
                exchange = Exchange(network, upstreams, status, self._meters, self._writer, self._now, self._loop)
                self.all[path] = Resolver(exchange, cache, self._loop)
            else:
                known.exchange.change(network, upstreams)
                known.change(cache)
            self.all[path].exchange.set_timeout(settings.limits.request_seconds)

    def sweep(self) -> None:
        """Ten times a second: fail what has passed its deadline."""
        for each in self.all.values():
            each.exchange.sweep()
        if self._leaving:
            for pool, _ in self._leaving:
                pool.sweep()
            now = self._now()
            self._leaving = [(pool, until) for pool, until in self._leaving if pool.size or now < until]

    def report(self) -> None:
        """Once a second: gauges, and the statistics of our calls."""
        writer = self._writer
        for each in self.all.values():
            network = each.exchange.network
            names = (network.family, network.name)
            each.exchange.report()
            writer.set(writer.cell(metrics.CACHE_BYTES, *names), each.cache.used if each.cache else 0)
            for upstream in each.exchange.upstreams:
                writer.set(writer.cell(metrics.UPSTREAM_CONNECTIONS, *names, upstream.name), upstream.pool.size)

    @property
    def is_usable(self) -> bool:
        """Whether any upstream of any network may be called, as far as the prober knows."""
        for each in self.all.values():
            # What a silent prober wrote is not believed, for or against.
            if not each.exchange.status.is_fresh and each.exchange.status.head != NOTHING:
                return True
            states = (upstream.status.state for upstream in each.exchange.upstreams)
            if any(state in (State.UP, State.UNKNOWN, State.LAGGING) for state in states):
                return True
        return False

    def close(self) -> None:
        """Close all connections; calls under way fail."""
        for each in self.all.values():
            for upstream in each.exchange.upstreams:
                upstream.pool.close()
        for pool, _ in self._leaving:
            pool.close()

    def _upstreams(
        self, network: ServedNetwork, before: tuple[Upstream, ...], settings: Settings, slots: StatusSlots
    ) -> list[Upstream]:
        known = {upstream.name: upstream for upstream in before}
        upstreams = []
        for wanted in network.upstreams:
            upstream = known.pop(wanted.name, None)
            if upstream is None:
                slot = slots.upstreams[f"{network.path}/{wanted.name}"]
                status = self._shared_status.upstream(slot, self._worker, network=slots.networks[network.path])
                upstream = Upstream(wanted, self._pool(wanted, settings), status, slot, network.path)
            elif _same_address(upstream.settings, wanted):
                upstream.pool.change(settings.limits.response_bytes)
                upstream.change(wanted, network.path)
            else:
                self._retire(upstream.pool)
                upstream.pool = self._pool(wanted, settings)
                upstream.change(wanted, network.path)
            upstreams.append(upstream)
        for upstream in known.values():
            self._retire(upstream.pool)
        return upstreams

    def _pool(self, upstream: UpstreamSettings, settings: Settings) -> Pool:
        return Pool(
            upstream,
            max_bytes=settings.limits.response_bytes,
            budget=self._budget,
            now=self._now,
            loop=self._loop,
        )

    def _retire(self, pool: Pool) -> None:
        pool.retire()
        self._leaving.append((pool, self._now() + self._request_seconds))

    def _cache(
        self, known: Resolver | None, network: ServedNetwork, slots: StatusSlots, share: int, max_entry: int
    ) -> Cache | None:
        if not network.cache or not share:
            return None
        if known is not None and known.cache is not None:
            known.cache.resize(share, max_entry)
            return known.cache
        status = self._shared_status.network(slots.networks[network.path], self._worker)
        return Cache(network.catalogue, status, share, max_entry)


def build_networks(settings: Settings) -> list[ServedNetwork]:
    """The served networks, as the gateway sees them."""
    return [
        _network(family, name, each) for family, names in settings.families.items() for name, each in names.items()
    ]


def _network(family: str, name: str, settings: NetworkSettings) -> ServedNetwork:
    return ServedNetwork(
        family,
        name,
        Policy(
            settings.allow_methods,
            settings.deny_methods,
            settings.open_methods,
            settings.domain_methods,
            settings.strict,
        ),
        Catalogue(family),
        settings.upstreams,
        broadcast=settings.broadcast,
        hedge=settings.hedge,
        cache=settings.cache,
        chain_id=settings.chain_id,
    )


def _same_address(before: UpstreamSettings, after: UpstreamSettings) -> bool:
    """Whether connections to it can be kept."""
    return (before.url, before.headers, before.connections) == (after.url, after.headers, after.connections)
