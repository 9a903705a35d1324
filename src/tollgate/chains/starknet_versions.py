"""What differs between the versions of Starknet's JSON-RPC specification, and what follows for one of them.

The table is written from the files in `api/` of starkware-libs/starknet-specs at the releases named in `RELEASES`.
Left out is what no request and no answer shows: names of schemas, descriptions, and bounds that always held. A
patch release is the same version: between 0.10.0 and 0.10.3 parameters were added that callers may leave out.

Pure: no request is read and no answer written here. What the table does not name is the same in all versions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache

from msgspec import Struct

V0_8, V0_9, V0_10 = "0.8", "0.9", "0.10"
VERSIONS = (V0_8, V0_9, V0_10)
"""Oldest first."""
RELEASES = {V0_8: "0.8.1", V0_9: "0.9.0", V0_10: "0.10.3"}
"""The newest release of each version."""

SAME_IN_ALL = frozenset({"starknet_chainId", "starknet_blockNumber", "starknet_blockHashAndNumber"})
"""Methods whose parameters and answers have one form in all versions."""

_RELEASE = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})(?:[.-][0-9A-Za-z.-]*)?")


class Kind(Enum):
    """What it is that a version has or lacks; in brackets, what `of` and `name` are."""

    TAG = "tag"
    """A tag of a block (`BLOCK_TAG`, the tag)."""
    METHOD = "method"
    """A method (its API, the method)."""
    NOTIFICATION = "notification"
    """What a node sends to subscribers (the method that subscribes, the notification)."""
    PARAMETER = "parameter"
    """A parameter (the method, its name)."""
    REFUSED_TAG = "refused tag"
    """A tag that the version knows and this method does not take (the method, the tag)."""
    LIST = "list"
    """A parameter, or a member of it, that may be a list too (the method, its name)."""
    INTEGER = "integer"
    """A parameter that may be a number too (the method, its name)."""
    INPUT = "input"
    """A member of what callers send (the schema, its name)."""
    MEMBER = "member"
    """A member of an answer (the schema, its name)."""
    REQUIRED = "required"
    """A member that an answer must have, and that is optional in other versions (the schema, its name)."""
    VALUE = "value"
    """A value of an enumeration (the schema, the value)."""
    RESULT = "result"
    """Another form of the result, for callers that set a flag (the method, a member of it)."""
    ERROR = "error"
    """An error that a method may answer (the method, or the API; code and message)."""


class Difference(Struct, frozen=True):
    """Something that the versions from `since` to `until` have, and the others lack."""

    kind: Kind
    of: str
    """Where it is in the specification: a schema or a method."""
    name: str
    since: str = VERSIONS[0]
    until: str = VERSIONS[-1]
    code: int = 0
    """Of an error."""

    @property
    def versions(self) -> tuple[str, ...]:
        return VERSIONS[VERSIONS.index(self.since) : VERSIONS.index(self.until) + 1]


def _since(version: str, kind: Kind, of: str, *names: str) -> tuple[Difference, ...]:
    return tuple(Difference(kind, of, name, since=version) for name in names)


def _until(version: str, kind: Kind, of: str, *names: str) -> tuple[Difference, ...]:
    return tuple(Difference(kind, of, name, until=version) for name in names)


# Schemas by their newest names. 0.8 calls the block that is being made pending, its schemas PENDING_….
BLOCK_HEADER = "BLOCK_HEADER"
NEXT_HEADER = "PRE_CONFIRMED_BLOCK_HEADER"
NEXT_RECEIPT = "TXN_RECEIPT_WITH_BLOCK_INFO"
NEXT_UPDATE = "PRE_CONFIRMED_STATE_UPDATE"
STATE_DIFF = "STATE_DIFF"
EMITTED_EVENT = "EMITTED_EVENT"
INVOKE = "INVOKE_TXN_V3"
SENT_INVOKE = "BROADCASTED_INVOKE_TXN"
MESSAGE_STATUS = "starknet_getMessagesStatus"
BLOCK_STATUS = "BLOCK_STATUS"
TXN_STATUS = "TXN_STATUS"
FINALITY_STATUS = "TXN_FINALITY_STATUS"
FEE_ESTIMATE = "FEE_ESTIMATE"
MESSAGE_FEE_ESTIMATE = "MESSAGE_FEE_ESTIMATE"
SENT_EVENT = "starknet_subscriptionEvents"

_SUBSCRIBE_NEXT = "starknet_subscribePendingTransactions"
_SUBSCRIBE_TRANSACTIONS = "starknet_subscribeNewTransactions"
_SUBSCRIBE_RECEIPTS = "starknet_subscribeNewTransactionReceipts"

DIFFERENCES: tuple[Difference, ...] = (
    # Tags of blocks.
    *_until(V0_8, Kind.TAG, "BLOCK_TAG", "pending"),
    *_since(V0_9, Kind.TAG, "BLOCK_TAG", "pre_confirmed", "l1_accepted"),
    *_until(V0_8, Kind.REFUSED_TAG, "starknet_getStorageProof", "pending"),
    *_since(V0_9, Kind.REFUSED_TAG, "starknet_getStorageProof", "pre_confirmed"),
    # 0.8 traces the pending block.
    *_since(V0_9, Kind.REFUSED_TAG, "starknet_traceBlockTransactions", "pre_confirmed"),
    # Blocks: the one that is being made has a parent in 0.8 and a number since.
    *_until(V0_8, Kind.MEMBER, NEXT_HEADER, "parent_hash"),
    *_since(V0_9, Kind.MEMBER, NEXT_HEADER, "block_number"),
    *_since(
        V0_10, Kind.MEMBER, BLOCK_HEADER,
        "event_commitment", "transaction_commitment", "receipt_commitment", "state_diff_commitment",
        "event_count", "transaction_count", "state_diff_length",
    ),
    *_until(V0_8, Kind.VALUE, BLOCK_STATUS, "PENDING", "REJECTED"),
    *_since(V0_9, Kind.VALUE, BLOCK_STATUS, "PRE_CONFIRMED"),
    # State.
    *_since(V0_10, Kind.MEMBER, STATE_DIFF, "migrated_compiled_classes"),
    *_until(V0_9, Kind.REQUIRED, NEXT_UPDATE, "old_root"),
    *_since(V0_10, Kind.PARAMETER, "starknet_getStateUpdate", "contract_addresses"),
    *_since(V0_10, Kind.PARAMETER, "starknet_getStorageAt", "response_flags"),
    *_since(V0_10, Kind.RESULT, "starknet_getStorageAt", "last_update_block"),
    # Transactions.
    *_since(V0_10, Kind.MEMBER, INVOKE, "proof_facts"),
    *_since(V0_10, Kind.INPUT, SENT_INVOKE, "proof"),
    *_since(V0_10, Kind.PARAMETER, "starknet_getBlockWithTxs", "response_flags"),
    *_since(V0_10, Kind.PARAMETER, "starknet_getBlockWithReceipts", "response_flags"),
    *_since(V0_10, Kind.PARAMETER, "starknet_getTransactionByHash", "response_flags"),
    *_since(V0_10, Kind.PARAMETER, "starknet_getTransactionByBlockIdAndIndex", "response_flags"),
    # Receipts and statuses. In 0.8 a receipt without a block's number is one of the pending block.
    *_since(V0_9, Kind.MEMBER, NEXT_RECEIPT, "block_number"),
    *_since(V0_9, Kind.VALUE, FINALITY_STATUS, "PRE_CONFIRMED"),
    *_until(V0_8, Kind.VALUE, TXN_STATUS, "REJECTED"),
    *_since(V0_9, Kind.VALUE, TXN_STATUS, "CANDIDATE", "PRE_CONFIRMED"),
    *_since(V0_9, Kind.MEMBER, MESSAGE_STATUS, "execution_status"),
    *_until(V0_8, Kind.VALUE, MESSAGE_STATUS, "RECEIVED", "REJECTED"),
    # Events.
    *_since(V0_10, Kind.MEMBER, EMITTED_EVENT, "transaction_index", "event_index"),
    *_since(V0_10, Kind.LIST, "starknet_getEvents", "address"),
    # Fees: since 0.9 those of transactions are in FRI alone, those of messages in WEI.
    *_until(V0_8, Kind.VALUE, FEE_ESTIMATE, "WEI"),
    *_until(V0_8, Kind.VALUE, MESSAGE_FEE_ESTIMATE, "FRI"),
    # Traces.
    *_since(V0_10, Kind.VALUE, "SIMULATION_FLAG", "RETURN_INITIAL_READS"),
    *_since(V0_10, Kind.PARAMETER, "starknet_traceBlockTransactions", "trace_flags"),
    *_since(V0_10, Kind.RESULT, "starknet_simulateTransactions", "initial_reads"),
    *_since(V0_10, Kind.RESULT, "starknet_traceBlockTransactions", "initial_reads"),
    *_since(V0_9, Kind.MEMBER, "L1_HANDLER_TXN_TRACE", "revert_reason"),
    # Subscriptions.
    *_until(V0_8, Kind.METHOD, "WebSocket", _SUBSCRIBE_NEXT),
    *_until(V0_8, Kind.NOTIFICATION, _SUBSCRIBE_NEXT, "starknet_subscriptionPendingTransactions"),
    *_since(V0_9, Kind.METHOD, "WebSocket", _SUBSCRIBE_TRANSACTIONS, _SUBSCRIBE_RECEIPTS),
    *_since(V0_9, Kind.NOTIFICATION, _SUBSCRIBE_TRANSACTIONS, "starknet_subscriptionNewTransaction"),
    *_since(V0_9, Kind.NOTIFICATION, _SUBSCRIBE_RECEIPTS, "starknet_subscriptionNewTransactionReceipts"),
    *_since(V0_9, Kind.PARAMETER, "starknet_subscribeEvents", "finality_status"),
    *_since(V0_9, Kind.MEMBER, SENT_EVENT, "finality_status"),
    *_since(V0_10, Kind.LIST, "starknet_subscribeEvents", "from_address"),
    *_since(V0_10, Kind.PARAMETER, _SUBSCRIBE_TRANSACTIONS, "tags"),
    *_until(V0_8, Kind.INTEGER, "starknet_unsubscribe", "subscription_id"),
    # Errors.
    Difference(Kind.ERROR, "read", "Requested entrypoint does not exist in the contract", until=V0_9, code=21),
    Difference(Kind.ERROR, "read", "Requested entry point does not exist in the contract", since=V0_10, code=21),
    Difference(Kind.ERROR, "starknet_estimateFee", "Contract not found", since=V0_10, code=20),
    Difference(Kind.ERROR, "starknet_estimateMessageFee", "Contract not found", since=V0_10, code=20),
    Difference(Kind.ERROR, "write", "Contract class size it too large", until=V0_8, code=57),
    Difference(Kind.ERROR, "write", "Contract class size is too large", since=V0_9, code=57),
    Difference(Kind.ERROR, "write", "Sender address in not an account contract", until=V0_8, code=58),
    Difference(Kind.ERROR, "write", "Sender address is not an account contract", since=V0_9, code=58),
    Difference(Kind.ERROR, "write", "Replacement transaction is underpriced", since=V0_9, code=64),
    Difference(Kind.ERROR, "write", "Transaction fee below minimum", since=V0_9, code=65),
    Difference(
        Kind.ERROR, "write", "The proof field in the invoke v3 transaction is invalid", since=V0_10, code=69
    ),
    # Error 52 names the nonces.
    *_since(V0_9, Kind.MEMBER, "INVALID_TRANSACTION_NONCE", "data"),
)  # fmt: skip

_SUBSCRIPTIONS = frozenset(
    {"starknet_subscribeNewHeads", "starknet_subscribeEvents", "starknet_subscribeTransactionStatus"}
)
_BY_PLACE: Mapping[tuple[Kind, str, str], Difference] = {
    (each.kind, each.of, each.name): each for each in DIFFERENCES
}


# --- What follows for one version ----------------------------------------------------------------------------


def path(version: str) -> str:
    """Return the path under which nodes serve a version, behind their address."""
    return "/rpc/v" + version.replace(".", "_")


def version_of(release: str) -> str:
    """Return the version that a node's `starknet_specVersion` is of, `0.10` for `0.10.3`; empty if it is none."""
    match = _RELEASE.fullmatch(release)
    return f"{int(match[1])}.{int(match[2])}" if match else ""


