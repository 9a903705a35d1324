"""Blocks of one network, and what subscribers need of them, through calls that may fail and be made again.

`fetch` calls the upstreams, with failover. What cannot be had now, or cannot be right, is `NotNow`: the caller
retries later. Nothing is kept here, and no subscriber is notified.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from msgspec import Struct

from tollgate.chains import subscriptions_eth, subscriptions_starknet
from tollgate.chains.heads import Misread, NodeCall
from tollgate.chains.subscriptions import Head, Item, Topic
from tollgate.core import jsonrpc
from tollgate.core.shapes import ABSENT, Reply
from tollgate.errors import Refusal

T = TypeVar("T")

Fetch = Callable[[NodeCall], Awaitable[Reply]]
"""Calls the upstreams of a network. Raises a Refusal where none has answered. A task must be able to await it."""

# Events of one block, in pages and bytes: a node that never comes to an end must not be followed for ever. (A
# sequencer's blocks have 5,000 events at most.)
_MAX_PAGES = 32
MAX_EVENT_BYTES = 16 * 1_048_576
# A node may have a block before it has the logs of it; then the call is repeated, but not for ever.
_MAX_DOUBTS = 5
# Blocks of which that is remembered; more of them than are fetched at once.
_MAX_DOUBTED = 64


class NotNow(Exception):
    """It could not be had; later it may."""


class Incomplete(NotNow):
    """A block that is there, and of which what belongs to some topics cannot be had."""

    def __init__(self, why: str, topics: Collection[Topic]) -> None:
        super().__init__(why)
        self.topics = topics


@contextmanager
def _needed_for(*topics: Topic) -> Iterator[None]:
    try:
        yield
    except NotNow as error:
        raise Incomplete(str(error), topics) from error


class EventPage(Struct, frozen=True):
    """A block, with what subscribers need of it."""

    head: Head
    items: Mapping[Topic, Sequence[Item]] = {}

    @property
    def size(self) -> int:
        return sum(len(item.result) for items in self.items.values() for item in items)


class Source(Protocol):
    """Where blocks come from."""

    async def newest(self) -> int:
        """Return the number of the newest block."""

    async def block(self, number: int) -> Head:
        """Return a block."""

    async def page(self, number: int, topics: Collection[Topic]) -> EventPage:
        """Return a block with what belongs to these topics."""


class EthSource:
    """Where blocks of the `eth` family come from."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._doubts: dict[str, int] = {}
        """Blocks whose logs are missing, and how often they were."""

    async def newest(self) -> int:
        return await _get(self._fetch, subscriptions_eth.head_call(), subscriptions_eth.read_number)

    async def block(self, number: int) -> Head:
        found = await _get(self._fetch, subscriptions_eth.block_call(number), subscriptions_eth.read_block)
        return _checked(found, number)

    async def page(self, number: int, topics: Collection[Topic]) -> EventPage:
        head = await self.block(number)
        if Topic.LOGS not in topics:
            return EventPage(head)
        with _needed_for(Topic.LOGS):
            return EventPage(head, {Topic.LOGS: await self._logs(head)})

    async def _logs(self, head: Head) -> list[Item]:
        call = subscriptions_eth.logs_call(head)
        logs = await _get(self._fetch, call, lambda body: subscriptions_eth.read_logs(body, head))
        if head.has_logs and not logs:
            doubts = self._doubts.get(head.hash, 0)
            if doubts < _MAX_DOUBTS:
                self._doubts[head.hash] = doubts + 1
                if len(self._doubts) > _MAX_DOUBTED:
                    del self._doubts[next(iter(self._doubts))]
                raise NotNow("a block has logs by its header, and none by its node")
        return logs


class StarknetSource:
    """Where blocks of the `starknet` family come from."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    async def newest(self) -> int:
        return await _get(self._fetch, subscriptions_starknet.head_call(), subscriptions_starknet.read_number)

    async def block(self, number: int) -> Head:
        call = subscriptions_starknet.block_call(number)
        found = await _get(self._fetch, call, subscriptions_starknet.read_block)
        return _checked(found, number)

    async def number_of(self, block_hash: str) -> int | None:
        """Return the number of a block; None where there is no such block."""
        call = subscriptions_starknet.block_by_hash_call(block_hash)
        reply = await _reply(self._fetch, call)
        if reply.error is not ABSENT:
            if jsonrpc.error_code(reply) == subscriptions_starknet.BLOCK_NOT_FOUND:
                return None
            raise NotNow("a node's error")
        found = _read(subscriptions_starknet.read_block, bytes(reply.result))
        return None if found is None else found.number

    async def transactions(self, number: int) -> list[str]:
        call = subscriptions_starknet.block_call(number)
        return await _get(self._fetch, call, subscriptions_starknet.read_hashes)

    async def status(self, transaction_hash: str) -> bytes | None:
        """Return how far a transaction has come; None where no node knows it."""
        reply = await _reply(self._fetch, subscriptions_starknet.status_call(transaction_hash))
        return None if reply.error is not ABSENT else bytes(reply.result)

    async def page(self, number: int, topics: Collection[Topic]) -> EventPage:
        head = await self.block(number)
        items: dict[Topic, Sequence[Item]] = {}
        if Topic.EVENTS in topics:
            with _needed_for(Topic.EVENTS):
                items[Topic.EVENTS] = await self._events(head)
        if Topic.RECEIPTS in topics or Topic.TRANSACTIONS in topics:
            with _needed_for(Topic.RECEIPTS, Topic.TRANSACTIONS):
                items[Topic.TRANSACTIONS], items[Topic.RECEIPTS] = await _get(
                    self._fetch,
                    subscriptions_starknet.receipts_call(head),
                    lambda body: subscriptions_starknet.read_transactions(body, head),
                )
        return EventPage(head, items)

    async def _events(self, head: Head) -> list[Item]:
        found: list[Item] = []
        token: str | None = None
        size = 0
        for _ in range(_MAX_PAGES):
            result = await _result(self._fetch, subscriptions_starknet.events_call(head, token))
            size += len(result)
            if size > MAX_EVENT_BYTES:
                break
            items, token = _read(lambda body: subscriptions_starknet.read_events(body, head), result)
            found += items
            if token is None:
                return found
        raise NotNow("a node's events have no end")


async def _reply(fetch: Fetch, call: NodeCall) -> Reply:
    try:
        return await fetch(call)
    except Refusal as refusal:
        raise NotNow(refusal.reason) from refusal


async def _result(fetch: Fetch, call: NodeCall) -> bytes:
    """What a node answers to a call that has an answer."""
    reply = await _reply(fetch, call)
    if reply.error is not ABSENT:
        raise NotNow(f"{call.method}: a node's error {jsonrpc.error_code(reply)}")
    return bytes(reply.result)


async def _get(fetch: Fetch, call: NodeCall, read: Callable[[bytes], T]) -> T:
    """What a node answers, read."""
    return _read(read, await _result(fetch, call))


def _read(read: Callable[[bytes], T], result: bytes) -> T:
    try:
        return read(result)
    except Misread as error:
        raise NotNow(str(error)) from error


def _checked(head: Head | None, number: int) -> Head:
    if head is None or head.number != number:
        raise NotNow(f"no block {number} yet")
    return head
