"""The context of a management command: server, login, team, and printing.

Owns the order of precedence: an option, then TOLLGATE_URL, TOLLGATE_TOKEN and TOLLGATE_TEAM, then the defaults of
the last login, then the default address.
"""

from __future__ import annotations

import os
import shlex
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from tollgate.api import service, teams, tokens
from tollgate.cli import show
from tollgate.cli.address import DEFAULT_URL, normal
from tollgate.cli.client import Client
from tollgate.cli.credentials import CredentialStore
from tollgate.cli.failures import LoginNeeded, WrongUsage, not_logged_in
from tollgate.cli.login import FixedLogin, KeptLogin
from tollgate.cli.transport import Transport
from tollgate.errors import TollgateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tollgate.api.base import Page
    from tollgate.cli.answers import ApiAnswer
    from tollgate.cli.login import LoginSource

T = TypeVar("T")

TOKEN_VARIABLE = "TOLLGATE_TOKEN"  # noqa: S105 - a name
TEAM_VARIABLE = "TOLLGATE_TEAM"
URL_VARIABLE = "TOLLGATE_URL"

_COMPLETION_SECONDS = 1.0


class Session:
    """One command's view of one server. `team` is looked up when it is first used."""

    def __init__(
        self, credentials: CredentialStore, client: Client, url: str, *, team: str | None, as_json: bool
    ) -> None:
        self.credentials = credentials
        self.client = client
        self.url = url
        self.as_json = as_json
        self._team = team

    @property
    def team(self) -> str:
        """Return the team to act for, or fail with how to give one."""
        if self._team is None:
            self._team = os.environ.get(TEAM_VARIABLE) or self.credentials.team_at(self.url)
        if self._team is None:
            self._team = self._only_team()
        return self._team

    def _only_team(self) -> str:
        """The team of an account that has one; fail with how to name one of several."""
        names: list[str] | None
        try:
            names = [team.name for team in self.client.call(teams.LIST).value.items]
        except LoginNeeded:
            raise
        except TollgateError:
            names = None
        if names is not None and len(names) == 1:
            return names[0]
        hint = ""
        if names is not None:
            found = f"Your teams: {', '.join(names)}"
            hint = f" {found if names else 'You are in no team yet: tollgate teams create NAME'}"
        raise WrongUsage(f"Which team? Add --team TEAM or set {TEAM_VARIABLE}.{hint}")

    def thing(self, raw: Any, fields: Sequence[tuple[str, show.Cell]]) -> None:
        """Print one resource: the server's object for programs, chosen fields for people."""
        if self.as_json:
            show.as_json(raw)
        else:
            show.fields(fields)

    def page(
        self,
        answer: ApiAnswer[Page[T]],
        titles: Sequence[str],
        rows: Iterable[Sequence[show.Cell]],
        *,
        empty: str,
        drop: Sequence[str] = (),
    ) -> None:
        """Print a page of a list and, for a person, the command for the next one."""
        if self.as_json:
            show.as_json({"items": answer.raw["items"], "next": answer.value.next})
            return
        show.table(titles, rows, drop=drop)
        ctx = click.get_current_context()
        if not answer.value.items and ctx.params.get("after") is None:
            show.note(empty)
        if answer.value.next is not None and show.has_reader():
            show.note(f"There is more: {next_command(ctx, answer.value.next, self._team)}")

    def done(self, raw: Any, text: str) -> None:
        """Report what was done: an object for programs, and a message."""
        if self.as_json:
            show.as_json(raw)
        show.note(text)

    def deleted(self, thing_id: str, text: str) -> None:
        self.done({"id": thing_id, "deleted": True}, text)


