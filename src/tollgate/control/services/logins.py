"""Logins: authenticating by a secret, browser sessions, the tool's tokens, personal access tokens.

An access token is valid for an hour and is renewed with a refresh token, which is rotated on every use. An old
refresh token that is used again after a grace period was stolen: the login ends (RFC 9700, section 4.14).
"""

from __future__ import annotations

from msgspec import UNSET, Struct
from msgspec.structs import replace

from tollgate.api.me import DEFAULT_DAYS, NewPersonalToken
from tollgate.control.commands import checked
from tollgate.control.problems import LimitReached, LoginExpired, NotFound, NotLoggedIn
from tollgate.control.service_context import (
    NOWHERE,
    Actor,
    ClientInfo,
    PageRequest,
    ResultPage,
    ServiceContext,
    name_of,
)
from tollgate.core import secrets
from tollgate.core.people import CONSOLE, PERSONAL, TOOL, Account, Login
from tollgate.core.roles import Action
from tollgate.store.base import Repositories

# A tool repeats a refresh whose response was lost; a repetition after this comes from someone else.
REFRESH_GRACE_SECONDS = 60.0
LAST_USED_SECONDS = 60.0
MAX_LOGINS = 200
DAY = 86_400.0


class Secrets(Struct, frozen=True):
    """The access and refresh token of a tool; shown once."""

    access: str
    refresh: str
    expires_in: int

    def __repr__(self) -> str:
        return "Secrets(…)"


