"""Usage of a team: a month by token, domain, network, method or day, its cost and a forecast."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET

from tollgate.api import usage as api
from tollgate.api.usage import By, Split, Usage, UsageQuery
from tollgate.control.commands import checked
from tollgate.control.problems import InvalidInput
from tollgate.control.service_context import MAX_ROWS, Actor, ServiceContext, required
from tollgate.control.services.timelines import Window
from tollgate.control.services.tokens import token_ids
from tollgate.core.cursors import Position
from tollgate.core.models import Team
from tollgate.core.months import end_of, is_month, last_months, month_of
from tollgate.core.pricing import Price, capped, dollars
from tollgate.core.roles import Action
from tollgate.core.usage import UsageItem, forecast
from tollgate.store.base import AccountBook, Repositories

# A team may create and delete thousands of tokens in a month; beyond this the smallest are summed in one item.
MAX_ITEMS = MAX_ROWS
# Names of the empty key.
_OTHERS: dict[By | Split, str] = {By.TOKEN: "(domains)", By.DOMAIN: "(tokens)"}
_REST = "(others)"
CURRENT_MONTH = UsageQuery()


class Usages:
    """Reads usage."""

    def __init__(self, context: ServiceContext, book: AccountBook | None) -> None:
        self._context = context
        self._book = book

    async def of_team(self, actor: Actor, team: str, query: UsageQuery = CURRENT_MONTH) -> Usage:
        """Usage of a team in a month, by default the current one; or of one of its tokens, given by id or name.

        A rotated token is one token, with the usage of its predecessors.
        """
        query = checked(query)
        listed_by = By(query.by)
        wanted = month_of(self._context.now()) if query.month is UNSET else query.month
        async with self._context.reading(actor, team, Action.SEE_USAGE) as (records, membership):
            names = await _names(records, membership.team, listed_by)
            sources = None if query.token is UNSET else await token_ids(records, membership.team, query.token)
            price = await price_in(self._context, records, membership.team.id, wanted)
        book, team_id = required(self._book), membership.team.id
        others_free = (await book.spent(wanted, [membership.team]))[team_id].others_free
        months = last_months(wanted, 12) if listed_by is By.MONTH else wanted
        items = await book.usage(team_id, months, listed_by)
        whole = _of(items, listed_by, wanted)
        if sources is not None:
            items = await book.usage(team_id, months, listed_by, sources=sources)
        if listed_by is By.TOKEN:
            async with self._context.store.reading() as records:
                items = _joined(items, await _heirs(records, items, names))
        return self._report(membership.team, wanted, listed_by, items, names, whole, price, others_free)

    async def within(self, actor: Actor, team: str, window: Window, by: By | Split) -> list[api.UsageItem]:
        """What a team used in a window, by the time of its calls: the items add up to all of it.

        By source, the items are tokens and domains.
        """
        async with self._context.reading(actor, team, Action.SEE_USAGE) as (records, membership):
            names = await _names(records, membership.team, by)
        months = window.months(self._context.now())
        # Months are those of bills, as in the chart of a year.
        hours = None if window.step == "month" and len(window.starts) > 1 else window.hours
        items = await required(self._book).usage(membership.team.id, months, by, hours=hours)
        if by in (By.TOKEN, Split.SOURCE):
            async with self._context.store.reading() as records:
                items = _joined(items, await _heirs(records, items, names))
        return _shares(items, by, names)

    async def of_any_team(self, team: Team, month: str, by: By) -> Usage:
        """Usage of a team in a month, for operators: without the names of its tokens and domains."""
        async with self._context.store.reading() as records:
            price = await price_in(self._context, records, team.id, month)
        others_free = (await required(self._book).spent(month, [team]))[team.id].others_free
        items = await required(self._book).usage(team.id, last_months(month, 12) if by is By.MONTH else month, by)
        return self._report(team, month, by, items, {}, _of(items, by, month), price, others_free)

    def _report(
        self,
        team: Team,
        month: str,
        by: By,
        items: list[UsageItem],
        names: Mapping[str, str],
        whole: UsageItem,
        price: Price,
        others_free: int,
    ) -> Usage:
        """Report the items of a month; `whole` is the team's usage of it, and `others_free` free requests that
        other teams of its payer have had.
        """
        own = price.without(others_free)
        now = self._context.now()
        total = _of(items, by, month)
        billable, cost = total.billable, total.cost
        is_current = month == month_of(now)
        expected = forecast(billable, month, now)
        # A past month keeps its cost, by the prices and caps of its time.
        will_cost = cost
        if is_current and total == whole:
            will_cost = capped(cost + own.total(expected) - own.total(billable), team.cap)
        elif is_current and billable:
            will_cost = capped(cost * expected // billable, team.cap)
        return Usage(
            month=month,
            plan=price.plan.value,
            requests=total.requests,
            billable_requests=billable,
            free_requests=price.free_requests,
            free_left=max(0, own.free_requests - whole.billable),
            cost_micros=cost,
            cost=dollars(cost),
            forecast_requests=expected,
            forecast_cost_micros=max(cost, will_cost),
            spending_cap_micros=team.cap,
            capped=is_current and team.capped_until is not None and team.capped_until > now,
            by=by.value,
            items=_shares(items, by, names),
        )


def _of(items: list[UsageItem], by: By, month: str) -> UsageItem:
    """The sum of the items of a month. By month there are items of other months as well."""
    own = [item for item in items if by is not By.MONTH or item.key == month]
    return UsageItem(
        month,
        sum(item.requests for item in own),
        sum(item.billable for item in own),
        sum(item.cost for item in own),
    )


async def price_in(context: ServiceContext, records: Repositories, team_id: str, month: str) -> Price:
    """The price of a team at the end of a month, or now if it is not over."""
    end = Position(end_of(month), "")
    usual = context.settings.billing.price()
    last = await records.price_changes.page(1, end, newest_first=True, team_id=team_id)
    return last[0].price.over(usual) if last else usual


def month_named(text: str | None, now: float) -> str:
    """The named month, or the current one; refuse what is no month."""
    if text is None:
        return month_of(now)
    if not is_month(text):
        raise InvalidInput(f"{text[:40]!r} is not a month: write one such as {month_of(now)}.", field="month")
    return text


async def _names(records: Repositories, team: Team, by: By | Split) -> dict[str, str]:
    """The names that tokens or domains of a team have now, by id."""
    names: dict[str, str] = {}
    if by in (By.TOKEN, Split.SOURCE):
        names |= {token.id: token.name for token in await records.tokens.page(MAX_ROWS, team_id=team.id)}
    if by in (By.DOMAIN, Split.SOURCE):
        names |= {entry.id: entry.domain for entry in await records.domains.page(MAX_ROWS, team_id=team.id)}
    return names


async def _heirs(records: Repositories, items: list[UsageItem], names: Mapping[str, str]) -> dict[str, str]:
    """The token under which the usage of a rotated one is listed: the newest of its lineage that still exists."""
    ids = list({item.key for item in items if item.key} | set(names))
    tokens = [
        token
        for start in range(0, len(ids), MAX_ROWS)
        for token in await records.lineages.page(MAX_ROWS, id=tuple(ids[start : start + MAX_ROWS]))
    ]
    tokens.sort(key=lambda token: (token.id in names, token.created_at, token.id))
    newest = {token.first_id: token.id for token in tokens}
    return {token.id: newest[token.first_id] for token in tokens}


def _joined(items: list[UsageItem], heirs: Mapping[str, str]) -> list[UsageItem]:
    sums: dict[str, UsageItem] = {}
    for item in items:
        key = heirs.get(item.key, item.key)
        known = sums.get(key) or UsageItem(key, 0, 0, 0)
        sums[key] = UsageItem(
            key, known.requests + item.requests, known.billable + item.billable, known.cost + item.cost
        )
    return list(sums.values())


def _shares(items: list[UsageItem], by: By | Split, names: Mapping[str, str]) -> list[api.UsageItem]:
    """Days and months in order, all else by cost, then by requests; beyond the limit, the smallest in one sum."""
    shares = [
        api.UsageItem(
            item.key, names.get(item.key) if item.key else _OTHERS.get(by), item.requests, item.billable, item.cost
        )
        for item in items
    ]
    if by in (By.DAY, By.MONTH):
        return shares
    shares.sort(key=lambda share: (-share.cost_micros, -share.billable_requests, -share.requests, share.key))
    if len(shares) <= MAX_ITEMS:
        return shares
    kept, rest = shares[: MAX_ITEMS - 1], shares[MAX_ITEMS - 1 :]
    sums = (
        sum(getattr(share, name) for share in rest) for name in ("requests", "billable_requests", "cost_micros")
    )
    return [*kept, api.UsageItem("", _REST, *sums)]
