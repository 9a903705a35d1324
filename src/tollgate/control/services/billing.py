"""A team's spending cap, and who is alerted when it is nearly reached.

A cap that is reached already stops the team in the transaction that sets it. Later the collector sets and clears
the flag (`store/caps.py`), and grants what the cap still covers (`ledger/granting.py`). Raises are rate-limited: a
new allowance starts with some calls that the cap may not cover.

A webhook gets a secret when its address is set. It is shown then and never again; `core/alerts.py` explains why it
is not stored. Another secret for the same address is made by `roll` alone.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from tollgate.api.billing import MAX_BUYER, MAX_TAX_NUMBER, Billing, BillingChange, SecretRoll
from tollgate.control.commands import Rule, accepted, checked
from tollgate.control.outbound import FetchRefused
from tollgate.control.problems import InvalidInput
from tollgate.control.service_context import Actor, ServiceContext, name_of
from tollgate.control.services import throttle
from tollgate.control.versions import check_version
from tollgate.control.webhooks import target_of
from tollgate.core.alerts import BillingSettings, webhook_secret
from tollgate.core.models import Team
from tollgate.core.months import month_of, next_month
from tollgate.core.pricing import MonthUse
from tollgate.core.roles import Action
from tollgate.store.base import AccountBook, Repositories, StoreUnavailable

_SALT_BYTES = 16


class BillingTerms(Billing, frozen=True):
    """A team's billing settings, and their version."""

    edition: str = ""
    """Differs for each secret of the webhook, so that another secret is another version."""


class BillingService:
    """Caps and alerts."""

    def __init__(
        self,
        context: ServiceContext,
        pepper: bytes,
        book: AccountBook | None = None,
        previous_pepper: bytes | None = None,
    ) -> None:
        self._context = context
        self._pepper = pepper
        self._previous_pepper = previous_pepper
        self._book = book

    async def show(self, actor: Actor, team: str) -> BillingTerms:
        """A team's billing settings. Not for every role: a webhook's URL is often a secret itself."""
        async with self._context.reading(actor, team, Action.CHANGE_BILLING) as (records, membership):
            return self._terms(membership.team, await self.settings_of(records, membership.team))

    async def change(
        self, actor: Actor, team: str, change: BillingChange, if_match: str | None = None
    ) -> tuple[BillingTerms, str | None]:
        """Change the settings; return them and, if a webhook was set, its secret."""
        given = accepted(change, _RULES)
        spent = await self._spent(actor, team) if "spending_cap_micros" in given else None
        async with self._context.changing(actor, team, Action.CHANGE_BILLING) as (records, membership):
            before = await self.settings_of(records, membership.team)
            old = self._terms(membership.team, before)
            check_version(old, if_match)
            changed, after = _changed(membership.team, before, given)
            before_cap, cap = membership.team.spending_cap, changed.spending_cap
            if before_cap is not None and (cap is None or cap > before_cap):
                guard = (self._context.key("cap", membership.team.id), throttle.CAP)
                await throttle.begin(self._context, records, [guard], "raises of the spending cap")
            new = self._terms(changed, after)
            is_new_webhook = after.salt != before.salt and bool(after.webhook)
            if spent is not None:
                changed = stopped(self._context, changed, spent)
            if new != old:
                await records.teams.replace(changed)
                if not await records.billing.replace(after):
                    await records.billing.add(after)
                await self._context.note(
                    records, actor, "billing.change", team_id=changed.id, target=changed.id, name=changed.name,
                    before=_noted(old), after=_noted(new),
                )  # fmt: skip
        return new, self.secret_of(after) if is_new_webhook else None

    async def roll(self, actor: Actor, team: str, wanted: SecretRoll) -> tuple[BillingTerms, str]:
        """Make another secret for the webhook; calls are signed with the old one too for the overlap."""
        now, overlap = self._context.now(), checked(wanted).overlap_seconds
        async with self._context.changing(actor, team, Action.CHANGE_BILLING) as (records, membership):
            before = await self.settings_of(records, membership.team)
            if not before.webhook:
                raise InvalidInput("The team has no webhook: set one first.", field="alert_webhook")
            until = _previous_until(before, now)
            # Two rolls in a row would silently end a secret that was promised to work.
            if until is not None and overlap:
                raise InvalidInput(
                    f"The secret was rolled already, and the one before works until {until:%Y-%m-%d %H:%M} UTC. "
                    "Wait until then, or roll with an overlap of 0: then only the new secret works.",
                    field="overlap_seconds",
                )
            after = replace(
                before,
                salt=secrets.token_hex(_SALT_BYTES),
                previous_salt=before.salt if overlap else "",
                previous_until=now + overlap if overlap else None,
            )
            await records.billing.replace(after)
            await self._context.note(
                records, actor, "webhook.roll", team_id=membership.team.id, target=membership.team.id,
                name=membership.team.name, host=target_of(before.webhook).host, old_works_until=now + overlap,
            )  # fmt: skip
        return self._terms(membership.team, after), self.secret_of(after)

    async def _spent(self, actor: Actor, team: str) -> MonthUse | None:
        """What the team has used this month, if the ledger can be read."""
        if self._book is None:
            return None
        membership = await self._context.member(actor, team, Action.CHANGE_BILLING)
        try:
            spent = await self._book.spent(month_of(self._context.now()), [membership.team])
        except StoreUnavailable:
            return None
        return spent[membership.team.id]

    async def settings_of(self, records: Repositories, team: Team) -> BillingSettings:
        """A team's settings, the defaults if it never changed them."""
        return await records.billing.get(team.id) or BillingSettings(team.id, self._context.now())

    def secret_of(self, settings: BillingSettings) -> str:
        return webhook_secret(self._pepper, settings.id, settings.salt)

    def secrets_of(self, settings: BillingSettings) -> tuple[str, ...]:
        """All secrets that sign its calls: those of the last roll and of the pepper that is replaced overlap."""
        rolled = _previous_until(settings, self._context.now()) is not None
        salts = (settings.salt, settings.previous_salt) if rolled else (settings.salt,)
        peppers = (self._pepper,) if self._previous_pepper is None else (self._pepper, self._previous_pepper)
        return tuple(webhook_secret(pepper, settings.id, salt) for pepper in peppers for salt in salts)

    def _terms(self, team: Team, settings: BillingSettings) -> BillingTerms:
        edition = hashlib.blake2b(settings.salt.encode(), digest_size=6).hexdigest() if settings.salt else ""
        return BillingTerms(
            team.spending_cap, settings.webhook or None, settings.emails, settings.buyer, settings.tax_number,
            _previous_until(settings, self._context.now()), edition,
        )  # fmt: skip