def has(version: str, kind: Kind, of: str, name: str) -> bool:
    """Whether a version has something; what the table does not name, all versions have."""
    difference = _BY_PLACE.get((kind, of, name))
    return difference is None or version in difference.versions


@lru_cache(maxsize=512)
def _names(version: str, kind: Kind, of: str, *, present: bool) -> frozenset[str]:
    """Return what a version has, or lacks, of the differences of one kind in one place."""
    return frozenset(
        each.name
        for each in DIFFERENCES
        if each.kind is kind and each.of == of and (version in each.versions) is present
    )


def tags(version: str) -> frozenset[str]:
    """Return the tags of blocks that a version knows; it refuses any other as invalid params."""
    return _names(version, Kind.TAG, "BLOCK_TAG", present=True) | {"latest"}


def refused_tags(version: str, method: str) -> frozenset[str]:
    """Return the tags that a version knows and a method does not take, where that differs between versions."""
    return _names(version, Kind.REFUSED_TAG, method, present=True)


def next_tag(version: str) -> str:
    """Return the tag of the block that is being made."""
    return "pending" if "pending" in tags(version) else "pre_confirmed"


def subscriptions(version: str) -> frozenset[str]:
    """Return the methods that subscribe."""
    return _names(version, Kind.METHOD, "WebSocket", present=True) | _SUBSCRIPTIONS


def missing_parameters(version: str, method: str) -> frozenset[str]:
    """Return the parameters of a method that other versions have."""
    return _names(version, Kind.PARAMETER, method, present=False)


def missing_members(version: str, schema: str) -> frozenset[str]:
    """Return the members of a schema that other versions have."""
    return _names(version, Kind.MEMBER, schema, present=False)


def in_form(version: str, schema: str, shape: dict[str, object]) -> dict[str, object]:
    """Return an object with the members of all versions as one version has it."""
    missing = missing_members(version, schema)
    return {name: member for name, member in shape.items() if name not in missing}


def error_message(version: str, code: int) -> str:
    """Return the message of an error that differs between versions; empty where a version lacks the error."""
    found = (each for each in DIFFERENCES if each.kind is Kind.ERROR and each.code == code)
    return next((each.name for each in found if version in each.versions), "")
