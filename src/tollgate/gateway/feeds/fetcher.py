"""Calls of our own to the upstreams of a network, for its feed: with all that a caller's read has, and no bill.

A block that one upstream does not have yet another one may have: it is tried at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from msgspec import Raw

from tollgate.chains.heads import NodeCall
from tollgate.core.shapes import Params, Reply, WrittenCall
from tollgate.errors import Refusal, UpstreamUnavailable
from tollgate.gateway.call.resolver import Resolver, fetch, resolve
from tollgate.gateway.messages import Route
from tollgate.gateway.upstream.health import Upstream

FETCH_SECONDS = 10.0
_NOTHING = b"null"
_ID = Raw(b"1")
_json = msgspec.json.Encoder().encode


class BlockFetcher:
    """Calls the upstreams of one network."""

    def __init__(self, network: Callable[[], Resolver | None], now: Callable[[], float]) -> None:
        self._network = network
        """What answers for it now; None: it is not served any more."""
        self._now = now
        self._under_way: set[asyncio.Future[Reply]] = set()

    async def from_cache(self, call: NodeCall) -> Reply:
        """Get the answer to a call about the past, from memory if it is there, or raise a refusal."""
        resolver = self._network()
        if resolver is not None:
            kept = resolver.recall(resolver.key(WrittenCall(call.method, _params(call), _ID)))
            if kept is not None:
                return kept
        return await self(call)

    async def __call__(self, call: NodeCall) -> Reply:
        """Get the answer to a call, or raise a refusal.

        The call outlives the task that started it: callers may have joined it.
        """
        fetching = asyncio.ensure_future(self._fetch(call))
        self._under_way.add(fetching)
        fetching.add_done_callback(self._under_way.discard)
        return await asyncio.shield(fetching)

    async def _fetch(self, call: NodeCall) -> Reply:
        resolver = self._network()
        if resolver is None:
            raise UpstreamUnavailable("This network is not served any more.")
        written = WrittenCall(call.method, _params(call), _ID)
        deadline = self._now() + FETCH_SECONDS
        tried: list[Upstream] = []
        found: Reply | None = None
        while True:
            route = Route()
            try:
                if tried:
                    reply = await fetch(resolver, written, deadline, route, tried)
                else:
                    # Never from memory, but joined with an equal call in progress.
                    reply = await resolve(resolver, written, resolver.key(written), deadline, route)
            except Refusal:
                if found is None:
                    raise
                return found
            upstreams = [upstream for upstream in resolver.exchange.upstreams if upstream.name == route.upstream]
            if bytes(reply.result) != _NOTHING or not upstreams or upstreams[0] in tried:
                return reply
            found = reply
            tried.append(upstreams[0])


def _params(call: NodeCall) -> Params:
    if isinstance(call.params, dict):
        return {name: Raw(_json(value)) for name, value in call.params.items()}
    return [Raw(_json(value)) for value in call.params]
