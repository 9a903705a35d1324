"""Caller: a grant made ready for the hot path. What can be worked out once is worked out here."""

from __future__ import annotations

from msgspec import Struct

from tollgate.chains.contracts import normal
from tollgate.core.address_shares import AddressShares
from tollgate.core.addresses import parse_networks
from tollgate.core.limits import Limit
from tollgate.core.methods import matches
from tollgate.core.models import Grant, per_minute, per_second
from tollgate.settings import model


class Quota(Struct, frozen=True):
    """A limit with the name that callers see, and the key under which it is counted."""

    name: str
    key: str
    limit: Limit
    policy: bytes
    """Its part of the `RateLimit-Policy` header."""
    state: bytes
    """Its part of the `RateLimit` header, to be filled with what remains; for windows of more than a second, also
    with when it is whole again."""
    shown: bool = True
    """Whether it is in those headers. Limits of prefixes are not: ordinary callers never meet them."""
    under_pressure: bool = False
    """Whether it refuses only while more than half of the limit of all callers together is used."""


def quota(name: str, key: str, limit: Limit) -> Quota:
    quoted = b'"%b"' % name.encode()
    policy = b"%b;q=%d;w=%d" % (quoted, limit.count, limit.seconds)
    return Quota(name, key, limit, policy, quoted + (b";r=%d;t=1" if limit.seconds <= 1 else b";r=%d;t=%d"))


def address_quotas(scope: str, address: str, limit: Limit, whole: Limit) -> tuple[Quota, ...]:
    """The quotas of a client address and of the prefixes around it, narrowest first."""
    own, *around = AddressShares.limits(address, limit, whole)
    return (
        quota("address", f"{scope}:{own.prefix}", own.limit),
        *(
            Quota("prefix", f"{scope}:{each.prefix}", each.limit, b"", b"", False, each.under_pressure)
            for each in around
        ),
    )


def limits_of(quotas: tuple[Quota, ...]) -> tuple[tuple[str, Limit], ...]:
    """What the meters count for these quotas."""
    return tuple((each.key, each.limit) for each in quotas)


def rate_headers_of(quotas: tuple[Quota, ...], shown: int) -> bytes:
    """The header lines (draft-ietf-httpapi-ratelimit-headers) about these quotas.

    To be filled with what the first `shown` of them have left, and when they are whole again.
    """
    policies = [each.policy for each in quotas if each.shown]
    states = [each.state for each in quotas[:shown] if each.shown]
    return b"ratelimit-policy: %b\r\nratelimit: %b\r\n" % (b", ".join(policies), b", ".join(states))


def hidden_numbers(quotas: tuple[Quota, ...]) -> slice | None:
    """Which of the numbers of these quotas no header shows, where each has what is left and when it is whole."""
    hidden = [number for number, each in enumerate(quotas) if not each.shown]
    return slice(2 * hidden[0], 2 * (hidden[-1] + 1)) if hidden else None


class Caller:
    """Who calls."""

    __slots__ = (
        "addresses",
        "allow_in_url",
        "cap",
        "capped_until",
        "contracts",
        "expires_at",
        "filters_of",
        "grant",
        "holder",
        "limits",
        "networks",
        "payer",
        "per_address",
        "price",
        "quotas",
        "rate_headers",
        "restricted",
        "shows",
        "source_id",
        "source_name",
        "team_id",
    )

    def __init__(self, grant: Grant, limits: model.LimitSettings) -> None:
        self.grant = grant
        self.team_id = grant.team.id
        self.source_id, self.source_name = _source(grant)
        self.holder = self.team_id if grant.domain is None else self.source_id
        """What its connections to upstreams are counted by: all tokens of a team together, or a domain."""
        self.capped_until = max(
            grant.team.capped_until or 0.0, (grant.token.capped_until or 0.0) if grant.token else 0.0
        )
        self.cap, self.price, self.payer = grant.team.cap, grant.team.price, grant.team.payer
        self.expires_at = grant.token.expires_at if grant.token else None
        self.allow_in_url = bool(grant.token and grant.token.allow_in_url)
        self.networks = frozenset(grant.token.networks) if grant.token else frozenset()
        self.quotas, self.per_address = _quotas(grant, limits)
        self.addresses = parse_networks(grant.token.addresses) if grant.token else ()
        """Where the token may be used from; empty: anywhere."""
        self.contracts = frozenset(map(normal, grant.token.contracts)) if grant.token else frozenset()
        """What the token may read; empty: everything."""
        self.filters_of = self.source_id if self.contracts else self.team_id
        """Who may use the filters that it makes: its team, or the token alone where it may not read everything."""
        self.restricted = bool(self.networks or self.contracts or (grant.token and grant.token.methods))
        """Whether the token has lists of its own."""
        self.shows = bool(grant.token and grant.token.show_upstream)
        """Whether answers name their upstream."""
        self.limits, self.rate_headers = limits_of(self.quotas), rate_headers_of(self.quotas, len(self.quotas))

    def allows(self, method: str) -> bool:
        """Whether the token's own list lets this method through."""
        if self.grant.token is None or not self.grant.token.methods:
            return True
        return matches(method, self.grant.token.methods)


def _source(grant: Grant) -> tuple[str, str]:
    """The id and the name of what lets a caller in."""
    if grant.token is not None:
        return grant.token.id, grant.token.name
    assert grant.domain is not None  # noqa: S101 - a grant has one or the other
    return grant.domain.id, grant.domain.domain


def _quotas(grant: Grant, limits: model.LimitSettings) -> tuple[tuple[Quota, ...], Limit | None]:
    """The limits of a caller, and the one that is counted for each client address."""
    quotas = []
    per_address = None
    if grant.token is not None and (limit := per_second(grant.token.requests_per_second)):
        quotas.append(quota("token", grant.token.id, limit))
    if grant.domain is not None:
        entry = grant.domain
        per_address = per_minute(entry.address_per_minute or limits.domain_address_per_minute)
        quotas.append(quota("domain", entry.id, per_minute(entry.domain_per_minute or limits.domain_per_minute)))
    if limit := per_second(grant.team.requests_per_second):
        quotas.append(quota("team", grant.team.id, limit))
    return tuple(quotas), per_address
