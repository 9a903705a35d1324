"""Answers about final blocks, exchanged with the workers of all nodes: a cache of the second level.

No call waits for it. What was requested twice here is sent to the others in the background; what they send is put
into this worker's own cache, where its block is final here too and there is room. Networks take part whose
`chain_id` is set: a name alone does not mean that two nodes serve the same chain. Without Valkey every worker has
its own cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice

from tollgate import log
from tollgate.gateway.call.cache import Cache
from tollgate.gateway.call.resolver import Resolver
from tollgate.shm import metrics
from tollgate.store.base import AnswerLog, SharedAnswer, SharedUnreachable

TURN_SECONDS = 0.2
# While Valkey cannot be reached.
RETRY_SECONDS = 1.0
# Of one network in one turn.
MAX_SENT = 16
# Larger ones are left to each node: the time to read them would be missed by calls.
MAX_ENTRY = 8_192
_log = log.get("shared")


class SharedAnswers:
    """What one worker sends to others and takes from them."""

    def __init__(
        self,
        answers: AnswerLog,
        networks: Mapping[str, Resolver],
        writer: metrics.Writer,
        now: Callable[[], float],
    ) -> None:
        self._answers = answers
        self._networks = networks
        self._writer = writer
        self._now = now
        self._again_at = 0.0
        self._is_lost = False
        self._seen: dict[str, tuple[int, int]] = {}
        """Reorganisations and the newest final block of each network, at the last turn."""

    async def tick(self) -> None:
        """Send and take. Called five times a second."""
        if self._now() < self._again_at:
            return
        caches = {
            f"{path}@{each.exchange.network.chain_id}": (each, each.cache)
            for path, each in self._networks.items()
            if each.exchange.network.chain_id and each.cache is not None
        }
        if not caches:
            return
        sent: dict[str, list[SharedAnswer]] = {}
        try:
            for name, (each, _) in caches.items():
                await self._forget_replaced(name, each)
            sent = {name: list(islice(cache.unshared(MAX_ENTRY), MAX_SENT)) for name, (_, cache) in caches.items()}
            sent = {name: answers for name, answers in sent.items() if answers}
            taken = await self._answers.exchange(list(caches), sent)
        except SharedUnreachable as error:
            for name, answers in sent.items():
                caches[name][1].not_shared(answers)
            self._lose(str(error))
            return
        if self._is_lost:
            self._is_lost = False
            _log.info("answers are shared with other nodes again")
        for name, answers in sent.items():
            self._count(caches[name][0], "sent", len(answers))
        for name, answers in taken.items():
            each, cache = caches[name]
            self._count(each, "taken", _take_in(cache, answers))

    async def close(self) -> None:
        """Release all resources."""
        await self._answers.close()

    async def _forget_replaced(self, name: str, resolver: Resolver) -> None:
        """Forget what all nodes share of a network whose final blocks were replaced after all."""
        status = resolver.exchange.status
        reorgs, final = self._seen.get(name, (status.reorgs, status.finalized))
        if status.reorgs != reorgs and status.ancestor(reorgs) < final:
            _log.warning("final blocks were replaced: shared answers are forgotten", network=name)
            await self._answers.forget(name)
        self._seen[name] = status.reorgs, status.finalized

    def _count(self, resolver: Resolver, how: str, count: int) -> None:
        network = resolver.exchange.network
        if count:
            self._writer.add(self._writer.cell(metrics.SHARED_ANSWERS, network.family, network.name, how), count)

    def _lose(self, why: str) -> None:
        self._again_at = self._now() + RETRY_SECONDS
        self._writer.add(self._writer.cell(metrics.SHARED_ANSWERS, "", "", "failed"))
        if not self._is_lost:
            self._is_lost = True
            _log.warning("answers are cached by this worker alone: Valkey cannot be used", reason=why)


def _take_in(cache: Cache, answers: list[SharedAnswer]) -> int:
    return sum(cache.take_in(answer) for answer in answers)
