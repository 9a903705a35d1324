"""Logs of the simulated chain: reading a filter, and the logs that pass it.

Owns the filter's rules and its bounds. A block's logs are computed when asked for, so the range is what a
query costs, and it is limited as node providers limit it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tollgate.demo.chain import Transfer
from tollgate.demo.chain_params import Args, RpcError, Shape, array, invalid, mapping, octets
from tollgate.demo.eth_blocks import INVALID_INPUT, block_height, resolve
from tollgate.demo.eth_shapes import TOKEN, TRANSFER_TOPIC, account, log, padded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tollgate.demo.chain_view import View

MAX_BLOCKS = 500
_MAX_TOPICS = 4
_MAX_CHOICES = 100


class LogFilter(NamedTuple):
    """Which logs are asked for; `None` means any."""

    addresses: frozenset[bytes] | None
    topics: tuple[frozenset[bytes] | None, ...]


def get_logs(view: View, args: Args) -> list[Shape]:
    """Answer `eth_getLogs`."""
    given = mapping(args["filter"], "filter")
    chosen = log_filter(given)
    return [found for height in _range(view, given) for found in block_logs(view, chosen, height)]


def block_logs(view: View, chosen: LogFilter, height: int) -> list[Shape]:
    """Return the logs of a block that pass a filter."""
    return [log(view.chain, move) for move in view.moves(height) if _passes(view, chosen, move)]


def _range(view: View, given: Mapping[str, object]) -> range:
    if "blockHash" in given:
        if "fromBlock" in given or "toBlock" in given:
            raise invalid("blockHash excludes fromBlock and toBlock")
        height = block_height(view, octets(given["blockHash"], "blockHash", 32))
        if height is None:
            raise RpcError(INVALID_INPUT, "unknown block")
        return range(height, height + 1)
    first = _end(view, given.get("fromBlock", "latest"), "fromBlock")
    last = _end(view, given.get("toBlock", "latest"), "toBlock")
    if first > last:
        raise invalid("fromBlock is after toBlock")
    found = range(first, min(last, view.head) + 1)
    if len(found) > MAX_BLOCKS:
        # In words that real providers use, so that gateways know what to do.
        raise invalid(f"query exceeds max block range {MAX_BLOCKS}")
    return found


def _end(view: View, value: object, what: str) -> int:
    height = resolve(view, value, what)
    # Beyond the head there is nothing to find, which is no error.
    return view.head + 1 if height is None else height


def log_filter(given: Mapping[str, object]) -> LogFilter:
    """Read a filter's addresses and topics."""
    addresses = _choices(given.get("address"), "address", 20)
    topics = array(given.get("topics", []), "topics", _MAX_TOPICS)
    return LogFilter(addresses, tuple(_choices(topic, "topic", 32) for topic in topics))


def _choices(value: object, what: str, size: int) -> frozenset[bytes] | None:
    if value is None or value == []:
        return None
    choices = array(value, what, _MAX_CHOICES) if isinstance(value, list) else [value]
    if None in choices:
        return None
    return frozenset(octets(choice, what, size) for choice in choices)


def _passes(view: View, chosen: LogFilter, move: Transfer) -> bool:
    if chosen.addresses is not None and TOKEN not in chosen.addresses:
        return False
    parties = (account(view.chain, move.sender), account(view.chain, move.recipient))
    topics = (TRANSFER_TOPIC, *map(padded, parties))
    if len(chosen.topics) > len(topics):
        return False
    return all(wanted is None or topic in wanted for wanted, topic in zip(chosen.topics, topics, strict=False))
