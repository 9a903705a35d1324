"""A team's whitelisted domains: the list, adding, an entry with its limits and proof, a check of an origin."""

from __future__ import annotations

import shlex

import msgspec
from litestar import Response, post

from tollgate.api.domains import MAX_TYPED, DomainChange, NewDomain, OriginCheck
from tollgate.api.usage import By, UsageQuery
from tollgate.control.console import render
from tollgate.control.console.forms import Form, command, read_form
from tollgate.control.console.frame import Frame, open_frame, page
from tollgate.control.console.paths import HttpRequest, Part, Plane, shown
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import DomainTaken, InvalidInput, NotFound, NotProven, Problem
from tollgate.control.proofs import dns_name, record
from tollgate.control.service_context import PageRequest
from tollgate.core import origins
from tollgate.core.models import Domain

MAX_ORIGIN = 300
_TOASTS = {
    "added": "The domain is whitelisted: its pages can call now.",
    "taken": "The root domain of this address is whitelisted: its pages and those of its subdomains can call now.",
    "removed": "The entry was removed: its pages can no longer call.",
    "changed": "The entry was changed. The change takes effect within a second.",
    "verified": "The proof was found: the domain is verified.",
}


@shown("/teams/{team:str}/domains")
async def domains_page(request: HttpRequest, plane: Plane, team: Part) -> Response[str]:
    """The list, a form to add to it, and a check of an origin."""
    frame = await open_frame(request, plane, team, here="domains", toasts=_TOASTS)
    origin = request.query_params.get("origin", "").strip()[:MAX_ORIGIN]
    verdict = await plane.domains.check(frame.actor, team, origin) if origin else None
    return await _list(frame, plane, verdict=verdict)


@shown("/teams/{team:str}/domains/root")
async def root_of(request: HttpRequest, plane: Plane, team: Part) -> Response[bytes]:
    """Check a domain while it is typed."""
    frame = await open_frame(request, plane, team, here="domains")
    typed = request.query_params.get("domain", "").strip()[:MAX_TYPED]
    held = {entry.domain for entry in (await plane.domains.list(frame.actor, team, PageRequest(1_000))).items}
    try:
        root = origins.root_in(typed, allow_localhost=plane.settings.whitelist.allow_localhost)
        ok = root not in held
        taken = (
            f"{root} is a root domain." if root == typed.lower() else f"{root} will be added, with its subdomains."
        )
        text = taken if ok else f"{root} is already on the list."
    except origins.NotARootDomain as refused:
        ok, text = False, str(refused)
    return Response(msgspec.json.encode({"ok": ok, "words": text}), media_type="application/json")


@post("/teams/{team:str}/domains")
async def add(request: HttpRequest, plane: Plane, team: Part) -> Response[str]:
    """Add a domain, or take it over by proof."""
    frame = await open_frame(request, plane, team, here="domains")
    form = await read_form(request)
    domain = form.get("domain", "").strip()
    try:
        wanted = NewDomain(domain, take_over=form.get("act") == "take-over")
        entry = await plane.domains.add(frame.actor, team, wanted)
    except (DomainTaken, NotProven) as problem:
        return _proof(frame, str(problem.extras["domain"]), problem)
    except Problem as problem:
        problem.extras.setdefault("field", "domain")
        return await _list(frame, plane, domain=domain, problem=problem)
    # What was taken from a pasted URL is shown: the entry's own page names the domain.
    here = f"{frame.base}/domains"
    return render.to(f"{here}?done=added" if entry.domain == domain.lower() else f"{here}/{entry.id}?done=taken")


@shown("/teams/{team:str}/domains/{entry:str}")
async def domain_page(request: HttpRequest, plane: Plane, team: Part, entry: Part) -> Response[str]:
    frame = await open_frame(request, plane, team, here="domains", toasts=_TOASTS)
    return _entry(frame, plane, await plane.domains.show(frame.actor, team, entry))


@post("/teams/{team:str}/domains/{entry:str}")
async def change(request: HttpRequest, plane: Plane, team: Part, entry: Part) -> Response[str]:
    """Change, disable, enable, verify or remove an entry."""
    frame = await open_frame(request, plane, team, here="domains")
    form = await read_form(request)
    held = await plane.domains.show(frame.actor, team, entry)
    here = f"{frame.base}/domains"
    try:
        match form.get("act"):
            case "remove":
                if form.get("typed", "").strip().lower() != held.domain:
                    raise InvalidInput(f"Type {held.domain} to remove it.", field="typed")
                await plane.domains.remove(frame.actor, team, entry)
                return render.to(f"{here}?done=removed")
            case "verify":
                await plane.domains.verify(frame.actor, team, entry)
                return render.to(f"{here}/{entry}?done=verified")
            case "disable" | "enable" as act:
                settings = DomainChange(active=act == "enable")
            case _:
                settings = command(form, DomainChange, but=("active",))
        await plane.domains.update(frame.actor, team, entry, settings)
    except NotFound:
        raise
    except Problem as problem:
        return _entry(frame, plane, held, problem, form)
    return render.to(f"{here}/{entry}?done=changed")


async def _list(
    frame: Frame,
    plane: ControlPlane,
    *,
    domain: str = "",
    verdict: OriginCheck | None = None,
    problem: Problem | None = None,
) -> Response[str]:
    name = frame.team_name
    act = "list" if verdict is None else f"check {shlex.quote(verdict.origin)}"
    frame.commands = (f"tollgate rpc whitelist {act} --team {name}",)
    listed = await plane.domains.list(frame.actor, name, PageRequest(1_000))
    usage = await plane.usage.of_team(frame.actor, name, UsageQuery(by=By.DOMAIN))
    month = {item.key: item.requests for item in usage.items}
    entries = [(entry, month.get(entry.id, 0)) for entry in listed.items]
    return page(frame, "domains.html", problem=problem, entries=entries, domain=domain, verdict=verdict)


def _entry(
    frame: Frame, plane: ControlPlane, entry: Domain, problem: Problem | None = None, form: Form | None = None
) -> Response[str]:
    frame.crumbs, frame.title = (("Domains", f"{frame.base}/domains"),), entry.domain
    frame.commands = (f"tollgate rpc whitelist verify {entry.id} --team {frame.team_name}",)
    return page(
        frame,
        "domain.html",
        problem=problem,
        form=form,
        entry=entry,
        limits=plane.settings.limits,
        dns_name=dns_name(entry.domain),
        dns_value=record(entry.team_id),
    )


def _proof(frame: Frame, domain: str, problem: Problem) -> Response[str]:
    """Show what to publish to take a domain over, step by step."""
    frame.crumbs, frame.title = (("Domains", f"{frame.base}/domains"),), f"Take over {domain}"
    frame.commands = (f"tollgate rpc whitelist add {domain} --take-over --team {frame.team_name}",)
    return page(
        frame,
        "domain_proof.html",
        problem=problem,
        domain=domain,
        looked=isinstance(problem, NotProven),
        problems=problem.extras.get("problems", []),
        where=problem.extras,
    )
