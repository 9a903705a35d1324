"""`tollgate auth`: log in, see the login, print its token, log out.

Owns the output of these commands. The device login is in `device.py`, storage in `credentials.py`; both are
imported only when a command runs.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import click

from tollgate.cli import show
from tollgate.cli.failures import Failure, not_logged_in
from tollgate.cli.lazy import Group
from tollgate.cli.options import json_option, logged_in
from tollgate.lazy_module import LazyModule

if TYPE_CHECKING:
    import webbrowser

    from tollgate.api import me as me_api
    from tollgate.api import teams as teams_api
    from tollgate.cli import address, answers, credentials, device
    from tollgate.cli import client as clients
    from tollgate.cli import login as logins
    from tollgate.cli import session as sessions
    from tollgate.cli import transport as transports
    from tollgate.cli.credentials import Credential, CredentialStore
    from tollgate.cli.session import Session
    from tollgate.cli.transport import Transport
else:
    # Not for help.
    webbrowser, me_api, teams_api = (
        LazyModule(n) for n in ("webbrowser", "tollgate.api.me", "tollgate.api.teams")
    )
    address, answers, clients, credentials, device, logins, sessions, transports = (
        LazyModule(f"tollgate.cli.{name}")
        for name in ("address", "answers", "client", "credentials", "device", "login", "session", "transport")
    )

# Longer than any token; a large file piped in by mistake must not be read whole.
_MAX_LINE = 4096


@click.group(cls=Group, epilog="Example: tollgate auth login --url https://tollgate.example.com")
def auth() -> None:
    """Log in and out, and see who is logged in."""


@auth.command(epilog="Example: tollgate auth login --url https://tollgate.example.com")
@click.option("--url", metavar="URL", help="Server. Default: $TOLLGATE_URL, else the last one, else this machine.")
@click.option("--with-token", is_flag=True, help="Read a personal access token from standard input.")
@click.option("--no-browser", is_flag=True, help="Print the address of the page, do not open it.")
def login(url: str | None, with_token: bool, no_browser: bool) -> None:
    """Log in by approving a code in the browser.

    The login is stored in the system keyring, or in a file that only you can read. For CI, set TOLLGATE_TOKEN.
    """
    store = credentials.CredentialStore.at_home(os.environ)
    server = sessions.server_url(store, os.environ, url)
    if address.is_exposed(server):
        show.note(f"Warning: {server} is plain http: others on the network can read your login. Use https.")
    with transports.Transport(server) as transport:
        credential = _typed_token() if with_token else _approved(transport, no_browser)
        _store_login(store, transport, credential)
    if os.environ.get(sessions.TOKEN_VARIABLE):
        show.note(f"Note: {sessions.TOKEN_VARIABLE} is set and takes precedence over this login.")


def _approved(transport: Transport, no_browser: bool) -> Credential:
    grant = device.start(transport, device.machine_name())
    page = grant.verification_uri_complete or grant.verification_uri
    show.note(f"Your code is  {grant.user_code}\n")
    if not no_browser and _has_browser() and _open(page):
        show.note(f"Approve it on the page that opens now, or on\n  {page}\n")
    else:
        show.note(f"Approve it on\n  {page}\nor enter it on\n  {grant.verification_uri}\n")
    show.note("Waiting… (Ctrl-C to stop)")
    return logins.credential_of(device.wait_for_approval(transport, grant), time.time())


def _has_browser() -> bool:
    """Whether a browser can be opened; never one that would take over this terminal."""
    if not sys.stderr.isatty():
        return False
    display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or os.environ.get("BROWSER")
    return bool(display) or sys.platform == "darwin"


def _open(page: str) -> bool:
    try:
        return webbrowser.open(page)
    except (webbrowser.Error, OSError):
        return False


def _typed_token() -> Credential:
    if sys.stdin.isatty():
        text = click.prompt("Personal access token", hide_input=True, err=True)
    else:
        text = sys.stdin.readline(_MAX_LINE)
    token = text.strip()
    if not token:
        raise Failure("No token on standard input. Try: tollgate auth login --with-token < token.txt")
    if token.startswith("tg_"):
        raise Failure(
            "That is an API token for /x/. A personal access token starts with tgp_: "
            "create one with `tollgate account tokens create NAME` or in the console."
        )
    if not token.startswith("tgp_") or not token.isascii() or not token.replace("_", "").isalnum():
        raise Failure("That is not a personal access token: those are tgp_ followed by letters and digits.")
    return credentials.Credential("personal", token)


def _store_login(credentials: CredentialStore, transport: Transport, credential: Credential) -> None:
    """Look up the account, store the login, and choose a team."""
    url = transport.url
    if credential.kind == "tool":
        credentials.put(url, credential)  # first: the approved login must not be lost if the next request fails
    client = clients.Client(
        transport, logins.FixedLogin(credential.access, f"{url} refused this token. Run: tollgate auth login")
    )
    account = client.call(me_api.SHOW).value
    teams = [team.name for team in client.call(teams_api.LIST).value.items]
    before = credentials.team_at(url)
    team = before if before in teams else next(iter(teams), None)
    if credential.kind == "personal":
        credentials.put(url, credential)
    credentials.choose(url, team)
    show.note(f"Logged in to {url} as {account.email}. The login is stored in {credentials.place(url)}.")
    if team is None:
        show.note("You are in no team yet. Create one: tollgate teams create NAME")
    else:
        others = " Choose another with --team or TOLLGATE_TEAM." if len(teams) > 1 else ""
        show.note(f"Commands act for team {team} unless --team is given.{others}")


@auth.command(epilog="Example: tollgate auth status --json")
@logged_in
def status(session: Session) -> None:
    """Show the server, the account, the kind of login, and your teams."""
    me = session.client.call(me_api.SHOW)
    page = session.client.call(teams_api.LIST)
    place = "TOLLGATE_TOKEN" if sessions.token_in(os.environ) else session.credentials.place(session.url)
    team = os.environ.get(sessions.TEAM_VARIABLE) or session.credentials.team_at(session.url)
    if session.as_json:
        facts = {"url": session.url, "account": me.raw, "kept_in": place, "team": team}
        show.as_json({**facts, "teams": page.raw["items"]})
        return
    login = me.value.login
    kinds = {"tool": "browser login of this tool", "personal": "personal access token"}
    show.fields(
        [
            ("server", session.url),
            ("account", me.value.email),
            ("login", kinds.get(login.kind, login.kind)),
            ("name", login.name),
            ("expires", login.expires_at or "never"),
            ("kept in", place),
            ("team", team),
            ("teams", [f"{each.name} ({each.role})" for each in page.value.items]),
        ]
    )
    if page.value.next is not None:
        show.note("There are more teams: tollgate teams list")


@auth.command(epilog="Example: tollgate auth logout")
@json_option
def logout(as_json: bool) -> None:
    """End the login at the server and delete it here.

    A personal access token is only deleted here: other machines may use it. Delete it with `tollgate account
    tokens delete ID`.
    """
    store = credentials.CredentialStore.at_home(os.environ)
    url = sessions.server_url(store, os.environ)
    credential = _kept_or_none(store, url)
    store.forget(url)
    revoked = False
    if credential is not None and credential.kind == "tool":
        with transports.Transport(url) as transport:
            revoked = _revoke(transport, credential)
    elif credential is not None:
        show.note("The personal access token keeps working; to delete it: tollgate account tokens delete ID")
    if as_json:
        show.as_json({"url": url, "logged_out": True, "revoked": revoked})
    show.note(f"Logged out of {url}.")
    if os.environ.get(sessions.TOKEN_VARIABLE):
        show.note(f"Note: {sessions.TOKEN_VARIABLE} is still set, and commands keep using it.")


def _kept_or_none(credentials: CredentialStore, url: str) -> Credential | None:
    """Return the login to end, or None if it cannot be read; it is deleted in any case."""
    try:
        credential = credentials.credential(url)
    except Failure as failure:
        show.note(f"{failure}")
        return None
    if credential is None:
        credentials.forget(url)
        raise not_logged_in(url)
    return credential


def _revoke(transport: Transport, credential: Credential) -> bool:
    try:
        form = {"token": credential.refresh or credential.access}
        answers.expect_done(logins.post_form(transport, "/api/v1/oauth/revoke", form), transport.url)
    except Failure as failure:
        show.note(f"The login could not be revoked, so it stays valid on the server until it expires: {failure}")
        return False
    return True


@auth.command(epilog='Example: curl -H "Authorization: Bearer $(tollgate auth token)" …')
def token() -> None:
    """Print the access token that commands send, renewed if necessary."""
    store = credentials.CredentialStore.at_home(os.environ)
    with transports.Transport(sessions.server_url(store, os.environ)) as transport:
        secret = sessions.login_for(store, transport, os.environ).secret()
    click.echo(secret)
