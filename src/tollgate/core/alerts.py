"""Alerts about spending: when one is due, when it is tried again, and how it is signed. Pure.

The secret that a webhook's receiver checks signatures with is never kept: it is made from the pepper and a salt,
so that a copy of the database alone does not show it, and yet it is at hand for every signature.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Sequence

from msgspec import Struct

from tollgate.core.pricing import MonthUse, Price, alerts_passed
from tollgate.core.secrets import derive

SIGNATURE_HEADER = "X-Tollgate-Signature"
SECRET_PREFIX = "tgw_"  # noqa: S105 - no secret

WEBHOOK, EMAIL = "webhook", "email"
# States of a delivery.
PENDING, DELIVERED, GIVEN_UP, DROPPED = "pending", "delivered", "given_up", "dropped"

# After the first attempt: a minute, 5, 30, two hours, six. A receiver may be away for a night.
WAITS = (60.0, 300.0, 1_800.0, 7_200.0, 21_600.0)


class BillingSettings(Struct, frozen=True):
    """How a team is alerted about its spending. `id` is the team's."""

    id: str
    created_at: float
    webhook: str = ""
    salt: str = ""
    """What the webhook's secret is made of, beside the pepper; new with every address and every roll."""
    previous_salt: str = ""
    """That of the secret before the last roll, which signs too until `previous_until`."""
    previous_until: float | None = None
    emails: bool = True
    buyer: str = ""
    """Whom invoices are made out to: name and address, line by line."""
    tax_number: str = ""

    def __repr__(self) -> str:
        # The address of a webhook often is a secret itself.
        return f"BillingSettings({self.id!r})"


class Alert(Struct, frozen=True):
    """One alert on its way through one channel: at most one for a team, month, threshold and channel."""

    id: str
    team_id: str
    month: str
    threshold: int
    channel: str
    created_at: float
    spent: int
    cap: int
    state: str = PENDING
    attempts: int = 0
    next_at: float = 0.0


def reached(price: Price, use: MonthUse, cap: int | None) -> tuple[int, ...]:
    """The thresholds, in percent of the cap, that a team has reached; 100 also where its calls are stopped."""
    passed = alerts_passed(use.cost, cap)
    # A started million may cost more than is left: then calls stop below the cap itself.
    if 100 not in passed and use.reaches(price, cap):
        return (*passed, 100)
    return passed


def wait_after(attempts: int) -> float | None:
    """How long to wait after so many attempts that failed; None: no more."""
    return WAITS[attempts - 1] if attempts <= len(WAITS) else None


def webhook_secret(pepper: bytes, team_id: str, salt: str) -> str:
    key = derive(pepper, "webhooks")
    raw = hmac.digest(key, f"{team_id}:{salt}".encode(), "sha256")
    return SECRET_PREFIX + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def signature(secrets: Sequence[str], at: float, body: bytes) -> str:
    """The value of the signature's header: the time, and the HMAC-SHA-256 of the time, a dot and the body.

    One `v1` for each secret: a receiver accepts the call where any of them is right.
    """
    moment = str(int(at))
    signed = moment.encode() + b"." + body
    made = (hmac.new(secret.encode(), signed, "sha256").hexdigest() for secret in secrets)
    return ",".join([f"t={moment}", *(f"v1={each}" for each in made)])
