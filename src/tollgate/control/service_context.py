"""What all services share: the store, the clock, the actor, membership of a team, the audit log, pages.

Rules of a single service must not enter. Every change is audited in the transaction that makes it.
"""

from __future__ import annotations

import asyncio
import difflib
import re
from asyncio import sleep
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import asdict

from tollgate.api import base
from tollgate.control.problems import InvalidInput, LogInAgain, NoSuchTeam, PersonalTokenRefused, RoleNeeded
from tollgate.core import audit_chain, cursors, durations, secrets
from tollgate.core.audit_chain import AuditChain
from tollgate.core.cursors import Position
from tollgate.core.models import Team
from tollgate.core.people import PERSONAL, Account, AuditEntry, Login, Member
from tollgate.core.roles import Action, Role, allows, holders
from tollgate.settings.model import Settings
from tollgate.store.base import ControlStore, Repositories, Repository, StoreUnavailable

# Several times what the database needs for the work whose duration is hidden.
CONSTANT_SECONDS = 0.2
# An authentication before this does not prove that the owner is present.
RECENT_SECONDS = 900.0
MAX_ROWS, USUAL_ROWS = base.MAX_ROWS, base.USUAL_ROWS
# A dot-string of RFC 5321, in ASCII: with a comma, a bracket or an encoded word (`=?`, RFC 2047) a mail's header
# could name another recipient.
_EMAIL = re.compile(r"(?!.*=\?)[a-z0-9!#$%&'*+/=?^_`{|}~.-]{1,64}@[a-z0-9-]{1,63}(\.[a-z0-9-]{1,63})+")
_MAX_EMAIL = 254
# No control characters, no bidirectional or invisible ones and no lone surrogates: two names that look the same
# are the same. Joiners are allowed: some scripts and emojis need them.
_PRINTABLE = re.compile(
    r"[^\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff"
    r"\U000e0000-\U000e007f]*"
)


class ClientInfo(Struct, frozen=True):
    """Where a request came from."""

    address: str = ""
    agent: str = ""
    request_id: str = ""


NOWHERE = ClientInfo()


class Actor(Struct, frozen=True):
    """Who acts: a person with one of their logins, or, without an account, the operator."""

    account: Account | None
    login: Login | None = None
    client: ClientInfo = NOWHERE
    other: str = "operator"
    """Who acts without an account."""

    @property
    def id(self) -> str:
        """The account's id; empty for the operator."""
        return self.account.id if self.account else ""

    @property
    def is_operator(self) -> bool:
        """Whether this is an account that `tollgate admin operator` has marked, by a login for all its teams."""
        of_team = self.login is not None and self.login.team_id is not None
        return self.account is not None and self.account.operator and not of_team

    @property
    def label(self) -> str:
        """This actor's name in the audit log."""
        return self.account.email if self.account else self.other

    @property
    def via(self) -> str:
        if self.login is None:
            return self.other if self.account is None else "console"
        return f"{self.login.kind}:{self.login.name}" if self.login.kind == PERSONAL else self.login.kind

    def person(self, what: str) -> Account:
        """The account of a person; refuse a program with a personal token."""
        if self.account is None or (self.login is not None and self.login.kind == PERSONAL):
            raise PersonalTokenRefused(what)
        return self.account


OPERATOR = Actor(None)
# The actor shown to a team that lost something to another team: anonymous.
ANOTHER_TEAM = Actor(None, other="another team")


class Membership(Struct, frozen=True):
    """A team and one of its members."""

    team: Team
    member: Member

    @property
    def role(self) -> Role:
        return Role(self.member.role)


class Ordered(Protocol):
    """An item of a list."""

    @property
    def id(self) -> str: ...

    @property
    def created_at(self) -> float: ...


Item = TypeVar("Item", bound=Ordered)
Part = TypeVar("Part")


class ResultPage(Struct, Generic[Part], frozen=True):
    """A page of a list, and the cursor of the next."""

    items: list[Part]
    next: str | None


