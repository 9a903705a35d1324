"""Billing settings of a team: its spending cap, who is alerted when it is nearly reached, and the buyer."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from tollgate.api.base import Moment, Route, Secret, count, text
from tollgate.api.tokens import Overlap

MAX_CAP = 1_000_000_000_000_000
"""A billion dollars, in millionths of a dollar."""
MAX_WEBHOOK, MAX_BUYER, MAX_TAX_NUMBER = 1_000, 500, 40

SpendingCap = Annotated[
    int | None,
    count(
        "The maximum that the team pays for a month, in millionths of a US dollar; null: no cap.",
        25_000_000,
        0,
        MAX_CAP,
    ),
]
Webhook = Annotated[
    str | None,
    text(
        "An https:// URL that is called at 50, 80 and 100 % of the cap; null: none.",
        "https://app.example.com/alerts",
        min_length=0,
        max_length=MAX_WEBHOOK,
    ),
]
Emails = Annotated[
    bool, Meta(description="Whether owners and billing members get mail at those thresholds.", examples=[True])
]
Buyer = Annotated[
    str,
    text(
        "Whom invoices are made out to: name and address, line by line.",
        "Acme Ltd",
        min_length=0,
        max_length=MAX_BUYER,
    ),
]
TaxNumber = Annotated[str, text("The buyer's tax number.", "DE123456789", min_length=0, max_length=MAX_TAX_NUMBER)]

PreviousUntil = Annotated[
    Moment | None, Meta(description="Until when calls are also signed with the secret before the last roll.")
]


class BillingChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Billing settings to change; omitted ones keep their value."""

    spending_cap_micros: SpendingCap | UnsetType = UNSET
    alert_webhook: Webhook | UnsetType = UNSET
    alert_emails: Emails | UnsetType = UNSET
    buyer: Buyer | UnsetType = UNSET
    tax_number: TaxNumber | UnsetType = UNSET

    def __repr__(self) -> str:
        # A webhook's URL is often a secret itself.
        return "BillingChange(…)"


class Billing(Struct, frozen=True):
    """A team's spending cap, its alerts and whom invoices are made out to."""

    spending_cap_micros: SpendingCap = None
    alert_webhook: Webhook = None
    alert_emails: Emails = True
    buyer: Buyer = ""
    tax_number: TaxNumber = ""
    previous_secret_until: PreviousUntil = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


class BillingWithSecret(Billing, frozen=True):
    """The billing settings after a change."""

    webhook_secret: Annotated[
        str | None,
        Meta(
            description="The key that signs calls of the webhook. Shown once, when another address is set; an "
            "address that is sent again keeps its secret."
        ),
    ] = None


class SecretRoll(Struct, frozen=True, forbid_unknown_fields=True):
    """How to roll the webhook's secret."""

    overlap_seconds: Overlap = 86_400


class RolledSecret(Struct, frozen=True):
    """The webhook's new secret."""

    secret: Secret = None
    previous_secret_until: PreviousUntil = None

    def __repr__(self) -> str:
        return "RolledSecret(…)"


class WebhookTest(Struct, frozen=True):
    """The result of a call of the webhook."""

    delivered: Annotated[bool, Meta(description="Whether the webhook answered with success.")]
    problem: Annotated[str | None, Meta(description="Why it was not delivered.")] = None


SHOW = Route("GET", "/teams/{team}/billing", Billing)
UPDATE = Route("PATCH", "/teams/{team}/billing", BillingWithSecret)
TEST = Route("POST", "/teams/{team}/billing/test", WebhookTest)
ROLL = Route("POST", "/teams/{team}/billing/roll", RolledSecret, creates=True)
