"""Invoices: what a team owes for a month."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from tollgate.api.base import CSV, HTML, JSON, Moment, Page, Route, choice
from tollgate.api.usage import BillableRequests, Cap, FreeRequests, PlanName, Requests

FORMATS = ("json", "csv", "html")


class LineKind(StrEnum):
    """The kind of a line."""

    FREE = "free"
    BILLED = "billed"
    CAP = "cap"
    """A deduction by the spending cap."""
    ADJUSTMENT = "adjustment"
    """Prices or caps that were changed within the month."""
    ROUNDING = "rounding"


class InvoiceLine(Struct, frozen=True):
    """A line of an invoice."""

    kind: Annotated[str, choice("The kind of the line.", LineKind)]
    text: Annotated[str, Meta(description="The same for people to read.")]
    of_month: Annotated[str | None, Meta(description="Of late requests: the month in which they were made.")]
    requests: Annotated[int | None, Meta(description="The number of requests, if the line is about requests.")]
    amount_micros: Annotated[int, Meta(description="Millionths of a US dollar; negative for deductions.")]
    amount: Annotated[str, Meta(description="The same in US dollars, for people to read.")]


class InvoiceHead(Struct, frozen=True):
    """An invoice without its lines."""

    number: Annotated[str, Meta(description="The number of the invoice, unique.")]
    month: Annotated[str, Meta(description="The billing month, in UTC.", examples=["2026-11"])]
    status: Annotated[
        str, choice("`draft` while more may be added, `final` once it can no longer change.", ("draft", "final"))
    ]
    issued_at: Annotated[Moment | None, Meta(description="When it became final.")]
    requests: Requests
    billable_requests: BillableRequests
    cost_micros: Annotated[int, Meta(description="The charge before rounding, in millionths of a US dollar.")]
    total_cents: Annotated[int, Meta(description="The amount due, in cents of a US dollar.")]
    total: Annotated[str, Meta(description="The same in US dollars, for people to read.")]


class Invoice(InvoiceHead, frozen=True):
    """What a team owes for a month. The lines add up to the total."""

    team_id: Annotated[str, Meta(description="The id of the team.")]
    team: Annotated[str, Meta(description="The team's name at that time.")]
    period_start: Annotated[Moment, Meta(description="When the month starts.")]
    period_end: Annotated[Moment, Meta(description="When the next month starts.")]
    currency: Annotated[str, choice("Always US dollars.", ("usd",))]
    plan: PlanName
    free_requests: FreeRequests
    micros_per_million: Annotated[
        int, Meta(description="The price of a million requests, in millionths of a US dollar.")
    ]
    spending_cap_micros: Cap
    lines: Annotated[list[InvoiceLine], Meta(description="The lines, in the order in which they are printed.")]


class InvoicePage(Page[InvoiceHead], frozen=True):
    """A page of the list of invoices."""


class InvoiceQuery(Struct, frozen=True):
    """The format of an invoice."""

    format: (
        Annotated[
            str,
            Meta(
                description="The format; by default, that of the `Accept` header.",
                extra_json_schema={"enum": [*FORMATS], "default": FORMATS[0]},
            ),
        ]
        | UnsetType
    ) = UNSET


LIST = Route("GET", "/teams/{team}/invoices", InvoicePage)
SHOW = Route("GET", "/teams/{team}/invoices/{month}", Invoice, media_types=(JSON, CSV, HTML))
