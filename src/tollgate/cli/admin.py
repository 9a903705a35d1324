"""`tollgate admin`: what the operator does on the machine of the service, on its store, without a login.

Owns output and exit codes; the rules are in `control/services/admin.py`. Links are printed to standard output,
because the operator hands them over.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

import click
from msgspec.structs import replace

from tollgate import log
from tollgate.api.me import MAX_PASSWORD, MIN_PASSWORD
from tollgate.api.members import NewInvitation
from tollgate.api.teams import NewTeam
from tollgate.cli.address import normal
from tollgate.cli.client import Client
from tollgate.cli.credentials import CredentialStore
from tollgate.cli.failures import Failure, NotFoundFailure
from tollgate.cli.login import FixedLogin
from tollgate.cli.operator import add_team_commands
from tollgate.cli.options import config_option, json_option
from tollgate.cli.session import Session
from tollgate.cli.show import note
from tollgate.cli.transport import HttpReply
from tollgate.control.commands import checked
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import NotFound
from tollgate.control.service_context import OPERATOR, email_of
from tollgate.control.services.invitations import Invited
from tollgate.core.people import Account
from tollgate.lazy_module import LazyModule
from tollgate.processes.bootstrap import (
    PEPPER,
    PEPPER_REPLACED_AT,
    PREVIOUS_PEPPER,
    Bootstrap,
    prepare,
    write_pepper,
)
from tollgate.processes.listeners import url_of
from tollgate.processes.service_lock import holder
from tollgate.settings import file as settings_file
from tollgate.settings.mask import secrets_in
from tollgate.settings.model import DEFAULT_PORT, Settings
from tollgate.store import engines
from tollgate.store.base import StoreUnavailable

if TYPE_CHECKING:
    import httpx

    from tollgate.cli.transport import Transport
    from tollgate.control import app as control_api
else:
    httpx, control_api = LazyModule("httpx"), LazyModule("tollgate.control.app")  # few commands need the API

MAX_ACCOUNTS = 10_000
Shown = dict[str, str | bool | None]
Result = TypeVar("Result")

_url_option = click.option(
    "--url",
    metavar="URL",
    help="Address of the service in the link. Default: server.base_url, else this machine's.",
)


@click.group(epilog="Example: tollgate admin create-account ada@example.com --team acme")
def admin() -> None:
    """Manage accounts and teams on the machine of the service; needs no login."""


@admin.command("create-account", epilog="Example: tollgate admin create-account ada@example.com --team acme")
@click.argument("email")
@click.option("--team", metavar="NAME", help="Also create this team, owned by the account.")
@click.option("--name", default="", help="The person's name.")
@click.option("--operator", is_flag=True, help="Give it access to the operator's pages and commands.")
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
@click.option("--generate", is_flag=True, help="Generate a password and print it.")
@json_option
@config_option
def create_account(
    email: str,
    team: str | None,
    name: str,
    operator: bool,
    password_stdin: bool,
    generate: bool,
    as_json: bool,
    config_file: str | None,
) -> None:
    """Create an account with a password, such as the first of an installation."""
    address = email_of(email)  # before prompting for a password
    if team is not None:
        checked(NewTeam(team))
    password = password_from(stdin=password_stdin, generate=generate)

    def show(account: Account) -> None:
        note(f"Created the account {account.email}" + (f" and its team {team}." if team else "."))
        shown: Shown = {"id": account.id, "email": account.email, "team": team}
        show_values(shown | ({"password": password} if generate else {}), as_json=as_json)

    _run(
        config_file,
        lambda plane: plane.admin.create_account(address, password, name=name, team=team, operator=operator),
        show,
    )


@admin.command(epilog="Example: tollgate admin invite ada@example.com --team acme --role admin")
@click.argument("email")
@click.option("--team", metavar="NAME", help="Invite to this team of the service.")
@click.option("--role", default="developer", show_default=True, help="Role in that team.")
@_url_option
@json_option
@config_option
def invite(
    email: str, team: str | None, role: str, url: str | None, as_json: bool, config_file: str | None
) -> None:
    """Print a link with which a person creates an account, even while sign-up is closed."""
    if team is not None:
        checked(NewTeam(team))  # an empty name must not become an invitation without a team

    def show(made: Invited) -> None:
        address = made.invitation.email
        note(
            f"This link was mailed to {address}; it works once:"
            if made.mailed
            else f"Give this link to {address}; it works once:"
        )
        show_values({"email": address, "link": made.link, "mailed": made.mailed}, as_json=as_json, alone="link")

    wanted = NewInvitation(email, role)
    _run(config_file, lambda plane: plane.invitations.create_by_operator(OPERATOR, wanted, team), show, url)


@admin.command(epilog="Example: tollgate admin operator ada@example.com")
@click.argument("email")
@click.option("--remove", is_flag=True, help="Revoke it.")
@json_option
@config_option
def operator(email: str, remove: bool, as_json: bool, config_file: str | None) -> None:
    """Grant an account the operator's pages of the console: upstreams, teams and their usage."""

    def show(account: Account) -> None:
        note(f"{account.email} {'sees' if account.operator else 'does not see'} the operator's pages.")
        show_values({"email": account.email, "operator": account.operator}, as_json=as_json)

    _run(config_file, lambda plane: plane.admin.mark(email, operator=not remove), show)


