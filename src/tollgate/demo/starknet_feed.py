"""`starknet_subscribe…` on the simulated chain, JSON-RPC specification 0.10.

Owns what each kind of subscription is told. Heads and events begin with the block that is asked for, the newest
unless told otherwise, as Pathfinder and Juno do. Every kind is told of a reorganisation before anything else.
No transaction is ever pre-confirmed here: it is received, then in a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tollgate.demo.chain import Transfer
from tollgate.demo.chain_params import Args, Method, RpcError, Shape, array, invalid
from tollgate.demo.chain_view import View
from tollgate.demo.feed import Change, Note, Subscribing
from tollgate.demo.starknet_blocks import felt_value, hash_bytes, resolve
from tollgate.demo.starknet_events import EventFilter, emitted, event_filter
from tollgate.demo.starknet_shapes import (
    felt,
    finality,
    header,
    receipt_with_block,
    sender_of,
    transaction,
    transaction_status,
)

if TYPE_CHECKING:
    from tollgate.demo.feed import Subscription

UNKNOWN_SUBSCRIPTION = 66
TOO_MANY_ADDRESSES = 67
TOO_FAR_BACK = 68

MAX_BLOCKS_BACK = 1_024
_MAX_ADDRESSES = 1_024
_MAX_STATUSES = 5

_RECEIVED = "RECEIVED"
_PRE_CONFIRMED = "PRE_CONFIRMED"
_ON_L2 = "ACCEPTED_ON_L2"


def _reorg(change: Change) -> Iterator[Note]:
    if not change.orphaned:
        return
    result: Shape = {}
    for name, height in (("starting", change.orphaned[0]), ("ending", change.orphaned[-1])):
        result[f"{name}_block_hash"] = felt(change.old.chain.block_hash(height))
        result[f"{name}_block_number"] = height
    yield Note("starknet_subscriptionReorg", result)


class NewHeads:
    """The header of each block from the first on."""

    def __init__(self, first: int) -> None:
        self._first = first

    def start(self, view: View) -> Iterator[Note]:
        """Tell the headers up to the newest."""
        yield from self._tell(view, range(self._first, view.head + 1))

    def changed(self, change: Change) -> Iterator[Note]:
        """Tell the new headers."""
        yield from _reorg(change)
        yield from self._tell(change.new, change.added)

    def _tell(self, view: View, heights: range) -> Iterator[Note]:
        for height in heights:
            yield Note("starknet_subscriptionNewHeads", header(view, height))


class Events:
    """The events of each block from the first on that pass a filter."""

    def __init__(self, first: int, chosen: EventFilter) -> None:
        self._first = first
        self._chosen = chosen

    def start(self, view: View) -> Iterator[Note]:
        """Tell the events up to the newest block."""
        yield from self._tell(view, range(self._first, view.head + 1))

    def changed(self, change: Change) -> Iterator[Note]:
        """Tell the new events."""
        yield from _reorg(change)
        yield from self._tell(change.new, change.added)

    def _tell(self, view: View, heights: range) -> Iterator[Note]:
        for height in heights:
            for event in emitted(view, height):
                if self._chosen.passes(event):
                    shown = event | {"finality_status": finality(height, view.head)}
                    yield Note("starknet_subscriptionEvents", shown)


class TransactionStatus:
    """How far one transaction has come, at once if it is known, then each time that this changes."""

    def __init__(self, name: bytes) -> None:
        self._name = name
        self._told: Shape | None = None

    def start(self, view: View) -> Iterator[Note]:
        """Tell the status, if there is one."""
        yield from self._tell(view)

    def changed(self, change: Change) -> Iterator[Note]:
        """Tell the status, if it is another."""
        yield from _reorg(change)
        yield from self._tell(change.new)

    def _tell(self, view: View) -> Iterator[Note]:
        status = transaction_status(view, self._name)
        if status is not None and status != self._told:
            shown = {"transaction_hash": felt(self._name), "status": status}
            yield Note("starknet_subscriptionTransactionStatus", shown)
        self._told = status


class _OfSenders:
    """The transactions of some senders, or of all."""

    def __init__(self, statuses: frozenset[str], senders: frozenset[str]) -> None:
        self._statuses = statuses
        self._senders = senders

    def start(self, _view: View) -> Iterator[Note]:
        """Tell nothing: only what is new."""
        yield from ()

    def _wanted(self, view: View, heights: range) -> Iterator[Transfer]:
        for height in heights:
            yield from (move for move in view.moves(height) if self._is_sent_by_one(view, move))

    def _is_sent_by_one(self, view: View, move: Transfer) -> bool:
        return not self._senders or sender_of(view.chain, move) in self._senders


class NewTransactionReceipts(_OfSenders):
    """The receipt of each new transaction."""

    def changed(self, change: Change) -> Iterator[Note]:
        """Tell the new receipts."""
        yield from _reorg(change)
        if _ON_L2 not in self._statuses:
            return
        for move in self._wanted(change.new, change.added):
            shown = receipt_with_block(change.new.chain, move, change.new.head)
            yield Note("starknet_subscriptionNewTransactionReceipts", shown)


class NewTransactions(_OfSenders):
    """Each new transaction, when it is received, when it is in a block, or both."""

    def changed(self, change: Change) -> Iterator[Note]:
        """Tell what was submitted, then what the new blocks have."""
        yield from _reorg(change)
        if _RECEIVED in self._statuses:
            for move in change.received:
                if self._is_sent_by_one(change.new, move):
                    yield self._tell(change.new, move, _RECEIVED)
        if _ON_L2 in self._statuses:
            for move in self._wanted(change.new, change.added):
                yield self._tell(change.new, move, _ON_L2)

    def _tell(self, view: View, move: Transfer, status: str) -> Note:
        shown = transaction(view.chain, move) | {"finality_status": status}
        return Note("starknet_subscriptionNewTransaction", shown)


def _first(view: View, args: Args) -> int:
    block_id = args.get("block_id", "latest")
    if block_id in ("pre_confirmed", "l1_accepted"):
        raise invalid("block_id is not a block that a subscription can begin with")
    height = resolve(view, block_id)
    if view.head - height >= MAX_BLOCKS_BACK:
        raise RpcError(TOO_FAR_BACK, "Cannot go back more than 1024 blocks")
    return height


def _new_heads(view: View, args: Args) -> Subscription:
    return NewHeads(_first(view, args))


def _events(view: View, args: Args) -> Subscription:
    if args.get("finality_status", _ON_L2) not in (_PRE_CONFIRMED, _ON_L2):
        raise invalid("finality_status is not one of PRE_CONFIRMED and ACCEPTED_ON_L2")
    chosen = event_filter(args.get("from_address"), args.get("keys", []))
    return Events(_first(view, args), chosen)


def _transaction_status(_view: View, args: Args) -> Subscription:
    return TransactionStatus(hash_bytes(args["transaction_hash"], "transaction_hash"))


def _receipts(_view: View, args: Args) -> Subscription:
    return NewTransactionReceipts(_statuses(args, (_PRE_CONFIRMED, _ON_L2)), _senders(args))


def _transactions(_view: View, args: Args) -> Subscription:
    known = (_RECEIVED, "CANDIDATE", _PRE_CONFIRMED, _ON_L2)
    return NewTransactions(_statuses(args, known), _senders(args))


def _statuses(args: Args, known: tuple[str, ...]) -> frozenset[str]:
    given = array(args.get("finality_status", []), "finality_status", _MAX_STATUSES)
    if any(status not in known for status in given):
        raise invalid(f"finality_status is not a list of {', '.join(known)}")
    return frozenset(str(status) for status in given) or frozenset({_ON_L2})


def _senders(args: Args) -> frozenset[str]:
    given = args.get("sender_address", [])
    if isinstance(given, list) and len(given) > _MAX_ADDRESSES:
        raise RpcError(TOO_MANY_ADDRESSES, "Too many addresses in filter sender_address filter")
    listed = array(given, "sender_address", _MAX_ADDRESSES)
    return frozenset(hex(felt_value(one, "sender_address")) for one in listed)


SUBSCRIBING = Subscribing(
    methods={
        "starknet_subscribeNewHeads": Method(("block_id",), 0, _new_heads),
        "starknet_subscribeEvents": Method(("from_address", "keys", "block_id", "finality_status"), 0, _events),
        # starknet.js sends a block id along, which the specification has no use for.
        "starknet_subscribeTransactionStatus": Method(("transaction_hash", "block_id"), 1, _transaction_status),
        "starknet_subscribeNewTransactionReceipts": Method(("finality_status", "sender_address"), 0, _receipts),
        "starknet_subscribeNewTransactions": Method(
            ("finality_status", "sender_address", "tags"), 0, _transactions
        ),
    },
    unsubscribe="starknet_unsubscribe",
    id_name="subscription_id",
    id_is_hex=False,
    unknown=RpcError(UNKNOWN_SUBSCRIPTION, "Invalid subscription id"),
)
