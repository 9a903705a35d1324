"""`Idempotency-Key`: a creation that is sent twice happens once.

Kept for 24 hours, for each account and route. What is kept of an answer has no secret in it.
"""

from __future__ import annotations

import hashlib
import re

from msgspec.structs import replace

from tollgate.control.problems import InvalidInput, KeyReused, RequestRunning
from tollgate.control.service_context import Actor, ServiceContext
from tollgate.core.people import Replay

KEPT_SECONDS = 86_400.0
# A request whose process died leaves its mark behind; no request takes this long.
RUNNING_SECONDS = 60.0
_KEY = re.compile(r"[!-~]{1,255}")


class Replays:
    """Creations that may be sent twice."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    async def begin(self, actor: Actor, route: str, key: str, body: bytes) -> Replay:
        """Begin, or return what was answered before (its `status` is not 0 then)."""
        if not _KEY.fullmatch(key):
            raise InvalidInput("Idempotency-Key has 1 to 255 visible ASCII characters.", field="Idempotency-Key")
        now = self._context.now()
        name = hashlib.sha256(f"{actor.id}\n{route}\n{key}".encode()).hexdigest()
        new = Replay(name, hashlib.sha256(body).digest(), now)
        async with self._context.store.changing() as records:
            held = await records.replays.get(name)
            if held is not None and _over(held, now):
                await records.replays.remove(id=name)
                held = None
            if held is None:
                await records.replays.add(new)
                return new
        if held.body_digest != new.body_digest:
            raise KeyReused("This Idempotency-Key was used with another body: take a new key.")
        if not held.status:
            raise RequestRunning("A request with this Idempotency-Key still runs: wait, then send it again.")
        return held

    async def finish(self, replay: Replay, status: int, answer: bytes) -> None:
        """Keep what was answered."""
        async with self._context.store.changing() as records:
            await records.replays.replace(replace(replay, status=status, answer=answer))

    async def abandon(self, replay: Replay) -> None:
        """Forget a request that failed: it may be sent again."""
        async with self._context.store.changing() as records:
            await records.replays.remove(id=replay.id, status=0)


def _over(held: Replay, now: float) -> bool:
    return now - held.created_at >= (KEPT_SECONDS if held.status else RUNNING_SECONDS)
