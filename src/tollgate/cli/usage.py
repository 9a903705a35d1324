"""`tollgate usage` and `tollgate invoices`: a team's usage and its cost, spending cap and alerts, and invoices.

`usage` alone shows usage; its subcommands change settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tollgate.cli import show
from tollgate.cli.failures import Failure
from tollgate.cli.lazy import Group
from tollgate.cli.options import (
    Month,
    Null,
    OneOf,
    ValueOrWord,
    alone,
    complete_months,
    complete_tokens,
    confirm,
    for_team,
    overlap_option,
    page_options,
    yes_option,
)
from tollgate.cli.settings_options import SettingsCommand
from tollgate.lazy_module import LazyModule

if TYPE_CHECKING:
    from tollgate.api import billing as billing_api
    from tollgate.api import invoices as invoices_api
    from tollgate.api import usage as api
    from tollgate.cli.answers import ApiAnswer
    from tollgate.cli.session import Session
    from tollgate.core import durations, pricing
else:
    # Not for help of other commands.
    api, billing_api, invoices_api = (
        LazyModule(f"tollgate.api.{name}") for name in ("usage", "billing", "invoices")
    )
    durations, pricing = LazyModule("tollgate.core.durations"), LazyModule("tollgate.core.pricing")

NONE = "none"
_SAVE_SECRET = "This secret signs calls of the webhook. Save it: it is not shown again."  # noqa: S105 - no secret


def dollars_or(word: str) -> ValueOrWord:
    """An amount such as 25.00, as micro-dollars; or a word, such as `none`."""
    # A lambda: pricing is not loaded for help.
    return ValueOrWord(lambda text: pricing.micros_of(text), "an amount in US dollars (25.00)", word)  # noqa: PLW0108


@click.group(
    cls=Group, invoke_without_command=True, epilog="Example: tollgate usage --team acme --month 2026-11 --by token"
)
@alone("shows usage")
@click.option(
    "--month",
    type=Month(),
    metavar="MONTH",
    help="A month such as 2026-11. Default: the current one.",
    shell_complete=complete_months,
)
@click.option(
    "--by",
    type=OneOf(lambda: api.By),
    metavar="WHAT",
    default="day",
    show_default=True,
    help="token, domain, network, method, day or month (the last 12).",
)
@click.option("--token", metavar="TOKEN", help="Only this token: id or name.", shell_complete=complete_tokens)
@for_team
def usage(session: Session, month: str | None, by: str, token: str | None) -> None:
    """Show a team's usage of a month (UTC) and its cost."""
    show_usage(session, session.client.call(api.SHOW, session.team, month=month, by=by, token=token))


@usage.command(epilog="Example: tollgate usage cap 25.00 --team acme")
@click.argument("amount", type=dollars_or(NONE), metavar="AMOUNT|none")
@for_team
def cap(session: Session, amount: int | Null) -> None:
    """Refuse calls (402) for the rest of a month once it has cost this much; `none` removes the cap."""
    micros = amount if isinstance(amount, int) else None
    change = billing_api.BillingChange(spending_cap_micros=micros)
    _show_billing(session, session.client.call(billing_api.UPDATE, session.team, body=change))


@usage.command(
    cls=SettingsCommand, settings=lambda: api.TimelineQuery,
    epilog="Example: tollgate usage timeline --team acme --range 24h --split outcome",
)  # fmt: skip
@for_team
def timeline(session: Session, **wanted: Any) -> None:
    """Show requests over time, and how long they took."""
    answer = session.client.call(api.TIMELINE, session.team, **wanted)
    found = answer.value
    if session.as_json:
        show.as_json(answer.raw)
        return
    keys = sorted({key for step in found.steps for key in step.by})
    form = "%Y-%m-%d %H:%M" if found.step == "hour" else "%Y-%m-%d" if found.step == "day" else "%Y-%m"
    peak = max((step.requests for step in found.steps), default=0)
    rows = [
        (
            step.start.strftime(form),
            f"{step.requests:,}",
            *(f"{step.by.get(key, 0):,}" for key in keys),
            show.bar(step.requests, peak),
        )
        for step in found.steps
    ]
    titles = (found.step.upper(), "REQUESTS", *(key.upper() for key in keys), show.BAR)
    show.table(titles, rows, drop=(show.BAR, *(key.upper() for key in reversed(keys))))
    if found.p50_us is not None and found.p95_us is not None:
        show.note(f"Answers took {found.p50_us / 1e3:,.1f} ms at the median, {found.p95_us / 1e3:,.1f} ms at p95.")


@usage.command(epilog="Example: tollgate usage alerts --webhook https://example.com/tollgate --emails")
@click.option("--webhook", metavar="URL|none", help="Call this https:// URL; none for no call.")
@click.option("--emails/--no-emails", default=None, help="Send mail to owners and billing members.")
@click.option("--test", is_flag=True, help="Call the webhook once, as an alert would.")
@for_team
def alerts(session: Session, webhook: str | None, emails: bool | None, test: bool) -> None:
    """Set who is alerted at 50, 80 and 100 % of the cap; without options, show it."""
    if test:
        result = session.client.call(billing_api.TEST, session.team).value
        if not result.delivered:
            raise Failure(f"The call of the webhook failed: {result.problem}")
        show.note("The webhook accepted the test call.")
        return
    given: dict[str, Any] = {}
    if webhook is not None:
        given["alert_webhook"] = None if webhook == NONE else webhook
    if emails is not None:
        given["alert_emails"] = emails
    if not given:
        _show_billing(session, session.client.call(billing_api.SHOW, session.team))
        return
    answer = session.client.call(billing_api.UPDATE, session.team, body=billing_api.BillingChange(**given))
    _show_billing(session, answer, answer.value.webhook_secret)
    if answer.value.webhook_secret is not None:
        show.note(_SAVE_SECRET)


