"""`Idempotency-Key` around a creation: sent twice, it happens once, and the second answer has no secret."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from litestar.di import NamedDependency
from msgspec import Raw, Struct

from tollgate import log
from tollgate.control.api.access import CurrentActor, HttpRequest, Plane, request_id
from tollgate.control.api.errors import NO_STORE
from tollgate.control.api.reading import JSON
from tollgate.control.api.render import REPLAYED, Versioned
from tollgate.control.versions import version_of
from tollgate.core.roles import Action
from tollgate.store.base import StoreUnavailable

KEY = "Idempotency-Key"
# Members that are shown once.
SECRETS = ("secret", "link")
_log = log.get("control")

Created = TypeVar("Created")


class Made(Struct, frozen=True):
    """What was created: how it is shown, and the stored resource if it has a version."""

    shown: Struct
    stored: Struct | None = None

    @property
    def etag(self) -> str | None:
        return version_of(self.stored) if self.stored is not None else None

    def __repr__(self) -> str:
        return "Made(…)"


class _KeptAnswer(Struct, frozen=True):
    body: Raw
    etag: str | None = None


class Once:
    """`once` of one request, which handlers take."""

    def __init__(self, request: HttpRequest, plane: Plane, actor: CurrentActor) -> None:
        self._request, self._replays, self._actor = request, plane.replays, actor
        self._context = plane.context

    async def __call__(
        self,
        create: Callable[[], Awaitable[Created]],
        show: Callable[[Created], Made],
        *needs: tuple[str, Action],
    ) -> Versioned[Any]:
        """Create, or return what an earlier request with the same key created.

        `needs`: a team, and what its members must be allowed to do, also to get an earlier answer.
        """
        request = self._request
        key = request.headers.get(KEY)
        if key is None:
            made = show(await create())
            return _answer(msgspec.json.encode(made.shown), made.etag)
        # The requested path, not the route's pattern: the same key in another team is another request.
        route = f"{request.method} {request.scope['path']}"
        replay = await self._replays.begin(self._actor, route, key, await request.body())
        if replay.status:
            for team, action in needs:
                await self._context.member(self._actor, team, action)
            kept = msgspec.json.decode(replay.answer, type=_KeptAnswer)
            return _answer(bytes(kept.body), kept.etag, replay.status, replayed=True)
        try:
            made = show(await create())
        except Exception:
            with suppress(StoreUnavailable):
                await self._replays.abandon(replay)
            raise
        try:
            await self._replays.finish(replay, 201, _without_secrets(made))
        except StoreUnavailable:
            # It is created and its secret exists only here, so the caller must get it.
            _log.warning(
                "an answer could not be stored for a repeated request", request_id=request_id(request.scope)
            )
        return _answer(msgspec.json.encode(made.shown), made.etag)


CreatesOnce = NamedDependency[Once]


def _answer(body: bytes, etag: str | None, status: int = 201, *, replayed: bool = False) -> Versioned[Any]:
    headers = dict(NO_STORE)
    if etag is not None:
        headers["ETag"] = etag
    if replayed:
        headers[REPLAYED] = "true"
    return Versioned(body, status_code=status, media_type=JSON, headers=headers)


def _without_secrets(made: Made) -> bytes:
    hidden = {name: None for name in SECRETS if name in made.shown.__struct_fields__}
    bare = msgspec.structs.replace(made.shown, **hidden)
    return msgspec.json.encode(_KeptAnswer(Raw(msgspec.json.encode(bare)), made.etag))
