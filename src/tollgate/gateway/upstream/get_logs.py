"""`eth_getLogs` over more blocks than an upstream searches at once: split, fetched a few parts at a time, joined.

What the parts are and how their answers are joined is pure, and comes first; `Logs` sends the calls.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from tollgate.chains.faults import Verdict
from tollgate.core.shapes import ABSENT, Params, Reply
from tollgate.errors import UpstreamError
from tollgate.gateway.upstream.attempts import AttemptOutcome

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


def is_wide(params: Params, head: int, blocks: int) -> bool:
    """Whether a call is known to need more than one part of so many blocks, and not too many."""
    whole = read_range(params, head) if blocks else None
    return whole is not None and 1 < whole.count(blocks) <= MAX_PARTS


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


T = TypeVar("T")

GET_LOGS = "eth_getLogs"
# Parts that are fetched at the same time: one call must not take all connections.
_AT_ONCE = 8
# All parts together may be as large as one answer is by default.
MAX_BYTES = 67_108_864

Send = Callable[[Params], Awaitable[AttemptOutcome[Reply]]]
"""Sends an `eth_getLogs` with these parameters."""


class Logs:
    """One `eth_getLogs`."""

    def __init__(self, send: Send, charge: Callable[[int], None] = lambda _: None) -> None:
        self._send = send
        self._charge = charge
        """Counts calls beyond the first, or refuses them."""
        self._count = 1
        self._bytes = 0

    async def get(
        self, params: Params, head: int, blocks: int, refused: AttemptOutcome[Reply] | None = None
    ) -> Reply:
        """Get the logs, in parts of so many blocks where that is known, or else where an upstream demands it.

        `refused`: what an upstream has answered already to all of it.
        """
        whole = read_range(params, head)
        if whole is not None and blocks and 1 < whole.count(blocks) <= MAX_PARTS:
            self._count = whole.count(blocks)
            self._charge(self._count - 1)
            return await self._parts(whole.pieces(blocks))
        outcome = refused or await self._send(params)
        if whole is None or outcome.verdict is not Verdict.TOO_WIDE:
            return outcome.answer
        return await self._narrowed(whole, outcome.answer)

    async def _narrowed(self, whole: Range, refused: Reply) -> Reply:
        """Find out with the oldest blocks how wide a part may be, then fetch the rest in such parts.

        Where that would make too many parts, only a handful of calls were sent to find out.
        """
        blocks = whole.last - whole.first + 1
        while blocks > 1:
            blocks = -(-blocks // 2)
            self._count = whole.count(blocks)
            if self._count > MAX_PARTS:
                break
            oldest, *rest = whole.pieces(blocks)
            self._charge(1)
            outcome = await self._send(oldest.params())
            if outcome.verdict is not Verdict.TOO_WIDE:
                self._charge(len(rest))
                return await self._parts(rest, [self._counted(outcome.answer)])
        return refused

    async def _halves(self, whole: Range, refused: Reply) -> Reply:
        """Fetch both halves of what was too wide; the node's own error where that makes too many parts."""
        self._count += 1
        if whole.first == whole.last or self._count > MAX_PARTS:
            return refused
        self._charge(2)
        return await self._parts(list(whole.halves()))

    async def _parts(self, parts: list[Range], before: Sequence[Reply] = ()) -> Reply:
        """Fetch parts, and join what is found with what was before them; or the first error of a node."""
        found = list(before)
        for start in range(0, len(parts), _AT_ONCE):
            if _failed(found) is not None:
                break
            found += await _all_of([self._part(part) for part in parts[start : start + _AT_ONCE]])
        failed = _failed(found)
        if failed is not None:
            return failed
        logs = joined([reply.result for reply in found])
        if logs is None:
            raise UpstreamError
        return Reply(logs)

    async def _part(self, part: Range) -> Reply:
        outcome = await self._send(part.params())
        if outcome.verdict is Verdict.TOO_WIDE:
            return await self._halves(part, outcome.answer)
        return self._counted(outcome.answer)

    def _counted(self, reply: Reply) -> Reply:
        self._bytes += len(memoryview(reply.result))
        if self._bytes > MAX_BYTES:
            raise UpstreamError("These are more logs than fit into one answer: ask for fewer blocks.")
        return reply


async def _all_of(parts: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines at once; their results in order, or the first error, with the others cancelled."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


def _failed(replies: Sequence[Reply]) -> Reply | None:
    return next((reply for reply in replies if reply.error is not ABSENT), None)