@admin.command("reset-link", epilog="Example: tollgate admin reset-link ada@example.com")
@click.argument("email")
@_url_option
@json_option
@config_option
def reset_link(email: str, url: str | None, as_json: bool, config_file: str | None) -> None:
    """Print a link with which a person sets a new password."""
    address = email_of(email)

    def show(link: str) -> None:
        note(f"Give this link to {address}; it works once:")
        show_values({"email": address, "link": link}, as_json=as_json, alone="link")

    _run(config_file, lambda plane: plane.accounts.reset_link(OPERATOR, address), show, url)


@admin.command(epilog="Example: tollgate admin accounts --json")
@json_option
@config_option
def accounts(as_json: bool, config_file: str | None) -> None:
    """List all accounts."""

    def show(found: Sequence[Account]) -> None:
        listed = found[:MAX_ACCOUNTS]
        if as_json:
            names = ("id", "email", "name", "active", "operator")
            items = [{name: getattr(each, name) for name in names} for each in listed]
            click.echo(json.dumps({"items": items, "next": None}))
        else:
            for each in listed:
                marks = [
                    mark for mark, true in (("operator", each.operator), ("disabled", not each.active)) if true
                ]
                click.echo(f"{each.id}  {each.email}" + (f"  ({', '.join(marks)})" if marks else ""))
        if not found:
            note("There are no accounts. Create one: tollgate admin create-account EMAIL")
        if len(found) > len(listed):
            note(f"There are more: these are the oldest {MAX_ACCOUNTS}.")

    _run(config_file, lambda plane: plane.admin.accounts(MAX_ACCOUNTS + 1), show)


@admin.command(epilog="Example: tollgate admin disable ada@example.com")
@click.argument("email")
@config_option
def disable(email: str, config_file: str | None) -> None:
    """Disable an account and end its logins. API tokens of its teams keep working."""
    _run(
        config_file,
        lambda plane: plane.admin.switch(email, active=False),
        lambda account: note(f"{account.email} is disabled."),
    )


@admin.command(epilog="Example: tollgate admin enable ada@example.com")
@click.argument("email")
@config_option
def enable(email: str, config_file: str | None) -> None:
    """Enable a disabled account."""
    _run(
        config_file,
        lambda plane: plane.admin.switch(email, active=True),
        lambda account: note(f"{account.email} is enabled."),
    )


@admin.command("rotate-pepper", epilog="Example: tollgate admin rotate-pepper")
@click.option("--finish", is_flag=True, help="Remove the previous pepper.")
@click.option("--force", is_flag=True, help="With --finish: even if API tokens stop working.")
@config_option
def rotate_pepper(finish: bool, force: bool, config_file: str | None) -> None:
    """Replace the key under which tokens are hashed. The service must be stopped.

    Until --finish both are valid: what was hashed under the previous one keeps working.
    """
    settings = settings_file.settings_from(config_file)
    log.configure("warning", settings.logging.format)
    log.hide(secrets_in(settings).text)
    data_dir = Path(settings.data_dir)
    if settings.secrets.pepper:
        raise Failure(
            "The pepper comes from secrets.pepper. Put that value into secrets.previous_pepper and a new one into "
            "secrets.pepper, and restart the service; to finish, remove secrets.previous_pepper and restart again."
        )
    if holder(data_dir) is not None:
        raise Failure(f"The service runs on {data_dir}: stop it first, and start it again afterwards.")
    bootstrap = prepare(settings)
    previous = data_dir / PREVIOUS_PEPPER
    if finish:
        _finish_pepper(bootstrap, previous, force=force)
        return
    if previous.exists():
        raise Failure("A pepper is being replaced already. First run: tollgate admin rotate-pepper --finish")
    write_pepper(previous, bootstrap.pepper)
    write_pepper(data_dir / PEPPER, secrets.token_hex(32).encode())
    prepare(settings)  # so that the store has the new one
    note(
        "The pepper is replaced; both work. Start the service, let teams rotate their tokens (`tollgate rpc "
        "tokens rotate`), then run: tollgate admin rotate-pepper --finish"
    )


def _finish_pepper(bootstrap: Bootstrap, previous: Path, *, force: bool) -> None:
    if bootstrap.previous_pepper is None:
        raise Failure("No pepper is being replaced. Start with: tollgate admin rotate-pepper")
    replaced_at = float(engines.insert_if_absent(bootstrap.store_url, PEPPER_REPLACED_AT, str(time.time())))
    left = engines.tokens_made_before(bootstrap.store_url, replaced_at)
    if left and not force:
        raise Failure(
            f"{left} API tokens were created before the pepper was replaced and would stop working. Ask their "
            "teams to rotate or delete them, or give --force."
        )
    previous.unlink()
    note("The previous pepper is gone. Logins, personal tokens and API tokens from before it no longer work.")


