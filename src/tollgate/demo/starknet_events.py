"""Events of the simulated Starknet chain: filter, pages and continuation tokens.

Owns the filter's rules and its bounds. A block's events are computed when asked for, so a call looks at a
bounded number of blocks and returns what it found with a token for the rest, as full nodes do. A token is the
place where the next page begins; nothing is kept for it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from tollgate.demo.chain_params import Args, RpcError, Shape, array, integer, invalid, mapping
from tollgate.demo.chain_view import View, transaction_hash
from tollgate.demo.starknet_blocks import felt_value, resolve
from tollgate.demo.starknet_shapes import events, felt

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE_TOO_BIG = 31
BAD_TOKEN = 33
TOO_MANY_KEYS = 34

MAX_EVENTS = 1024
MAX_BLOCKS = 500
_MAX_KEYS = 16
_MAX_CHOICES = 100
_TOKEN = re.compile(r"([0-9]{1,15})-([0-9]{1,6})")


class EventFilter(NamedTuple):
    """Which events are asked for."""

    addresses: frozenset[str] | None
    keys: tuple[frozenset[str], ...]

    def passes(self, event: Shape) -> bool:
        """Tell whether an event is asked for; an empty set of keys means any."""
        keys = event["keys"]
        if self.addresses is not None and event["from_address"] not in self.addresses:
            return False
        if not isinstance(keys, list) or len(self.keys) > len(keys):
            return False
        return all(not wanted or key in wanted for wanted, key in zip(self.keys, keys, strict=False))


def get_events(view: View, args: Args) -> Shape:
    """Answer `starknet_getEvents`."""
    given = mapping(args["filter"], "filter")
    size = integer(given.get("chunk_size"), "chunk_size")
    if not size:
        raise invalid("chunk_size is 0")
    if size > MAX_EVENTS:
        raise RpcError(PAGE_TOO_BIG, "Requested page size is too big")
    chosen = event_filter(given.get("address"), given.get("keys", []))
    first = resolve(view, given.get("from_block", {"block_number": 0}), "from_block")
    last = min(resolve(view, given.get("to_block", "latest"), "to_block"), view.head)
    start = _start(given.get("continuation_token"), first, last)
    return _page(view, chosen, start, last, size)


def _start(token: object, first: int, last: int) -> tuple[int, int]:
    """Return the block, and how many of its events to skip, where the page begins."""
    if token is None:
        return first, 0
    match = _TOKEN.fullmatch(token) if isinstance(token, str) else None
    if match is None or not first <= int(match[1]) <= last:
        raise RpcError(BAD_TOKEN, "The supplied continuation token is invalid or unknown")
    return int(match[1]), int(match[2])


def _page(view: View, chosen: EventFilter, start: tuple[int, int], last: int, size: int) -> Shape:
    first, skip = start
    end = min(last, first + MAX_BLOCKS - 1)
    found: list[Shape] = []
    for height in range(first, end + 1):
        for at, event in enumerate(emitted(view, height)):
            if (height == first and at < skip) or not chosen.passes(event):
                continue
            if len(found) == size:
                return {"events": found, "continuation_token": f"{height}-{at}"}
            found.append(event)
    return {"events": found} if end >= last else {"events": found, "continuation_token": f"{end + 1}-0"}


def emitted(view: View, height: int) -> Iterator[Shape]:
    """Show the events of a block, each with its place."""
    block_hash = felt(view.chain.block_hash(height))
    for move in view.moves(height):
        name = felt(transaction_hash(view.chain, move))
        for at, event in enumerate(events(view.chain, move)):
            yield event | {
                "block_hash": block_hash,
                "block_number": height,
                "transaction_hash": name,
                "transaction_index": move.place.position,
                "event_index": at,
            }


def event_filter(address: object, keys: object) -> EventFilter:
    """Read a filter: one address or several or `None`, and the keys by position."""
    addresses = None
    if address is not None:
        listed = array(address, "address", _MAX_CHOICES) if isinstance(address, list) else [address]
        addresses = frozenset(hex(felt_value(one, "address")) for one in listed) or None
    if isinstance(keys, list) and len(keys) > _MAX_KEYS:
        raise RpcError(TOO_MANY_KEYS, "Too many keys provided in a filter")
    return EventFilter(addresses, tuple(_choices(key) for key in array(keys, "keys", _MAX_KEYS)))


def _choices(value: object) -> frozenset[str]:
    return frozenset(hex(felt_value(key, "key")) for key in array(value, "key", _MAX_CHOICES))
