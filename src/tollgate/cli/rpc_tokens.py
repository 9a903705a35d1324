"""`tollgate rpc tokens`: the API tokens of a team.

Owns the output of these commands and how options become a body. A secret is printed once, to stdout alone.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import click

from tollgate.cli import show
from tollgate.cli.failures import Failure, NotFoundFailure
from tollgate.cli.lazy import Group
from tollgate.cli.options import (
    Duration,
    Expiry,
    Never,
    NoLimit,
    NumberOrNone,
    complete_tokens,
    confirm,
    for_team,
    needs_confirmation,
    page_options,
    yes_option,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollgate.cli.answers import ApiAnswer
    from tollgate.cli.session import Session
    from tollgate.cli.shapes import ApiToken

_LONGEST_OVERLAP = 30 * 86_400
ANY = "any"
"""What lifts a restriction to networks or methods."""


@click.group(cls=Group, epilog="Example: tollgate rpc tokens create ci --team acme --expires 90d")
def tokens() -> None:
    """API tokens: what programs send as `Authorization: Bearer …` to /x/."""


def _settings(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that are settings of a token to a command."""
    for option in reversed(
        (
            click.option("--expires", type=Expiry(), metavar="WHEN", help="30d, 2026-12-31, or never."),
            click.option(
                "--network",
                "networks",
                multiple=True,
                metavar="F/N",
                help="Only this network (repeat), or any.",
            ),
            click.option(
                "--method",
                "methods",
                multiple=True,
                metavar="GLOB",
                help="Only these methods (repeat), or any.",
            ),
            click.option(
                "--rps", type=NumberOrNone(), metavar="N", help="Requests a second, or none for no limit."
            ),
            click.option(
                "--monthly-requests",
                type=NumberOrNone(),
                metavar="N",
                help="Requests a month, or none for no limit.",
            ),
            click.option(
                "--address",
                "addresses",
                multiple=True,
                metavar="NETWORK",
                help="Only from this network (repeat), or any.",
            ),
            click.option(
                "--contract",
                "contracts",
                multiple=True,
                metavar="ADDRESS",
                help="Only this contract (repeat), or any.",
            ),
            click.option("--allow-in-url/--no-allow-in-url", default=None, help="Let wallets put it in the URL."),
            click.option(
                "--show-upstream/--no-show-upstream",
                default=None,
                help="Show upstream and cache in response headers.",
            ),
        )
    ):
        command = option(command)
    return command


def _body(
    expires: datetime.datetime | Never | None,
    networks: tuple[str, ...],
    methods: tuple[str, ...],
    rps: int | NoLimit | None,
    monthly_requests: int | NoLimit | None,
    allow_in_url: bool | None,
    show_upstream: bool | None,
    addresses: tuple[str, ...],
    contracts: tuple[str, ...],
) -> dict[str, Any]:
    """Write the settings that were given, and no others."""
    body: dict[str, Any] = {}
    if expires is not None:
        body["expires_at"] = None if isinstance(expires, Never) else show.rfc3339(expires)
    lists = {"networks": networks, "methods": methods, "addresses": addresses, "contracts": contracts}
    for name, values in lists.items():
        if values:
            body[name] = _listed(name, values)
    for name, number in (("requests_per_second", rps), ("monthly_requests", monthly_requests)):
        if number is not None:
            body[name] = None if isinstance(number, NoLimit) else number
    switches = {"allow_in_url": allow_in_url, "show_upstream": show_upstream}
    return body | {name: switch for name, switch in switches.items() if switch is not None}


def _listed(name: str, values: tuple[str, ...]) -> list[str]:
    if ANY not in values:
        return list(values)
    if len(values) > 1:
        raise click.UsageError(f"{ANY!r} stands for all {name}: give it alone.")
    return []


@tokens.command(epilog="Example: tollgate rpc tokens create ci --network eth/mainnet --method 'eth_*'")
@click.argument("name")
@_settings
@for_team
def create(session: Session, name: str, **settings: Any) -> None:
    """Create a token called NAME. Its secret is shown once."""
    answer = session.client.create_token(session.team, {"name": name, **_body(**settings)})
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
    answer = session.client.tokens(session.team, limit, after)
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
    _show(session, session.client.token(session.team, _id(session, token_id)))


@tokens.command(epilog="Example: tollgate rpc tokens update tok_3kF9aQx72LmN0pRt --rps 50")
@click.argument("token_id", metavar="TOKEN", shell_complete=complete_tokens)
@click.option("--name", metavar="NAME", help="Another name.")
@_settings
@for_team
def update(session: Session, token_id: str, name: str | None, **settings: Any) -> None:
    """Change settings of a token; those not given stay as they are."""
    body = {**({} if name is None else {"name": name}), **_body(**settings)}
    if not body:
        raise click.UsageError("Nothing to change: give at least one setting, such as --expires 90d.")
    _show(session, session.client.update_token(session.team, _id(session, token_id), body))