def stopped(context: ServiceContext, team: Team, use: MonthUse) -> Team:
    """The team, stopped exactly if it has reached its cap."""
    price = team.price_over(context.settings.billing.price())
    reached = use.reaches(price, team.cap)
    return replace(team, capped_until=next_month(context.now()) if reached else None)


def _previous_until(settings: BillingSettings, now: float) -> datetime | None:
    """Until when the secret before the last roll signs too; None once it no longer does."""
    until = settings.previous_until
    return datetime.fromtimestamp(until, UTC) if until is not None and until > now else None


def _changed(team: Team, settings: BillingSettings, given: dict[str, Any]) -> tuple[Team, BillingSettings]:
    if "spending_cap_micros" in given:
        team = replace(team, spending_cap=given["spending_cap_micros"])
    if "alert_webhook" in given:
        webhook = given["alert_webhook"] or ""
        # The same address again, as a form sends it, keeps its secret.
        if webhook != settings.webhook:
            salt = secrets.token_hex(_SALT_BYTES) if webhook else ""
            settings = replace(settings, webhook=webhook, salt=salt, previous_salt="", previous_until=None)
    if "alert_emails" in given:
        settings = replace(settings, emails=given["alert_emails"])
    same = {name: given[name] for name in ("buyer", "tax_number") if name in given}
    return team, replace(settings, **same)


def _noted(terms: BillingTerms) -> dict[str, object]:
    """What the audit log records: of a webhook, only the host."""
    webhook = terms.alert_webhook
    return {
        "spending_cap_micros": terms.spending_cap_micros,
        "alert_webhook": target_of(webhook).host if webhook else None,
        "alert_emails": terms.alert_emails,
        "buyer": terms.buyer,
        "tax_number": terms.tax_number,
    }


def _buyer(text: str) -> str:
    lines = (name_of(line, field="buyer", min_length=0, max_length=MAX_BUYER) for line in text.splitlines())
    return "\n".join(filter(None, lines))


def _webhook(text: str) -> str:
    try:
        target_of(text)
    except FetchRefused as error:
        raise InvalidInput(str(error), field="alert_webhook") from None
    return text


_RULES: dict[str, Rule] = {
    "alert_webhook": _webhook,
    "buyer": _buyer,
    "tax_number": lambda text: name_of(text, field="tax_number", min_length=0, max_length=MAX_TAX_NUMBER),
}
