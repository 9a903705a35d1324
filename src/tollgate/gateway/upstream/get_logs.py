"""Gets the logs of `eth_getLogs` where its blocks are more than an upstream searches at once.

`log_ranges.py` computes the parts; this fetches them, a few at a time, and joins their answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from tollgate.chains.faults import Verdict
from tollgate.core.shapes import ABSENT, Params, Reply
from tollgate.errors import UpstreamError
from tollgate.gateway.upstream import log_ranges
from tollgate.gateway.upstream.hedging import AttemptOutcome

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

    async def get(self, params: Params, head: int, blocks: int) -> Reply:
        """Get the logs, in parts of so many blocks where that is known, or else where an upstream demands it."""
        whole = log_ranges.read_range(params, head)
        if whole is not None and blocks and 1 < whole.count(blocks) <= log_ranges.MAX_PARTS:
            self._count = whole.count(blocks)
            self._charge(self._count - 1)
            return await self._parts(whole.pieces(blocks))
        outcome = await self._send(params)
        if whole is None or outcome.verdict is not Verdict.TOO_WIDE:
            return answer(outcome)
        return await self._narrowed(whole, answer(outcome))

    async def _narrowed(self, whole: log_ranges.Range, refused: Reply) -> Reply:
        """Find out with the oldest blocks how wide a part may be, then fetch the rest in such parts.

        Where that would make too many parts, only a handful of calls were sent to find out.
        """
        blocks = whole.last - whole.first + 1
        while blocks > 1:
            blocks = -(-blocks // 2)
            self._count = whole.count(blocks)
            if self._count > log_ranges.MAX_PARTS:
                break
            oldest, *rest = whole.pieces(blocks)
            self._charge(1)
            outcome = await self._send(oldest.params())
            if outcome.verdict is not Verdict.TOO_WIDE:
                self._charge(len(rest))
                return await self._parts(rest, [self._counted(answer(outcome))])
        return refused

    async def _halves(self, whole: log_ranges.Range, refused: Reply) -> Reply:
        """Fetch both halves of what was too wide; the node's own error where that makes too many parts."""
        self._count += 1
        if whole.first == whole.last or self._count > log_ranges.MAX_PARTS:
            return refused
        self._charge(2)
        return await self._parts(list(whole.halves()))

    async def _parts(self, parts: list[log_ranges.Range], before: Sequence[Reply] = ()) -> Reply:
        """Fetch parts, and join what is found with what was before them; or the first error of a node."""
        found = list(before)
        for start in range(0, len(parts), _AT_ONCE):
            if _failed(found) is not None:
                break
            found += await _all_of([self._part(part) for part in parts[start : start + _AT_ONCE]])
        failed = _failed(found)
        if failed is not None:
            return failed
        logs = log_ranges.joined([reply.result for reply in found])
        if logs is None:
            raise UpstreamError
        return Reply(logs)

    async def _part(self, part: log_ranges.Range) -> Reply:
        outcome = await self._send(part.params())
        if outcome.verdict is Verdict.TOO_WIDE:
            return await self._halves(part, answer(outcome))
        return self._counted(answer(outcome))

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


def answer(outcome: AttemptOutcome[Reply]) -> Reply:
    """An upstream's answer."""
    assert outcome.answer is not None  # noqa: S101 - failures are raised before
    return outcome.answer
