"""Subscriptions to a simulated Starknet network over one WebSocket, as its version of the specification has them.

Pure but for what is subscribed to: the clock is an argument, and `notifications` yields what there is to send by
then. No socket. Only what is accepted on L2 is sent, and to 0.8 the transactions of the pending block.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Raw, Struct

from tollgate.chains import starknet_versions as versions
from tollgate.chains import subscriptions_starknet as starknet
from tollgate.chains.heads import NodeCall
from tollgate.chains.starknet_versions import in_form
from tollgate.chains.subscriptions import End, Item, Subscription, Topic, Wrong, passes
from tollgate.demo.chain import BLOCK_SECONDS
from tollgate.demo.network import SimulatedNetwork
from tollgate.demo.params import RpcError, invalid

# More than any client needs; a connection that wants more must not make the node slow for the others.
MAX_SUBSCRIPTIONS = 128

_encode = msgspec.json.encode


class _Open(Struct):
    wanted: Subscription
    height: int
    """The next block to send something of."""
    status: str = ""
    """The newest that was sent, of a subscription to the status of a transaction."""


class StarknetFeed:
    """Answers the calls of one WebSocket, and knows what it has subscribed to."""

    def __init__(self, network: SimulatedNetwork) -> None:
        self._network = network
        self._open: dict[str, _Open] = {}
        self._made = 0

    def answer(self, method: str, params: object, now: float) -> object:
        """Return the result of a call, or raise `RpcError`."""
        if method not in starknet.METHODS:
            return self._network.answer(method, params, now)
        try:
            wanted = starknet.parse_by(self._network.version, method, _written(params))
        except Wrong as error:
            raise RpcError(error.code, error.message) from error
        if isinstance(wanted, End):
            if self._open.pop(wanted.id, None) is None:
                raise RpcError(starknet.UNKNOWN_ID, "Invalid subscription id")
            return True
        if len(self._open) == MAX_SUBSCRIPTIONS:
            raise invalid(f"a connection has at most {MAX_SUBSCRIPTIONS} subscriptions")
        height = self._start(wanted, now)
        self._made += 1
        self._open[str(self._made)] = _Open(wanted, height)
        return str(self._made)

    def _start(self, wanted: Subscription, now: float) -> int:
        """Return the first block of a subscription: one in the past where it names one, or the next."""
        head = self._network.view(now).head
        if wanted.start is None:
            return head + 1
        by_hash = {"block_hash": wanted.start.hash}
        block_id = by_hash if wanted.start.number is None else {"block_number": wanted.start.number}
        block = self._call(NodeCall("starknet_getBlockWithTxHashes", {"block_id": block_id}), now)
        height = msgspec.json.decode(block, type=_Numbered).block_number
        if height < head - starknet.MAX_BLOCKS_BACK:
            raise RpcError(starknet.TOO_FAR_BACK, "Cannot go back more than 1024 blocks")
        return height

    def wait_seconds(self, now: float) -> float | None:
        """Return how long until there may be something to send; None without a subscription."""
        if not self._open:
            return None
        return BLOCK_SECONDS - (now - self._network.chain.genesis) % BLOCK_SECONDS

    def notifications(self, now: float) -> Iterator[bytes]:
        """Yield what there is to send; each only once."""
        head = self._network.view(now).head
        for name, each in self._open.items():
            if each.wanted.topic is Topic.STATUS:
                results = self._status(each, now)
            elif each.wanted.topic is Topic.PENDING:
                results = self._pending(each, head, now)
            else:
                results = self._settled(each, head, now)
            for result in results:
                yield starknet.notification(each.wanted.topic, name, result)

    def _status(self, each: _Open, now: float) -> Iterator[bytes]:
        try:
            result = self._call(starknet.status_call(each.wanted.hash), now)
        except RpcError:
            return
        status = starknet.read_status(result)
        if status != each.status:
            each.status = status
            yield starknet.status_result(each.wanted.hash, result)

    def _pending(self, each: _Open, head: int, now: float) -> Iterator[bytes]:
        if head < each.height:
            return
        each.height = head + 1
        block = self._network.answer("starknet_getBlockWithTxs", {"block_id": "pending"}, now)
        for transaction in msgspec.convert(block, _Transactions).transactions:
            item = Item(str(transaction["sender_address"]), (), b"")
            if passes(each.wanted, item):
                yield _encode(transaction if each.wanted.full else transaction["transaction_hash"])

    def _settled(self, each: _Open, head: int, now: float) -> Iterator[bytes]:
        while each.height <= head:
            height, each.height = each.height, each.height + 1
            for item in self._items(each.wanted.topic, height, now):
                if passes(each.wanted, item):
                    yield item.result

    def _items(self, topic: Topic, height: int, now: float) -> list[Item]:
        """Return what a block has for subscriptions of a topic."""
        head = starknet.read_block(self._call(starknet.block_call(height), now))
        if head is None or topic is Topic.HEADS:
            return [Item("", (), head.result)] if head else []
        if topic is Topic.EVENTS:
            # All events of a block are fewer than a page.
            items, _ = starknet.read_events(self._call(starknet.events_call(head, None), now), head)
            return [Item(item.address, item.keys, self._event(item.result)) for item in items]
        transactions, receipts = starknet.read_transactions(self._call(starknet.receipts_call(head), now), head)
        return receipts if topic is Topic.RECEIPTS else transactions

    def _event(self, result: bytes) -> bytes:
        members = msgspec.json.decode(result, type=dict[str, object])
        return _encode(in_form(self._network.version, versions.SENT_EVENT, members))

    def _call(self, call: NodeCall, now: float) -> bytes:
        return _encode(self._network.answer(call.method, call.params, now))


class _Numbered(Struct):
    block_number: int


class _Transactions(Struct):
    transactions: list[dict[str, object]]


def _written(params: object) -> list[Raw] | dict[str, Raw] | None:
    """Return parameters as they are read from a request."""
    try:
        return msgspec.json.decode(_encode(params), type=list[Raw] | dict[str, Raw] | None)
    except msgspec.ValidationError as error:
        raise invalid("not an array or an object") from error
