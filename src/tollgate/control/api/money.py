"""What answers show of usage, spending caps and invoices. The rest of what is shown is in `shapes.py`.

Money is in millionths of a US dollar, and beside that as people read it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from tollgate.control.api.operations import Query
from tollgate.control.api.shapes import Next, moment
from tollgate.control.services import billing as service
from tollgate.control.services import usage as usages
from tollgate.core import invoices, months, pricing
from tollgate.core.months import end_of, start_of
from tollgate.core.usage import By

Micros = Annotated[int, Meta(description="Millionths of a US dollar.")]
MONTH = Query(
    "month",
    "A calendar month in UTC. Left out: the current one.",
    {"type": "string", "pattern": f"^{months.PATTERN}$", "examples": ["2026-11"]},
)
Plan = Annotated[
    str,
    Meta(
        description="Whether each request beyond the free ones is charged, or each started million of them.",
        extra_json_schema={"enum": [plan.value for plan in pricing.Plan]},
    ),
]
ListedBy = Annotated[str, Meta(extra_json_schema={"enum": [by.value for by in By]})]


class UsageItemView(Struct, frozen=True):
    """What one token, domain, network, method or day has of a month."""

    key: Annotated[
        str, Meta(description="An id, a name or a day; empty for what has none, such as domains by token.")
    ]
    name: Annotated[str | None, Meta(description="What a token or domain is called now; null where it is gone.")]
    requests: int
    billable_requests: int
    cost_micros: Micros


class Usage(Struct, frozen=True):
    """What a team used in a month. The items add up to it."""

    month: str
    plan: Plan
    requests: Annotated[int, Meta(description="All calls, refused ones as well.")]
    billable_requests: int
    free_requests: Annotated[int, Meta(description="How many of a month are free.")]
    free_left: int
    cost_micros: Micros
    cost: Annotated[str, Meta(description="The same as people read it.")]
    forecast_requests: Annotated[int, Meta(description="Billable requests at the month's end if it goes on so.")]
    forecast_cost_micros: Micros
    spending_cap_micros: int | None
    capped: Annotated[bool, Meta(description="Whether the cap stops calls now (402).")]
    by: ListedBy
    items: list[UsageItemView]


class Billing(Struct, frozen=True):
    """A team's spending cap, and who is alerted when it is nearly reached."""

    spending_cap_micros: Annotated[
        int | None, Meta(description="Millionths of a US dollar a month; null: no cap.")
    ]
    alert_webhook: str | None
    alert_emails: bool
    buyer: Annotated[str, Meta(description="Whom invoices are made out to, line by line.")]
    tax_number: str


class BillingWithSecret(Billing, frozen=True):
    """What was chosen."""

    webhook_secret: Annotated[
        str | None,
        Meta(description="What calls of the webhook are signed with. Shown once, where the webhook was set."),
    ]

    def __repr__(self) -> str:
        return "BillingWithSecret(…)"


class InvoiceLine(Struct, frozen=True):
    """A line of an invoice."""

    kind: Annotated[str, Meta(extra_json_schema={"enum": [kind.value for kind in invoices.LineKind]})]
    text: str
    of_month: Annotated[str | None, Meta(description="Of late requests: the month in which they were made.")]
    requests: int | None
    amount_micros: Micros
    amount: str


class InvoiceHead(Struct, frozen=True):
    """What an invoice comes to."""

    number: str
    month: str
    status: Annotated[
        str,
        Meta(
            description="`draft` while more may come, `final` when nothing can change any more.",
            extra_json_schema={"enum": ["draft", "final"]},
        ),
    ]
    issued_at: Annotated[datetime | None, Meta(description="When it became final.")]
    requests: int
    billable_requests: int
    cost_micros: Annotated[int, Meta(description="What was charged, before it is rounded.")]
    total_cents: Annotated[int, Meta(description="What is to be paid.")]
    total: str


class InvoiceView(InvoiceHead, frozen=True):
    """What a team owes for a month. The lines add up to the total."""

    team_id: str
    team: Annotated[str, Meta(description="The team's name at that time.")]
    period_start: datetime
    period_end: datetime
    currency: Annotated[str, Meta(extra_json_schema={"enum": ["usd"]})]
    plan: Plan
    free_requests: int
    micros_per_million: int
    spending_cap_micros: int | None
    lines: list[InvoiceLine]


class WebhookTest(Struct, frozen=True):
    """How a call of the webhook went."""

    delivered: bool
    problem: Annotated[str | None, Meta(description="Why it was not delivered.")]


class InvoicePage(Struct, frozen=True):
    """A part of the list of invoices."""

    items: list[InvoiceHead]
    next: Next


def usage(report: usages.MonthUsage) -> Usage:
    """Show a team's month."""
    return Usage(
        month=report.month,
        plan=report.plan,
        requests=report.requests,
        billable_requests=report.billable,
        free_requests=report.free_requests,
        free_left=report.free_left,
        cost_micros=report.cost,
        cost=pricing.dollars(report.cost),
        forecast_requests=report.forecast_requests,
        forecast_cost_micros=report.forecast_cost,
        spending_cap_micros=report.spending_cap,
        capped=report.capped,
        by=report.by.value,
        items=[
            UsageItemView(item.key, item.name, item.requests, item.billable, item.cost) for item in report.items
        ],
    )


def billing(terms: service.BillingTerms) -> Billing:
    """Show what a team has chosen."""
    return Billing(terms.spending_cap, terms.alert_webhook, terms.alert_emails, terms.buyer, terms.tax_number)


def billing_with_secret(terms: service.BillingTerms, secret: str | None) -> BillingWithSecret:
    """Show what a team has just chosen."""
    return BillingWithSecret(
        terms.spending_cap, terms.alert_webhook, terms.alert_emails, terms.buyer, terms.tax_number, secret
    )


def invoice_head(row: invoices.Invoice) -> InvoiceHead:
    return InvoiceHead(
        number=row.number,
        month=row.month,
        status="final" if row.is_final else "draft",
        issued_at=moment(row.issued_at),
        requests=row.requests,
        billable_requests=row.billable,
        cost_micros=row.cost,
        total_cents=row.total_cents,
        total=pricing.dollars(row.total),
    )


def invoice(row: invoices.Invoice) -> InvoiceView:
    head = invoice_head(row)
    start, end = moment(start_of(row.month)), moment(end_of(row.month))
    assert start is not None  # noqa: S101 - narrows the type
    assert end is not None  # noqa: S101
    return InvoiceView(
        **{name: getattr(head, name) for name in head.__struct_fields__},
        team_id=row.team_id,
        team=row.team,
        period_start=start,
        period_end=end,
        currency="usd",
        plan=row.plan,
        free_requests=row.free_requests,
        micros_per_million=row.micros_per_million,
        spending_cap_micros=row.spending_cap,
        lines=[_line(line) for line in row.lines],
    )


def _line(line: invoices.Line) -> InvoiceLine:
    return InvoiceLine(
        line.kind, line.text, line.of_month, line.requests, line.amount, pricing.dollars(line.amount)
    )
