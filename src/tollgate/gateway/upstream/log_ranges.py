"""`eth_getLogs` over more blocks than an upstream searches at once: split, sent in parts, joined in order.

Pure: what the parts are and how their answers are put together. The calls are sent by `get_logs.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from tollgate.core.shapes import Params

# Parts that one call may become; beyond that it is refused.
MAX_PARTS = 64
_QUANTITY = re.compile("0[xX][0-9a-fA-F]{1,16}")
_filter = msgspec.json.Decoder(dict[str, Raw]).decode
_text = msgspec.json.Decoder(str).decode
_encode = msgspec.json.encode


class Range(Struct, frozen=True):
    """The blocks of an `eth_getLogs`, both ends included, and the rest of its filter."""

    first: int
    last: int
    rest: dict[str, Raw]

    def params(self) -> Params:
        """The parameters of a call for these blocks."""
        ends: dict[str, Any] = {"fromBlock": hex(self.first), "toBlock": hex(self.last)}
        return [Raw(_encode({**self.rest, **ends}))]

    def halves(self) -> tuple[Range, Range]:
        """The older and the newer half."""
        middle = (self.first + self.last) // 2
        return Range(self.first, middle, self.rest), Range(middle + 1, self.last, self.rest)

    def count(self, blocks: int) -> int:
        """How many parts of at most so many blocks it would make. Callers may give any range at all."""
        return -(-(self.last - self.first + 1) // blocks)

    def pieces(self, blocks: int) -> list[Range]:
        """Parts of at most so many blocks, oldest first."""
        return [
            Range(start, min(start + blocks - 1, self.last), self.rest)
            for start in range(self.first, self.last + 1, blocks)
        ]


def read_range(params: Params, head: int) -> Range | None:
    """The blocks that a call refers to; None where it is about one block, or cannot be split."""
    if not isinstance(params, list) or len(params) != 1:
        return None
    try:
        given = _filter(params[0])
        first, last = (_number(given.pop(name, None), head) for name in ("fromBlock", "toBlock"))
    except (msgspec.MsgspecError, ValueError):
        return None
    if first is None or last is None or first >= last or "blockHash" in given:
        return None
    return Range(first, last, given)


def _number(written: Raw | None, head: int) -> int | None:
    """A block's number; None where it is not one that stays."""
    tag = "latest" if written is None or bytes(written) == b"null" else _text(written)
    if tag == "latest":
        return head if head >= 0 else None
    if tag == "earliest":
        return 0
    return int(tag, 16) if _QUANTITY.fullmatch(tag) else None


def joined(parts: Sequence[Raw]) -> Raw | None:
    """The logs of all parts, in their order, as one array; None where one of them is no array."""
    inside = []
    for part in parts:
        text = bytes(part).strip()
        if text == b"null":
            continue
        if text[:1] != b"[":
            return None
        inside.append(text[1:-1].strip())
    return Raw(b"[%b]" % b",".join([each for each in inside if each]))
