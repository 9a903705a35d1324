"""Whitelisted domains."""

from __future__ import annotations

from tollgate.control.api import bodies, reading, shapes
from tollgate.control.api.access import CurrentActor, HttpRequest, Part, Plane
from tollgate.control.api.creation import Made, once
from tollgate.control.api.operations import DOMAINS, Operation, Query, endpoint
from tollgate.control.api.render import Answer, done, listed, shown
from tollgate.control.problems import (
    DomainTaken,
    DomainVerified,
    InvalidInput,
    LimitReached,
    NameTaken,
    NotProven,
    RoleNeeded,
    RootDomainNeeded,
)
from tollgate.control.services.domains import DomainSettings
from tollgate.core.models import Domain

LONGEST_ORIGIN = 300


@endpoint(
    "POST",
    "/teams/{team}/domains",
    Operation(
        id="addDomain",
        tag=DOMAINS,
        summary="Whitelist a root domain",
        description="With `take_over` also one that another team has, by proof of ownership.",
        takes=bodies.NewDomain,
        creates=True,
        status=201,
        gives=shapes.DomainView,
        tagged=True,
        raises=(RoleNeeded, RootDomainNeeded, NameTaken, DomainTaken, DomainVerified, NotProven, LimitReached),
    ),
)
async def add(request: HttpRequest, plane: Plane, actor: CurrentActor, team: Part) -> Answer:
    new = await reading.body(request, bodies.NewDomain)
    sent = DomainSettings(address_per_minute=new.address_per_minute, domain_per_minute=new.domain_per_minute)

    async def make() -> Made:
        row = await plane.domains.add(actor, team, new.domain, sent, take_over=new.take_over)
        return Made(_shape(row), row)

    return await once(request, plane, actor, make)


@endpoint(
    "GET",
    "/teams/{team}/domains",
    Operation(
        id="listDomains", tag=DOMAINS, summary="List the whitelisted domains", lists=True, gives=shapes.DomainPage
    ),
)
async def list_domains(request: HttpRequest, plane: Plane, actor: CurrentActor, team: Part) -> Answer:
    return listed(await plane.domains.list(actor, team, reading.page(request)), _shape)


@endpoint(
    "GET",
    "/teams/{team}/domains/check",
    Operation(
        id="checkOrigin",
        tag=DOMAINS,
        summary="Check whether a page of an origin may call, and why",
        query=(
            Query(
                "origin",
                "As browsers send it.",
                {"type": "string", "maxLength": LONGEST_ORIGIN, "examples": ["https://app.example.com"]},
                required=True,
            ),
        ),
        gives=shapes.OriginCheck,
        raises=(InvalidInput,),
    ),
)
async def check(request: HttpRequest, plane: Plane, actor: CurrentActor, team: Part) -> Answer:
    origin = reading.query(request, "origin")
    if not origin or len(origin) > LONGEST_ORIGIN:
        raise InvalidInput(
            "`origin` is missing or too long: give one such as https://app.example.com.", field="origin"
        )
    return shown(shapes.of(shapes.OriginCheck, await plane.domains.check(actor, team, origin)))


@endpoint(
    "GET",
    "/teams/{team}/domains/{domain}",
    Operation(
        id="getDomain", tag=DOMAINS, summary="Show a whitelisted domain", gives=shapes.DomainView, tagged=True
    ),
)
async def show(plane: Plane, actor: CurrentActor, team: Part, domain: Part) -> Answer:
    row = await plane.domains.show(actor, team, domain)
    return shown(_shape(row), row)


@endpoint(
    "PATCH",
    "/teams/{team}/domains/{domain}",
    Operation(
        id="updateDomain",
        tag=DOMAINS,
        summary="Change settings of a whitelisted domain",
        description="What is left out stays as it is.",
        takes=bodies.DomainChange,
        conditional=True,
        gives=shapes.DomainView,
        tagged=True,
        raises=(RoleNeeded,),
    ),
)
async def update(request: HttpRequest, plane: Plane, actor: CurrentActor, team: Part, domain: Part) -> Answer:
    change = await reading.body(request, bodies.DomainChange)
    sent = DomainSettings(change.active, change.address_per_minute, change.domain_per_minute)
    row = await plane.domains.update(actor, team, domain, sent, reading.if_match(request))
    return shown(_shape(row), row)


@endpoint(
    "DELETE",
    "/teams/{team}/domains/{domain}",
    Operation(
        id="removeDomain",
        tag=DOMAINS,
        summary="Remove a domain from the whitelist",
        description="By the entry's id, not by the domain.",
        conditional=True,
        status=204,
        raises=(RoleNeeded,),
    ),
)
async def remove(request: HttpRequest, plane: Plane, actor: CurrentActor, team: Part, domain: Part) -> Answer:
    await plane.domains.remove(actor, team, domain, reading.if_match(request))
    return done()


@endpoint(
    "POST",
    "/teams/{team}/domains/{domain}/verify",
    Operation(
        id="verifyDomain",
        tag=DOMAINS,
        summary="Look for the proof that the team owns a domain",
        takes=bodies.Nothing,
        body_required=False,
        gives=shapes.DomainView,
        tagged=True,
        raises=(RoleNeeded, NotProven),
        # DNS and HTTPS to hosts that the team chooses.
        cost=20,
    ),
)
async def verify(request: HttpRequest, plane: Plane, actor: CurrentActor, team: Part, domain: Part) -> Answer:
    await reading.body(request, bodies.Nothing, required=False)
    row = await plane.domains.verify(actor, team, domain)
    return shown(_shape(row), row)


def _shape(row: Domain) -> shapes.DomainView:
    return shapes.of(shapes.DomainView, row)


HANDLERS = [add, list_domains, check, show, update, remove, verify]
