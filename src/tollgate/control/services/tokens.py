"""API tokens: created, shown once, changed, rotated, deleted. The gateway enforces their settings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from msgspec.structs import replace

from tollgate.api.tokens import NewToken, Rotation, TokenChange
from tollgate.chains.access import may_be_called
from tollgate.chains.contracts import is_address
from tollgate.control.commands import Rule, accepted, checked
from tollgate.control.problems import InvalidInput, LimitReached, NameTaken, NotFound
from tollgate.control.service_context import (
    MAX_ROWS,
    Actor,
    Membership,
    PageRequest,
    ResultPage,
    ServiceContext,
    changes,
    name_of,
)
from tollgate.control.versions import check_version
from tollgate.core import secrets
from tollgate.core.addresses import parse_networks
from tollgate.core.methods import is_pattern
from tollgate.core.models import Lineage, Team, Token
from tollgate.core.roles import Action
from tollgate.store.base import Conflict, Repositories

_ID = re.compile(r"tok_[0-9A-Za-z]{16}")
PLAYGROUND = "playground"
PLAYGROUND_SECONDS = 900.0
# Late enough for everyone, and early enough for every database, calendar and shell.
LATEST = datetime(9999, 1, 1, tzinfo=UTC).timestamp()


class TokenService:
    """API tokens."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._rules: dict[str, Rule] = {
            "name": name_of,
            "networks": self._check_networks,
            "methods": self._check_methods,
            "expires_at": self._check_expiry,
            "addresses": _check_addresses,
            "contracts": _check_contracts,
        }

    async def create(self, actor: Actor, team: str, wanted: NewToken) -> tuple[Token, str]:
        async with self._context.changing(actor, team, Action.CHANGE_TOKENS) as (records, membership):
            return await self.add(records, actor, membership.team.id, wanted)

    async def add(self, records: Repositories, actor: Actor, team_id: str, wanted: NewToken) -> tuple[Token, str]:
        secret = secrets.new_token()
        token = Token(
            id=secrets.new_id("tok"),
            team_id=team_id,
            prefix=secrets.shown_prefix(secret),
            created_at=self._context.now(),
            created_by=actor.label,
            **accepted(wanted, self._rules),
        )
        await self._keep(records, token, secret)
        await self._context.note(
            records, actor, "token.create", team_id=team_id, target=token.id, name=token.name, prefix=token.prefix
        )
        return token, secret

    async def _keep(self, records: Repositories, token: Token, secret: str) -> None:
        maximum = self._context.settings.accounts.tokens_per_team
        if await records.tokens.count(team_id=token.team_id, playground_of="") >= maximum:
            raise LimitReached(f"The team has {maximum} tokens, the maximum: delete some.", limit=maximum)
        try:
            await records.tokens.add(token, digest=self._context.digest(secret))
        except Conflict as error:
            raise _taken(token.name) from error

    async def list(self, actor: Actor, team: str, page: PageRequest) -> ResultPage[Token]:
        async with self._context.reading(actor, team, Action.SEE_TOKENS) as (records, membership):
            team_id = membership.team.id
            return await page.read(records.tokens, f"tokens:{team_id}", team_id=team_id, playground_of="")

    async def playground(self, actor: Actor, team: str) -> tuple[Token, str]:
        """The token of the actor's own calls, for the playground and `tollgate rpc call`.

        One for each account and team, which lists do not show. It works for some minutes; while it does, the same
        secret is given again.
        """
        try:
            return await self._playground(actor, team)
        except Conflict:
            # Another request of the account has just made it.
            return await self._playground(actor, team)

    async def _playground(self, actor: Actor, team: str) -> tuple[Token, str]:
        now = self._context.now()
        async with self._context.changing(actor, team, Action.CHANGE_TOKENS) as (records, membership):
            known = await records.tokens.find(team_id=membership.team.id, playground_of=actor.id)
            if known is not None and known.expires_at is not None and known.expires_at > now:
                is_fresh = known.expires_at - now > PLAYGROUND_SECONDS / 2
                token = known if is_fresh else replace(known, expires_at=now + PLAYGROUND_SECONDS)
            else:
                token = Token(
                    known.id if known else secrets.new_id("tok"), membership.team.id, PLAYGROUND, "", now,
                    actor.label, expires_at=now + PLAYGROUND_SECONDS, show_upstream=True, playground_of=actor.id,
                )  # fmt: skip
            secret = self._context.derived_token(f"{token.id} {token.created_at!r}")
            token = replace(token, prefix=secrets.shown_prefix(secret))
            if known is None:
                await self._context.note(
                    records,
                    actor,
                    "playground.create",
                    team_id=membership.team.id,
                    target=token.id,
                    name=PLAYGROUND,
                )
            elif token != known:
                await records.tokens.remove(id=known.id)
            if token != known:
                await records.tokens.add(token, digest=self._context.digest(secret))
        return token, secret

    async def show(self, actor: Actor, team: str, token_id: str) -> Token:
        async with self._context.store.reading() as records:
            return (await self._find(records, actor, team, token_id, Action.SEE_TOKENS))[1]

    async def update(
        self, actor: Actor, team: str, token_id: str, wanted: TokenChange, if_match: str | None = None
    ) -> Token:
        async with self._context.store.changing() as records:
            membership, token = await self._find(records, actor, team, token_id, Action.CHANGE_TOKENS)
            check_version(token, if_match)
            changed = replace(token, **accepted(wanted, self._rules))
            await _write(records, changed)
            await self._context.note(
                records, actor, "token.update", team_id=membership.team.id, target=token.id, name=changed.name,
                **changes(token, changed, TokenChange.__struct_fields__),
            )  # fmt: skip
        return changed

    async def rotate(self, actor: Actor, team: str, token_id: str, wanted: Rotation) -> tuple[Token, str]:
        """Issue a successor that takes over the name; the old secret works for the overlap."""
        now, overlap = self._context.now(), checked(wanted).overlap_seconds
        async with self._context.store.changing() as records:
            membership, old = await self._find(records, actor, team, token_id, Action.CHANGE_TOKENS)
            if not old.active or (old.expires_at is not None and old.expires_at <= now):
                raise InvalidInput("A token that is disabled or has expired cannot be rotated: create a new one.")
            successor = await records.tokens.find(team_id=membership.team.id, replaces=old.id)
            if successor is not None:
                raise InvalidInput(f"This token was rotated already: rotate its successor {successor.id}.")
            ends = min(now + overlap, old.expires_at or LATEST)
            await _write(records, replace(old, name=_old_name(old, ends), expires_at=ends))
            new, secret = self._successor(actor, old)
            await self._keep(records, new, secret)
            await _join(records, old, new)
            await self._context.note(
                records, actor, "token.rotate", team_id=membership.team.id, target=old.id, name=old.name,
                successor=new.id, prefix=new.prefix, old_works_until=ends,
            )  # fmt: skip
        return new, secret

    def _successor(self, actor: Actor, old: Token) -> tuple[Token, str]:
        """A token with all settings of another, even those that would be refused today."""
        now, secret = self._context.now(), secrets.new_token()
        lives = None if old.expires_at is None else min(now + old.expires_at - old.created_at, LATEST)
        new = replace(
            old,
            id=secrets.new_id("tok"),
            prefix=secrets.shown_prefix(secret),
            created_at=now,
            created_by=actor.label,
            last_used_at=None,
            expires_at=lives,
            replaces=old.id,
        )
        return new, secret

    async def delete(self, actor: Actor, team: str, token_id: str, if_match: str | None = None) -> None:
        """Delete a token; it stops working within a second."""
        async with self._context.store.changing() as records:
            membership, token = await self._find(records, actor, team, token_id, Action.CHANGE_TOKENS)
            check_version(token, if_match)
            await records.tokens.remove(id=token.id)
            await self._context.note(
                records, actor, "token.delete", team_id=membership.team.id, target=token.id, name=token.name
            )

    async def _find(
        self, records: Repositories, actor: Actor, team: str, token_id: str, action: Action
    ) -> tuple[Membership, Token]:
        membership = await self._context.membership(records, actor, team, action)
        token = await records.tokens.find(id=token_id, team_id=membership.team.id, playground_of="")
        if token is None:
            raise NotFound(
                f"The team {membership.team.name} has no token {token_id[:60]}: "
                f"list them with `tollgate rpc tokens list --team {membership.team.name}`."
            )
        return membership, token

    def _check_networks(self, networks: Sequence[str]) -> tuple[str, ...]:
        served = self._context.settings.networks
        for network in networks:
            if network not in served:
                known = ", ".join(served) or "none"
                raise InvalidInput(f"{network[:60]!r} is not served here. Served: {known}.", field="networks")
        return tuple(dict.fromkeys(networks))

    def _check_methods(self, methods: Sequence[str]) -> tuple[str, ...]:
        networks = self._context.settings.networks.values()
        opened = tuple(pattern for network in networks for pattern in network.open_methods)
        for pattern in methods:
            if not is_pattern(pattern):
                raise InvalidInput(
                    f"{pattern[:60]!r} is not a method: write one such as eth_call, or a pattern like eth_get*.",
                    field="methods",
                )
            if not may_be_called(pattern, opened):
                raise InvalidInput(
                    f"Methods such as {pattern[:60]} are refused on every network here; "
                    "the operator can open them (`open_methods`).",
                    field="methods",
                )
        return tuple(dict.fromkeys(methods))

    def _check_expiry(self, moment: datetime) -> float:
        at = moment.timestamp()
        if not self._context.now() < at <= LATEST:
            raise InvalidInput(
                "`expires_at` must lie in the future, but not beyond the year 9998.", field="expires_at"
            )
        return at


