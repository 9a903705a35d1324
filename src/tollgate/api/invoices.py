"""Invoices: what a team owes for a month."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from tollgate.api.base import CSV, HTML, JSON, Moment, Page, Route, choice
from tollgate.api.usage import BillableRequests, Cap, FreeRequests, PlanName, Requests

FORMATS = ("json", "csv", "html")


class LineKind(StrEnum):
    """What a line is about."""

    FREE = "free"
    BILLED = "billed"
    CAP = "cap"
    """What the spending cap took off."""
    ADJUSTMENT = "adjustment"
    """Prices or caps that were changed within the month."""
    ROUNDING = "rounding"


class InvoiceLine(Struct, frozen=True):
    """A line of an invoice."""

    kind: Annotated[str, choice("What the line is about.", LineKind)]
    text: Annotated[str, Meta(description="The same for people to read.")]
    of_month: Annotated[str | None, Meta(description="Of late requests: the month in which they were made.")]
    requests: Annotated[int | None, Meta(description="How many requests it is about, if it is about requests.")]
    amount_micros: Annotated[int, Meta(description="Millionths of a US dollar; negative for what is taken off.")]
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
    total_cents: Annotated[int, Meta(description="What is to be paid, in cents of a US dollar.")]
    total: Annotated[str, Meta(description="The same in US dollars, for people to read.")]


class Invoice(InvoiceHead, frozen=True):
    """What a team owes for a month. The lines add up to the total."""

    team_id: Annotated[str, Meta(description="The id of the team.")]
    team: Annotated[str, Meta(description="The team's name at that time.")]
    period_start: Annotated[Moment, Meta(description="When the month begins.")]
    period_end: Annotated[Moment, Meta(description="When the next month begins.")]
    currency: Annotated[str, choice("Always US dollars.", ("usd",))]
    plan: PlanName
    free_requests: FreeRequests
    micros_per_million: Annotated[
        int, Meta(description="The price of a million requests, in millionths of a US dollar.")
    ]
    spending_cap_micros: Cap
    lines: Annotated[list[InvoiceLine], Meta(description="The lines, in the order in which they are printed.")]


class InvoicePage(Page[InvoiceHead], frozen=True):
    """A part of the list of invoices."""


class InvoiceQuery(Struct, frozen=True):
    """In which format an invoice is wanted."""

    format: (
        Annotated[
            str,
            Meta(
                description="How it is shown. Left out: as the `Accept` header has it.",
                extra_json_schema={"enum": [*FORMATS], "default": FORMATS[0]},
            ),
        ]
        | UnsetType
    ) = UNSET


LIST = Route("GET", "/teams/{team}/invoices", InvoicePage)
SHOW = Route("GET", "/teams/{team}/invoices/{month}", Invoice, media_types=(JSON, CSV, HTML))
