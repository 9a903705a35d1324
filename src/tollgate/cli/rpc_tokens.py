"""`tollgate rpc tokens`: the API tokens of a team.

Owns the output of these commands and how options become a body. A secret is printed once, to stdout only.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import click

from tollgate.cli import show
from tollgate.cli.failures import Failure, NotFoundFailure
from tollgate.cli.lazy import Group
from tollgate.cli.options import (
    complete_tokens,
    confirm,
    for_team,
    needs_confirmation,
    overlap_option,
    page_options,
    yes_option,
)
from tollgate.cli.settings_options import SettingsCommand, Spelling, chosen, lines
from tollgate.lazy_module import LazyModule

if TYPE_CHECKING:
    from tollgate.api import service as service_api
    from tollgate.api import tokens as api
    from tollgate.cli import address
    from tollgate.cli.answers import ApiAnswer
    from tollgate.cli.session import Session
    from tollgate.core import durations
else:
    # Not for help of other commands.
    api, service_api = LazyModule("tollgate.api.tokens"), LazyModule("tollgate.api.service")
    address, durations = LazyModule("tollgate.cli.address"), LazyModule("tollgate.core.durations")

_SPELLED = {
    "name": Spelling("--name", "NAME", "Another name."),
    "expires_at": Spelling("--expires", "WHEN", "30d, 2026-12-31, or never."),
    "networks": Spelling("--network", "F/N", "Only this network (repeat), or any."),
    "methods": Spelling("--method", "GLOB", "Only these methods (repeat), or any."),
    "requests_per_second": Spelling("--rps", "N", "Requests a second, or none for no limit."),
    "monthly_requests": Spelling("--monthly-requests", "N", "Requests a month, or none for no limit."),
    "addresses": Spelling("--address", "NETWORK", "Only from this network (repeat), or any."),
    "contracts": Spelling("--contract", "ADDRESS", "Only this contract (repeat), or any."),
}


@click.group(cls=Group, epilog="Example: tollgate rpc tokens create ci --team acme --expires 90d")
def tokens() -> None:
    """API tokens, which programs send to /x/ as `Authorization: Bearer …`."""


@tokens.command(
    cls=SettingsCommand, settings=lambda: api.NewToken, but=("name", "active"), spelled=_SPELLED,
    epilog="Example: tollgate rpc tokens create ci --network eth/mainnet --method 'eth_*'",
)  # fmt: skip
@click.argument("name")
@for_team
def create(session: Session, name: str, **settings: Any) -> None:
    """Create a token called NAME. Its secret is shown once."""
    answer = session.client.call(api.CREATE, session.team, body=api.NewToken(name, **chosen(settings)))
    token = answer.value
    if token.secret is None:
        raise Failure(
            f'Token "{token.name}" ({token.id}) was created, but the connection broke before its secret arrived, '
            f"and it is shown only once. Run: tollgate rpc tokens rotate {token.id} --team {session.team} "
            "--overlap 0s, or delete it and create it again."
        )
    _show_secret(session, answer)
    if show.has_reader():
        _show_use(session, token)


@tokens.command("list", epilog="Example: tollgate rpc tokens list --team acme")
@page_options
@for_team
def list_(session: Session, limit: int, after: str | None) -> None:
    """List the tokens of a team, oldest first."""
    answer = session.client.call(api.LIST, session.team, limit=limit, after=after)
    rows = [
        (token.id, token.name, token.prefix, token.created_at, token.last_used_at, token.expires_at, _state(token))
        for token in answer.value.items
    ]
    session.page(
        answer,
        ("ID", "NAME", "PREFIX", "CREATED", "LAST USED", "EXPIRES", "STATE"),
        rows,
        empty="No tokens yet. Create one: tollgate rpc tokens create NAME",
        drop=("PREFIX", "EXPIRES", "CREATED", "LAST USED"),
    )


@tokens.command("show", epilog="Example: tollgate rpc tokens show tok_3kF9aQx72LmN0pRt --team acme")
@click.argument("token_id", metavar="TOKEN", shell_complete=complete_tokens)
@for_team
def show_(session: Session, token_id: str) -> None:
    """Show a token: its settings and when it was last used."""
    _show(session, session.client.call(api.SHOW, session.team, _id(session, token_id)))


@tokens.command(
    cls=SettingsCommand, settings=lambda: api.TokenChange, but=("active",), spelled=_SPELLED,
    epilog="Example: tollgate rpc tokens update tok_3kF9aQx72LmN0pRt --rps 50",
)  # fmt: skip
@click.argument("token_id", metavar="TOKEN", shell_complete=complete_tokens)
@for_team
def update(session: Session, token_id: str, **settings: Any) -> None:
    """Change settings of a token; others keep their value."""
    given = chosen(settings)
    if not given:
        raise click.UsageError("Nothing to change: give at least one setting, such as --expires 90d.")
    _update(session, token_id, **given)


def _update(session: Session, token_id: str, **given: Any) -> None:
    change = api.TokenChange(**given)
    _show(session, session.client.call(api.UPDATE, session.team, _id(session, token_id), body=change))


@tokens.command(epilog="Example: tollgate rpc tokens rotate tok_3kF9aQx72LmN0pRt --overlap 1h")
@click.argument("token_id", metavar="TOKEN", shell_complete=complete_tokens)
@overlap_option("How long the old secret keeps working")
@for_team
def rotate(session: Session, token_id: str, overlap: int) -> None:
    """Issue a successor with a new secret; the old one expires."""
    token_id = _id(session, token_id)
    answer = session.client.call(api.ROTATE, session.team, token_id, body=api.Rotation(overlap))
    token = answer.value
    if token.secret is None:
        raise Failure(
            f'Token "{token.name}" ({token.id}) was issued, but the connection broke before its secret arrived, '
            f"and it is shown only once. Run: tollgate rpc tokens rotate {token.id} --team {session.team} "
            "--overlap 0s"
        )
    _show_secret(session, answer)
    end = f"works for another {durations.spell(overlap)}" if overlap else "no longer works"
    show.note(f"The old token {token_id} {end}.")


@tokens.command(epilog="Example: tollgate rpc tokens disable tok_3kF9aQx72LmN0pRt --team acme")
@click.argument("token_id", metavar="TOKEN", shell_complete=complete_tokens)
@for_team
def disable(session: Session, token_id: str) -> None:
    """Disable a token until it is enabled again."""
    _update(session, token_id, active=False)


@tokens.command(epilog="Example: tollgate rpc tokens enable tok_3kF9aQx72LmN0pRt --team acme")
@click.argument("token_id", metavar="TOKEN", shell_complete=complete_tokens)
@for_team
def enable(session: Session, token_id: str) -> None:
    """Enable a disabled token."""
    _update(session, token_id, active=True)


@tokens.command(epilog="Example: tollgate rpc tokens delete tok_3kF9aQx72LmN0pRt --team acme")
@click.argument("token_id", metavar="TOKEN", shell_complete=complete_tokens)
@yes_option
@for_team
def delete(session: Session, token_id: str, yes: bool) -> None:
    """Delete a token: it stops working within a second."""
    token_id = _id(session, token_id)
    if needs_confirmation(yes):
        token = session.client.call(api.SHOW, session.team, token_id).value
        confirm(f'Delete token "{show.clean(token.name)}" ({show.clean(token.id)})?', yes)
    session.client.call(api.DELETE, session.team, token_id)
    session.deleted(token_id, f"Token {token_id} is deleted.")


def _id(session: Session, token: str) -> str:
    """Return the id of a token that is named by its id or its name."""
    if token.startswith("tok_") or not token:
        return token
    named = [each for each in session.client.every(api.LIST, session.team) if each.name == token]
    if not named:
        raise NotFoundFailure(
            f"Team {session.team} has no token called {token!r}. List them: tollgate rpc tokens list "
            f"--team {session.team}"
        )
    # The active one, if several had the name.
    return next((each for each in reversed(named) if each.active), named[-1]).id


def _state(token: api.Token) -> str:
    now = datetime.datetime.now(datetime.UTC)
    if token.expires_at is not None and token.expires_at <= now:
        return "expired"
    if not token.active:
        return "disabled"
    if token.capped_until is not None and token.capped_until > now:
        return "capped"
    return "active"


def _show(session: Session, answer: ApiAnswer[api.Token]) -> None:
    token = answer.value
    first = [("id", token.id), ("name", token.name), ("state", _state(token))]
    session.thing(answer.raw, [*first, *lines(token, but=("id", "name", "active"))])


def _show_secret(session: Session, answer: ApiAnswer[api.TokenWithSecret]) -> None:
    token = answer.value
    session.thing(answer.raw, [("id", token.id), ("name", token.name), ("secret", token.secret)])
    show.note("Save the secret now: it is shown only once.")


def _show_use(session: Session, token: api.TokenWithSecret) -> None:
    """Show how a new token is used: an address and a command that can be copied."""
    served = session.client.call(service_api.NETWORKS).value.items
    usable = [each for each in served if not token.networks or each.network in token.networks]
    if not usable:
        return
    url = address.from_here(usable[0].url, session.url)
    family = usable[0].network.partition("/")[0]
    method = "starknet_blockNumber" if family == "starknet" else "eth_blockNumber"
    show.note(
        f"""
Call {url}

  curl -s {url} -H 'Content-Type: application/json' \\
    -H 'Authorization: Bearer {token.secret}' \\
    -d '{{"jsonrpc":"2.0","id":1,"method":"{method}","params":[]}}'
"""
    )
    if token.allow_in_url:
        show.note(f"For wallets, which send no headers: {url}/{token.secret}")
    if len(usable) > 1:
        show.note("Other networks: tollgate rpc networks")
