"""`tollgate teams` and `tollgate audit`: create, list, show, rename and join teams, and see who changed what.

Members and invitations are in `members.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tollgate.cli import show
from tollgate.cli.failures import Failure
from tollgate.cli.lazy import Group, LazyCommand
from tollgate.cli.options import Since, Until, confirm, for_team, logged_in, page_options, yes_option
from tollgate.cli.settings_options import lines
from tollgate.lazy_module import LazyModule

if TYPE_CHECKING:
    import json

    from tollgate.api import audit as audit_api
    from tollgate.api import members as members_api
    from tollgate.api import teams as api
    from tollgate.cli.session import Session
    from tollgate.core import audit_chain, people
else:
    # Not for help.
    json = LazyModule("json")
    api, audit_api, members_api = (LazyModule(f"tollgate.api.{name}") for name in ("teams", "audit", "members"))
    audit_chain, people = LazyModule("tollgate.core.audit_chain"), LazyModule("tollgate.core.people")


@click.group(
    cls=Group,
    lazy={
        "members": LazyCommand("tollgate.cli.members:members", "Who is in a team, and in which role."),
        "invitations": LazyCommand("tollgate.cli.members:invitations", "Invitations that are not accepted yet."),
    },
    epilog="Example: tollgate teams members invite ann@example.com --role developer",
)
def teams() -> None:
    """Teams, their members and invitations."""


@teams.command(epilog="Example: tollgate teams create acme")
@click.argument("name")
@logged_in
def create(session: Session, name: str) -> None:
    """Create a team that you own."""
    answer = session.client.call(api.CREATE, body=api.NewTeam(name))
    _show(session, answer.value, answer.raw)
    _choose_if_none(session, answer.value.name)


@teams.command("list", epilog="Example: tollgate teams list")
@page_options
@logged_in
def list_(session: Session, limit: int, after: str | None) -> None:
    """List your teams and your role in each."""
    answer = session.client.call(api.LIST, limit=limit, after=after)
    rows = [(team.id, team.name, team.role, team.created_at) for team in answer.value.items]
    session.page(
        answer,
        ("ID", "NAME", "ROLE", "CREATED"),
        rows,
        empty="You are in no team yet. Create one: tollgate teams create NAME",
    )


@teams.command("show", epilog="Example: tollgate teams show --team acme")
@for_team
def show_(session: Session) -> None:
    """Show a team and your role in it."""
    answer = session.client.call(api.SHOW, session.team)
    _show(session, answer.value, answer.raw)


@teams.command(epilog="Example: tollgate teams rename acme-labs --team acme")
@click.argument("new")
@for_team
def rename(session: Session, new: str) -> None:
    """Rename a team to NEW."""
    before = session.team
    answer = session.client.call(api.UPDATE, before, body=api.TeamChange(new))
    _show(session, answer.value, answer.raw)
    if session.credentials.team_at(session.url) == before:
        session.credentials.choose(session.url, answer.value.name)


@teams.command(epilog="Example: tollgate teams delete --team acme")
@yes_option
@for_team
def delete(session: Session, yes: bool) -> None:
    """Delete a team with its tokens, domains and members. For owners."""
    confirm(f"Delete the team {session.team} with all its tokens and domains?", yes)
    session.client.call(api.DELETE, session.team)
    show.note(f"Deleted the team {session.team}.")


@teams.command(epilog="Example: tollgate teams join https://tollgate.example.com/invitation/tgi_…")
@click.argument("link")
@logged_in
def join(session: Session, link: str) -> None:
    """Accept an invitation: LINK is the whole link, or its part tgi_…"""
    answer = session.client.call(members_api.ACCEPT, body=members_api.InvitationLink(link))
    team = answer.value
    if team is None:
        show.note("The invitation was to the service, not to a team. Create one: tollgate teams create NAME")
        return
    _show(session, team, answer.raw)
    _choose_if_none(session, team.name)


def _show(session: Session, team: api.Team, raw: Any) -> None:
    session.thing(raw, [*lines(team, but=("suspended_at", "suspended_reason"))])
    if team.suspended_at is not None:
        reason = f" ({show.clean(team.suspended_reason)})" if team.suspended_reason else ""
        show.note(f"The operator has suspended {team.name}{reason}: its calls are refused. Ask the operator.")


def _choose_if_none(session: Session, name: str) -> None:
    """Make the first team of a login the default of `--team`."""
    if session.credentials.choices().url == session.url and session.credentials.team_at(session.url) is None:
        session.credentials.choose(session.url, name)
        show.note(f"Commands act for team {name} unless --team is given.")


@click.command(epilog="Example: tollgate audit --team acme --action token.update --since 7d")
@click.option("--actor", metavar="EMAIL", help="Only changes by this person.")
@click.option("--action", metavar="ACTION", help="Only this action, such as token.update.")
@click.option("--object", metavar="ID|NAME", help="Only changes of this token, domain, member …")
@click.option("--since", type=Since(), metavar="WHEN", help="Only the last 1h, 7d or so, or since 2026-11-15.")
@click.option("--until", type=Until(), metavar="WHEN", help="Only before 2026-11-15T06:00:00Z, or 1h ago.")
@click.option(
    "--export",
    is_flag=True,
    help="Print all entries, oldest first, as JSON lines with hashes; `--after N` continues after entry N.",
)
@page_options
@for_team
def audit(session: Session, limit: int, after: str | None, export: bool, **given: Any) -> None:
    """Show who changed what in a team, newest first. For owners and admins."""
    filters = {name: value for name, value in given.items() if value is not None}
    if export:
        if filters:
            raise click.UsageError(
                "--export prints all entries, so that their hashes can be checked: give no filter."
            )
        _export(session, after or "0")
        return
    answer = session.client.call(audit_api.LIST, session.team, limit=limit, after=after, **filters)
    rows = [
        (
            entry.at,
            entry.actor,
            entry.action,
            entry.name or entry.target,
            "; ".join(f"{name}: {words}" for name, words in people.detail_texts(entry.details)),
            entry.target,
            entry.via,
            entry.address,
        )
        for entry in answer.value.items
    ]
    session.page(
        answer,
        ("TIME", "WHO", "ACTION", "NAME", "WHAT", "ID", "VIA", "ADDRESS"),
        rows,
        empty="Nothing matches." if filters else "Nothing has been changed yet.",
        drop=("ADDRESS", "VIA", "ID"),
    )


def _export(session: Session, after: str) -> None:
    """Print the exported audit log, and check each entry against the one before.

    On a terminal, control characters are printed as JSON escapes.
    """
    if not after.isdecimal():
        raise click.UsageError("With --export, --after is the number of the last entry that you have.")
    before: audit_chain.Line | None = None
    place = int(after)
    export, limit = audit_api.EXPORT, audit_api.MAX_EXPORTED
    while text := session.client.call(export, session.team, after=place, limit=limit).value:
        click.echo(show.escaped(text) if show.on_terminal() else text.encode(), nl=False)
        # Split as bytes: str.splitlines also splits at characters that names may contain.
        for line in map(json.loads, text.encode().splitlines()):
            if fault := audit_chain.fault_of(line, before):
                raise Failure(f"The audit log was tampered with: {fault}. Inform the operator of the service.")
            before, place = line, line["number"]
