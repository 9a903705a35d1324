"""Subscriptions of the `starknet` family: the WebSocket API of starknet-specs 0.8 to 0.10.

Subscribers get what a sequencer has accepted on L2. What is only pre-confirmed may change or vanish, and the
specification lets a node leave it out: a subscription to that alone is refused.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Raw, Struct

from tollgate.chains import starknet_versions as versions
from tollgate.chains.heads import Misread, NodeCall
from tollgate.chains.starknet_versions import Kind
from tollgate.chains.subscriptions import (
    INVALID_PARAMS,
    End,
    Head,
    Item,
    Params,
    Start,
    Subscription,
    Topic,
    Wrong,
)

NO_SUCH_SUBSCRIPTION = -32601
BLOCK_NOT_FOUND = 24
TOO_MANY_KEYS = 34
UNKNOWN_ID = 66
TOO_MANY_ADDRESSES = 67
TOO_FAR_BACK = 68
MAX_BLOCKS_BACK = 1_024

MAX_KEYS = 16
MAX_CHOICES = 1_000
# As juno and pathfinder have it.
MAX_ADDRESSES = 1_000
# What all nodes allow.
_PAGE = 1_000
_FELT = re.compile(r"0x[0-9a-fA-F]{1,64}")
_SETTLED = "ACCEPTED_ON_L2"
# Where a status can go no further but by a reorganisation.
FINAL_STATUSES = frozenset({"ACCEPTED_ON_L1", "REJECTED"})

_names: dict[str, tuple[str, ...]] = {
    "starknet_subscribeNewHeads": ("block_id",),
    "starknet_subscribeEvents": ("from_address", "keys", "block_id", "finality_status"),
    "starknet_subscribeTransactionStatus": ("transaction_hash",),
    "starknet_subscribeNewTransactionReceipts": ("finality_status", "sender_address"),
    "starknet_subscribeNewTransactions": ("finality_status", "sender_address", "tags"),
    "starknet_unsubscribe": ("subscription_id",),
}
# Of specification 0.8 alone.
_PENDING = "starknet_subscribePendingTransactions"
_names_of_pending = ("transaction_details", "sender_address")
METHODS = frozenset(_names) | {_PENDING}
_NOTIFICATIONS = {
    Topic.HEADS: "starknet_subscriptionNewHeads",
    Topic.EVENTS: "starknet_subscriptionEvents",
    Topic.STATUS: "starknet_subscriptionTransactionStatus",
    Topic.RECEIPTS: "starknet_subscriptionNewTransactionReceipts",
    Topic.TRANSACTIONS: "starknet_subscriptionNewTransaction",
    Topic.PENDING: "starknet_subscriptionPendingTransactions",
}
_REORG = "starknet_subscriptionReorg"

_json = msgspec.json.Encoder().encode


# --- Requests of callers -------------------------------------------------------------------------------------


class _GivenBlock(Struct, forbid_unknown_fields=True):
    block_number: int | None = None
    block_hash: str | None = None


class _Given(Struct):
    """Every parameter of every method; those that a method does not have never get in."""

    block_id: _GivenBlock | str | None = None
    from_address: str | list[str] | None = None
    keys: list[list[str]] | None = None
    finality_status: str | list[str] | None = None
    sender_address: list[str] | None = None
    transaction_hash: str | None = None
    subscription_id: str | int | None = None
    transaction_details: bool | None = None
    tags: Any = None


_given = msgspec.json.Decoder(_Given).decode


def parse(method: str, params: Params) -> Subscription | End:
    """Understand a call of `METHODS` by what all versions but 0.8 take, or raise `Wrong`."""
    if method == _PENDING:
        raise Wrong(NO_SUCH_SUBSCRIPTION, f"{method} is not supported: use starknet_subscribeNewTransactions.")
    return _parse(method, _names[method], params)


def parse_by(version: str, method: str, params: Params) -> Subscription | End:
    """Understand a call of `METHODS` as a version of the specification defines it, or raise `Wrong`."""
    if method != "starknet_unsubscribe" and method not in versions.subscriptions(version):
        raise Wrong(NO_SUCH_SUBSCRIPTION, f"Version {version} has no {method}.")
    every = _names_of_pending if method == _PENDING else _names[method]
    missing = versions.missing_parameters(version, method)
    names = tuple(name for name in every if name not in missing)
    for name, given in _by_name(method, names, params).items():
        written = bytes(given)
        if written.startswith(b"[") and not versions.has(version, Kind.LIST, method, name):
            raise Wrong(INVALID_PARAMS, f"{name} of {method} is one address in version {version}.")
        if written[:1].isdigit() and not versions.has(version, Kind.INTEGER, method, name):
            raise Wrong(INVALID_PARAMS, f"{name} of {method} is a string in version {version}.")
    return _parse(method, names, params)


def _by_name(method: str, names: tuple[str, ...], params: Params) -> dict[str, Raw]:
    if isinstance(params, list):
        if len(params) > len(names):
            raise Wrong(INVALID_PARAMS, f"{method} takes at most: {', '.join(names)}.")
        params = dict(zip(names, params, strict=False))
    unknown = [name for name in params or () if name not in names]
    if unknown:
        raise Wrong(INVALID_PARAMS, f"{method} has no {unknown[0][:64]!r}, only: {', '.join(names)}.")
    return params or {}


def _parse(method: str, names: tuple[str, ...], params: Params) -> Subscription | End:
    try:
        return _parsed(method, _given(_json(_by_name(method, names, params))))
    except (msgspec.DecodeError, RecursionError) as error:
        raise Wrong(INVALID_PARAMS, f"The parameters of {method} cannot be read: {error}.") from error


def _parsed(method: str, given: _Given) -> Subscription | End:
    if method == "starknet_unsubscribe":
        if given.subscription_id is None:
            raise Wrong(INVALID_PARAMS, "starknet_unsubscribe needs a subscription_id.")
        return End(str(given.subscription_id))
    if method == "starknet_subscribeNewHeads":
        return Subscription(Topic.HEADS, start=_start(given.block_id))
    if method == "starknet_subscribeTransactionStatus":
        if given.transaction_hash is None:
            raise Wrong(INVALID_PARAMS, "starknet_subscribeTransactionStatus needs a transaction_hash.")
        return Subscription(Topic.STATUS, hash=_felt(given.transaction_hash))
    if method == _PENDING:
        return Subscription(
            Topic.PENDING, _addresses(given.sender_address or []), full=bool(given.transaction_details)
        )
    _check_finality(given.finality_status)
    if method == "starknet_subscribeEvents":
        return _events(given)
    topic = Topic.RECEIPTS if method == "starknet_subscribeNewTransactionReceipts" else Topic.TRANSACTIONS
    return Subscription(topic, _addresses(given.sender_address or []))


def _events(given: _Given) -> Subscription:
    addresses = [given.from_address] if isinstance(given.from_address, str) else given.from_address or []
    keys = given.keys or []
    if len(keys) > MAX_KEYS or any(len(choices) > MAX_CHOICES for choices in keys):
        raise Wrong(TOO_MANY_KEYS, "Too many keys provided in a filter")
    chosen = tuple(frozenset(_felt(key) for key in choices) for choices in keys)
    min_keys = max((place for place, choices in enumerate(chosen, 1) if choices), default=0)
    return Subscription(
        Topic.EVENTS, _addresses(addresses), chosen, min_keys=min_keys, start=_start(given.block_id)
    )


def _addresses(given: list[str]) -> frozenset[str]:
    if len(given) > MAX_ADDRESSES:
        raise Wrong(TOO_MANY_ADDRESSES, "Too many addresses in filter sender_address filter")
    return frozenset(_felt(address) for address in given)


def _check_finality(given: str | list[str] | None) -> None:
    wanted = [given] if isinstance(given, str) else given
    if wanted and _SETTLED not in wanted:
        raise Wrong(
            INVALID_PARAMS,
            f"Only what is {_SETTLED} is supported here: set finality_status to that, or leave it out.",
        )


def _start(block_id: _GivenBlock | str | None) -> Start | None:
    if block_id is None or block_id == "latest":
        return None
    if isinstance(block_id, _GivenBlock):
        if block_id.block_number is not None and block_id.block_hash is None and block_id.block_number >= 0:
            return Start(block_id.block_number)
        if block_id.block_hash is not None and block_id.block_number is None:
            return Start(hash=_felt(block_id.block_hash))
    raise Wrong(INVALID_PARAMS, 'block_id must be "latest", {"block_number": …} or {"block_hash": …}.')


def _felt(value: str) -> str:
    """A field element in the one way in which it is compared."""
    if not _FELT.fullmatch(value):
        raise Wrong(INVALID_PARAMS, f"{value[:80]!r} is not a field element in hex.")
    return _same(value)


def _same(value: str) -> str:
    return "0x" + (value[2:].lstrip("0").lower() or "0")


# --- Calls to nodes, and their answers -----------------------------------------------------------------------


class _StarknetHeader(Struct):
    block_number: int
    block_hash: str
    parent_hash: str


class _Hashes(Struct):
    transactions: list[str]


class _Event(Struct):
    from_address: str
    keys: list[str]
    block_hash: str | None = None


class _Page(Struct):
    events: list[Raw]
    continuation_token: str | None = None


class _Sender(Struct):
    sender_address: str | None = None
    contract_address: str | None = None


class _TransactionHash(Struct):
    transaction_hash: str


class _TransactionWithReceipt(Struct):
    transaction: Raw
    receipt: Raw


class _Entries(Struct):
    block_hash: str
    transactions: list[_TransactionWithReceipt]


class _Status(Struct):
    finality_status: str


_number = msgspec.json.Decoder(int).decode
_headers = msgspec.json.Decoder(_StarknetHeader).decode
_members = msgspec.json.Decoder(dict[str, Raw]).decode
_hashes = msgspec.json.Decoder(_Hashes).decode
_event = msgspec.json.Decoder(_Event).decode
_pages = msgspec.json.Decoder(_Page).decode
_entries = msgspec.json.Decoder(_Entries).decode
_sender = msgspec.json.Decoder(_Sender).decode
_hash = msgspec.json.Decoder(_TransactionHash).decode
_status = msgspec.json.Decoder(_Status).decode


def head_call() -> NodeCall:
    return NodeCall("starknet_blockNumber", [])


def block_call(number: int) -> NodeCall:
    return NodeCall("starknet_getBlockWithTxHashes", {"block_id": {"block_number": number}})


def block_by_hash_call(block_hash: str) -> NodeCall:
    return NodeCall("starknet_getBlockWithTxHashes", {"block_id": {"block_hash": block_hash}})


def events_call(head: Head, token: str | None) -> NodeCall:
    """The call for a page of the events of a block."""
    block_id = {"block_hash": head.hash}
    wanted: dict[str, object] = {"from_block": block_id, "to_block": block_id, "chunk_size": _PAGE}
    if token is not None:
        wanted["continuation_token"] = token
    return NodeCall("starknet_getEvents", {"filter": wanted})


def receipts_call(head: Head) -> NodeCall:
    """The call for the transactions of a block and their receipts."""
    return NodeCall("starknet_getBlockWithReceipts", {"block_id": {"block_hash": head.hash}})


def status_call(transaction_hash: str) -> NodeCall:
    return NodeCall("starknet_getTransactionStatus", {"transaction_hash": transaction_hash})


def read_number(result: bytes) -> int:
    try:
        return _number(result)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Misread("not a block number") from error


def read_block(result: bytes) -> Head | None:
    try:
        header = _headers(result)
        members = _members(result)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Misread("not a block") from error
    members.pop("transactions", None)
    members.pop("status", None)
    return Head(header.block_number, _same(header.block_hash), _same(header.parent_hash), _json(members))


def read_hashes(result: bytes) -> list[str]:
    try:
        return [_same(each) for each in _hashes(result).transactions]
    except (msgspec.DecodeError, RecursionError) as error:
        raise Misread("not a block with hashes") from error


def read_events(result: bytes, head: Head) -> tuple[list[Item], str | None]:
    """Read a page of the events of a block, and the token of the next one."""
    try:
        page = _pages(result)
        events = [(_event(raw), bytes(raw)) for raw in page.events]
    except (msgspec.DecodeError, RecursionError) as error:
        raise Misread("not a page of events") from error
    if any(_same(event.block_hash or "") != head.hash for event, _ in events):
        raise Misread("events of another block")
    settled = {"finality_status": Raw(_json(_SETTLED))}
    items = [
        Item(_same(event.from_address), tuple(map(_same, event.keys)), _json(_members(raw) | settled))
        for event, raw in events
    ]
    return items, page.continuation_token or None


def read_transactions(result: bytes, head: Head) -> tuple[list[Item], list[Item]]:
    """Read the transactions of a block and their receipts."""
    try:
        block = _entries(result)
        if _same(block.block_hash) != head.hash:
            raise Misread("another block")
        transactions, receipts = [], []
        for entry in block.transactions:
            transaction = _members(entry.transaction)
            sender = _sender(entry.transaction)
            address = _same(sender.sender_address or sender.contract_address or "0x")
            transaction["transaction_hash"] = Raw(_json(_hash(entry.receipt).transaction_hash))
            transaction["finality_status"] = Raw(_json(_SETTLED))
            transactions.append(Item(address, (), _json(transaction)))
            receipts.append(Item(address, (), _json(_placed(entry.receipt, head))))
    except (msgspec.DecodeError, RecursionError) as error:
        raise Misread("not a block with receipts") from error
    return transactions, receipts


def _placed(receipt: Raw, head: Head) -> dict[str, Raw]:
    """A receipt with its block, which it lacks inside of one."""
    place = {"block_hash": Raw(_json(head.hash)), "block_number": Raw(b"%d" % head.number)}
    return _members(receipt) | place


def read_status(result: bytes) -> str:
    """Read how far a transaction has come."""
    try:
        return _status(result).finality_status
    except (msgspec.DecodeError, RecursionError) as error:
        raise Misread("not a status") from error


# --- What subscribers get ------------------------------------------------------------------------------------


def notification(topic: Topic, subscription_id: str, result: bytes) -> bytes:
    return _written(_NOTIFICATIONS[topic], subscription_id, result)


def status_result(transaction_hash: str, result: bytes) -> bytes:
    return _json({"transaction_hash": transaction_hash, "status": Raw(result)})


def reorganisation(subscription_id: str, first: Head, last: Head) -> bytes:
    """What is sent to a subscriber when blocks that it got were replaced."""
    replaced = {
        "starting_block_hash": first.hash,
        "starting_block_number": first.number,
        "ending_block_hash": last.hash,
        "ending_block_number": last.number,
    }
    return _written(_REORG, subscription_id, _json(replaced))


def _written(method: str, subscription_id: str, result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","method":"%b","params":{"subscription_id":"%b","result":%b}}' % (
        method.encode(),
        subscription_id.encode(),
        result,
    )