@usage.command("roll-secret", epilog="Example: tollgate usage roll-secret --overlap 1h --team acme")
@overlap_option("How long calls are signed with the old secret too")
@yes_option
@for_team
def roll_secret(session: Session, overlap: int, yes: bool) -> None:
    """Replace the secret that signs calls of the webhook."""
    ends = f"works for another {durations.spell(overlap)}" if overlap else "stops working"
    confirm(f"Roll the webhook's secret of team {session.team}? The old one {ends}.", yes)
    answer = session.client.call(billing_api.ROLL, session.team, body=billing_api.SecretRoll(overlap))
    if answer.value.secret is None:
        raise Failure(
            "The secret was rolled, but the connection broke before the new one arrived, and it is shown only "
            f"once. Run: tollgate usage roll-secret --overlap 0s --team {session.team}"
        )
    until = answer.value.previous_secret_until
    session.thing(answer.raw, [("secret", answer.value.secret), ("old works until", until)])
    show.note(_SAVE_SECRET)


def show_usage(session: Session, answer: ApiAnswer[api.Usage]) -> None:
    found = answer.value
    limit = found.spending_cap_micros
    session.thing(
        answer.raw,
        [
            ("month", found.month),
            ("requests", f"{found.requests:,}"),
            ("billable", f"{found.billable_requests:,}"),
            ("free left", f"{found.free_left:,} of {found.free_requests:,}"),
            ("cost", pricing.dollars(found.cost_micros)),
            ("forecast", f"{found.forecast_requests:,} billable, {pricing.dollars(found.forecast_cost_micros)}"),
            ("cap", None if limit is None else pricing.dollars(limit) + (", reached" if found.capped else "")),
        ],
    )
    if session.as_json:
        return
    if found.items:
        click.echo()
    peak = max((item.requests for item in found.items), default=0)
    named = found.by in ("token", "domain")
    show.table(
        (found.by.upper(), *(["NAME"] if named else []), "REQUESTS", "BILLABLE", "COST", show.BAR),
        [
            (
                item.key,
                *([item.name] if named else []),
                f"{item.requests:,}",
                f"{item.billable_requests:,}",
                pricing.dollars(item.cost_micros),
                show.bar(item.requests, peak),
            )
            for item in found.items
        ],
        drop=(show.BAR, "BILLABLE", "COST"),
    )
    if found.capped:
        show.note("The cap is reached: calls are refused (402). Raise it: tollgate usage cap AMOUNT")


def _show_billing(session: Session, answer: ApiAnswer[billing_api.Billing], secret: str | None = None) -> None:
    found = answer.value
    limit = found.spending_cap_micros
    session.thing(
        answer.raw,
        [
            ("cap", None if limit is None else pricing.dollars(limit)),
            ("webhook", found.alert_webhook),
            ("emails", found.alert_emails),
            *([("secret", secret)] if secret else []),
        ],
    )


@click.group(cls=Group, epilog="Example: tollgate invoices show 2026-11 --team acme")
def invoices() -> None:
    """Invoices of a team, by month."""


@invoices.command("list", epilog="Example: tollgate invoices list --team acme")
@page_options
@for_team
def list_(session: Session, limit: int, after: str | None) -> None:
    """List the invoices of a team, newest first. Drafts can still change."""
    answer = session.client.call(invoices_api.LIST, session.team, limit=limit, after=after)
    rows = [
        (each.month, each.number, each.status, f"{each.billable_requests:,}", each.total)
        for each in answer.value.items
    ]
    session.page(answer, ("MONTH", "NUMBER", "STATUS", "BILLABLE", "TOTAL"), rows, empty="No invoices yet.")


@invoices.command("show", epilog="Example: tollgate invoices show 2026-11 --team acme --csv")
@click.argument("month", type=Month(), metavar="MONTH", shell_complete=complete_months)
@click.option("--csv", "as_csv", is_flag=True, help="Print a table for spreadsheets.")
@for_team
def show_(session: Session, month: str, as_csv: bool) -> None:
    """Show the invoice of a MONTH such as 2026-11, with its lines."""
    if as_csv:
        if session.as_json:
            raise click.UsageError("Give --json or --csv, not both.")
        table = session.client.text(invoices_api.SHOW, "text/csv", session.team, month, format="csv")
        click.echo(show.clean(table, keep="\r\n"), nl=False)
        return
    answer = session.client.call(invoices_api.SHOW, session.team, month)
    found = answer.value
    session.thing(
        answer.raw,
        [
            ("number", found.number),
            ("team", found.team),
            ("month", found.month),
            ("status", found.status),
            ("issued", found.issued_at),
            ("total", found.total),
        ],
    )
    if session.as_json:
        return
    click.echo()
    show.table(
        ("WHAT", "REQUESTS", "AMOUNT"),
        [
            (line.text, None if line.requests is None else f"{line.requests:,}", line.amount)
            for line in found.lines
        ],
    )
