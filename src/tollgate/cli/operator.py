"""`tollgate operator`: the whole service, for accounts marked by `tollgate admin operator`. Over the API.

Its team commands are also those of `tollgate admin`, which needs no login and works on the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tollgate.cli import show
from tollgate.cli.failures import Failure
from tollgate.cli.lazy import Group
from tollgate.cli.options import (
    NUMBER_OR_NONE,
    Month,
    Null,
    ValueOrWord,
    confirm,
    logged_in,
    page_options,
    whole_number,
    yes_option,
)
from tollgate.cli.usage import dollars_or, show_usage
from tollgate.lazy_module import LazyModule

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollgate.api import operator as api
    from tollgate.cli.answers import ApiAnswer
    from tollgate.cli.session import Session
    from tollgate.core import pricing
else:
    api, pricing = LazyModule("tollgate.api.operator"), LazyModule("tollgate.core.pricing")  # not for help

DEFAULT = "default"
_COUNT_OR_DEFAULT = ValueOrWord(whole_number("[0-9]{1,13}"), "a whole number", DEFAULT)
STATES, BY = ("active", "suspended", "capped"), ("network", "method", "day")


@click.group(cls=Group, epilog="Example: tollgate operator teams")
def operator() -> None:
    """All teams, processes, upstreams and checks of the service."""


def add_team_commands(group: click.Group, opened: Callable[[Callable[..., None]], Callable[..., None]]) -> None:
    """Add the team commands to a group; `opened` opens its sessions."""
    path = f"tollgate {group.name}"
    team = click.argument("name", metavar="TEAM")

    @group.command(epilog=f"Example: {path} teams --state suspended")
    @click.option("--state", type=click.Choice(STATES), help="Only teams in this state.")
    @page_options
    @opened
    def teams(session: Session, limit: int, after: str | None, state: str | None) -> None:
        """List all teams with their state, usage, cost and terms of this month."""
        answer = session.client.call(api.TEAMS, limit=limit, after=after, state=state)
        rows = [
            (
                each.name,
                _state(each),
                _count(each.billable_requests),
                _money(each.cost_micros),
                "default" if each.micros_per_million is None else _money(each.micros_per_million),
                "default" if each.free_requests is None else _count(each.free_requests),
                each.requests_per_second,
                _money(_cap(each)),
            )
            for each in answer.value.items
        ]
        titles = ("TEAM", "STATE", "BILLABLE", "COST", "PRICE", "FREE", "A SECOND", "CAP")
        drop = ("A SECOND", "FREE", "PRICE", "CAP")
        session.page(answer, titles, rows, empty="There is no such team." if state else "No team yet.", drop=drop)

    @group.command(epilog=f"Example: {path} usage --month 2026-11")
    @click.option(
        "--month", type=Month(), metavar="MONTH", help="Such as 2026-11. Default: the current one (UTC)."
    )
    @click.option("--team", "name", metavar="TEAM", help="Only this team.")
    @click.option(
        "--by", type=click.Choice(BY), default="day", show_default=True, help="With --team: what to list."
    )
    @click.option(
        "--limit", type=click.IntRange(1, 1000), default=100, show_default=True, metavar="N", help="Teams at most."
    )
    @opened
    def usage(session: Session, month: str | None, name: str | None, by: str, limit: int) -> None:
        """Show usage of all teams in a month, or of one team by network, method or day."""
        if name is not None:
            show_usage(session, session.client.call(api.TEAM_USAGE, name, by=by, month=month))
        else:
            _show_usage(session, session.client.call(api.USAGE, limit=limit, month=month))

    @group.command(epilog=f"Example: {path} suspend acme --reason unpaid")
    @team
    @click.option("--reason", metavar="TEXT", help="Reason, shown to operators and in the team's audit log.")
    @yes_option
    @opened
    def suspend(session: Session, name: str, reason: str | None, yes: bool) -> None:
        """Refuse all calls of a team, within a second. Its data is kept."""
        confirm(f"Refuse all calls of the team {name}?", yes)
        given = {} if reason is None else {"suspended_reason": reason}
        _set_terms(session, name, suspended=True, **given)

    @group.command(epilog=f"Example: {path} unsuspend acme")
    @team
    @opened
    def unsuspend(session: Session, name: str) -> None:
        """Resume a suspended team."""
        _set_terms(session, name, suspended=False)

    @group.command(epilog=f"Example: {path} plan acme --price 3.00 --free 5000000")
    @team
    @click.option(
        "--price", type=dollars_or(DEFAULT), metavar="AMOUNT|default", help="US dollars for a million requests."
    )
    @click.option("--free", type=_COUNT_OR_DEFAULT, metavar="N|default", help="Free requests of a month.")
    @click.option("--limit", "rate", type=NUMBER_OR_NONE, metavar="N|none", help="Requests a second.")
    @click.option("--cap", type=dollars_or("none"), metavar="AMOUNT|none", help="US dollars a month at most.")
    @click.option("--reset", is_flag=True, help="Remove the team's own terms.")
    @opened
    def plan(
        session: Session,
        name: str,
        price: int | Null | None,
        free: int | Null | None,
        rate: int | Null | None,
        cap: int | Null | None,
        reset: bool,
    ) -> None:
        """Show or set a team's own price, free requests, limit and cap.

        Takes effect within a second. A price applies to calls from then on: earlier charges stay.
        """
        given = {"micros_per_million": price, "free_requests": free, "requests_per_second": rate}
        given["operator_cap_micros"] = cap
        terms = {
            key: value if isinstance(value, int) else None for key, value in given.items() if value is not None
        }
        if reset and terms:
            raise click.UsageError("--reset removes all of the team's own terms: give it alone.")
        if reset:
            terms = dict.fromkeys(given)
        if terms:
            _set_terms(session, name, **terms)
        else:
            _show(session, session.client.call(api.TEAM, name))


def _show_usage(session: Session, answer: ApiAnswer[api.ServiceUsage]) -> None:
    found = answer.value
    session.thing(
        answer.raw,
        [
            ("month", found.month),
            ("teams", f"{found.teams:,}"),
            ("billable", f"{found.billable_requests:,}"),
            ("cost", _money(found.cost_micros)),
        ],
    )
    if session.as_json:
        return
    if found.items:
        click.echo()
    rows = [(each.name, f"{each.billable_requests:,}", _money(each.cost_micros)) for each in found.items]
    show.table(("TEAM", "BILLABLE", "COST"), rows)
    if found.teams > len(found.items):
        show.note(f"{found.teams - len(found.items):,} more teams with lower cost: give a larger --limit.")


def _set_terms(session: Session, name: str, **terms: Any) -> None:
    _show(session, session.client.call(api.SET_TERMS, name, body=api.TermsChange(**terms)))


def _show(session: Session, answer: ApiAnswer[api.OperatorTeam]) -> None:
    found = answer.value
    price, free = found.micros_per_million, found.free_requests
    usual_price, usual_free = _money(found.usual_micros_per_million), f"{found.usual_free_requests:,}"
    session.thing(
        answer.raw,
        [
            ("team", found.name),
            ("state", _state(found)),
            ("suspended", found.suspended_at),
            ("reason", found.suspended_reason or None),
            ("billable", _count(found.billable_requests)),
            ("cost", _money(found.cost_micros)),
            ("price", f"{usual_price} (default)" if price is None else f"{_money(price)} (default {usual_price})"),
            ("free", f"{usual_free} (default)" if free is None else f"{free:,} (default {usual_free})"),
            ("a second", found.requests_per_second),
            ("cap", _money(found.operator_cap_micros)),
            ("team's own cap", _money(found.spending_cap_micros)),
        ],
    )


def _state(team: api.OperatorTeam) -> str:
    return "suspended" if team.suspended_at else "capped" if team.capped else "active"


def _cap(team: api.OperatorTeam) -> int | None:
    caps = [each for each in (team.operator_cap_micros, team.spending_cap_micros) if each is not None]
    return min(caps, default=None)


def _count(number: int | None) -> str | None:
    return None if number is None else f"{number:,}"


def _money(micros: int | None) -> str | None:
    return None if micros is None else pricing.dollars(micros)


add_team_commands(operator, logged_in)


@operator.command(epilog="Example: tollgate operator processes")
@logged_in
def processes(session: Session) -> None:
    """Show the processes of the service, and how far the collector is behind."""
    answer = session.client.call(api.PROCESSES)
    found = answer.value
    if session.as_json:
        show.as_json(answer.raw)
        return
    rows = [
        (each.name, each.pid, each.started_at, each.restarts, f"{each.cpu_seconds:.1f} s",
         f"{each.memory_bytes / 1e6:.0f} MB")
        for each in found.processes
    ]  # fmt: skip
    show.table(("PROCESS", "PID", "STARTED", "RESTARTS", "CPU", "MEMORY"), rows)
    show.note(f"{found.spool_waiting_bytes:,} bytes in {found.spool_segments} segments wait for the collector.")


@operator.command(epilog="Example: tollgate operator history")
@logged_in
def history(session: Session) -> None:
    """Show upstream health over the last day: steps of 15 minutes with a fault."""
    answer = session.client.call(api.HISTORY)
    rows = [
        (each.network, each.upstream, step.start, step.state, step.calls, step.failures, step.behind)
        for each in answer.value.items
        for step in each.steps
        if step.state != "up" or step.failures
    ]
    titles = ("NETWORK", "UPSTREAM", "FROM", "STATE", "CALLS", "FAILED", "BEHIND")
    session.page(answer, titles, rows, empty="No upstream had a fault in the last day.")


@operator.command(epilog="Example: tollgate operator check")
@logged_in
def check(session: Session) -> None:
    """Check that spool, logs, usage and invoices agree; as `tollgate doctor`, from anywhere."""
    answer = session.client.call(api.CHECK)
    if session.as_json:
        show.as_json(answer.raw)
    else:
        for each in answer.value.checks:
            click.echo(f"{'ok' if each.ok else 'differs':8} {each.name:10} {each.looked_at}")
            for difference in each.differences:
                click.echo(f"{'':8} {show.clean(difference)}")
    if not answer.value.ok:
        raise Failure("Something disagrees. Run `tollgate doctor` on the machine of the service for details.")
