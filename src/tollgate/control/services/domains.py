"""Whitelisted domains: root domains alone, one team each, proofs and take-overs.

Proofs are looked for outside of any transaction: they take seconds, and a transaction must not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from tollgate.control.mail import Mailer
from tollgate.control.problems import (
    DomainTaken,
    DomainVerified,
    InvalidInput,
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

MAX_PER_MINUTE = 1_000_000_000


class DomainSettings(Struct, frozen=True):
    """Settings of an entry that are given; the others stay as they are."""

    active: bool | UnsetType = UNSET
    address_per_minute: int | UnsetType | None = UNSET
    domain_per_minute: int | UnsetType | None = UNSET


NOTHING = DomainSettings()


class OriginVerdict(Struct, frozen=True):
    """Whether an origin would pass, and why."""

    origin: str
    allowed: bool
    why: str
    domain_id: str | None = None
    domain: str | None = None


class Domains:
    """Whitelisted domains."""

    def __init__(self, context: ServiceContext, proofs: Proofs, mailer: Mailer) -> None:
        self._context = context
        self._proofs = proofs
        self._mailer = mailer
        self._localhost = context.settings.whitelist.allow_localhost

    async def add(
        self, actor: Actor, team: str, domain: str, wanted: DomainSettings = NOTHING, *, take_over: bool = False
    ) -> Domain:
        """Whitelist a root domain; with `take_over` also one that another team has, by proof."""
        async with self._context.store.changing() as records:
            membership = await self._context.membership(records, actor, team, Action.CHANGE_DOMAINS)
            root = self._root(domain)
            held = await records.domains.find(domain=root)
            if held is None:
                return await self._add(records, actor, membership.team.id, root, wanted)
            if held.team_id == membership.team.id:
                raise NameTaken(f"{root} is on your list already, as {held.id}.", "domain")
        if not take_over:
            raise self._taken(root, membership)
        return await self._take_over(actor, membership, held, wanted)

    async def list(self, actor: Actor, team: str, page: PageRequest) -> ResultPage[Domain]:
        async with self._context.store.reading() as records:
            membership = await self._context.membership(records, actor, team, Action.SEE_DOMAINS)
            team_id = membership.team.id
            return await page.read(records.domains, f"domains:{team_id}", team_id=team_id)

    async def show(self, actor: Actor, team: str, domain_id: str) -> Domain:
        async with self._context.store.reading() as records:
            return (await self._find(records, actor, team, domain_id, Action.SEE_DOMAINS))[1]

    async def update(
        self, actor: Actor, team: str, domain_id: str, wanted: DomainSettings, if_match: str | None = None
    ) -> Domain:
        async with self._context.store.changing() as records:
            membership, entry = await self._find(records, actor, team, domain_id, Action.CHANGE_DOMAINS)
            check_version(entry, if_match)
            changed = _with(entry, wanted)
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
        """Look for the proof that the team owns the domain, and note that it was found."""
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

    async def check(self, actor: Actor, team: str, origin: str) -> OriginVerdict:
        """Return whether a browser call from this origin would pass as this team's, and why."""
        async with self._context.store.reading() as records:
            membership = await self._context.membership(records, actor, team, Action.SEE_DOMAINS)
            host = origins.host_of(origin, allow_localhost=self._localhost)
            if host is None:
                return OriginVerdict(origin, False, self._never(origin))
            names = tuple(origins.candidates(host))
            entry = await records.domains.find(team_id=membership.team.id, domain=names)
        if entry is None:
            return OriginVerdict(
                origin, False, f"{host} is not on the list of {membership.team.name}. {self._to_add(host)}"
            )
        if not entry.active:
            why = f"The entry {entry.domain} ({entry.id}) covers {host}, but it is switched off."
            return OriginVerdict(origin, False, why, entry.id, entry.domain)
        return OriginVerdict(
            origin, True, f"The entry {entry.domain} ({entry.id}) covers {host}.", entry.id, entry.domain
        )

    # --- Taking over -----------------------------------------------------------------------------------

    async def _take_over(
        self, actor: Actor, membership: Membership, held: Domain, wanted: DomainSettings
    ) -> Domain:
        finding = await self._proofs.look(held.domain, membership.team.id)
        if not finding.proven:
            raise self._not_proven(held.domain, membership, finding)
        if held.verified_at is not None:
            theirs = await self._proofs.look(held.domain, held.team_id)
            if theirs.proven or not theirs.certain:
                raise DomainVerified(
                    f"Another team has proven {held.domain}, and its proof still stands"
                    f"{'' if theirs.proven else ' as far as can be checked now'}: remove it, then try again.",
                    domain=held.domain,
                )
        async with self._context.store.changing() as records:
            membership = await self._context.membership(records, actor, membership.team.id, Action.CHANGE_DOMAINS)
            now_held = await records.domains.find(domain=held.domain)
            # Its settings may have changed: who holds it could otherwise keep it by changing them over and over.
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
        self, records: Repositories, actor: Actor, team_id: str, root: str, wanted: DomainSettings, *,
        verified: bool = False, **details: object,
    ) -> Domain:  # fmt: skip
        most = self._context.settings.accounts.domains_per_team
        if await records.domains.count(team_id=team_id) >= most:
            raise LimitReached(f"The team has {most} entries, the most that it may: remove some.", limit=most)
        now = self._context.now()
        blank = Domain(
            id=secrets.new_id("dom"),
            team_id=team_id,
            domain=root,
            created_at=now,
            created_by=actor.label,
            verified_at=now if verified else None,
        )
        entry = _with(blank, wanted)
        try:
            await records.domains.add(entry)
        except Conflict as error:
            raise NameTaken(f"{root} was taken this very moment: try again.", "domain") from error
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

    # --- Words -----------------------------------------------------------------------------------------

    def _root(self, domain: str) -> str:
        try:
            # Longer than any name: the rest would only stand in the answer.
            return origins.root_domain(domain.strip()[:300], allow_localhost=self._localhost)
        except origins.NotARootDomain as refused:
            raise RootDomainNeeded(
                str(refused), domain=domain[:253], suggestion=refused.suggestion or None
            ) from None

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
        words = "can never be whitelisted: only https origins with a domain name can"
        if self._localhost:
            words += ", and localhost"
        return f"{origin[:256]!r} {words}. Write one such as https://app.example.com."

    def _to_add(self, host: str) -> str:
        try:
            root = origins.root_domain(host, allow_localhost=self._localhost)
        except origins.NotARootDomain as refused:
            if not refused.suggestion:
                return str(refused)
            root = refused.suggestion
        return f"To allow it: tollgate rpc whitelist add {root}"


def _with(entry: Domain, wanted: DomainSettings) -> Domain:
    given = given_in(wanted)
    for name in ("address_per_minute", "domain_per_minute"):
        if given.get(name) is not None and not 1 <= given[name] <= MAX_PER_MINUTE:
            raise InvalidInput(f"`{name}` is from 1 to {MAX_PER_MINUTE}, or null for the usual.", field=name)
    return replace(entry, **given)
