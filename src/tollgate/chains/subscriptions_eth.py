"""Subscriptions of the `eth` family: `eth_subscribe` as geth understands it; blocks and logs as nodes write them.

A head is sent without the block's body; a log exactly as the node wrote it, and once more with `"removed": true`
when its block was replaced.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import Raw, Struct

from tollgate.chains.heads import Misread, NodeCall
from tollgate.chains.subscriptions import INVALID_PARAMS, End, Head, Item, Params, Subscription, Topic, Wrong

METHODS = frozenset({"eth_subscribe", "eth_unsubscribe"})
NO_SUCH_SUBSCRIPTION = -32601
UNKNOWN_ID = -32000

# geth's own bounds.
MAX_ADDRESSES = MAX_CHOICES = 1_000
MAX_TOPICS = 4
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}")
_WORD = re.compile(r"0x[0-9a-fA-F]{64}")
_NUMBER = re.compile(r"0x[0-9a-fA-F]{1,16}")
_TAGS = frozenset({"latest", "safe", "finalized", "earliest"})
# Parts of a block that are no part of its header.
_BODY = ("transactions", "uncles", "withdrawals", "size", "totalDifficulty")

_json = msgspec.json.Encoder().encode


# --- Requests of callers -------------------------------------------------------------------------------------


class _Filter(Struct, rename="camel"):
    address: str | list[str] | None = None
    topics: list[str | list[str | None] | None] | None = None
    from_block: str | None = None
    to_block: str | None = None
    block_hash: str | None = None


_texts = msgspec.json.Decoder(str).decode
_filters = msgspec.json.Decoder(_Filter).decode
_flags = msgspec.json.Decoder(bool).decode


def parse(method: str, params: Params) -> Subscription | End:
    """Understand a call of `METHODS`, or raise `Wrong`."""
    if not isinstance(params, list) or not params:
        raise Wrong(INVALID_PARAMS, f"{method} takes its parameters as an array, the first of them a string.")
    try:
        name = _texts(params[0])
        if method == "eth_unsubscribe":
            return End(name)
        return _subscription(name, params[1:])
    except (msgspec.DecodeError, RecursionError) as error:
        raise Wrong(INVALID_PARAMS, f"The parameters of {method} cannot be read: {error}.") from error


def _subscription(name: str, rest: list[Raw]) -> Subscription:
    given = rest[0] if rest and bytes(rest[0]) != b"null" else None
    if name == "newHeads":
        return Subscription(Topic.HEADS)
    if name == "logs":
        return _logs(_filters(given) if given is not None else _Filter())
    if name == "newPendingTransactions":
        return Subscription(Topic.PENDING, full=given is not None and _flags(given))
    raise Wrong(
        NO_SUCH_SUBSCRIPTION,
        f'There is no subscription to "{name[:64]}", only to newHeads, logs and newPendingTransactions.',
    )


def _logs(given: _Filter) -> Subscription:
    if given.block_hash is not None:
        raise Wrong(INVALID_PARAMS, "blockHash has no place in a subscription: use eth_getLogs.")
    addresses = [given.address] if isinstance(given.address, str) else given.address or []
    topics = given.topics or []
    if len(addresses) > MAX_ADDRESSES or len(topics) > MAX_TOPICS:
        raise Wrong(INVALID_PARAMS, f"At most {MAX_ADDRESSES} addresses and {MAX_TOPICS} topics can be filtered.")
    return Subscription(
        Topic.LOGS,
        frozenset(_lower(address, _ADDRESS, "an address") for address in addresses),
        tuple(_choices(topic) for topic in topics),
        min_keys=len(topics),
        first=_bound(given.from_block, "fromBlock") or 0,
        last=_bound(given.to_block, "toBlock"),
    )


def _choices(topic: str | list[str | None] | None) -> frozenset[str]:
    choices = topic if isinstance(topic, list) else [topic]
    if None in choices:
        return frozenset()
    if len(choices) > MAX_CHOICES:
        raise Wrong(INVALID_PARAMS, f"At most {MAX_CHOICES} topics are allowed in one position.")
    return frozenset(_lower(choice, _WORD, "a topic") for choice in choices if choice is not None)


def _bound(value: str | None, what: str) -> int | None:
    """A block number; None where it is no bound for what is still to come."""
    if value is None or value in _TAGS:
        return None
    if not _NUMBER.fullmatch(value):
        raise Wrong(INVALID_PARAMS, f"{what} must be a number in hex, or one of: {', '.join(sorted(_TAGS))}.")
    return int(value, 16)


def _lower(value: str, form: re.Pattern[str], what: str) -> str:
    if not form.fullmatch(value):
        raise Wrong(INVALID_PARAMS, f"{value[:80]!r} is not {what}.")
    return value.lower()


# --- Calls to nodes, and their answers -----------------------------------------------------------------------


class _EthHeader(Struct, rename="camel"):
    number: str
    hash: str
    parent_hash: str
    logs_bloom: str | None = None


class _Log(Struct, rename="camel"):
    address: str
    topics: list[str]
    block_hash: str | None = None


_headers = msgspec.json.Decoder(_EthHeader | None).decode
_members = msgspec.json.Decoder(dict[str, Raw]).decode
_list = msgspec.json.Decoder(list[Raw]).decode
_log = msgspec.json.Decoder(_Log).decode


def head_call() -> NodeCall:
    return NodeCall("eth_blockNumber", [])


def block_call(number: int) -> NodeCall:
    return NodeCall("eth_getBlockByNumber", [hex(number), False])


def logs_call(head: Head) -> NodeCall:
    return NodeCall("eth_getLogs", [{"blockHash": head.hash}])


def read_number(result: bytes) -> int:
    try:
        return int(_texts(result), 16)
    except (msgspec.DecodeError, ValueError) as error:
        raise Misread("not a block number") from error


def read_block(result: bytes) -> Head | None:
    """Read a block; None where the node has none."""
    try:
        header = _headers(result)
        if header is None:
            return None
        members = _members(result)
        for name in _BODY:
            members.pop(name, None)
        bloom = header.logs_bloom or ""
        number = int(header.number, 16)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Misread("not a block") from error
    return Head(
        number, header.hash.lower(), header.parent_hash.lower(), _json(members), bool(bloom[2:].strip("0"))
    )


def read_logs(result: bytes, head: Head) -> list[Item]:
    try:
        logs = [(_log(raw), bytes(raw)) for raw in _list(result)]
    except (msgspec.DecodeError, RecursionError) as error:
        raise Misread("not a list of logs") from error
    if any((log.block_hash or "").lower() != head.hash for log, _ in logs):
        raise Misread("logs of another block")
    return [
        Item(log.address.lower(), tuple(topic.lower() for topic in log.topics), result) for log, result in logs
    ]


def removed(result: bytes) -> bytes:
    """A log as it is sent when its block was replaced."""
    return _json(_members(result) | {"removed": Raw(b"true")})


def notification(_topic: Topic, subscription_id: str, result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","method":"eth_subscription","params":{"subscription":"%b","result":%b}}' % (
        subscription_id.encode(),
        result,
    )
