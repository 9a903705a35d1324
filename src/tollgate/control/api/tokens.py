"""API tokens."""

from __future__ import annotations

from datetime import UTC, datetime

from litestar import Response
from litestar.params import JSONBody

from tollgate.api import tokens
from tollgate.api.tokens import NewToken, PlaygroundToken, Rotation, TokenChange, TokenPage, TokenWithSecret
from tollgate.control.api.access import CurrentActor, Part, Plane
from tollgate.control.api.creation import CreatesOnce, Made
from tollgate.control.api.operations import TOKENS, serves
from tollgate.control.api.reading import IfMatch, WantedPage
from tollgate.control.api.render import Versioned, done, of, page_of, unstored, versioned
from tollgate.control.problems import InvalidInput, LimitReached, NameTaken, RoleNeeded
from tollgate.core.models import Token
from tollgate.core.roles import Action

USUAL_ROTATION = Rotation()


@serves(tokens.CREATE, RoleNeeded, NameTaken, LimitReached, tag=TOKENS)
async def create_token(
    plane: Plane, actor: CurrentActor, team: Part, data: JSONBody[NewToken], once: CreatesOnce
) -> Versioned[TokenWithSecret]:
    """Create an API token.

    Its secret is shown once, here.
    """
    return await once(lambda: plane.tokens.create(actor, team, data), _made, (team, Action.CHANGE_TOKENS))


@serves(tokens.LIST, tag=TOKENS)
async def list_tokens(plane: Plane, actor: CurrentActor, team: Part, page: WantedPage) -> Response[TokenPage]:
    """List the API tokens."""
    return page_of(TokenPage, await plane.tokens.list(actor, team, page), _shown)


@serves(tokens.SHOW, tag=TOKENS)
async def get_token(plane: Plane, actor: CurrentActor, team: Part, token: Part) -> Versioned[tokens.Token]:
    """Show an API token."""
    found = await plane.tokens.show(actor, team, token)
    return versioned(_shown(found), found)


@serves(tokens.UPDATE, RoleNeeded, NameTaken, tag=TOKENS)
async def update_token(
    plane: Plane, actor: CurrentActor, team: Part, token: Part, data: JSONBody[TokenChange], if_match: IfMatch
) -> Versioned[tokens.Token]:
    """Change settings of an API token.

    Omitted members keep their value. Takes effect within a second.
    """
    changed = await plane.tokens.update(actor, team, token, data, if_match)
    return versioned(_shown(changed), changed)


@serves(tokens.DELETE, RoleNeeded, tag=TOKENS)
async def delete_token(
    plane: Plane, actor: CurrentActor, team: Part, token: Part, if_match: IfMatch
) -> Response[None]:
    """Delete an API token.

    It stops working within a second.
    """
    await plane.tokens.delete(actor, team, token, if_match)
    return done()


@serves(tokens.ROTATE, RoleNeeded, InvalidInput, NameTaken, LimitReached, tag=TOKENS)
async def rotate_token(
    plane: Plane,
    actor: CurrentActor,
    team: Part,
    token: Part,
    once: CreatesOnce,
    data: JSONBody[Rotation] = USUAL_ROTATION,
) -> Versioned[TokenWithSecret]:
    """Create the successor of an API token.

    It takes over name and settings. The old secret works for the overlap, under another name.
    """
    return await once(lambda: plane.tokens.rotate(actor, team, token, data), _made, (team, Action.CHANGE_TOKENS))


@serves(tokens.PLAYGROUND, RoleNeeded, tag=TOKENS)
async def get_playground_token(plane: Plane, actor: CurrentActor, team: Part) -> Response[PlaygroundToken]:
    """Get a token for calls of one's own.

    For trying things out: it works for some minutes, and is the same for each account and team while it does.
    """
    token, secret = await plane.tokens.playground(actor, team)
    return unstored(PlaygroundToken(secret, datetime.fromtimestamp(token.expires_at or 0.0, UTC)))


def _shown(token: Token) -> tokens.Token:
    return of(tokens.Token, token, replaces=token.replaces or None)


def _made(created: tuple[Token, str]) -> Made:
    token, secret = created
    return Made(of(TokenWithSecret, token, replaces=token.replaces or None, secret=secret), token)
