"""`tollgate admin`: what the operator does on the machine of the service, on its store, without a login.

Owns words and exit codes; the rules are in `control/services/operator.py`. Links are printed to standard output,
because the operator hands them over.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from tollgate import log
from tollgate.config import DEFAULT_PORT, Settings
from tollgate.control.desk import OPERATOR
from tollgate.control.passwords import SHORTEST
from tollgate.control.plane import ControlPlane
from tollgate.prepared import prepare
from tollgate.settings import file as settings_file
from tollgate.store import sqlite

MOST_ACCOUNTS = 10_000
Result = TypeVar("Result")

_config_option = click.option(
    "--config",
    "config_file",
    metavar="FILE",
    help="Settings file. Default: $TOLLGATE_CONFIG, or tollgate.toml in this folder.",
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group(epilog="Example: tollgate admin create-account ada@example.com --team acme")
def admin() -> None:
    """Manage accounts on the machine of the service itself; needs no login."""


@admin.command("create-account", epilog="Example: tollgate admin create-account ada@example.com --team acme")
@click.argument("email")
@click.option("--team", metavar="NAME", help="Also make this team, owned by the account.")
@click.option("--name", default="", help="The person's name.")
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
@click.option("--generate", is_flag=True, help="Make a password and print it.")
@_json_option
@_config_option
def create_account(
    email: str,
    team: str | None,
    name: str,
    password_stdin: bool,
    generate: bool,
    as_json: bool,
    config_file: str | None,
) -> None:
    """Make an account with a password, such as the first one of an installation."""
    password = secrets.token_urlsafe(15) if generate else _password(stdin=password_stdin)
    account = _run(config_file, lambda plane: plane.operator.create_account(email, password, name=name, team=team))
    click.echo(f"Made the account {account.email}" + (f" and its team {team}." if team else "."), err=True)
    shown = {"id": account.id, "email": account.email, "team": team}
    if generate:
        shown["password"] = password
    _show(shown, as_json=as_json)


@admin.command(epilog="Example: tollgate admin invite ada@example.com --team acme --role admin")
@click.argument("email")
@click.option("--team", metavar="NAME", help="Invite to this team of the service.")
@click.option("--role", default="developer", show_default=True, help="Role in that team.")
@_json_option
@_config_option
def invite(email: str, team: str | None, role: str, as_json: bool, config_file: str | None) -> None:
    """Print a link that lets a person make an account, even while sign-up is closed."""
    made = _run(config_file, lambda plane: plane.invitations.create_by_operator(OPERATOR, email, team, role))
    click.echo(f"Hand this link to {made.invitation.email}; it works once:", err=True)
    _show({"email": made.invitation.email, "link": made.link}, as_json=as_json, alone="link")


@admin.command("reset-link", epilog="Example: tollgate admin reset-link ada@example.com")
@click.argument("email")
@_json_option
@_config_option
def reset_link(email: str, as_json: bool, config_file: str | None) -> None:
    """Print a link that lets a person choose a new password."""
    link = _run(config_file, lambda plane: plane.accounts.reset_link(OPERATOR, email))
    click.echo(f"Hand this link to {email}; it works once:", err=True)
    _show({"email": email, "link": link}, as_json=as_json, alone="link")


@admin.command(epilog="Example: tollgate admin accounts --json")
@_json_option
@_config_option
def accounts(as_json: bool, config_file: str | None) -> None:
    """List all accounts."""
    found = _run(config_file, lambda plane: plane.operator.accounts(MOST_ACCOUNTS))
    if as_json:
        items = [{"id": each.id, "email": each.email, "name": each.name, "active": each.active} for each in found]
        click.echo(json.dumps({"items": items, "next": None}))
        return
    for each in found:
        click.echo(f"{each.id}  {each.email}" + ("" if each.active else "  (switched off)"))
    if not found:
        click.echo("There are none. Make one with: tollgate admin create-account EMAIL", err=True)


@admin.command(epilog="Example: tollgate admin disable ada@example.com")
@click.argument("email")
@_config_option
def disable(email: str, config_file: str | None) -> None:
    """Switch an account off and end its logins. API tokens of its teams go on."""
    _run(config_file, lambda plane: plane.operator.switch(email, active=False))
    click.echo(f"{email} is switched off.", err=True)


@admin.command(epilog="Example: tollgate admin enable ada@example.com")
@click.argument("email")
@_config_option
def enable(email: str, config_file: str | None) -> None:
    """Switch an account on again."""
    _run(config_file, lambda plane: plane.operator.switch(email, active=True))
    click.echo(f"{email} is switched on.", err=True)


def _password(*, stdin: bool) -> str:
    if stdin:
        return sys.stdin.readline().rstrip("\r\n")
    if not sys.stdin.isatty():
        raise click.UsageError("Without a terminal, give --password-stdin or --generate.")
    words = f"Password ({SHORTEST} characters or more)"
    password: str = click.prompt(words, hide_input=True, confirmation_prompt=True, err=True)
    return password


def _show(values: dict[str, str | None], *, as_json: bool, alone: str = "") -> None:
    if as_json:
        click.echo(json.dumps(values))
    elif alone:
        click.echo(values[alone])
    else:
        for name, value in values.items():
            if value is not None:
                click.echo(f"{name:<9} {value}")


def _run(config_file: str | None, act: Callable[[ControlPlane], Awaitable[Result]]) -> Result:
    """Do something with the services, on the store of the settings."""
    settings = settings_file.load(settings_file.find(config_file, os.environ), os.environ).settings
    log.configure("warning", settings.logging.format)
    prepared = prepare(settings)

    async def whole() -> Result:
        store = sqlite.open_store(prepared.store_url)
        plane = ControlPlane(store, settings, prepared.pepper, _base_url(settings), time.time)
        try:
            return await act(plane)
        finally:
            await plane.close()

    return asyncio.run(whole())


def _base_url(settings: Settings) -> str:
    """Where links lead. A service on a port of its own choosing is asked for its address by nobody here."""
    server = settings.server
    if server.base_url:
        return server.base_url.rstrip("/")
    host = "127.0.0.1" if server.host in ("0.0.0.0", "::") else server.host
    return f"{'https' if server.tls_certificate else 'http'}://{host}:{server.port or DEFAULT_PORT}"
