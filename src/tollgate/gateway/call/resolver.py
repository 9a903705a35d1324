"""What the calls of one network share: the cache, equal calls under way, and what its methods mean.

`resolution.py` gets the answer to one call with it, `batch_resolution.py` those to a batch; `call.py` and
`batch.py` take the same steps on the fast path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from tollgate.chains.catalogue import Holds, Look, Scope
from tollgate.core.shapes import ABSENT, Call, Reply
from tollgate.errors import Overloaded, Refusal
from tollgate.gateway.call.cache import Cache, key_of
from tollgate.gateway.call.reply_validator import ReplyValidator
from tollgate.gateway.upstream import sticky
from tollgate.gateway.upstream.broadcast import SIGNED
from tollgate.gateway.upstream.exchange import Exchange
from tollgate.gateway.upstream.get_logs import GET_LOGS
from tollgate.shm.upstream_status import Snapshot, Stamp

APART = SIGNED | sticky.METHODS | {GET_LOGS}
"""Methods that are sent on their own, also within a batch."""
NOTHING_KNOWN = Scope(Holds.NEVER)
STOPPING = "The service stops: try again."

Resolved = Reply | Refusal


class SingleFlight(Struct, gc=False, eq=False):
    """A call under way whose answer others may share."""

    stamp: Stamp
    """The network's status before it was sent. A call from before the last block is not equal."""
    waiters: list[Callable[[Resolved], None]] | None = None
    """None until there is one: few calls have any."""

    def join(self, waiter: Callable[[Resolved], None]) -> None:
        """Wait for its answer."""
        if self.waiters is None:
            self.waiters = [waiter]
        else:
            self.waiters.append(waiter)

    def leave(self, waiter: Callable[[Resolved], None]) -> None:
        """Wait no longer."""
        if self.waiters is not None:
            self.waiters.remove(waiter)


class Resolver:
    """The cache, the calls under way and the methods of one network."""

    def __init__(
        self,
        exchange: Exchange,
        cache: Cache | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.exchange = exchange
        self._status = exchange.status
        self.loop = loop
        self.flights: dict[bytes, SingleFlight] = {}
        self.plans: dict[str, Any] = {}
        """What methods mean, as far as they were called; `admission.py` fills it."""
        self.change(cache)

    def change(self, cache: Cache | None) -> None:
        """Take over the network's settings as they are now."""
        self.cache = cache
        network = self.exchange.network
        self._catalogue = network.catalogue
        self._validators: dict[str, ReplyValidator] = {}
        self.plans.clear()
        self.repeatable = network.reads | sticky.MAKE_FILTER
        """Methods that can be sent to several upstreams without harm."""
        self.readers = network.catalogue.readers(self.repeatable)
        self.cached = cache.methods if cache is not None else frozenset()
        self.key_prefixes = {name: f"{name}(".encode() for name in network.reads} if cache is not None else {}
        """Methods whose calls are shared, with what their keys begin with."""
        upstreams = [upstream.settings for upstream in self.exchange.upstreams]
        self.batch_calls = min((each.batch_calls for each in upstreams), default=1)
        """Most calls in a batch that any of the upstreams takes."""
        self.logs_blocks = min((each.logs_blocks for each in upstreams if each.logs_blocks), default=0)

    def key(self, call: Call) -> bytes | None:
        """What makes a call equal to another; None where each is sent on its own."""
        name = self.key_prefixes.get(call.method)
        if name is None:
            return None
        params = call.params
        # As `key_of` makes it, only quicker: most have their parameters in a list.
        return name + b"\0".join(params) if params and type(params) is list else key_of(call)

    def recall(self, key: bytes | None) -> Reply | None:
        """An answer that is cached and still holds."""
        return None if key is None or self.cache is None else self.cache.get(key)

    def known(self, key: bytes, snapshot: Snapshot) -> tuple[Reply | None, SingleFlight | None]:
        """An answer that is cached and still holds, or else an equal call that is under way."""
        cache = self.cache
        if cache is not None and key in cache.entries:
            reply = cache.get(key, snapshot)
            if reply is not None:
                return reply, None
        return None, self.flight(key, snapshot.stamp) if key in self.flights else None

    def stamp(self) -> Stamp:
        """The network's status now: to be noted before a call is sent."""
        return self._status.stamp

    def flight(self, key: bytes, stamp: Stamp) -> SingleFlight | None:
        """An equal call that is under way."""
        flight = self.flights.get(key)
        return flight if flight is not None and flight.stamp == stamp else None

    def may_keep(self, method: str) -> bool:
        """Whether answers to this method may ever be cached."""
        return method in self.cached

    def lead(self, key: bytes, stamp: Stamp) -> SingleFlight:
        """Let others wait for a call that is going to be sent."""
        mine = self.flights[key] = SingleFlight(stamp)
        return mine

    def complete(self, key: bytes, mine: SingleFlight, scope: Scope, reply: Resolved | None) -> None:
        """Cache the answer of a call that others could wait for, and hand it to those that do."""
        if self.cache is not None and isinstance(reply, Reply) and reply.error is ABSENT:
            self.cache.put(key, scope, reply, mine.stamp)
        if self.flights.get(key) is mine:
            del self.flights[key]
        if mine.waiters is not None:
            for waiter in mine.waiters:
                waiter(reply or Overloaded(STOPPING))

    # --- Calling upstreams -----------------------------------------------------------------------------

    def scope(self, call: Call) -> Scope:
        """Which blocks a call refers to."""
        read = self.readers.get(call.method)
        return NOTHING_KNOWN if read is None else read(call.params)

    def validator(self, method: str, scope: Scope) -> ReplyValidator:
        """The validator of replies to a call. To be made before it is sent."""
        # As `reveals_tip`, without its call.
        if scope.holds is Holds.TIP and scope.look is not Look.NOWHERE:
            return ReplyValidator(self.exchange, method, scope)
        # It remembers nothing of a call, so all calls of the method share it.
        validator = self._validators.get(method)
        if validator is None:
            validator = ReplyValidator(self.exchange, method, NOTHING_KNOWN)
            if self._catalogue.method(method) is not None:
                self._validators[method] = validator
        return validator
