"""Whitelist entries: root domains whose pages call `/x/` without a token, billed to the entry's team."""

from __future__ import annotations

from types import NoneType
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from tollgate.api.base import CreatedAt, CreatedBy, Id, Moment, Page, Route, count, text

MAX_PER_MINUTE = 1_000_000_000

# The first sentence of a description is also the help of the tool's option.
MAX_TYPED = 2_000
Typed = Annotated[
    str, text("A root domain, or the URL of a page below it.", "example.com", min_length=0, max_length=MAX_TYPED)
]
Name = Annotated[str, text("A root domain.", "example.com", min_length=0, max_length=253)]
Active = Annotated[bool, Meta(description="Whether its pages may call.", examples=[True])]
AddressPerMinute = Annotated[
    int | None,
    count("Requests a minute of one client address. Null: the service's default.", 600, 1, MAX_PER_MINUTE),
]
DomainPerMinute = Annotated[
    int | None,
    count("Requests a minute of the whole domain. Null: the service's default.", 6_000, 1, MAX_PER_MINUTE),
]


class DomainSettings(Struct, frozen=True, kw_only=True):
    """Settings of an entry, shared by rows, commands and answers."""

    active: Active = True
    address_per_minute: AddressPerMinute = None
    domain_per_minute: DomainPerMinute = None


class NewDomain(DomainSettings, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A root domain to whitelist."""

    domain: Typed
    take_over: Annotated[
        bool, Meta(description="Take it from another team, by proof of ownership.", examples=[False])
    ] = False


class DomainChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of an entry to change; omitted ones keep their value."""

    active: Active | UnsetType = UNSET
    address_per_minute: AddressPerMinute | UnsetType = UNSET
    domain_per_minute: DomainPerMinute | UnsetType = UNSET


class Domain(DomainSettings, frozen=True):
    """A whitelisted root domain."""

    id: Id
    domain: Name
    created_at: CreatedAt
    created_by: CreatedBy
    verified_at: Annotated[
        Moment | None, Meta(description="When a proof of ownership was last found; null: never.")
    ] = None


class DomainPage(Page[Domain], frozen=True):
    """A page of the list of domains."""


class OriginQuery(Struct, frozen=True):
    """Which origin to check."""

    origin: Annotated[str, text("As browsers send it.", "https://app.example.com", max_length=300)]


class OriginCheck(Struct, frozen=True):
    """Whether a page of this origin may call on the team's account, and why."""

    origin: Annotated[str, Meta(description="The origin that was checked.")]
    allowed: Annotated[bool, Meta(description="Whether its pages may call.")]
    why: Annotated[str, Meta(description="The reason, in words.")]
    domain_id: Annotated[str | None, Meta(description="The id of the entry that covers it.")] = None
    domain: Annotated[str | None, Meta(description="The root domain of that entry.")] = None


ADD = Route("POST", "/teams/{team}/domains", Domain, creates=True)
LIST = Route("GET", "/teams/{team}/domains", DomainPage)
CHECK = Route("GET", "/teams/{team}/domains/check", OriginCheck)
SHOW = Route("GET", "/teams/{team}/domains/{domain}", Domain)
UPDATE = Route("PATCH", "/teams/{team}/domains/{domain}", Domain)
REMOVE = Route("DELETE", "/teams/{team}/domains/{domain}", NoneType)
VERIFY = Route("POST", "/teams/{team}/domains/{domain}/verify", Domain)
