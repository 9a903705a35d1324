"""A team's spending cap, and who is alerted when it is nearly reached.

A cap that is reached already stops the team in the same change as it is set: calls that were let in under it would
cost nothing. Later the collector sets and clears the flag (`store/caps.py`). Raises are limited in rate: after
each of them calls are let in for some seconds that the raised cap does not cover.

A webhook gets a new secret whenever it is set. It is shown then and never again; `core/alerts.py` explains why it
is not stored.
"""

from __future__ import annotations

import hashlib
import secrets

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from tollgate.control.outbound import FetchRefused
from tollgate.control.problems import InvalidInput
from tollgate.control.service_context import Actor, ServiceContext, name_of
from tollgate.control.services import throttle
from tollgate.control.versions import check_version
from tollgate.control.webhooks import target_of
from tollgate.core.alerts import BillingSettings, webhook_secret
from tollgate.core.models import Team
from tollgate.core.months import month_of, next_month
from tollgate.core.pricing import cap_reached
from tollgate.core.roles import Action
from tollgate.store.base import AccountBook, Repositories, StoreUnavailable

MAX_CAP = 1_000_000_000_000_000
"""A thousand million dollars, in micro-dollars."""
LONGEST_BUYER, LONGEST_TAX_NUMBER = 500, 40
_SALT_BYTES = 16


class BillingTerms(Struct, frozen=True):
    """What a team has chosen."""

    spending_cap: int | None
    alert_webhook: str | None
    alert_emails: bool
    buyer: str = ""
    """Whom invoices are made out to, line by line."""
    tax_number: str = ""
    edition: str = ""
    """Another one for each secret of the webhook, so that its change is a change of the version."""


class BillingUpdate(Struct, frozen=True):
    """What a team chooses; what is left out stays as it is."""

    spending_cap: int | UnsetType | None = UNSET
    alert_webhook: str | UnsetType | None = UNSET
    alert_emails: bool | UnsetType = UNSET
    buyer: str | UnsetType = UNSET
    tax_number: str | UnsetType = UNSET


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
        """What a team has chosen. Not for everybody: the address of a webhook often is a secret itself."""
        async with self._context.store.reading() as records:
            membership = await self._context.membership(records, actor, team, Action.CHANGE_BILLING)
            return _terms(membership.team, await self.settings_of(records, membership.team))

    async def change(
        self, actor: Actor, team: str, change: BillingUpdate, if_match: str | None = None
    ) -> tuple[BillingTerms, str | None]:
        """Choose; return what stands now and, where a webhook was set, its secret."""
        _check(change)
        spent = await self._spent(actor, team, change)
        async with self._context.store.changing() as records:
            membership = await self._context.membership(records, actor, team, Action.CHANGE_BILLING)
            before = await self.settings_of(records, membership.team)
            old = _terms(membership.team, before)
            check_version(old, if_match)
            changed, after = _changed(membership.team, before, change)
            if _is_raise(membership.team.spending_cap, changed.spending_cap):
                guard = (self._context.key("cap", membership.team.id), throttle.CAP)
                await throttle.begin(self._context, records, [guard], "raises of the spending cap")
            new = _terms(changed, after)
            is_new_webhook = after.salt != before.salt and bool(after.webhook)
            if spent is not None:
                changed = stopped(self._context, changed, *spent)
            if new != old or is_new_webhook:
                await records.teams.replace(changed)
                if not await records.billing.replace(after):
                    await records.billing.add(after)
                await self._note(records, actor, changed, old, new)
        return new, self.secret_of(after) if is_new_webhook else None

    async def _spent(self, actor: Actor, team: str, change: BillingUpdate) -> tuple[int, int] | None:
        """Billable requests and cost of this month, where a cap is changed and the ledger can be read."""
        if change.spending_cap is UNSET or self._book is None:
            return None
        async with self._context.store.reading() as records:
            membership = await self._context.membership(records, actor, team, Action.CHANGE_BILLING)
        try:
            spent = await self._book.spent(month_of(self._context.now()), [membership.team.id])
        except StoreUnavailable:
            return None
        return spent.get(membership.team.id, (0, 0))

    async def settings_of(self, records: Repositories, team: Team) -> BillingSettings:
        """A team's settings, the usual ones where it never chose."""
        return await records.billing.get(team.id) or BillingSettings(team.id, self._context.now())

    def secret_of(self, settings: BillingSettings) -> str:
        """The secret that a webhook's calls are signed with."""
        return webhook_secret(self._pepper, settings.id, settings.salt)

    def secrets_of(self, settings: BillingSettings) -> tuple[str, ...]:
        """All that its calls are signed with: while the pepper is replaced, also the secret of the one before."""
        before = self._previous_pepper
        older = () if before is None else (webhook_secret(before, settings.id, settings.salt),)
        return (self.secret_of(settings), *older)

    async def _note(
        self, records: Repositories, actor: Actor, team: Team, old: BillingTerms, new: BillingTerms
    ) -> None:
        await self._context.note(
            records,
            actor,
            "billing.change",
            team_id=team.id,
            target=team.id,
            name=team.name,
            before=_noted(old),
            after=_noted(new),
        )


