"""API tokens, which call `/x/`: settings, commands, answers and routes."""

from __future__ import annotations

from types import NoneType
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from tollgate.api.base import CreatedAt, CreatedBy, Id, Moment, Page, Route, Secret, count, several, text

MAX_PATTERNS = 100
MAX_OVERLAP = 30 * 86_400

# The first sentence of a description is also the help of the tool's option.
Name = Annotated[str, text("Unique in its team.", "ci")]
Active = Annotated[bool, Meta(description="Whether it works.", examples=[True])]
Expiry = Annotated[
    Moment | None, Meta(description="When it stops working; null: never.", examples=["2030-12-31T00:00:00Z"])
]
Networks = Annotated[
    tuple[str, ...], Meta(description="`family/network` names; empty: all.", examples=[["eth/mainnet"]])
]
Pattern = Annotated[str, Meta(extra_json_schema={"minLength": 1})]
Methods = Annotated[
    tuple[Pattern, ...], several("Methods that it may call, `*` as a wildcard; empty: all.", "eth_*", MAX_PATTERNS)
]
PerSecond = Annotated[int | None, count("Requests a second; null: no limit.", 50, 1, 1_000_000)]
PerMonth = Annotated[
    int | None, count("Requests a calendar month (UTC); null: no cap.", 1_000_000, 1, 1_000_000_000_000)
]
InUrl = Annotated[
    bool, Meta(description="Allow the token in the URL, for wallets: `/x/eth/mainnet/<token>`.", examples=[False])
]
ShowUpstream = Annotated[
    bool,
    Meta(
        description="Return upstream and cache in response headers. They are `X-Tollgate-Upstream` and "
        "`X-Tollgate-Cache`.",
        examples=[False],
    ),
]
Addresses = Annotated[
    tuple[str, ...],
    several("Networks of client addresses that may use it; empty: all.", "192.0.2.0/24", MAX_PATTERNS),
]
Contracts = Annotated[
    tuple[str, ...],
    several(
        "Contracts that it may read, by `eth_call`, `eth_getLogs`, `starknet_call` and the like; empty: all.",
        "0xdac17f958d2ee523a2206206994597c13d831ec7",
        MAX_PATTERNS,
    ),
]
Overlap = Annotated[int, count("How long the old secret keeps working.", 86_400, 0, MAX_OVERLAP)]


class TokenSettings(Struct, frozen=True, kw_only=True):
    """Settings of a token besides its name and expiry, shared by rows, commands and answers."""

    active: Active = True
    networks: Networks = ()
    methods: Methods = ()
    requests_per_second: PerSecond = None
    monthly_requests: PerMonth = None
    allow_in_url: InUrl = False
    show_upstream: ShowUpstream = False
    addresses: Addresses = ()
    contracts: Contracts = ()


class NewToken(TokenSettings, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An API token to be created."""

    name: Name
    expires_at: Expiry = None


class TokenChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change of a token; omitted members keep their value."""

    name: Name | UnsetType = UNSET
    active: Active | UnsetType = UNSET
    expires_at: Expiry | UnsetType = UNSET
    networks: Networks | UnsetType = UNSET
    methods: Methods | UnsetType = UNSET
    requests_per_second: PerSecond | UnsetType = UNSET
    monthly_requests: PerMonth | UnsetType = UNSET
    allow_in_url: InUrl | UnsetType = UNSET
    show_upstream: ShowUpstream | UnsetType = UNSET
    addresses: Addresses | UnsetType = UNSET
    contracts: Contracts | UnsetType = UNSET


class Rotation(Struct, frozen=True, forbid_unknown_fields=True):
    """How to rotate a token."""

    overlap_seconds: Overlap = 86_400


class Token(TokenSettings, frozen=True):
    """An API token."""

    id: Id
    name: Name
    prefix: Annotated[str, Meta(description="The beginning of the secret, to recognise it.")]
    created_at: CreatedAt
    created_by: CreatedBy
    last_used_at: Annotated[Moment | None, Meta(description="Accurate to a minute.")] = None
    expires_at: Expiry = None
    capped_until: Annotated[Moment | None, Meta(description="Until when its monthly cap stops it.")] = None
    replaces: Annotated[str | None, Meta(description="The token whose successor it is.")] = None


class TokenWithSecret(Token, frozen=True):
    """A new API token."""

    secret: Secret = None

    def __repr__(self) -> str:
        return f"TokenWithSecret({self.id!r})"


class PlaygroundToken(Struct, frozen=True):
    """The token of the caller's own calls: not in lists of tokens, and named playground in logs and usage."""

    secret: Annotated[str, Meta(description="What to send as `Authorization: Bearer`.")]
    expires_at: Annotated[Moment, Meta(description="Until when it works.")]

    def __repr__(self) -> str:
        return "PlaygroundToken(…)"


class TokenPage(Page[Token], frozen=True):
    """A page of the list of tokens."""


CREATE = Route("POST", "/teams/{team}/tokens", TokenWithSecret, creates=True)
LIST = Route("GET", "/teams/{team}/tokens", TokenPage)
SHOW = Route("GET", "/teams/{team}/tokens/{token}", Token)
UPDATE = Route("PATCH", "/teams/{team}/tokens/{token}", Token)
DELETE = Route("DELETE", "/teams/{team}/tokens/{token}", NoneType)
PLAYGROUND = Route("POST", "/teams/{team}/playground", PlaygroundToken)
ROTATE = Route("POST", "/teams/{team}/tokens/{token}/rotate", TokenWithSecret, creates=True)
