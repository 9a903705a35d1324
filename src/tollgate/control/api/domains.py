"""Whitelisted domains."""

from __future__ import annotations

from litestar import Response
from litestar.params import JSONBody

from tollgate.api import domains
from tollgate.api.base import Nothing
from tollgate.api.domains import DomainChange, DomainPage, NewDomain, OriginCheck, OriginQuery
from tollgate.control.api.access import CurrentActor, Part, Plane
from tollgate.control.api.creation import CreatesOnce, Made
from tollgate.control.api.operations import DOMAINS, serves
from tollgate.control.api.reading import IfMatch, Wanted, WantedPage
from tollgate.control.api.render import Versioned, done, of, page_of, unstored, versioned
from tollgate.control.problems import (
    DomainTaken,
    DomainVerified,
    LimitReached,
    NameTaken,
    NotProven,
    RoleNeeded,
    RootDomainNeeded,
)
from tollgate.core.models import Domain
from tollgate.core.roles import Action

# A check of proofs sends DNS queries and an HTTPS request to hosts that the team chooses.
PROOF_COST = 20
NOTHING = Nothing()


@serves(
    domains.ADD, RoleNeeded, RootDomainNeeded, NameTaken, DomainTaken, DomainVerified, NotProven, LimitReached,
    tag=DOMAINS,
)  # fmt: skip
async def add_domain(
    plane: Plane, actor: CurrentActor, team: Part, data: JSONBody[NewDomain], once: CreatesOnce
) -> Versioned[domains.Domain]:
    """Whitelist a root domain.

    With `take_over` even one on another team's list, by proof of ownership.
    """
    return await once(
        lambda: plane.domains.add(actor, team, data),
        lambda entry: Made(_shown(entry), entry),
        (team, Action.CHANGE_DOMAINS),
    )


@serves(domains.LIST, tag=DOMAINS)
async def list_domains(plane: Plane, actor: CurrentActor, team: Part, page: WantedPage) -> Response[DomainPage]:
    """List the whitelisted domains."""
    return page_of(DomainPage, await plane.domains.list(actor, team, page), _shown)


@serves(domains.CHECK, tag=DOMAINS)
async def check_origin(
    plane: Plane, actor: CurrentActor, team: Part, wanted: Wanted[OriginQuery]
) -> Response[OriginCheck]:
    """Check whether a page of an origin may call, and why."""
    return unstored(await plane.domains.check(actor, team, wanted.origin))


@serves(domains.SHOW, tag=DOMAINS)
async def get_domain(plane: Plane, actor: CurrentActor, team: Part, domain: Part) -> Versioned[domains.Domain]:
    """Show a whitelisted domain."""
    entry = await plane.domains.show(actor, team, domain)
    return versioned(_shown(entry), entry)


@serves(domains.UPDATE, RoleNeeded, tag=DOMAINS)
async def update_domain(
    plane: Plane, actor: CurrentActor, team: Part, domain: Part, data: JSONBody[DomainChange], if_match: IfMatch
) -> Versioned[domains.Domain]:
    """Change settings of a whitelisted domain.

    Omitted members keep their value.
    """
    entry = await plane.domains.update(actor, team, domain, data, if_match)
    return versioned(_shown(entry), entry)


@serves(domains.REMOVE, RoleNeeded, tag=DOMAINS)
async def remove_domain(
    plane: Plane, actor: CurrentActor, team: Part, domain: Part, if_match: IfMatch
) -> Response[None]:
    """Remove a domain from the whitelist.

    By the entry's id, not by the domain.
    """
    await plane.domains.remove(actor, team, domain, if_match)
    return done()


@serves(domains.VERIFY, RoleNeeded, NotProven, tag=DOMAINS, cost=PROOF_COST)
async def verify_domain(
    plane: Plane,
    actor: CurrentActor,
    team: Part,
    domain: Part,
    data: JSONBody[Nothing] = NOTHING,  # noqa: ARG001 - declared, so that a body with members is refused
) -> Versioned[domains.Domain]:
    """Look for the proof that the team owns a domain."""
    entry = await plane.domains.verify(actor, team, domain)
    return versioned(_shown(entry), entry)


def _shown(entry: Domain) -> domains.Domain:
    return of(domains.Domain, entry)
