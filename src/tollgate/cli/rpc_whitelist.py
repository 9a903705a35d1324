"""`tollgate rpc whitelist`: the domains whose pages may call without a token, billed to the team."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tollgate.cli import show
from tollgate.cli.failures import NotFoundFailure, WrongUsage
from tollgate.cli.lazy import Group
from tollgate.cli.options import confirm, for_team, needs_confirmation, page_options, yes_option
from tollgate.cli.settings_options import SettingsCommand, chosen, lines
from tollgate.lazy_module import LazyModule

if TYPE_CHECKING:
    from tollgate.api import domains as api
    from tollgate.cli.answers import ApiAnswer
    from tollgate.cli.session import Session
else:
    api = LazyModule("tollgate.api.domains")  # not for help of other commands

_SHOWN = (
    "id", "domain", "active", "created_at", "created_by", "verified_at", "address_per_minute", "domain_per_minute",
)  # fmt: skip
"""Members that the output of an entry shows under its own labels; the others follow under their names."""


@click.group(cls=Group, epilog="Example: tollgate rpc whitelist add example.com --team acme")
def whitelist() -> None:
    """Domains whose pages, and those of their subdomains, call without a token."""


@whitelist.command(
    cls=SettingsCommand, settings=lambda: api.NewDomain, but=("domain", "take_over", "active"),
    epilog="Example: tollgate rpc whitelist add example.com --team acme",
)  # fmt: skip
@click.argument("domain")
@click.option("--take-over", is_flag=True, help="Take it over from another team, by proof in DNS or on the site.")
@for_team
def add(session: Session, domain: str, take_over: bool, **settings: Any) -> None:
    """Whitelist a root domain, such as example.com, with all its subdomains."""
    new = api.NewDomain(domain, take_over, **chosen(settings))
    answer = session.client.call(api.ADD, session.team, body=new)
    _show(session, answer)
    if answer.value.domain != domain.strip().lower():
        show.note(f"Whitelisted {answer.value.domain}, taken from {domain}. Its subdomains are included.")
    if answer.value.verified_at is None:
        show.note(
            "Another team that proves ownership can take it over. To prove yours: "
            f"tollgate rpc whitelist verify {answer.value.id} --team {session.team}"
        )


@whitelist.command("list", epilog="Example: tollgate rpc whitelist list --team acme")
@page_options
@for_team
def list_(session: Session, limit: int, after: str | None) -> None:
    """List the whitelisted domains of a team, oldest first."""
    answer = session.client.call(api.LIST, session.team, limit=limit, after=after)
    rows = [
        (entry.id, entry.domain, entry.created_at, entry.verified_at or "no", _state(entry))
        for entry in answer.value.items
    ]
    session.page(
        answer,
        ("ID", "DOMAIN", "ADDED", "VERIFIED", "STATE"),
        rows,
        empty="No domains yet. Add one: tollgate rpc whitelist add DOMAIN",
        drop=("ADDED", "VERIFIED"),
    )


@whitelist.command("show", epilog="Example: tollgate rpc whitelist show example.com --team acme")
@click.argument("entry", metavar="DOMAIN|ID")
@for_team
def show_(session: Session, entry: str) -> None:
    """Show an entry: its domain, proof and limits."""
    _show(session, session.client.call(api.SHOW, session.team, _id(session, entry)))


@whitelist.command(epilog="Example: tollgate rpc whitelist remove dom_8dGq1ZwY4bVc6nXs --team acme")
@click.argument("entry_id", metavar="ID")
@yes_option
@for_team
def remove(session: Session, entry_id: str, yes: bool) -> None:
    """Remove an entry by its id: pages of the domain can no longer call."""
    if "." in entry_id:
        # By id alone, so that no entry is removed by mistake.
        raise WrongUsage(
            "Entries are removed by id. Run: "
            f"tollgate rpc whitelist remove {_id(session, entry_id)} --team {session.team}"
        )
    if needs_confirmation(yes):
        entry = session.client.call(api.SHOW, session.team, entry_id).value
        confirm(f"Remove {show.clean(entry.domain)} ({show.clean(entry.id)})?", yes)
    session.client.call(api.REMOVE, session.team, entry_id)
    session.deleted(entry_id, f"Entry {entry_id} is removed.")


@whitelist.command(epilog="Example: tollgate rpc whitelist verify example.com --team acme")
@click.argument("entry", metavar="DOMAIN|ID")
@for_team
def verify(session: Session, entry: str) -> None:
    """Check the proof that the domain is yours.

    If there is none, shows what to publish in DNS or on the site.
    """
    answer = session.client.call(api.VERIFY, session.team, _id(session, entry))
    _show(session, answer)
    show.note(f"{answer.value.domain} is verified.")


@whitelist.command(epilog="Example: tollgate rpc whitelist check https://app.example.com --team acme")
@click.argument("origin")
@for_team
def check(session: Session, origin: str) -> None:
    """Show whether pages of ORIGIN may call, and why. Exits with 1 if they may not."""
    answer = session.client.call(api.CHECK, session.team, origin=origin)
    found = answer.value
    session.thing(
        answer.raw,
        [
            ("origin", found.origin),
            ("allowed", found.allowed),
            ("why", found.why),
            ("entry", found.domain_id),
            ("domain", found.domain),
        ],
    )
    if not found.allowed:
        click.get_current_context().exit(1)


@whitelist.command(
    cls=SettingsCommand, settings=lambda: api.DomainChange, but=("active",),
    epilog="Example: tollgate rpc whitelist update example.com --inactive",
)  # fmt: skip
@click.argument("entry", metavar="DOMAIN|ID")
@click.option("--active/--inactive", default=None, help="Whether its pages may call.")
@for_team
def update(session: Session, entry: str, **settings: Any) -> None:
    """Change the limits of an entry, or disable and enable it."""
    given = chosen(settings)
    if not given:
        raise click.UsageError("Nothing to change: give at least one setting, such as --inactive.")
    change = api.DomainChange(**given)
    _show(session, session.client.call(api.UPDATE, session.team, _id(session, entry), body=change))


def _id(session: Session, entry: str) -> str:
    """Return the id of an entry that is given by its id or its domain."""
    if "." not in entry and entry != "localhost":
        return entry
    for each in session.client.every(api.LIST, session.team):
        if each.domain == entry.lower():
            return each.id
    raise NotFoundFailure(
        f"Team {session.team} has no entry for {entry}. List them: tollgate rpc whitelist list "
        f"--team {session.team}"
    )


def _state(entry: api.Domain) -> str:
    return "active" if entry.active else "inactive"


def _show(session: Session, answer: ApiAnswer[api.Domain]) -> None:
    entry = answer.value
    session.thing(
        answer.raw,
        [
            ("id", entry.id),
            ("domain", entry.domain),
            ("state", _state(entry)),
            ("added", entry.created_at),
            ("added by", entry.created_by),
            ("verified", entry.verified_at or "no"),
            ("per address/min", entry.address_per_minute or "default"),
            ("per domain/min", entry.domain_per_minute or "default"),
            *lines(entry, but=_SHOWN),
        ],
    )