class Logins:
    """Logins of accounts."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    # --- Authentication --------------------------------------------------------------------------------

    async def actor(self, client: ClientInfo, secret: str, *kinds: str) -> Actor:
        if not any(secrets.well_formed(secret, _PREFIX[kind]) for kind in kinds):
            if secrets.well_formed(secret):
                raise NotLoggedIn("API tokens only work for /x/: log in, or use a personal access token (tgp_…).")
            raise NotLoggedIn("The credential is not valid: log in again.")
        now = self._context.now()
        async with self._context.store.reading() as records:
            login = await records.logins.find(digest=self._context.digests(secret))
            account = await records.accounts.get(login.account_id) if login else None
        if login is None or account is None or login.kind not in kinds or not account.active:
            raise LoginExpired
        if login.expires_at is not None and now >= login.expires_at:
            raise LoginExpired
        if login.last_used_at is None or now - login.last_used_at >= LAST_USED_SECONDS:
            login = await self._used(login, now)
        return Actor(account, login, client)

    async def _used(self, login: Login, now: float) -> Login:
        async with self._context.store.changing() as records:
            # Read again: a refresh in the meantime has rotated its secrets, and must not be undone.
            current = await records.logins.get(login.id)
            if current is None:
                raise LoginExpired
            used = replace(current, last_used_at=now)
            await records.logins.replace(used)
        return used

    async def open_session(self, client: ClientInfo, account: Account) -> str:
        """Sign a browser in; return the secret of its cookie."""
        secret = secrets.new_token(secrets.SESSION)
        until = self._context.now() + 3600.0 * self._context.settings.accounts.session_hours
        login = self._new(account.id, CONSOLE, _browser(client.agent), secret, until, client)
        login = replace(login, authenticated_at=self._context.now())
        async with self._context.store.changing() as records:
            await self._add(records, login)
            await self._context.note(
                records, Actor(account, login, client), "login.open", target=login.id, name=login.name
            )
        return secret

    # --- The actor's own -------------------------------------------------------------------------------

    async def list(self, actor: Actor, page: PageRequest) -> ResultPage[Login]:
        async with self._context.store.reading() as records:
            return await page.read(records.logins, f"logins:{actor.id}", account_id=actor.id)

    async def end(self, actor: Actor, login_id: str) -> None:
        """End one of the actor's logins, or the current one."""
        async with self._context.store.changing() as records:
            login = await records.logins.find(id=login_id, account_id=actor.id)
            if login is None:
                raise NotFound(
                    f"You have no login {login_id[:60]}: personal tokens are listed by "
                    "`tollgate account tokens list`, all logins by the console."
                )
            await records.logins.remove(id=login.id)
            await self._context.note(
                records, actor, "login.end", target=login.id, name=login.name, kind=login.kind
            )

    async def new_personal(self, actor: Actor, wanted: NewPersonalToken) -> tuple[Login, str]:
        """Create a personal access token; its secret is shown once."""
        account = self._context.recent(actor, "create personal access tokens")
        async with self._context.store.changing() as records:
            return await self.add_personal(records, actor, account, wanted)

    async def add_personal(
        self, records: Repositories, actor: Actor, account: Account, wanted: NewPersonalToken
    ) -> tuple[Login, str]:
        days = checked(wanted).expires_in_days
        if days is UNSET:
            days = DEFAULT_DAYS
        team_id = None
        if wanted.team is not None:
            team_id = (await self._context.membership(records, actor, wanted.team, Action.SEE_TEAM)).team.id
        secret = secrets.new_token(secrets.PERSONAL)
        until = None if days is None else self._context.now() + DAY * days
        login = self._new(account.id, PERSONAL, name_of(wanted.name), secret, until, actor.client)
        authenticated_at = self._context.authenticated_at(actor)
        login = replace(login, team_id=team_id, read_only=wanted.read_only, authenticated_at=authenticated_at)
        await self._add(records, login)
        await self._context.note(records, actor, "personal_token.create", target=login.id, name=login.name)
        return login, secret

    # --- The tool's ------------------------------------------------------------------------------------

    async def issue(
        self,
        records: Repositories,
        client: ClientInfo,
        account: Account,
        machine: str,
        authenticated_at: float | None,
    ) -> Secrets:
        """Log a tool in that was approved by a person who authenticated then."""
        given = self._secrets()
        login = self._new(account.id, TOOL, machine or "tollgate", given.access, None, client)
        login = self._renewed(replace(login, authenticated_at=authenticated_at), given)
        await self._add(records, login)
        who = Actor(account, login, client)
        await self._context.note(records, who, "login.open", target=login.id, name=login.name)
        return given

    async def refresh(self, refresh_token: str, client: ClientInfo = NOWHERE) -> Secrets:
        if not secrets.well_formed(refresh_token, secrets.REFRESH):
            raise LoginExpired
        digest = self._context.digests(refresh_token)
        now = self._context.now()
        async with self._context.store.changing() as records:
            login = await records.logins.find(refresh_digest=digest)
            stolen = False
            if login is None:
                login = await records.logins.find(old_refresh_digest=digest)
                stolen = login is not None and now - (login.refreshed_at or 0.0) > REFRESH_GRACE_SECONDS
            account = await records.accounts.get(login.account_id) if login else None
            usable = login is not None and account is not None and account.active and not stolen
            if usable and login is not None and now < (login.refresh_until or 0.0):
                given = self._secrets()
                renewed = self._renewed(login, given)
                await records.logins.replace(replace(renewed, old_refresh_digest=login.refresh_digest))
                return given
            if login is not None and stolen:
                await records.logins.remove(id=login.id)
                who = Actor(account, login, client)
                await self._context.note(records, who, "login.reused", target=login.id, name=login.name)
        raise LoginExpired

    async def revoke(self, client: ClientInfo, secret: str) -> None:
        """End the login that an access or refresh token belongs to, if there is one (RFC 7009)."""
        digest = self._context.digests(secret)
        async with self._context.store.changing() as records:
            # The previous refresh token counts too: a tool that lost the response has no other.
            columns = ("digest", "refresh_digest", "old_refresh_digest")
            found = [await records.logins.find(**{column: digest}) for column in columns]
            login = next(filter(None, found), None)
            if login is None:
                return
            await records.logins.remove(id=login.id)
            account = await records.accounts.get(login.account_id)
            who = Actor(account, login, client)
            await self._context.note(records, who, "login.end", target=login.id, name=login.name, kind=login.kind)

    def _secrets(self) -> Secrets:
        return Secrets(
            secrets.new_token(secrets.ACCESS),
            secrets.new_token(secrets.REFRESH),
            60 * self._context.settings.accounts.access_minutes,
        )

    def _renewed(self, login: Login, given: Secrets) -> Login:
        now = self._context.now()
        return replace(
            login,
            digest=self._context.digest(given.access),
            expires_at=now + given.expires_in,
            refresh_digest=self._context.digest(given.refresh),
            refreshed_at=now,
            refresh_until=now + DAY * self._context.settings.accounts.refresh_days,
        )

    def _new(
        self, account_id: str, kind: str, name: str, secret: str, until: float | None, client: ClientInfo
    ) -> Login:
        return Login(
            id=secrets.new_id("log"),
            account_id=account_id,
            kind=kind,
            name=name[:100],
            created_at=self._context.now(),
            digest=self._context.digest(secret),
            expires_at=until,
            address=client.address,
            agent=client.agent[:256],
        )

    async def _add(self, records: Repositories, login: Login) -> None:
        """Add a login. At the limit, a new session evicts the oldest one; personal tokens are never evicted."""
        held = await records.logins.count(account_id=login.account_id, kind=login.kind)
        if held >= MAX_LOGINS:
            if login.kind == PERSONAL:
                raise LimitReached(f"You have {held} personal tokens: delete some first.", limit=MAX_LOGINS)
            oldest = await records.logins.page(1, account_id=login.account_id, kind=login.kind)
            await records.logins.remove(id=oldest[0].id)
        await records.logins.add(login)


_PREFIX = {CONSOLE: secrets.SESSION, TOOL: secrets.ACCESS, PERSONAL: secrets.PERSONAL}


def _browser(agent: str) -> str:
    for mark, name in (("Firefox/", "Firefox"), ("Edg/", "Edge"), ("Chrome/", "Chrome"), ("Safari/", "Safari")):
        if mark in agent:
            return name
    return "Browser"