@tokens.command(epilog="Example: tollgate rpc tokens rotate tok_3kF9aQx72LmN0pRt --overlap 1h")
@click.argument("token_id", metavar="TOKEN", shell_complete=complete_tokens)
@click.option(
    "--overlap",
    type=Duration(),
    default="24h",
    show_default=True,
    metavar="DURATION",
    help="How long the old secret goes on working; 30d at most.",
)
@for_team
def rotate(session: Session, token_id: str, overlap: int) -> None:
    """Issue a successor with a new secret, and let the old one run out."""
    from tollgate.core.durations import spell  # noqa: PLC0415 - not for help

    if overlap > _LONGEST_OVERLAP:
        raise click.UsageError("--overlap can be 30d at most.")
    token_id = _id(session, token_id)
    answer = session.client.rotate_token(session.team, token_id, overlap)
    token = answer.value
    if token.secret is None:
        raise Failure(
            f'Token "{token.name}" ({token.id}) was issued, but the connection broke before its secret arrived, '
            f"and it is shown only once. Run: tollgate rpc tokens rotate {token.id} --team {session.team} "
            "--overlap 0s"
        )
    _show_secret(session, answer)
    end = f"works for another {spell(overlap)}" if overlap else "no longer works"
    show.note(f"The old token {token_id} {end}.")


@tokens.command(epilog="Example: tollgate rpc tokens disable tok_3kF9aQx72LmN0pRt --team acme")
@click.argument("token_id", metavar="TOKEN", shell_complete=complete_tokens)
@for_team
def disable(session: Session, token_id: str) -> None:
    """Let a token no longer work, until it is enabled again."""
    _show(session, session.client.update_token(session.team, _id(session, token_id), {"active": False}))


@tokens.command(epilog="Example: tollgate rpc tokens enable tok_3kF9aQx72LmN0pRt --team acme")
@click.argument("token_id", metavar="TOKEN", shell_complete=complete_tokens)
@for_team
def enable(session: Session, token_id: str) -> None:
    """Let a disabled token work again."""
    _show(session, session.client.update_token(session.team, _id(session, token_id), {"active": True}))


@tokens.command(epilog="Example: tollgate rpc tokens delete tok_3kF9aQx72LmN0pRt --team acme")
@click.argument("token_id", metavar="TOKEN", shell_complete=complete_tokens)
@yes_option
@for_team
def delete(session: Session, token_id: str, yes: bool) -> None:
    """Delete a token for good: what uses it stops working within a second."""
    token_id = _id(session, token_id)
    if needs_confirmation(yes):
        token = session.client.token(session.team, token_id).value
        confirm(f'Delete token "{show.clean(token.name)}" ({show.clean(token.id)})?', yes)
    session.client.delete_token(session.team, token_id)
    session.deleted(token_id, f"Token {token_id} is deleted.")


def _id(session: Session, token: str) -> str:
    """Return the id of a token that is named by its id or its name."""
    if token.startswith("tok_") or not token:
        return token
    found = session.client.token_named(session.team, token)
    if found is None:
        raise NotFoundFailure(
            f"Team {session.team} has no token called {token!r}. List them: tollgate rpc tokens list "
            f"--team {session.team}"
        )
    return found.id


def _state(token: ApiToken) -> str:
    now = datetime.datetime.now(datetime.UTC)
    if token.expires_at is not None and token.expires_at <= now:
        return "expired"
    if not token.active:
        return "disabled"
    if token.capped_until is not None and token.capped_until > now:
        return "capped"
    return "active"


def _show(session: Session, answer: ApiAnswer[ApiToken]) -> None:
    token = answer.value
    session.thing(
        answer.raw,
        [
            ("id", token.id),
            ("name", token.name),
            ("prefix", token.prefix),
            ("state", _state(token)),
            ("created", token.created_at),
            ("created by", token.created_by),
            ("last used", token.last_used_at or "never"),
            ("expires", token.expires_at or "never"),
            ("networks", token.networks or ANY),
            ("methods", token.methods or ANY),
            ("addresses", token.addresses or ANY),
            ("contracts", token.contracts or ANY),
            ("requests/s", token.requests_per_second or "no limit"),
            ("requests/month", token.monthly_requests or "no limit"),
            ("capped until", token.capped_until),
            ("in URL", token.allow_in_url),
            ("shows upstream", token.show_upstream),
            ("replaces", token.replaces),
        ],
    )


def _show_secret(session: Session, answer: ApiAnswer[ApiToken]) -> None:
    token = answer.value
    session.thing(answer.raw, [("id", token.id), ("name", token.name), ("secret", token.secret)])
    show.note("Keep the secret now: it is shown only this once.")


def _show_use(session: Session, token: ApiToken) -> None:
    """Show how a new token is used: an address and a command that can be copied."""
    served = session.client.networks().value.items
    usable = [each for each in served if not token.networks or each.network in token.networks]
    if not usable:
        return
    from tollgate.cli.address import from_here  # noqa: PLC0415 - not for help

    url = from_here(usable[0].url, session.url)
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
