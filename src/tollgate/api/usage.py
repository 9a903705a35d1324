"""Usage: the requests of a team in a month and what they cost, and its requests over time."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from tollgate.api.base import MONTH, Moment, Route, choice, text

DAY = r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$"
MAX_CUSTOM_DAYS = 92


class By(StrEnum):
    """What usage is listed by."""

    TOKEN = "token"  # noqa: S105 - a word
    DOMAIN = "domain"
    NETWORK = "network"
    METHOD = "method"
    DAY = "day"
    MONTH = "month"


class Split(StrEnum):
    """What a timeline is split by. A source is a token or a domain."""

    NETWORK = "network"
    OUTCOME = "outcome"
    SOURCE = "source"


class TimeRange(StrEnum):
    """The range of a timeline. Each but the custom one ends with the current hour, day or month."""

    DAY = "24h"
    WEEK = "7d"
    MONTH = "month"
    YEAR = "year"
    CUSTOM = "custom"


class Plan(StrEnum):
    """How requests beyond the free ones are charged."""

    PER_REQUEST = "per_request"
    PER_STARTED_MILLION = "per_started_million"


Month = Annotated[
    str,
    Meta(
        description="A calendar month in UTC, such as 2026-11. By default the current one.",
        examples=["2026-11"],
        extra_json_schema={"pattern": MONTH},
    ),
]
PlanName = Annotated[
    str, choice("Whether each request beyond the free ones is charged, or each started million of them.", Plan)
]
Requests = Annotated[int, Meta(description="All requests, including refused ones.")]
BillableRequests = Annotated[int, Meta(description="Requests that are billed: those that were answered.")]
FreeRequests = Annotated[int, Meta(description="How many requests of a month are free.")]
CostMicros = Annotated[int, Meta(description="What they cost, in millionths of a US dollar.")]
Cap = Annotated[int | None, Meta(description="The cap that applies, in millionths of a US dollar; null: none.")]


FirstDay = Annotated[
    str,
    Meta(
        description="The first day (UTC) of a custom range, such as 2026-11-01.",
        examples=["2026-11-01"],
        extra_json_schema={"pattern": DAY},
    ),
]
LastDay = Annotated[
    str,
    Meta(
        description=f"Its last day, by default today; {MAX_CUSTOM_DAYS} days at most.",
        examples=["2026-11-15"],
        extra_json_schema={"pattern": DAY},
    ),
]


class UsageQuery(Struct, frozen=True):
    """Which usage to show."""

    month: Month | UnsetType = UNSET
    by: Annotated[str, choice("What the items are.", By)] = By.DAY
    token: (
        Annotated[
            str,
            text(
                "Only usage of this API token: its name, or its id, deleted or not. A rotated one is one token.",
                "ci",
                max_length=300,
            ),
        ]
        | UnsetType
    ) = UNSET


class UsageItem(Struct, frozen=True):
    """Usage of one token, domain, network, method or day within a month; or of a whole month."""

    key: Annotated[
        str, Meta(description="An id, a name or a day; empty if there is none, such as for domains by token.")
    ]
    name: Annotated[str | None, Meta(description="The current name of a token or domain; null if it was deleted.")]
    requests: Requests
    billable_requests: BillableRequests
    cost_micros: CostMicros


class Usage(Struct, frozen=True):
    """A team's usage of a month. The items add up to it; by month they are this month and the eleven before."""

    month: Annotated[str, Meta(description="The billing month, in UTC.")]
    plan: PlanName
    requests: Requests
    billable_requests: BillableRequests
    free_requests: FreeRequests
    free_left: Annotated[
        int, Meta(description="How many of them are left to all teams of the account that created this one.")
    ]
    cost_micros: CostMicros
    cost: Annotated[str, Meta(description="The same in US dollars, for people to read.")]
    forecast_requests: Annotated[int, Meta(description="Billable requests expected at the end of the month.")]
    forecast_cost_micros: Annotated[int, Meta(description="What those will cost, in millionths of a US dollar.")]
    spending_cap_micros: Cap
    capped: Annotated[bool, Meta(description="Whether the cap stops calls now (402).")]
    by: Annotated[str, choice("What the items are.", By)]
    items: list[UsageItem]


class TimelineQuery(Struct, frozen=True):
    """Which timeline to show."""

    range: Annotated[
        str,
        choice(
            "The last 24 hours by hour, 7 days or this month by day, 12 months by month; custom: from `since` on.",
            TimeRange,
        ),
    ] = TimeRange.MONTH
    split: Annotated[str, choice("What each step is split by; a source is a token or a domain.", Split)] = (
        Split.NETWORK
    )
    since: FirstDay | UnsetType = UNSET
    until: LastDay | UnsetType = UNSET


class Step(Struct, frozen=True):
    """One hour, day or month."""

    start: Annotated[Moment, Meta(description="When it starts.")]
    requests: Requests
    by: Annotated[dict[str, int], Meta(description="By network, outcome, or the id of a token or domain.")]


class Timeline(Struct, frozen=True):
    """Requests over time."""

    range: Annotated[str, choice("The range that was requested.", TimeRange)]
    split: Annotated[str, choice("What each step is split by.", Split)]
    step: Annotated[str, choice("How long a step is.", ("hour", "day", "month"))]
    p50_us: Annotated[int | None, Meta(description="The median duration in microseconds; null if not known.")]
    p95_us: Annotated[int | None, Meta(description="The 95th percentile of the durations, likewise.")]
    steps: Annotated[list[Step], Meta(description="The steps, oldest first, those without requests included.")]


SHOW = Route("GET", "/teams/{team}/usage", Usage)
TIMELINE = Route("GET", "/teams/{team}/usage/timeline", Timeline)
