"""Whitelisted domains: root domains only, each on one team's list; proofs of ownership and take-overs.

Proofs are looked up outside of any transaction, because a lookup takes seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from tollgate.api.domains import DomainChange, DomainSettings, NewDomain, OriginCheck
from tollgate.control.commands import checked
from tollgate.control.mail import Mailer
from tollgate.control.problems import (
    DomainTaken,
    DomainVerified,
    LimitReached,
    NameTaken,
    NotFound,
    NotProven,
    RootDomainNeeded,
)
from tollgate.control.proofs import Finding, Proofs, dns_name, record
from tollgate.control.service_context import (
    ANOTHER_TEAM,
    Actor,
    Membership,
    PageRequest,
    ResultPage,
    ServiceContext,
    changes,
    given_in,
)
from tollgate.control.versions import check_version
from tollgate.core import origins, secrets
from tollgate.core.models import Domain
from tollgate.core.roles import Action, Role
from tollgate.store.base import Conflict, Repositories


class Domains:
    """Whitelisted domains."""

    def __init__(self, context: ServiceContext, proofs: Proofs, mailer: Mailer) -> None:
        self._context = context
        self._proofs = proofs
        self._mailer = mailer
        self._localhost = context.settings.whitelist.allow_localhost

    async def add(self, actor: Actor, team: str, wanted: NewDomain) -> Domain:
        """Whitelist a root domain; with `take_over`, even one on another team's list, by proof of ownership."""
        async with self._context.changing(actor, team, Action.CHANGE_DOMAINS) as (records, membership):
            wanted = checked(wanted)
            root = self._root(wanted.domain)
            held = await records.domains.find(domain=root)
            if held is None:
                return await self._add(records, actor, membership.team.id, root, wanted)
            if held.team_id == membership.team.id:
                raise NameTaken(f"{root} is on your list already, as {held.id}.", "domain")
        if not wanted.take_over:
            raise self._taken(root, membership)
        return await self._take_over(actor, membership, held, wanted)

    async def list(self, actor: Actor, team: str, page: PageRequest) -> ResultPage[Domain]:
        async with self._context.reading(actor, team, Action.SEE_DOMAINS) as (records, membership):
            team_id = membership.team.id
            return await page.read(records.domains, f"domains:{team_id}", team_id=team_id)

    async def show(self, actor: Actor, team: str, domain_id: str) -> Domain:
        async with self._context.store.reading() as records:
            return (await self._find(records, actor, team, domain_id, Action.SEE_DOMAINS))[1]

    async def update(
        self, actor: Actor, team: str, domain_id: str, wanted: DomainChange, if_match: str | None = None
    ) -> Domain:
        async with self._context.store.changing() as records:
            membership, entry = await self._find(records, actor, team, domain_id, Action.CHANGE_DOMAINS)
            check_version(entry, if_match)
            changed = replace(entry, **given_in(checked(wanted)))
            await records.domains.replace(changed)
            await self._context.note(
                records, actor, "domain.update", team_id=membership.team.id, target=entry.id, name=entry.domain,
                **changes(entry, changed, DomainSettings.__struct_fields__),
            )  # fmt: skip
        return changed

    async def remove(self, actor: Actor, team: str, domain_id: str, if_match: str | None = None) -> None:
        async with self._context.store.changing() as records:
            membership, entry = await self._find(records, actor, team, domain_id, Action.CHANGE_DOMAINS)
            check_version(entry, if_match)
            await records.domains.remove(id=entry.id)
            await self._context.note(
                records, actor, "domain.remove", team_id=membership.team.id, target=entry.id, name=entry.domain
            )

    async def verify(self, actor: Actor, team: str, domain_id: str) -> Domain:
        """Look for the proof that the team owns the domain, and record that it was found."""
        async with self._context.store.reading() as records:
            membership, entry = await self._find(records, actor, team, domain_id, Action.CHANGE_DOMAINS)
        finding = await self._proofs.look(entry.domain, membership.team.id)
        if not finding.proven:
            raise self._not_proven(entry.domain, membership, finding)
        async with self._context.store.changing() as records:
            membership, entry = await self._find(records, actor, team, domain_id, Action.CHANGE_DOMAINS)
            verified = replace(entry, verified_at=self._context.now())
            await records.domains.replace(verified)
            await self._context.note(
                records, actor, "domain.verify", team_id=membership.team.id, target=entry.id, name=entry.domain,
                by=finding.by,
            )  # fmt: skip
        return verified

    async def check(self, actor: Actor, team: str, origin: str) -> OriginCheck:
        """Return whether a browser call from this origin would be accepted as this team's, and why."""
        async with self._context.reading(actor, team, Action.SEE_DOMAINS) as (records, membership):
            host = origins.host_of(origin, allow_localhost=self._localhost)
            if host is None:
                return OriginCheck(origin, False, self._never(origin))
            names = tuple(origins.candidates(host))
            entry = await records.domains.find(team_id=membership.team.id, domain=names)
        if entry is None:
            why = f"{host} is not on the list of {membership.team.name}. {self._to_add(host)}"
            return OriginCheck(origin, False, why)
        why = (
            f"The entry {entry.domain} ({entry.id}) covers {host}{'' if entry.active else ', but it is disabled'}."
        )
        return OriginCheck(origin, entry.active, why, entry.id, entry.domain)

    # --- Taking over -----------------------------------------------------------------------------------

    async def _take_over(self, actor: Actor, membership: Membership, held: Domain, wanted: NewDomain) -> Domain:
        finding = await self._proofs.look(held.domain, membership.team.id)
        if not finding.proven:
            raise self._not_proven(held.domain, membership, finding)
        if held.verified_at is not None:
            theirs = await self._proofs.look(held.domain, held.team_id)
            if theirs.proven or not theirs.certain:
                raise DomainVerified(
                    f"Another team has proven {held.domain}, and its proof is still published"
                    f"{'' if theirs.proven else ' as far as can be checked now'}: remove it, then try again.",
                    domain=held.domain,
                )
        async with self._context.store.changing() as records:
            membership = await self._context.membership(records, actor, membership.team.id, Action.CHANGE_DOMAINS)
            now_held = await records.domains.find(domain=held.domain)
            # Only id and proof are compared: a holder that keeps changing its settings must not block this.
            if now_held is not None and now_held.team_id == membership.team.id:
                raise NameTaken(f"{held.domain} is on your list already, as {now_held.id}.", "domain")
            if now_held is not None and (now_held.id, now_held.verified_at) != (held.id, held.verified_at):
                raise self._taken(held.domain, membership)
            if now_held is not None:
                await records.domains.remove(id=held.id)
                await self._context.note(
                    records, ANOTHER_TEAM, "domain.lost", team_id=held.team_id, target=held.id,
                    name=held.domain, why="another team proved that it owns the domain", by=finding.by,
                )  # fmt: skip
            entry = await self._add(
                records, actor, membership.team.id, held.domain, wanted, verified=True, by=finding.by
            )
            losers = await self._owners(records, held.team_id)
            losing = await records.teams.get(held.team_id)
        for email in losers:
            self._mailer.post(
                email,
                f"{held.domain} left your whitelist",
                f"Another team proved that it owns {held.domain}, so the entry {held.id} was removed from your "
                "whitelist. If the domain is yours, publish your own proof and take it back:\n\n"
                f"tollgate rpc whitelist add {held.domain} --take-over --team {losing.name if losing else ''}\n",
            )
        return entry

    async def _owners(self, records: Repositories, team_id: str) -> Sequence[str]:
        owners = await records.members.page(100, team_id=team_id, role=Role.OWNER.value)
        accounts = await records.accounts.page(100, id=tuple(owner.account_id for owner in owners))
        return [account.email for account in accounts]

    async def _add(
        self, records: Repositories, actor: Actor, team_id: str, root: str, wanted: NewDomain, *,
        verified: bool = False, **details: object,
    ) -> Domain:  # fmt: skip
        maximum = self._context.settings.accounts.domains_per_team
        if await records.domains.count(team_id=team_id) >= maximum:
            raise LimitReached(f"The team has {maximum} entries, the maximum: remove some.", limit=maximum)
        now = self._context.now()
        entry = Domain(
            id=secrets.new_id("dom"),
            team_id=team_id,
            domain=root,
            created_at=now,
            created_by=actor.label,
            verified_at=now if verified else None,
            **{name: getattr(wanted, name) for name in DomainSettings.__struct_fields__},
        )
        try:
            await records.domains.add(entry)
        except Conflict as error:
            raise NameTaken(
                f"{root} was added by another request at the same time: try again.", "domain"
            ) from error
        await self._context.note(
            records, actor, "domain.add", team_id=team_id, target=entry.id, name=root, verified=verified, **details
        )
        return entry

    async def _find(
        self, records: Repositories, actor: Actor, team: str, domain_id: str, action: Action
    ) -> tuple[Membership, Domain]:
        membership = await self._context.membership(records, actor, team, action)
        entry = await records.domains.find(id=domain_id, team_id=membership.team.id)
        if entry is None:
            raise NotFound(
                f"The team {membership.team.name} has no entry {domain_id[:60]}: "
                f"list them with `tollgate rpc whitelist list --team {membership.team.name}`."
            )
        return membership, entry

    # --- Messages ----------------------------------------------------------------------------------------

    def _root(self, domain: str) -> str:
        try:
            return origins.root_in(domain, allow_localhost=self._localhost)
        except origins.NotARootDomain as refused:
            raise RootDomainNeeded(str(refused), domain=domain, suggestion=refused.suggestion or None) from None

    def _taken(self, root: str, membership: Membership) -> DomainTaken:
        return DomainTaken(
            f"Another team has whitelisted {root}. If it is yours: "
            f"{self._proofs.how_to(root, membership.team.id)} "
            f"Then run: tollgate rpc whitelist add {root} --take-over --team {membership.team.name}",
            **self._where(root, membership),
        )

    def _not_proven(self, root: str, membership: Membership, finding: Finding) -> NotProven:
        problems = " ".join(f"{problem.rstrip('.')}." for problem in finding.problems)
        return NotProven(
            f"No proof was found that {root} belongs to {membership.team.name}. {problems} "
            f"{self._proofs.how_to(root, membership.team.id)}",
            problems=list(finding.problems),
            **self._where(root, membership),
        )

    def _where(self, root: str, membership: Membership) -> dict[str, Any]:
        return {
            "domain": root,
            "dns_name": dns_name(root),
            "dns_value": record(membership.team.id),
            "well_known_url": self._proofs.well_known_url(root),
        }

    def _never(self, origin: str) -> str:
        """Why an origin can never be whitelisted, and what to use in its place."""
        if origins.is_loopback(origin):
            allowed = "" if self._localhost else ", and ask the operator to set whitelist.allow_localhost"
            return (
                f"{origin[:256]!r} can never be whitelisted: it is an address of your own machine. Open the page "
                f"as http://localhost instead{allowed}."
            )
        kinds = "only https origins with a domain name can" + (", and localhost" if self._localhost else "")
        return f"{origin[:256]!r} can never be whitelisted: {kinds}. Write one such as https://app.example.com."

    def _to_add(self, host: str) -> str:
        try:
            root = origins.root_domain(host, allow_localhost=self._localhost)
        except origins.NotARootDomain as refused:
            if not refused.suggestion:
                return str(refused)
            root = refused.suggestion
        return f"To allow it: tollgate rpc whitelist add {root}"
