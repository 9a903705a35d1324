"""What a team uses, its spending cap and alerts, and its invoices: as JSON, for spreadsheets, and to print.

An invoice's table and page are made from the API's JSON, so that all formats agree.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from tollgate.control.api import bodies, money, printing, reading, shapes
from tollgate.control.api.access import CurrentActor, HttpRequest, Part, Plane
from tollgate.control.api.operations import INVOICES, USAGE, Operation, Query, endpoint
from tollgate.control.api.render import Answer, listed, shown
from tollgate.control.problems import InvalidInput, RoleNeeded, TooManyAttempts
from tollgate.control.services.billing import BillingUpdate
from tollgate.control.services.timelines import TimeRange
from tollgate.core.usage import By, Split

FORMATS = ("json", "csv", "html", "pdf")


@endpoint(
    "GET",
    "/teams/{team}/usage",
    Operation(
        id="getUsage",
        tag=USAGE,
        summary="Show what a team used in a month, and what it costs",
        description=(
            "Of the billing month: calls whose records came after their own month was closed are in the next. "
            "The items add up to the month exactly (by `month` they are it and the eleven before); of more than "
            "1,000 the least stand together. With `token`, `free_left` and cap stay the team's, and all else is "
            "the token's. A rotated token stands under its newest successor."
        ),
        query=(
            money.MONTH,
            Query(
                "by",
                "What the items are.",
                {"type": "string", "enum": [by.value for by in By], "default": By.DAY.value},
            ),
            Query(
                "token",
                "Only what this API token used: its name, or its id, deleted or not. A rotated one is one token.",
                {"type": "string", "minLength": 1, "maxLength": 300},
            ),
        ),
        gives=money.Usage,
        raises=(InvalidInput,),
    ),
)
async def show_usage(request: HttpRequest, plane: Plane, actor: CurrentActor, team: Part) -> Answer:
    month, by = reading.query(request, "month"), reading.query(request, "by")
    token = reading.query(request, "token")
    found = await plane.usage.of_team(actor, team, month, By.DAY if by is None else by, token=token)
    return shown(money.usage(found))


@endpoint(
    "GET",
    "/teams/{team}/billing",
    Operation(
        id="getBilling",
        tag=USAGE,
        summary="Show a team's spending cap and alerts",
        gives=money.Billing,
        tagged=True,
        raises=(RoleNeeded,),
    ),
)
async def show_billing(plane: Plane, actor: CurrentActor, team: Part) -> Answer:
    terms = await plane.billing.show(actor, team)
    return shown(money.billing(terms), terms)


@endpoint(
    "PATCH",
    "/teams/{team}/billing",
    Operation(
        id="updateBilling",
        tag=USAGE,
        summary="Set the spending cap and the alerts",
        description=(
            "What is left out stays as it is. A cap takes effect within 5 seconds: calls are then refused with "
            "402 until the month ends or the cap is raised, and nothing above it is charged. It can be raised ten "
            "times, then once in ten minutes, and lowered at any time. The receiver of "
            "the webhook checks `X-Tollgate-Signature: t=<unix time>,v1=<hex>`: the HMAC-SHA-256, under the "
            "secret, of the time, a dot and the body. Setting a webhook again makes another secret."
        ),
        takes=bodies.BillingChange,
        conditional=True,
        gives=money.BillingWithSecret,
        tagged=True,
        raises=(RoleNeeded, TooManyAttempts),
    ),
)
async def update_billing(request: HttpRequest, plane: Plane, actor: CurrentActor, team: Part) -> Answer:
    sent = await reading.body(request, bodies.BillingChange)
    change = BillingUpdate(
        sent.spending_cap_micros, sent.alert_webhook, sent.alert_emails, sent.buyer, sent.tax_number
    )
    terms, secret = await plane.billing.change(actor, team, change, reading.if_match(request))
    return shown(money.billing_with_secret(terms, secret), terms)


@endpoint(
    "GET",
    "/teams/{team}/invoices",
    Operation(
        id="listInvoices",
        tag=INVOICES,
        summary="List a team's invoices, newest first",
        description="The current month is a draft, and so is the one before while late records still count.",
        lists=True,
        gives=money.InvoicePage,
        raises=(RoleNeeded,),
    ),
)
async def list_invoices(request: HttpRequest, plane: Plane, actor: CurrentActor, team: Part) -> Answer:
    found = await plane.invoices.list(actor, team, reading.page(request))
    return listed(found, lambda row: money.invoice_head(row.invoice))


@endpoint(
    "GET",
    "/teams/{team}/invoices/{month}",
    Operation(
        id="getInvoice",
        tag=INVOICES,
        summary="Show the invoice of a month",
        description="As CSV with `format=csv` or `Accept: text/csv`; to print with `format=html` or `format=pdf`.",
        query=(
            Query(
                "format",
                "How it is shown.",
                {"type": "string", "enum": list(FORMATS), "default": FORMATS[0]},
            ),
        ),
        gives=money.InvoiceView,
        also_text=(printing.CSV, printing.HTML, printing.PDF),
        raises=(InvalidInput, RoleNeeded),
    ),
)
async def show_invoice(request: HttpRequest, plane: Plane, actor: CurrentActor, team: Part, month: Part) -> Answer:
    form = _format(request)
    found = money.invoice(await plane.invoices.show(actor, team, month))
    if form != "json":
        parties = printing.Parties.of(plane.settings.billing, await plane.billing.show(actor, team))
        return printing.file_of(found, parties, form, plane.base_url)
    return shown(found)


def _format(request: HttpRequest) -> str:
    """What the query wants, or without it the header, where JSON goes before CSV if both are welcome."""
    chosen = reading.query(request, "format")
    if chosen is None:
        accepted = [
            part.partition(";")[0].strip().lower() for part in request.headers.get("accept", "").split(",")
        ]
        return "csv" if printing.CSV in accepted and reading.JSON not in accepted else "json"
    if chosen not in FORMATS:
        raise InvalidInput(f"`format` is one of {', '.join(FORMATS)}.", field="format")
    return chosen


@endpoint(
    "POST",
    "/teams/{team}/billing/test",
    Operation(
        id="testWebhook",
        tag=USAGE,
        summary="Call the team's webhook once, as an alert would",
        description="The `type` of what it is sent is `test`. Answers how that went; nothing is tried again.",
        gives=money.WebhookTest,
        raises=(RoleNeeded, InvalidInput, TooManyAttempts),
    ),
)
async def test_webhook(plane: Plane, actor: CurrentActor, team: Part) -> Answer:
    failure = await plane.alerts.test(actor, team)
    return shown(money.WebhookTest(not failure, failure or None))


class Step(Struct, frozen=True):
    """One hour, day or month."""

    start: datetime
    requests: int
    by: Annotated[dict[str, int], Meta(description="By network, outcome, or the id of a token or domain.")]


class Timeline(Struct, frozen=True):
    """Requests over time."""

    range: str
    split: str
    step: Annotated[str, Meta(extra_json_schema={"enum": ["hour", "day", "month"]})]
    p50_us: Annotated[int | None, Meta(description="The median duration; null where it is not known.")]
    p95_us: int | None
    steps: list[Step]


@endpoint(
    "GET",
    "/teams/{team}/usage/timeline",
    Operation(
        id="getTimeline",
        tag=USAGE,
        summary="Show a team's requests over time",
        description="Steps without requests are listed too; of a month also those that are still to come.",
        query=(
            Query(
                "range",
                "The last 24 hours by hour, 7 days or this month by day, or 12 months by month.",
                {"type": "string", "enum": [span.value for span in TimeRange], "default": TimeRange.MONTH.value},
            ),
            Query(
                "split",
                "What each step is split by; a source is a token or a domain.",
                {"type": "string", "enum": [split.value for split in Split], "default": Split.NETWORK.value},
            ),
        ),
        gives=Timeline,
        raises=(InvalidInput,),
    ),
)
async def show_timeline(request: HttpRequest, plane: Plane, actor: CurrentActor, team: Part) -> Answer:
    span = reading.query(request, "range") or TimeRange.MONTH.value
    split = reading.query(request, "split") or Split.NETWORK.value
    found = await plane.timelines.of_team(actor, team, span, split)
    took = await plane.timelines.latency(actor, team, span)
    steps = []
    for each in found.steps:
        start = shapes.moment(each.start)
        assert start is not None  # noqa: S101 - narrows the type
        steps.append(Step(start, each.total, each.requests))
    return shown(
        Timeline(
            range=found.span.value,
            split=found.split.value,
            step=found.step,
            p50_us=took.p50,
            p95_us=took.p95,
            steps=steps,
        )
    )


HANDLERS = [show_usage, show_billing, update_billing, test_webhook, list_invoices, show_invoice, show_timeline]