class PageRequest(Struct, frozen=True):
    """Which page of a list is requested."""

    limit: int = USUAL_ROWS
    after: str | None = None

    def place(self, scope: str) -> Position | None:
        if self.after is None:
            return None
        try:
            return cursors.read(scope, self.after)
        except cursors.BadCursor as error:
            raise InvalidInput(str(error), field="after") from error

    async def read(self, repository: Repository[Any], scope: str, **where: Any) -> ResultPage[Any]:
        """Read this page of the matching rows."""
        return page_of(scope, await repository.page(self.limit + 1, self.place(scope), **where), self.limit)


def page_of(scope: str, found: list[Item], limit: int) -> ResultPage[Item]:
    """Make a page from up to one item more than it may hold."""
    items = found[:limit]
    last = items[-1] if len(found) > limit else None
    return ResultPage(items, cursors.write(scope, Position(last.created_at, last.id)) if last else None)


@asynccontextmanager
async def constant_time() -> AsyncIterator[None]:
    """Take a fixed time, so that the duration of an answer does not reveal who has an account."""
    until = asyncio.get_running_loop().time() + CONSTANT_SECONDS
    try:
        yield
    finally:
        await sleep(until - asyncio.get_running_loop().time())


class ServiceContext:
    """What all services share."""

    def __init__(
        self,
        store: ControlStore,
        settings: Settings,
        pepper: bytes,
        base_url: str,
        now: Callable[[], float],
        previous_pepper: bytes | None = None,
        audit_key: bytes = b"",
    ) -> None:
        self.store = store
        self.settings = settings
        self.base_url = base_url
        self.now = now
        self._pepper = pepper
        self._previous_pepper = previous_pepper
        self._audit_key = audit_key or secrets.derive(pepper, "audit")

    def digest(self, secret: str, purpose: str = secrets.TOKENS) -> bytes:
        """The digest of a secret, which the store has in its place."""
        return self.digests(secret, purpose)[0]

    def derived_token(self, text: str) -> str:
        """A secret that is never stored and yet can be shown again: made from the pepper and a text."""
        return secrets.derived_token(self._pepper, text)

    def digests(self, secret: str, purpose: str = secrets.TOKENS) -> tuple[bytes, ...]:
        """The digests that the store may have of a secret: two while the pepper is being replaced."""
        # Any input has a digest, even one with lone surrogates: no account has it.
        text = secret.encode(errors="surrogatepass")
        peppers = (self._pepper, self._previous_pepper)
        return tuple(secrets.digest(text, pepper, purpose) for pepper in peppers if pepper is not None)

    def key(self, kind: str, text: str) -> str:
        """A key for something that must not be stored in clear, such as a mistyped address."""
        return f"{kind}:{self.digest(text, secrets.LIMIT_KEYS).hex()[:40]}"

    def authenticated_at(self, actor: Actor) -> float | None:
        """When the actor last authenticated: one without a login has done so just now."""
        return self.now() if actor.login is None else actor.login.authenticated_at

    def recent(self, actor: Actor, what: str) -> Account:
        """The account of a person who authenticated recently: for what outlives the login, such as a passkey."""
        account = actor.person(what)
        if self.now() - (self.authenticated_at(actor) or 0.0) > RECENT_SECONDS:
            raise LogInAgain(what)
        return account

    @asynccontextmanager
    async def reading(
        self, actor: Actor, team: str, action: Action
    ) -> AsyncIterator[tuple[Repositories, Membership]]:
        """Read as a member of a team who may do this."""
        async with self.store.reading() as records:
            yield records, await self.membership(records, actor, team, action)

    @asynccontextmanager
    async def changing(
        self, actor: Actor, team: str, action: Action
    ) -> AsyncIterator[tuple[Repositories, Membership]]:
        """Change something as a member of a team who may do this."""
        async with self.store.changing() as records:
            yield records, await self.membership(records, actor, team, action)

    async def member(self, actor: Actor, team: str, action: Action) -> Membership:
        """The membership alone, of a member who may do this."""
        async with self.store.reading() as records:
            return await self.membership(records, actor, team, action)

    async def membership(self, records: Repositories, actor: Actor, team: str, action: Action) -> Membership:
        """Return the membership of a member who may do this; others learn nothing about the team."""
        found = await team_named(records, team)
        member = None
        if found is not None and actor.login is not None and actor.login.team_id not in (None, found.id):
            raise NoSuchTeam(team[:60], None)
        if found is not None and actor.account is not None:
            member = await records.members.find(team_id=found.id, account_id=actor.account.id)
        if found is None or member is None:
            raise NoSuchTeam(team[:60], await _nearest(records, actor, team))
        role = Role(member.role)
        if not allows(role, action):
            raise RoleNeeded(action.value, role.value, [each.value for each in holders(action)])
        return Membership(found, member)

    async def note(
        self,
        records: Repositories,
        actor: Actor,
        action: str,
        *,
        team_id: str | None = None,
        target: str = "",
        name: str = "",
        **details: object,
    ) -> None:
        chain = audit_chain.chain_of(team_id)
        known = await records.audit_chains.get(chain)
        entry, end = audit_chain.linked(
            AuditEntry(
                id=secrets.new_id("aud"),
                created_at=self.now(),
                action=action,
                actor=actor.label,
                actor_id=actor.id or None,
                team_id=team_id,
                target=target,
                name=name[:254],
                details=msgspec.json.encode(details).decode(),
                address=actor.client.address,
                via=actor.via,
                request_id=actor.client.request_id,
            ),
            known or AuditChain(chain, self.now()),
            self._audit_key,
        )
        await records.audit.add(entry)
        await (records.audit_chains.replace(end) if known else records.audit_chains.add(end))


