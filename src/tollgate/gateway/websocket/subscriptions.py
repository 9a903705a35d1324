"""The calls of a WebSocket about its subscriptions: answered here, admitted and recorded as any other.

`Subscriptions` belongs to one connection: its subscriptions by id, and the bound on them. `SocketPipeline` is the
pipeline with one thing more: calls about subscriptions are answered by these, not by an upstream.

An error of such a call is written as a node writes it, without our `data`. But it is a refusal: no node
has answered, so it is not billed.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, cast

import msgspec
from msgspec import Raw

from tollgate.chains.subscriptions import End, Wrong, terms
from tollgate.core.entries import CallEntry
from tollgate.core.shapes import Call, Reply
from tollgate.errors import InvalidRequest, Overloaded, RateLimited, Refusal
from tollgate.gateway.access.caller import Caller
from tollgate.gateway.call.batch_resolution import UNSET, BatchItem, resolve_many
from tollgate.gateway.call.pipeline import Answering, Pipeline
from tollgate.gateway.call.resolver import Resolver
from tollgate.gateway.feeds.subscribers import FAMILIES, NotificationSink, Subscriber
from tollgate.gateway.messages import Answer, Request, ServedNetwork
from tollgate.gateway.recording.counters import OK
from tollgate.settings.model import WebSocketSettings

# A team has as much as this many of its callers: tokens cost nothing.
TEAM_CALLERS = 5
# On a domain all addresses of a /48 or a /24 have what this many have.
PREFIX_CALLERS = 2
_json = msgspec.json.Encoder().encode
_TRUE = Raw(b"true")


class Stream(Protocol):
    """What a subscription subscribes to: the feed of a network."""

    async def join(self, subscriber: Subscriber) -> None:
        """Subscribe. Raise `Wrong`, or a Refusal, where that cannot be."""

    def leave(self, subscriber: Subscriber) -> None:
        """Unsubscribe."""


class SocketRequest(Request):
    """A message of a WebSocket."""

    subscriptions: Subscriptions | None = None

    def __init__(self, method: bytes, headers: dict[bytes, bytes], peer: str, request_id: bytes) -> None:
        super().__init__(method, headers, peer, request_id)
        self.fresh: list[Subscriber] = []
        """Subscriptions that it has made: they send nothing before its answer has left."""


class Declined(Refusal):
    """A call about subscriptions that is wrong: an error with the family's own code and message."""

    reason, status, code = InvalidRequest.reason, InvalidRequest.status, InvalidRequest.code
    hint = when = ""
    as_node = True

    def __init__(self, wrong: Wrong) -> None:
        super().__init__(wrong.message)
        # Each family has codes of its own.
        self.code = wrong.code  # type: ignore[misc]


class CallerUse:
    """What one caller has open in this worker, on all of its connections; or a prefix or team with its callers."""

    __slots__ = (
        "_callers",
        "_max_subscriptions",
        "_max_terms",
        "_within",
        "connections",
        "subscriptions",
        "terms",
    )

    def __init__(self, within: CallerUse | None, settings: WebSocketSettings, callers: int) -> None:
        self._within = within
        self._callers = callers
        """It may have as much as this many callers."""
        self.bound(settings)
        self.connections = self.subscriptions = self.terms = 0

    def bound(self, settings: WebSocketSettings) -> None:
        self._max_subscriptions = self._callers * settings.subscriptions_per_caller
        self._max_terms = self._callers * settings.filter_terms_per_caller

    @property
    def team(self) -> CallerUse:
        return self if self._within is None else self._within.team

    def take(self, wanted: int) -> None:
        """Count one more subscription with a filter of so many terms, or refuse it."""
        self._check(wanted)
        if self._within is not None:
            self._within.take(wanted)
        self.subscriptions += 1
        self.terms += wanted

    def _check(self, wanted: int) -> None:
        if self.subscriptions >= self._max_subscriptions:
            raise _too_many(f"You have {self._max_subscriptions} subscriptions, the most that you may: end some.")
        if self.terms + wanted > self._max_terms:
            raise _too_many(
                f"The filters of your subscriptions may have {self._max_terms} addresses and topics in all: "
                "use fewer, or end some."
            )

    def give_back(self, wanted: int) -> None:
        self.subscriptions -= 1
        self.terms -= wanted
        if self._within is not None:
            self._within.give_back(wanted)


def _too_many(message: str) -> RateLimited:
    return RateLimited(message, data={"limit": "subscriptions"})


