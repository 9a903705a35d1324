"""API tokens."""

from __future__ import annotations

from datetime import datetime

from msgspec import UNSET

from tollgate.control.api import bodies, reading, shapes
from tollgate.control.api.access import CurrentActor, HttpRequest, Part, Plane
from tollgate.control.api.creation import Made, once
from tollgate.control.api.operations import TOKENS, Operation, endpoint
from tollgate.control.api.render import Answer, done, listed, shown
from tollgate.control.problems import InvalidInput, LimitReached, NameTaken, RoleNeeded
from tollgate.control.services.tokens import TokenSettings
from tollgate.core.models import Token


@endpoint(
    "POST",
    "/teams/{team}/tokens",
    Operation(
        id="createToken",
        tag=TOKENS,
        summary="Make an API token",
        description="Its secret is shown once, here.",
        takes=bodies.NewToken,
        creates=True,
        status=201,
        gives=shapes.TokenWithSecret,
        tagged=True,
        raises=(RoleNeeded, NameTaken, LimitReached),
    ),
)
async def create(request: HttpRequest, plane: Plane, actor: CurrentActor, team: Part) -> Answer:
    sent = _settings(await reading.body(request, bodies.NewToken))

    async def make() -> Made:
        return _made(*await plane.tokens.create(actor, team, sent))

    return await once(request, plane, actor, make)


@endpoint(
    "GET",
    "/teams/{team}/tokens",
    Operation(id="listTokens", tag=TOKENS, summary="List the API tokens", lists=True, gives=shapes.TokenPage),
)
async def list_tokens(request: HttpRequest, plane: Plane, actor: CurrentActor, team: Part) -> Answer:
    return listed(await plane.tokens.list(actor, team, reading.page(request)), _shape)


@endpoint(
    "GET",
    "/teams/{team}/tokens/{token}",
    Operation(id="getToken", tag=TOKENS, summary="Show an API token", gives=shapes.TokenView, tagged=True),
)
async def show(plane: Plane, actor: CurrentActor, team: Part, token: Part) -> Answer:
    row = await plane.tokens.show(actor, team, token)
    return shown(_shape(row), row)


@endpoint(
    "PATCH",
    "/teams/{team}/tokens/{token}",
    Operation(
        id="updateToken",
        tag=TOKENS,
        summary="Change settings of an API token",
        description="What is left out stays as it is. It is obeyed within a second.",
        takes=bodies.TokenChange,
        conditional=True,
        gives=shapes.TokenView,
        tagged=True,
        raises=(RoleNeeded, NameTaken),
    ),
)
async def update(request: HttpRequest, plane: Plane, actor: CurrentActor, team: Part, token: Part) -> Answer:
    sent = _settings(await reading.body(request, bodies.TokenChange))
    row = await plane.tokens.update(actor, team, token, sent, reading.if_match(request))
    return shown(_shape(row), row)


@endpoint(
    "DELETE",
    "/teams/{team}/tokens/{token}",
    Operation(
        id="deleteToken",
        tag=TOKENS,
        summary="Delete an API token",
        description="It stops working within a second.",
        conditional=True,
        status=204,
        raises=(RoleNeeded,),
    ),
)
async def delete(request: HttpRequest, plane: Plane, actor: CurrentActor, team: Part, token: Part) -> Answer:
    await plane.tokens.delete(actor, team, token, reading.if_match(request))
    return done()


@endpoint(
    "POST",
    "/teams/{team}/tokens/{token}/rotate",
    Operation(
        id="rotateToken",
        tag=TOKENS,
        summary="Make the successor of an API token",
        description="It takes over name and settings. The old secret works for the overlap, under another name.",
        takes=bodies.Rotation,
        body_required=False,
        creates=True,
        status=201,
        gives=shapes.TokenWithSecret,
        tagged=True,
        raises=(RoleNeeded, InvalidInput, NameTaken, LimitReached),
    ),
)
async def rotate(request: HttpRequest, plane: Plane, actor: CurrentActor, team: Part, token: Part) -> Answer:
    rotation = await reading.body(request, bodies.Rotation, required=False)

    async def make() -> Made:
        return _made(*await plane.tokens.rotate(actor, team, token, rotation.overlap_seconds))

    return await once(request, plane, actor, make)


def _settings(body: bodies.NewToken | bodies.TokenChange) -> TokenSettings:
    """The settings that are given, as the service takes them."""
    until = body.expires_at
    return TokenSettings(
        name=body.name,
        active=body.active if isinstance(body, bodies.TokenChange) else UNSET,
        expires_at=until.timestamp() if isinstance(until, datetime) else until,
        networks=body.networks,
        methods=body.methods,
        requests_per_second=body.requests_per_second,
        monthly_requests=body.monthly_requests,
        allow_in_url=body.allow_in_url,
        show_upstream=body.show_upstream,
        addresses=body.addresses,
        contracts=body.contracts,
    )


def _shape(row: Token) -> shapes.TokenView:
    return shapes.of(shapes.TokenView, row, replaces=row.replaces or None)


def _made(row: Token, secret: str) -> Made:
    return Made(shapes.of(shapes.TokenWithSecret, row, replaces=row.replaces or None, secret=secret), row)


HANDLERS = [create, list_tokens, show, update, delete, rotate]