async def _join(records: Repositories, old: Token, new: Token) -> None:
    known = await records.lineages.get(old.id)
    if known is None:
        known = Lineage(old.id, old.created_at, old.team_id, old.id)
        await records.lineages.add(known)
    await records.lineages.add(Lineage(new.id, new.created_at, new.team_id, known.first_id))


async def end_playground(records: Repositories, account_id: str, **where: str) -> None:
    """Remove the tokens of an account's own calls: it lost a role, a team or itself."""
    await records.tokens.remove(playground_of=account_id, **where)


async def token_ids(records: Repositories, team: Team, token: str) -> tuple[str, ...]:
    """The ids of a token, given by id or name, and of all in its lineage: the first, then the newest.

    Ids of deleted tokens are valid too: they have logs and usage.
    """
    if not _ID.fullmatch(token):
        named = await records.tokens.page(MAX_ROWS, team_id=team.id, name=token)
        if not named:
            raise NotFound(
                f"The team {team.name} has no token {token[:60]!r}: list them with "
                f"`tollgate rpc tokens list --team {team.name}`, or give the id of a deleted one."
            )
        own = [each.id for each in named if not each.playground_of]
        if not own:
            return tuple(each.id for each in named)
        token = own[0]
    known = await records.lineages.find(id=token, team_id=team.id)
    if known is None:
        return (token,)
    lineage = await records.lineages.page(MAX_ROWS, newest_first=True, team_id=team.id, first_id=known.first_id)
    return tuple(dict.fromkeys((known.first_id, *(each.id for each in lineage))))


def _check_addresses(given: Sequence[str]) -> tuple[str, ...]:
    try:
        return tuple(dict.fromkeys(map(str, parse_networks(given))))
    except ValueError:
        raise InvalidInput(
            "`addresses` holds IP addresses or networks, such as 192.0.2.7 or 2001:db8::/32.", field="addresses"
        ) from None


def _check_contracts(given: Sequence[str]) -> tuple[str, ...]:
    for address in given:
        if not is_address(address):
            raise InvalidInput(
                f"{address[:80]!r} is not the address of a contract: write it in hex, 0x….", field="contracts"
            )
    return tuple(dict.fromkeys(address.lower() for address in given))


def _old_name(token: Token, ends: float) -> str:
    """A name for a token that was replaced. Its own id keeps it unique."""
    day = datetime.fromtimestamp(ends, UTC).strftime("%Y-%m-%d")
    return f"{token.name[:60]}-until-{day}-{token.id[-6:]}"


async def _write(records: Repositories, token: Token) -> None:
    try:
        await records.tokens.replace(token)
    except Conflict as error:
        raise _taken(token.name) from error


def _taken(name: str) -> NameTaken:
    return NameTaken(f"The team has a token named {name!r} already: choose another name.", "name")
