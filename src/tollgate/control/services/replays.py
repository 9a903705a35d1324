"""`Idempotency-Key`: a creation that is sent twice happens once.

Kept for 24 hours, per account and route. Stored answers contain no secret.
"""

from __future__ import annotations

import hashlib
import re

from msgspec.structs import replace

from tollgate.control.problems import InvalidInput, KeyReused, RequestRunning
from tollgate.control.service_context import Actor, ServiceContext
from tollgate.core.people import Replay

KEPT_SECONDS = 86_400.0
# A request whose process was killed leaves its row behind; no request takes this long.
RUNNING_SECONDS = 60.0
_KEY = re.compile(r"[!-~]{1,255}")


class Replays:
    """Creations that may be sent twice."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    async def begin(self, actor: Actor, route: str, key: str, body: bytes) -> Replay:
        """Start, or return the earlier answer (its `status` is not 0)."""
        if not _KEY.fullmatch(key):
            raise InvalidInput("Idempotency-Key has 1 to 255 visible ASCII characters.", field="Idempotency-Key")
        now = self._context.now()
        name = hashlib.sha256(f"{actor.id}\n{route}\n{key}".encode()).hexdigest()
        new = Replay(name, hashlib.sha256(body).digest(), now)
        async with self._context.store.changing() as records:
            held = await records.replays.get(name)
            kept = KEPT_SECONDS if held is not None and held.status else RUNNING_SECONDS
            if held is not None and now - held.created_at >= kept:
                await records.replays.remove(id=name)
                held = None
            if held is None:
                await records.replays.add(new)
                return new
        if held.body_digest != new.body_digest:
            raise KeyReused("This Idempotency-Key was used with another body: use a new key.")
        if not held.status:
            raise RequestRunning("A request with this Idempotency-Key is still running: wait, then send it again.")
        return held

    async def finish(self, replay: Replay, status: int, answer: bytes) -> None:
        async with self._context.store.changing() as records:
            await records.replays.replace(replace(replay, status=status, answer=answer))

    async def abandon(self, replay: Replay) -> None:
        """Delete a request that failed: it may be sent again."""
        async with self._context.store.changing() as records:
            await records.replays.remove(id=replay.id, status=0)
