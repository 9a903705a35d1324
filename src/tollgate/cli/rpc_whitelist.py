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
    from urllib import parse

    from tollgate.api import domains as api
    from tollgate.cli.answers import ApiAnswer
    from tollgate.cli.session import Session
else:
    api, parse = LazyModule("tollgate.api.domains"), LazyModule("urllib.parse")  # not for help of other commands

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
    if "/" in domain or ":" in domain:
        host = parse.urlsplit(domain if "//" in domain else f"//{domain}").hostname or ""
        proposal = f" Did you mean: tollgate rpc whitelist add {host} --team {session.team}" if "." in host else ""
        raise WrongUsage(f"{domain} is an address: a whitelist entry is a domain alone.{proposal}")
    new = api.NewDomain(domain, take_over, **chosen(settings))
    answer = session.client.call(api.ADD, session.team, body=new)
    _show(session, answer)
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


@whitelist.command("show", epilog="Example: tollgate rpc whitelist show dom_8dGq1ZwY4bVc6nXs --team acme")
@click.argument("entry_id", metavar="ID")
@for_team
def show_(session: Session, entry_id: str) -> None:
    """Show an entry: its domain, proof and limits."""
    _show(session, session.client.call(api.SHOW, session.team, entry_id))


@whitelist.command(epilog="Example: tollgate rpc whitelist remove dom_8dGq1ZwY4bVc6nXs --team acme")
@click.argument("entry_id", metavar="ID")
@yes_option
@for_team
def remove(session: Session, entry_id: str, yes: bool) -> None:
    """Remove an entry by its id: pages of the domain can no longer call."""
    if "." in entry_id:
        _show_id(session, entry_id)
    if needs_confirmation(yes):
        entry = session.client.call(api.SHOW, session.team, entry_id).value
        confirm(f"Remove {show.clean(entry.domain)} ({show.clean(entry.id)})?", yes)
    session.client.call(api.REMOVE, session.team, entry_id)
    session.deleted(entry_id, f"Entry {entry_id} is removed.")


@whitelist.command(epilog="Example: tollgate rpc whitelist verify dom_8dGq1ZwY4bVc6nXs --team acme")
@click.argument("entry_id", metavar="ID")
@for_team
def verify(session: Session, entry_id: str) -> None:
    """Check the proof that the domain is yours.

    If there is none, shows what to publish in DNS or on the site.
    """
    answer = session.client.call(api.VERIFY, session.team, entry_id)
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
    epilog="Example: tollgate rpc whitelist update dom_8dGq1ZwY4bVc6nXs --inactive",
)  # fmt: skip
@click.argument("entry_id", metavar="ID")
@click.option("--active/--inactive", default=None, help="Whether its pages may call.")
@for_team
def update(session: Session, entry_id: str, **settings: Any) -> None:
    """Change the limits of an entry, or disable and enable it."""
    given = chosen(settings)
    if not given:
        raise click.UsageError("Nothing to change: give at least one setting, such as --inactive.")
    change = api.DomainChange(**given)
    _show(session, session.client.call(api.UPDATE, session.team, entry_id, body=change))


def _show_id(session: Session, domain: str) -> None:
    """Show the id of a domain's entry: removal takes the id, so that an entry is not removed by mistake."""
    for entry in session.client.every(api.LIST, session.team):
        if entry.domain == domain.lower():
            raise WrongUsage(
                f"Entries are removed by id. Run: tollgate rpc whitelist remove {entry.id} --team {session.team}"
            )
    raise NotFoundFailure(f"Team {session.team} has no entry for {domain}.")


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
