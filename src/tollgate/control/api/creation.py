"""`Idempotency-Key` around a creation: sent twice, it happens once, and the second answer has no secret."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar, cast

import msgspec
from litestar.di import NamedDependency
from msgspec import Raw, Struct

from tollgate import log
from tollgate.control.api.access import CurrentActor, HttpRequest, Plane, request_id
from tollgate.control.api.render import Answer, Versioned, encoded
from tollgate.control.plane import ControlPlane
from tollgate.control.service_context import Actor
from tollgate.control.versions import version_of
from tollgate.store.base import StoreUnavailable

KEY = "Idempotency-Key"
# Members that are shown once.
SECRETS = ("secret", "link")
_log = log.get("control")

Created = TypeVar("Created")


class Made(Struct, frozen=True):
    """What was created: how it is shown, and its row if it has a version."""

    shown: Struct
    row: Struct | None = None

    def __repr__(self) -> str:
        return "Made(…)"


class _KeptAnswer(Struct, frozen=True):
    body: Raw
    etag: str | None = None


class Once:
    """`once` of one request, which handlers take."""

    def __init__(self, request: HttpRequest, plane: Plane, actor: CurrentActor) -> None:
        self._sender = request, plane, actor

    async def __call__(
        self, create: Callable[[], Awaitable[Created]], show: Callable[[Created], Made]
    ) -> Versioned[Any]:
        """Create, and show what was created."""

        async def make() -> Made:
            return show(await create())

        return cast("Versioned[Any]", await once(*self._sender, make))


CreatesOnce = NamedDependency[Once]


async def once(
    request: HttpRequest, plane: ControlPlane, actor: Actor, create: Callable[[], Awaitable[Made]]
) -> Answer:
    """Create, or return what an earlier request with the same key created."""
    key = request.headers.get(KEY)
    if key is None:
        return _answer(await create())
    # The requested path, not the route's pattern: the same key in another team is another request.
    route = f"{request.method} {request.scope['path']}"
    replay = await plane.replays.begin(actor, route, key, await request.body())
    if replay.status:
        kept = msgspec.json.decode(replay.answer, type=_KeptAnswer)
        return encoded(bytes(kept.body), replay.status, etag=kept.etag, replayed=True)
    try:
        made = await create()
    except Exception:
        with suppress(StoreUnavailable):
            await plane.replays.abandon(replay)
        raise
    try:
        await plane.replays.finish(replay, 201, _without_secrets(made))
    except StoreUnavailable:
        # It is created and its secret exists only here, so the caller must get it.
        _log.warning("an answer could not be stored for a repeated request", request_id=request_id(request.scope))
    return _answer(made)


def _answer(made: Made) -> Answer:
    return encoded(msgspec.json.encode(made.shown), 201, etag=_etag(made))


def _etag(made: Made) -> str | None:
    return version_of(made.row) if made.row is not None else None


def _without_secrets(made: Made) -> bytes:
    hidden = {name: None for name in SECRETS if name in made.shown.__struct_fields__}
    bare = msgspec.structs.replace(made.shown, **hidden)
    return msgspec.json.encode(_KeptAnswer(Raw(msgspec.json.encode(bare)), _etag(made)))
