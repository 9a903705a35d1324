"""Invoices: a draft while a month is open, final and unchangeable once its grace period is over.

What is committed later is billed in the open month. Lines are made in `core/invoices.py`; the store guarantees
that no call falls between two months (`AccountBook.close_month`).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from tollgate import log
from tollgate.control.problems import InvalidInput, NotFound
from tollgate.control.service_context import (
    Actor,
    PageRequest,
    ResultPage,
    ServiceContext,
    every,
    page_of,
    required,
)
from tollgate.control.services.usage import month_named, price_in
from tollgate.core.alerts import BillingSettings
from tollgate.core.cursors import Position
from tollgate.core.invoices import Invoice, draw
from tollgate.core.models import FormerTeam, PriceChange, Team
from tollgate.core.months import end_of, month_of, previous_month, start_of
from tollgate.core.roles import Action
from tollgate.core.usage import TeamMonth
from tollgate.store.base import AccountBook, ClockDoubted

EVERY_SECONDS = 300.0
_HOUR = 3_600.0
_log = log.get("invoices")


class Listed(Struct, frozen=True):
    """An invoice as lists order them."""

    invoice: Invoice

    @property
    def id(self) -> str:
        return self.invoice.number

    @property
    def created_at(self) -> float:
        return start_of(self.invoice.month)


class Invoices:
    """Shows invoices, and makes them final."""

    def __init__(self, context: ServiceContext, book: AccountBook | None) -> None:
        self._context = context
        self._book = book

    async def list(self, actor: Actor, team: str, page: PageRequest) -> ResultPage[Listed]:
        """A team's invoices, newest first; drafts of the open months among them."""
        membership = await self._context.member(actor, team, Action.SEE_INVOICES)
        scope = f"invoices:{membership.team.id}"
        place = page.place(scope)
        before = _month_at(place) if place else None
        final = await required(self._book).invoices(page.limit + 1, team_id=membership.team.id, before=before)
        drafts = [each for each in await self._drafts(membership.team) if before is None or each.month < before]
        # One that became final between the two reads is listed as final.
        known = {invoice.month for invoice in final}
        found = sorted(
            [*final, *(each for each in drafts if each.month not in known)],
            key=lambda invoice: invoice.month,
            reverse=True,
        )
        return page_of(scope, [Listed(invoice) for invoice in found], page.limit)

    async def show(self, actor: Actor, team: str, month: str) -> Invoice:
        """One invoice: the final one, or the draft as of now."""
        membership = await self._context.member(actor, team, Action.SEE_INVOICES)
        wanted = month_named(month, self._context.now())
        found = await self._of(membership.team, wanted)
        if found is None:
            raise NotFound(
                f"The team {membership.team.name} has no invoice for {wanted}: it used nothing then. "
                "See `tollgate invoices list`."
            )
        return found

    async def close_due(self) -> Sequence[str]:
        """Close all months whose grace period is over, which makes their invoices final; return the months."""
        now, book = self._context.now(), required(self._book)
        grace = self._context.settings.billing.grace_hours * _HOUR
        # The grace of every month before this one is over.
        open_month = month_of(now - grace)
        due = set(await book.open_months(open_month))
        # Also a month without calls: late records must not open it again.
        due.add(previous_month(open_month))
        try:
            return [month for month in sorted(due) if not await book.is_closed(month) and await self._close(month)]
        except ClockDoubted as error:
            _log.error("no month is closed", why=str(error))
            return []

    async def _close(self, month: str) -> bool:
        # All teams: which of them have invoices is known only once the ledger is locked.
        async with self._context.store.reading() as records:
            teams = {team.id: team async for team in every(records.teams, Team)}
            former = {team.id: team async for team in every(records.former_teams, FormerTeam)}
            terms = {each.id: each async for each in every(records.billing, BillingSettings)}
            changes = [each async for each in every(records.price_changes, PriceChange)]
        # Own prices at the end of the month, those of deleted teams included.
        prices = {each.team_id: each.price for each in changes if each.created_at < end_of(month)}
        now, usual = self._context.now(), self._context.settings.billing.price()

        def final(used: TeamMonth) -> Invoice:
            team_id = used.team_id
            price = prices[team_id].over(usual) if team_id in prices else usual
            team = teams.get(team_id) or former.get(team_id) or FormerTeam(team_id, team_id, now)
            address = team if isinstance(team, FormerTeam) else terms.get(team_id)
            drawn = draw(used, team.name, price, team.cap, issued_at=now)
            if address is None:
                return drawn
            emails = address.emails if isinstance(address, FormerTeam) else ()
            return replace(drawn, buyer=address.buyer, tax_number=address.tax_number, emails=emails)

        drawn = await required(self._book).close_month(month, now, final)
        if drawn is None:
            return False
        _log.info("a month was closed", month=month, invoices=len(drawn))
        return True

    async def _drafts(self, team: Team) -> Sequence[Invoice]:
        """Of the current month, and of the one before while its grace lasts."""
        current = month_of(self._context.now())
        found = [await self._of(team, month) for month in (current, previous_month(current))]
        return [invoice for invoice in found if invoice is not None and not invoice.is_final]

    async def _of(self, team: Team, month: str) -> Invoice | None:
        bill = await required(self._book).bill(team.id, month)
        if bill.invoice is not None:
            return bill.invoice
        is_current = month == month_of(self._context.now())
        if bill.closed or (not bill.used.periods and not is_current):
            return None
        async with self._context.store.reading() as records:
            price = await price_in(self._context, records, team.id, month)
        return draw(bill.used, team.name, price, team.cap)


def _month_at(place: Position) -> str:
    """The month that a page ended with. Cursors are not signed: a forged one may contain any time."""
    try:
        return month_of(place.created_at)
    except (ValueError, OverflowError, OSError):
        raise InvalidInput(
            "The cursor is not valid. Give the `next` of an earlier page of the same list, or none to start.",
            field="after",
        ) from None
