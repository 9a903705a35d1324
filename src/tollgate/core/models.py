"""The things a team owns, as values. Frozen; no behaviour that needs a clock or a store."""

from __future__ import annotations

from msgspec import Struct

from tollgate.api.domains import DomainSettings
from tollgate.api.tokens import TokenSettings
from tollgate.core.limits import Limit
from tollgate.core.pricing import OwnPrice, Price, lower_cap


class Team(Struct, frozen=True):
    """Who is billed."""

    id: str
    name: str
    requests_per_second: int | None = None
    capped_until: float | None = None
    """Until when a reached spending cap stops its calls, in seconds since 1970."""
    created_at: float = 0.0
    spending_cap: int | None = None
    """What it will pay for a month at most, in micro-dollars."""
    suspended_at: float | None = None
    """Since when the operator has stopped its calls."""
    suspended_reason: str = ""
    free_requests: int | None = None
    """Requests of a month that are free for this team; None: as many as for the others. So with the next."""
    micros_per_million: int | None = None
    operator_cap: int | None = None
    """What it can spend in a month at most, whatever cap it chooses, in micro-dollars."""
    payer: str = ""
    """The account that created it, whose free requests it uses; empty: it has its own."""

    @property
    def cap(self) -> int | None:
        """The cap that stops its calls: its own, or the operator's if that is lower."""
        return lower_cap(self.spending_cap, self.operator_cap)

    @property
    def price(self) -> OwnPrice | None:
        if self.free_requests is None and self.micros_per_million is None:
            return None
        return OwnPrice(self.free_requests, self.micros_per_million)

    def price_over(self, usual: Price) -> Price:
        """What it pays, where most pay the usual price."""
        return usual if self.price is None else self.price.over(usual)


class FormerTeam(Struct, frozen=True):
    """What invoices need of a team that was deleted: it may still owe for the month."""

    id: str
    name: str
    created_at: float
    """When it was deleted."""
    cap: int | None = None
    buyer: str = ""
    tax_number: str = ""
    emails: tuple[str, ...] = ()
    """Of those who were to be told about its bills."""


class PriceChange(Struct, frozen=True):
    """What a team pays otherwise than the others, from a moment on: what invoices of past months explain."""

    id: str
    team_id: str
    created_at: float
    free_requests: int | None = None
    micros_per_million: int | None = None

    @property
    def price(self) -> OwnPrice:
        return OwnPrice(self.free_requests, self.micros_per_million)


class Token(TokenSettings, frozen=True):
    """A bearer credential of one team. The secret itself is never part of it."""

    id: str
    team_id: str
    name: str
    prefix: str
    created_at: float
    created_by: str = ""
    last_used_at: float | None = None
    expires_at: float | None = None
    capped_until: float | None = None
    replaces: str = ""
    """The token whose successor this is."""
    playground_of: str = ""
    """The account whose own calls it makes, from the playground and the tool: lists do not show it."""


class Lineage(Struct, frozen=True):
    """Which tokens a rotated one goes back to: it outlives them, so that their history stays together."""

    id: str
    """A token that replaced another, or was replaced."""
    created_at: float
    team_id: str
    first_id: str
    """The first token of the lineage."""


class Domain(DomainSettings, frozen=True):
    """A whitelisted root domain of one team."""

    id: str
    team_id: str
    domain: str
    created_at: float
    created_by: str = ""
    verified_at: float | None = None


class Grant(Struct, frozen=True):
    """Who calls, and what that team's token or domain allows: what the gateway knows of a caller."""

    team: Team
    token: Token | None = None
    domain: Domain | None = None


def per_second(count: int | None) -> Limit | None:
    """A limit of `count` requests a second, if there is one."""
    return None if count is None else Limit(max(1, count), 1.0)


def per_minute(count: int) -> Limit:
    """A limit of `count` requests a minute."""
    return Limit(count, 60.0)