class Subscriptions:
    """The subscriptions of one connection."""

    def __init__(
        self,
        family: str,
        stream: Stream,
        sink: NotificationSink,
        max_subscriptions: int,
        use: CallerUse,
        charge: Callable[[str, int], None],
    ) -> None:
        self._family = family
        self._protocol = FAMILIES[family]
        self.methods: frozenset[str] = self._protocol.METHODS
        self._stream = stream
        self._sink = sink
        self._max_subscriptions = max_subscriptions
        self._use = use
        self._charge = charge
        """Counts calls to upstreams that a subscription made by this method needs, or refuses them."""
        self._subscribers: dict[str, Subscriber] = {}
        self._closed = False

    async def answer(self, call: Call, request: SocketRequest) -> Reply:
        """Answer a call of `methods`, or refuse it."""
        if call.id is None:
            raise InvalidRequest(f"{call.method} needs an id: without an answer there is no subscription.")
        try:
            wanted = self._protocol.parse(call.method, call.params)
            if isinstance(wanted, End):
                return self._end(wanted)
            subscriber = Subscriber(wanted, self._new_id(), self._family, self._sink)
            subscriber.charge = partial(self._charge, call.method)
            subscriber.team = self._use.team
            if len(self._subscribers) >= (limit := self._max_subscriptions):
                raise _too_many(f"A connection may have {limit} subscriptions: end some, or open another one.")
            # Taken before the wait, so that many calls at once cannot go beyond the bound.
            self._use.take(terms(wanted))
            self._subscribers[subscriber.id] = subscriber
            await self._join(subscriber)
        except Wrong as wrong:
            raise Declined(wrong) from wrong
        request.fresh.append(subscriber)
        return Reply(Raw(_json(subscriber.id)))

    async def _join(self, subscriber: Subscriber) -> None:
        try:
            await self._stream.join(subscriber)
        except BaseException:
            self._drop(subscriber.id)
            raise
        if self._closed:
            self._stream.leave(subscriber)

    def _end(self, wanted: End) -> Reply:
        subscriber = self._drop(wanted.id)
        if subscriber is None:
            raise Wrong(self._protocol.UNKNOWN_ID, "There is no subscription with this id on this connection.")
        self._stream.leave(subscriber)
        return Reply(_TRUE)

    def _drop(self, subscription_id: str) -> Subscriber | None:
        subscriber = self._subscribers.pop(subscription_id, None)
        if subscriber is not None:
            self._use.give_back(terms(subscriber.subscription))
        return subscriber

    def _new_id(self) -> str:
        while True:
            made = "0x" + secrets.token_hex(16) if self._family == "eth" else str(secrets.randbits(63))
            if made not in self._subscribers:
                return made

    def close(self) -> None:
        self._closed = True
        for subscriber in list(self._subscribers.values()):
            self._drop(subscriber.id)
            self._stream.leave(subscriber)


class SocketPipeline(Pipeline):
    """Answers the messages of WebSockets."""

    subscribes = True

    def _pass_on(
        self,
        request: Request,
        network: ServedNetwork,
        resolver: Resolver,
        caller: Caller,
        parsed: Call | Sequence[Call],
    ) -> Answering:
        if isinstance(parsed, Sequence):
            if any(_subscriptions(request, call) is not None for call in parsed):
                return self._answer_subscriptions(request, network, resolver, caller, parsed)
        elif (subscriptions := _subscriptions(request, parsed)) is not None:
            return self._answer_subscription(cast("SocketRequest", request), network, subscriptions, parsed)
        return super()._pass_on(request, network, resolver, caller, parsed)

    def caller_of(self, request: SocketRequest) -> Caller | None:
        """The caller of a connection, if it is in memory."""
        try:
            return self._credentials.recall(request)
        except Refusal:
            return None

    def charge_caller(self, request: SocketRequest, caller: Caller, calls: int, method: str) -> bool:
        """Count calls to upstreams for a subscription, or refuse them; whether they are to be recorded."""
        self.admit_more(caller, request, calls)
        request.calls = [CallEntry(method, OK)] * calls
        return self.bills_upstream_calls

    async def _answer_subscription(
        self, request: SocketRequest, network: ServedNetwork, subscriptions: Subscriptions, call: Call
    ) -> Answer:
        return self.render(request, network, call, await self._subscription_reply(subscriptions, call, request))

    async def _answer_subscriptions(
        self, request: Request, network: ServedNetwork, resolver: Resolver, caller: Caller, calls: Sequence[Call]
    ) -> Answer:
        deadline = self._now() + self.request_seconds
        calls = self.opened(calls, caller)
        items = [BatchItem(call, None, UNSET, self._refusal(network, caller, call)) for call in calls]
        open_ones = [each for each in items if each.result is None]
        others = [each for each in open_ones if _subscriptions(request, each.call) is None]
        for item, found in zip(
            others,
            await resolve_many(
                resolver,
                [each.call for each in others],
                deadline,
                partial(self.admit_more, caller, request),
                request.span,
                caller.holder,
            ),
            strict=True,
        ):
            item.result, item.route = found.result, found.route
        for each in open_ones:
            subscriptions = _subscriptions(request, each.call)
            if subscriptions is not None:
                is_late = self._now() >= deadline
                each.result = (
                    Overloaded("The other calls of this batch took all of its time: try again.")
                    if is_late
                    else await self._subscription_reply(subscriptions, each.call, cast("SocketRequest", request))
                )
        return self.render_batch(request, network, caller, items)

    async def _subscription_reply(
        self, subscriptions: Subscriptions, call: Call, request: SocketRequest
    ) -> Reply | Refusal:
        try:
            return await subscriptions.answer(call, request)
        except Refusal as refusal:
            return refusal


def _subscriptions(request: Request, call: Call) -> Subscriptions | None:
    """The connection's subscriptions, if a call is about them."""
    subscriptions = request.subscriptions if isinstance(request, SocketRequest) else None
    return subscriptions if subscriptions is not None and call.method in subscriptions.methods else None
