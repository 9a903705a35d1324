"""Usage, spending caps and invoices as the API answers them, as values (frozen). Like `shapes.py`, for money."""

from __future__ import annotations

from msgspec import Struct, field

from tollgate.cli.shapes import Moment


class ApiUsageItem(Struct, frozen=True):
    """What one token, domain, network, method or day has of a month."""

    key: str
    requests: int
    name: str | None = None
    billable_requests: int = 0
    cost_micros: int = 0


class ApiUsage(Struct, frozen=True):
    """What a team used in a month."""

    month: str
    requests: int
    plan: str = ""
    billable_requests: int = 0
    free_requests: int = 0
    free_left: int = 0
    cost_micros: int = 0
    forecast_requests: int = 0
    forecast_cost_micros: int = 0
    spending_cap_micros: int | None = None
    capped: bool = False
    by: str = ""
    items: list[ApiUsageItem] = field(default_factory=list)


class ApiBilling(Struct, frozen=True):
    """A team's spending cap and alerts; the secret stands only in the answer that set the webhook."""

    spending_cap_micros: int | None
    alert_webhook: str | None = None
    alert_emails: bool = False
    webhook_secret: str | None = None

    def __repr__(self) -> str:
        return "Billing(…)"


class ApiInvoiceLine(Struct, frozen=True):
    """A line of an invoice."""

    text: str
    amount: str
    requests: int | None = None


class ApiInvoice(Struct, frozen=True):
    """What a team owes for a month; in a list it has no lines."""

    number: str
    month: str
    status: str
    total: str
    issued_at: Moment | None = None
    billable_requests: int = 0
    team: str = ""
    lines: list[ApiInvoiceLine] = field(default_factory=list)