def stopped(context: ServiceContext, team: Team, requests: int, spent: int) -> Team:
    """The team, stopped if it has reached its cap, and let go if it has not."""
    price = team.price_over(context.settings.billing.price())
    reached = cap_reached(price, requests, team.cap, spent)
    return replace(team, capped_until=next_month(context.now()) if reached else None)


def _terms(team: Team, settings: BillingSettings) -> BillingTerms:
    edition = hashlib.blake2b(settings.salt.encode(), digest_size=6).hexdigest() if settings.salt else ""
    return BillingTerms(
        team.spending_cap, settings.webhook or None, settings.emails, settings.buyer, settings.tax_number, edition
    )


def _changed(team: Team, settings: BillingSettings, change: BillingUpdate) -> tuple[Team, BillingSettings]:
    if change.spending_cap is not UNSET:
        team = replace(team, spending_cap=change.spending_cap)
    if change.alert_webhook is not UNSET:
        webhook = change.alert_webhook or ""
        settings = replace(settings, webhook=webhook, salt=secrets.token_hex(_SALT_BYTES) if webhook else "")
    if change.alert_emails is not UNSET:
        settings = replace(settings, emails=change.alert_emails)
    if change.buyer is not UNSET:
        settings = replace(settings, buyer="\n".join(filter(None, map(str.strip, change.buyer.splitlines()))))
    if change.tax_number is not UNSET:
        settings = replace(settings, tax_number=change.tax_number.strip())
    return team, settings


def _is_raise(old: int | None, new: int | None) -> bool:
    return old is not None and (new is None or new > old)


def _noted(terms: BillingTerms) -> dict[str, object]:
    """The audit log's version: of a webhook the host alone."""
    webhook = terms.alert_webhook
    return {
        "spending_cap_micros": terms.spending_cap,
        "alert_webhook": target_of(webhook).host if webhook else None,
        "alert_emails": terms.alert_emails,
        "buyer": terms.buyer,
        "tax_number": terms.tax_number,
    }


def _check(change: BillingUpdate) -> None:
    cap, webhook = change.spending_cap, change.alert_webhook
    if isinstance(cap, int) and not 0 <= cap <= MAX_CAP:
        raise InvalidInput(
            f"`spending_cap_micros` is a whole number from 0 to {MAX_CAP}, in millionths of a dollar, "
            "or null for no cap.",
            field="spending_cap_micros",
        )
    if isinstance(change.buyer, str):
        for line in change.buyer.splitlines():
            name_of(line, field="buyer", least=0, longest=LONGEST_BUYER)
        if len(change.buyer) > LONGEST_BUYER:
            raise InvalidInput(f"`buyer` has at most {LONGEST_BUYER} characters.", field="buyer")
    if isinstance(change.tax_number, str):
        name_of(change.tax_number, field="tax_number", least=0, longest=LONGEST_TAX_NUMBER)
    if isinstance(webhook, str):
        try:
            target_of(webhook)
        except FetchRefused as error:
            raise InvalidInput(str(error), field="alert_webhook") from None
