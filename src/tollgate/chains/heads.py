"""How each family reports its head, finality, chain id and syncing: what to call, and how to read the answer.

Calls and readers only; the prober decides what is sent where, and when. A reader raises `Misread` where the
answer is not of the expected shape. A family that is not in `FAMILIES` cannot be probed.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec import MsgspecError, Raw, Struct, field
from msgspec.json import Decoder

from tollgate.chains.scopes import MAX_NUMBER

T = TypeVar("T")

# Blocks that a node which reports syncing may be behind: some always report it, with both numbers.
_SLACK_BLOCKS = 8


class Misread(ValueError):
    """An answer of a node is not of the expected shape."""


class NodeCall(Struct, frozen=True, gc=False):
    """A call to a node."""

    method: str
    params: list[object] | dict[str, object]


class Block(Struct, frozen=True):
    """A block's place in its chain."""

    number: int
    hash: str
    parent: str


class Calls(Struct, frozen=True):
    """What a family's nodes are called for."""

    head: NodeCall
    finalized: NodeCall
    """The newest block that will not change any more."""
    chain_id: NodeCall
    syncing: NodeCall
    """Whether the node is catching up."""


CALLS = {
    "eth": Calls(
        NodeCall("eth_getBlockByNumber", ["latest", False]),
        NodeCall("eth_getBlockByNumber", ["finalized", False]),
        NodeCall("eth_chainId", []),
        NodeCall("eth_syncing", []),
    ),
    "starknet": Calls(
        NodeCall("starknet_getBlockWithTxHashes", ["latest"]),
        NodeCall("starknet_getBlockWithTxHashes", ["l1_accepted"]),
        NodeCall("starknet_chainId", []),
        NodeCall("starknet_syncing", []),
    ),
}
FAMILIES = frozenset(CALLS)
"""Those that can be probed. For others `CALLS` and every function here raise KeyError."""


def block_call(family: str, number: int) -> NodeCall:
    method = CALLS[family].head.method
    return NodeCall(method, [hex(number), False] if family == "eth" else [{"block_number": number}])


# --- How to read it -----------------------------------------------------------------------------------------


class _EthBlock(Struct):
    number: str
    hash: str
    parent: str = field(name="parentHash")


class _StarknetBlock(Struct):
    number: int = field(name="block_number")
    hash: str = field(name="block_hash")
    parent: str = field(name="parent_hash")


class _EthSyncing(Struct):
    current: str | int = field(name="currentBlock")
    highest: str | int = field(name="highestBlock")


class _StarknetSyncing(Struct):
    current: int | str = field(name="current_block_num")
    highest: int | str = field(name="highest_block_num")


_eth_block = Decoder(_EthBlock)
_starknet_block = Decoder(_StarknetBlock)
_syncing: dict[str, Decoder[_EthSyncing] | Decoder[_StarknetSyncing]] = {
    "eth": Decoder(_EthSyncing),
    "starknet": Decoder(_StarknetSyncing),
}
_text = Decoder(str)
_flag: Decoder[bool | dict[str, Raw]] = Decoder(bool | dict[str, Raw])


def read_block(family: str, result: bytes | Raw) -> Block:
    """A block, or its header as subscribers get it."""
    if CALLS[family].head.method == "eth_getBlockByNumber":
        found = _read(_eth_block, result)
        return Block(_number(found.number), _digest(found.hash).lower(), _digest(found.parent).lower())
    block = _read(_starknet_block, result)
    return Block(_number(block.number), _felt(block.hash), _felt(block.parent))


def read_number(family: str, result: bytes | Raw) -> int:
    return read_block(family, result).number


def read_chain_id(family: str, result: bytes | Raw) -> str:
    """The chain id, written as `chain_id` writes it."""
    _ = CALLS[family]
    found = chain_id(_read(_text, result))
    if not found:
        raise Misread("an empty chain id")
    return found


def chain_id(text: str) -> str:
    """A chain id in one form, however it was written: `0x1` for `1`, `0x01` and `0X1`."""
    cleaned = text.strip().lower()
    try:
        return hex(int(cleaned, 16 if cleaned.startswith("0x") else 10))
    except ValueError:
        # Some development nodes of Starknet give the name instead of its encoding.
        return "0x" + text.strip().encode().hex() if cleaned else ""


def read_syncing(family: str, result: bytes | Raw) -> bool:
    """Whether the node is catching up. One that names both ends and is nearly there is not."""
    syncing = _read(_flag, result)
    if isinstance(syncing, bool):
        return syncing
    try:
        progress = _syncing[family].decode(result)
        return _number(progress.highest) - _number(progress.current) > _SLACK_BLOCKS
    except (MsgspecError, ValueError, RecursionError):
        return True


def _read(decoder: Decoder[T], result: bytes | Raw) -> T:
    try:
        return decoder.decode(result)
    except (MsgspecError, ValueError, RecursionError) as error:
        raise Misread("not the expected answer") from error


def _number(value: str | int) -> int:
    try:
        number = int(value, 16) if isinstance(value, str) else value
    except ValueError as error:
        raise Misread("not a number") from error
    if not 0 <= number <= MAX_NUMBER:
        raise Misread("not the number of a block")
    return number


def _digest(value: str) -> str:
    if not value.startswith("0x") or len(value) < 3:
        raise Misread("not a hash")
    return value


def _felt(value: str) -> str:
    """A hash of Starknet: nodes differ in leading zeros."""
    try:
        return hex(int(_digest(value), 16))
    except ValueError as error:
        raise Misread("not a hash") from error
