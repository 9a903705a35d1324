"""What is reported to a payment service, as a value."""

from __future__ import annotations

from msgspec import Struct

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
    """When it was first sent; nobody knows what became of it while there is no reference."""
    reference: str = ""
    """The service's own id of it, when it is done."""
