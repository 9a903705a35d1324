"""Invoices: how what was used and charged becomes lines whose sum is the amount to pay. Pure.

What each call cost was decided when it was committed, and is not decided again here: lines explain that sum. The
part of it that prices alone do not explain, such as what a spending cap took off, is on a line of its own, and
so does the rounding to cents. Late calls come first, so that free ones are spent on them first.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from tollgate.api.invoices import LineKind
from tollgate.api.usage import Plan
from tollgate.core.pricing import Price, cents, dollars
from tollgate.core.usage import TeamMonth

CENT = 10_000
"""Micro-dollars."""


class Line(Struct, frozen=True):
    """A line of an invoice."""

    kind: str
    text: str
    amount: int
    """In micro-dollars."""
    requests: int | None = None
    of_month: str | None = None
    """The calendar month of late requests."""


class Invoice(Struct, frozen=True):
    """What a team owes for a month. `issued_at` is None while it is a draft."""

    number: str
    team_id: str
    team: str
    """The team's name at that time."""
    month: str
    plan: str
    free_requests: int
    micros_per_million: int
    spending_cap: int | None
    requests: int
    billable: int
    cost: int
    """What was charged, in micro-dollars, before it is rounded."""
    total_cents: int
    lines: tuple[Line, ...]
    issued_at: float | None = None
    buyer: str = ""
    """Whom it was made out to when it became final, line by line; empty: the team."""
    tax_number: str = ""
    emails: tuple[str, ...] = ()
    """Where to reach the buyer of a team that was deleted."""

    @property
    def is_final(self) -> bool:
        """Whether nothing can change any more."""
        return self.issued_at is not None

    @property
    def total(self) -> int:
        """What is to be paid, in micro-dollars: whole cents."""
        return self.total_cents * CENT


def draw(
    used: TeamMonth, team: str, price: Price, cap: int | None = None, issued_at: float | None = None
) -> Invoice:
    """Write the invoice of a team for a month: a draft, or the final one."""
    cost = used.cost
    total_cents = cents(cost)
    lines = list(_request_lines(used, price))
    unexplained = cost - sum(line.amount for line in lines)
    if unexplained:
        lines.append(_other_line(unexplained, cap))
    lines.append(Line(LineKind.ROUNDING, "Rounding to cents", total_cents * CENT - cost))
    return Invoice(
        number=number(used.team_id, used.month),
        team_id=used.team_id,
        team=team,
        month=used.month,
        plan=price.plan.value,
        free_requests=price.free_requests,
        micros_per_million=price.micros_per_million,
        spending_cap=cap,
        requests=used.requests,
        billable=used.billable,
        cost=cost,
        total_cents=total_cents,
        lines=tuple(lines),
        issued_at=issued_at,
    )


def number(team_id: str, month: str) -> str:
    """The number of an invoice. The whole of the team's id: a shortened id could belong to two teams."""
    return f"TG-{month}-{team_id.partition('_')[2] or team_id}"


def _request_lines(used: TeamMonth, price: Price) -> Iterator[Line]:
    if used.free is not None:
        price = replace(price, free_requests=used.free)
    counted = 0
    periods = [(period.month, period.billable) for period in used.periods] or [(used.month, 0)]
    for month, billable in periods:
        late = month != used.month
        if late and not billable:
            continue
        of_month = month if late else None
        whose = f", late requests of {month}" if late else ""
        free = min(billable, max(0, price.free_requests - counted))
        billed = billable - free
        if free or not billed:
            yield Line(LineKind.FREE, f"Free requests{whose}", 0, free, of_month)
        if billed:
            amount = price.total(counted + billable) - price.total(counted)
            yield Line(LineKind.BILLED, f"Requests at {rate(price)}{whose}", amount, billed, of_month)
        counted += billable


def rate(price: Price) -> str:
    unit = "started million" if price.plan is Plan.PER_STARTED_MILLION else "million"
    return f"{dollars(price.micros_per_million)} per {unit}"


def _other_line(amount: int, cap: int | None) -> Line:
    if amount < 0 and cap is not None:
        return Line(LineKind.CAP, f"Not charged: spending cap of {dollars(cap)}", amount)
    return Line(LineKind.ADJUSTMENT, "Prices and caps that were changed within the month", amount)


CUSTOMER, INVOICE_ITEM = "customer", "invoice_item"


class Report(Struct, frozen=True):
    """One report to a payment service, sent or about to be: at most one for a team, month and kind."""

    id: str
    team_id: str
    month: str
    """Empty for what is reported once."""
    kind: str
    created_at: float
    tried_at: float | None = None
    """When it was first sent. Its result is unknown while there is no reference."""
    reference: str = ""
    """The service's own id of it, when it is done."""