def password_from(*, stdin: bool, generate: bool) -> str:
    """Return a new password: generated, read, or prompted for."""
    if stdin and generate:
        raise click.UsageError("Give --password-stdin or --generate, not both.")
    if generate:
        return secrets.token_urlsafe(15)
    if sys.stdin is None:  # closed by the parent process
        raise click.UsageError("Standard input is closed: send the password there, or give --generate.")
    if stdin:
        return _first_line(sys.stdin.buffer)
    if not sys.stdin.isatty():
        raise click.UsageError("Without a terminal, give --password-stdin or --generate.")
    prompt = f"Password ({MIN_PASSWORD} characters or more)"
    password: str = click.prompt(prompt, hide_input=True, confirmation_prompt=True, err=True)
    return password


def _first_line(stream: BinaryIO) -> str:
    try:
        # A character has at most four bytes, so only a password that is too long is cut off.
        return stream.readline(4 * MAX_PASSWORD + 4).decode().rstrip("\r\n")
    except UnicodeDecodeError:
        # Without its cause, which quotes the password.
        raise Failure("The password on standard input is not UTF-8: send it in that encoding.") from None


def show_values(values: Shown, *, as_json: bool = False, alone: str = "") -> None:
    if as_json:
        click.echo(json.dumps(values))
    elif alone:
        click.echo(values[alone])
    else:
        for name, value in values.items():
            if value is not None:
                click.echo(f"{name:<14} {value}")


class _StoreTransport:
    """Sends requests to the API inside this process, as the operator: on the store, without a server."""

    url = "the store"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def send(
        self, method: str, target: str, *, headers: Mapping[str, str], body: bytes | None = None
    ) -> HttpReply:
        replies: list[HttpReply] = []

        async def act(plane: ControlPlane) -> HttpReply:
            app: Any = control_api.operator_app(plane)

            async def as_operator(scope: Any, receive: Any, send: Any) -> None:
                await app({**scope, "user": OPERATOR}, receive, send)

            transport = httpx.ASGITransport(as_operator)
            async with httpx.AsyncClient(transport=transport, base_url=plane.base_url) as client:
                answer = await client.request(method, target, headers=dict(headers), content=body)
            return HttpReply(answer.status_code, answer.headers, answer.content)

        control_plane(self._settings, act, replies.append)
        return replies[0]


def _on_the_store(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--config` and `--json` to a command, and call it with a session on the store."""

    @functools.wraps(command)
    def call(*, as_json: bool, config_file: str | None, **values: Any) -> None:
        transport = cast("Transport", _StoreTransport(settings_file.settings_from(config_file)))
        client = Client(transport, FixedLogin("operator", "The operator needs no login here."))
        command(Session(CredentialStore.at_home(os.environ), client, "", team=None, as_json=as_json), **values)

    return json_option(config_option(call))


add_team_commands(admin, _on_the_store)


def _run(
    config_file: str | None,
    act: Callable[[ControlPlane], Awaitable[Result]],
    show: Callable[[Result], None],
    url: str | None = None,
) -> None:
    """Run an action of the services, on the store of the settings; `url` is where links lead."""
    settings = settings_file.settings_from(config_file)
    if url is not None:
        settings = replace(settings, server=replace(settings.server, base_url=normal(url, named="--url")))
    control_plane(settings, act, show)


def control_plane(
    settings: Settings, act: Callable[[ControlPlane], Awaitable[Result]], show: Callable[[Result], None]
) -> None:
    """Run an action of the services on a store.

    The result is shown before the mailer is awaited: a link is shown only once, even if a slow mailer is
    interrupted.
    """
    log.configure("warning", settings.logging.format)
    log.hide(secrets_in(settings).text)
    bootstrap = prepare(settings)

    async def whole() -> None:
        store = engines.open_store(bootstrap.store_url)
        plane = ControlPlane(
            store,
            settings,
            bootstrap.pepper,
            base_url(settings),
            time.time,
            previous_pepper=bootstrap.previous_pepper,
            factor_key=bootstrap.factor_key,
            audit_key=bootstrap.audit_key,
            accountbook=engines.open_accountbook(bootstrap.ledger_url),
        )
        try:
            show(await act(plane))
        finally:
            await plane.close()

    try:
        asyncio.run(whole())
    except NotFound as problem:
        raise NotFoundFailure(problem.detail) from problem
    except StoreUnavailable as error:
        raise Failure(
            f"The database {bootstrap.store_url.database} is busy or cannot be written: try again."
        ) from error


def base_url(settings: Settings) -> str:
    """The base of links. The port of a service that picks a free one is not known here."""
    server = settings.server
    if server.base_url:
        return server.base_url.rstrip("/")
    return url_of("https" if server.tls_certificate else "http", server.host, server.port or DEFAULT_PORT)