def required(part: Part | None) -> Part:
    """The ledger or the inspector; the plane of the operator's commands has neither."""
    if part is None:
        raise StoreUnavailable("no ledger is open here")
    return part


def given_in(wanted: Struct) -> dict[str, Any]:
    """The members of a change that were given."""
    return {name: value for name, value in asdict(wanted).items() if value is not UNSET}


def seconds_of(duration: str | None) -> int | None:
    """The seconds of a duration such as 24h, which its pattern has checked."""
    return None if duration is None else durations.parse(duration)


def changes(before: Struct, after: Struct, names: Iterable[str]) -> dict[str, dict[str, object]]:
    """What differs between two states, for the audit log: old and new value of each member."""
    differing = [name for name in names if getattr(before, name) != getattr(after, name)]
    return {
        "before": {name: getattr(before, name) for name in differing},
        "after": {name: getattr(after, name) for name in differing},
    }


async def team_named(records: Repositories, team: str) -> Team | None:
    """A team by its id or its name; names have no underscore, so the two cannot be confused."""
    return await (records.teams.get(team) if "_" in team else records.teams.find(name=team))


async def _nearest(records: Repositories, actor: Actor, team: str) -> str | None:
    """The name of the actor's team that is most similar."""
    members = await records.members.page(MAX_ROWS, account_id=actor.id)
    teams = await records.teams.page(MAX_ROWS, id=tuple(member.team_id for member in members))
    return next(iter(difflib.get_close_matches(team[:60].lower(), sorted(each.name for each in teams), n=1)), None)


def email_of(text: str) -> str:
    """An address as it is stored; refuse one that is not valid."""
    email = text.strip()
    # Lower-cased after the check: some letters beyond ASCII become ASCII, and would be another address.
    if email.isascii():
        email = email.lower()
    if len(email) > _MAX_EMAIL or not _EMAIL.fullmatch(email):
        raise InvalidInput(
            f"{text[:60]!r} is not an email address: write one such as ada@example.com.", field="email"
        )
    return email


def name_of(text: str, *, field: str = "name", max_length: int = 100, min_length: int = 1) -> str:
    """A name as it is stored; refuse one that is not valid."""
    name = text.strip()
    if not min_length <= len(name) <= max_length or not _PRINTABLE.fullmatch(name):
        raise InvalidInput(f"`{field}` has {min_length} to {max_length} printable characters.", field=field)
    return name


async def every(
    repository: Repository[Any],
    kind: type[Item],  # noqa: ARG001 - types the items
    **where: Any,
) -> AsyncIterator[Item]:
    """Yield every matching row in order of creation. `kind` is the table's type."""
    after: Position | None = None
    while True:
        page: list[Item] = await repository.page(MAX_ROWS, after, **where)
        for row in page:
            yield row
        if len(page) < MAX_ROWS:
            return
        after = Position(page[-1].created_at, page[-1].id)