def next_command(ctx: click.Context, cursor: str, team: str | None) -> str:
    """Write the command for the next page: the same one, with its filters, after the cursor."""
    parts = [ctx.command_path]
    if team is not None:
        parts += ["--team", shlex.quote(team)]
    for param in ctx.command.params:
        name = param.name or ""
        given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if not given or not isinstance(param, click.Option) or name in {"team", "after", "as_json"}:
            continue
        value = ctx.params[name]
        if param.is_flag:
            parts.append(param.opts[0] if value else (param.secondary_opts or param.opts)[0])
            continue
        for item in value if param.multiple else (value,):
            text = ",".join(item) if isinstance(item, tuple) else str(item)
            parts += [param.opts[0], shlex.quote(text)]
    return " ".join([*parts, "--after", shlex.quote(cursor)])


@contextmanager
def opened(*, team: str | None = None, as_json: bool = False) -> Iterator[Session]:
    """Open a session with a login; fail without one."""
    credentials = CredentialStore.at_home(os.environ)
    url = server_url(credentials, os.environ)
    with Transport(url) as transport:
        client = Client(transport, login_for(credentials, transport, os.environ))
        yield Session(credentials, client, url, team=team, as_json=as_json)


def server_url(credentials: CredentialStore, environ: Mapping[str, str], option: str | None = None) -> str:
    if option is not None:
        return normal(option, named="--url")
    if variable := environ.get(URL_VARIABLE):
        return normal(variable, named=URL_VARIABLE)
    return credentials.choices().url or DEFAULT_URL


def token_in(environ: Mapping[str, str]) -> str | None:
    token = environ.get(TOKEN_VARIABLE, "").strip()
    if not token:
        return None
    if not token.isascii() or not token.isprintable() or " " in token:
        raise LoginNeeded(f"{TOKEN_VARIABLE} is not a token: tokens have only letters, digits and _.")
    if token.startswith("tg_"):
        raise LoginNeeded(
            f"{TOKEN_VARIABLE} is an API token (tg_…), which is for calls to /x/. Commands need a personal "
            "access token (tgp_…): create one with `tollgate account tokens create NAME`, or unset it and log in."
        )
    return token


def login_for(credentials: CredentialStore, transport: Transport, environ: Mapping[str, str]) -> LoginSource:
    if (token := token_in(environ)) is not None:
        return FixedLogin(
            token,
            f"{transport.url} refused the token in {TOKEN_VARIABLE}: it is unknown there, has expired or was "
            f"revoked. Set another, or unset {TOKEN_VARIABLE} and run: tollgate auth login",
        )
    credential = credentials.credential(transport.url)
    if credential is None:
        raise not_logged_in(transport.url)
    return KeptLogin(credentials, transport, credential)


class Names:
    """Names and ids for completion and hints, fetched with a short deadline and without renewing a login."""

    def __init__(self, team: str | None = None, seconds: float = _COMPLETION_SECONDS) -> None:
        self._seconds = seconds
        self._credentials = CredentialStore.at_home(os.environ)
        self._url = server_url(self._credentials, os.environ)
        self._team = team or os.environ.get(TEAM_VARIABLE) or self._credentials.team_at(self._url) or ""

    @property
    def teams(self) -> list[str]:
        with self._client() as client:
            return [team.name for team in client.call(teams.LIST).value.items]

    @property
    def tokens(self) -> list[str]:
        """Names and ids of the team's tokens."""
        names = [self._team] if self._team else self.teams
        if len(names) != 1:
            return []
        with self._client() as client:
            found = client.call(tokens.LIST, names[0], limit=1000).value.items
        return [word for token in found for word in (token.name, token.id)]

    @property
    def networks(self) -> list[str]:
        with self._client() as client:
            return [each.network for each in client.call(service.NETWORKS).value.items]

    @contextmanager
    def _client(self) -> Iterator[Client]:
        secret = token_in(os.environ)
        if secret is None:
            credential = self._credentials.credential(self._url)
            if credential is None:
                raise not_logged_in(self._url)
            # Not renewed: a renewal cut off by the short deadline could lose the login.
            secret = credential.access
        with Transport(self._url, total=self._seconds) as transport:
            yield Client(transport, FixedLogin(secret, "refused"))
