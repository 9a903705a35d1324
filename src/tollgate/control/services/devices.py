"""The device login (RFC 8628): a tool starts it, a person approves in a browser, the tool's next poll succeeds.

Wrong codes count against the account and the client address; ten of them lock code entry for 15 minutes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from tollgate.control.problems import NotFound, TooManyAttempts
from tollgate.control.service_context import Actor, ClientInfo, ServiceContext, name_of
from tollgate.control.services import throttle
from tollgate.control.services.logins import Logins, Secrets
from tollgate.core import secrets
from tollgate.core.address_shares import network_of
from tollgate.core.people import APPROVED, DENIED, PENDING, DeviceLogin
from tollgate.errors import TollgateError
from tollgate.store.base import Repositories

CLIENT_ID = "tollgate-cli"
PAGE_PATH = "/console/device"
SLOW_DOWN_SECONDS = 5
# A poll may come a little early: clocks and networks jitter.
EARLY_SECONDS = 0.5
MAX_WAITING, MAX_WAITING_FROM_ADDRESS = 10_000, 20
# A tool polls every few seconds. One that has not polled for this long is evicted when all slots are taken.
SILENT_SECONDS = 60.0
# When all slots are taken by tools that do poll, each network (`network_of`) keeps this many.
KEPT_OF_NETWORK = 5
# Rows that one statement deletes: databases limit its parameters.
AT_ONCE = 500
# One client may have 2 ** 64 IPv6 addresses: unfinished logins are limited by network.
STARTS = throttle.Backoff(free=60, first_wait=60.0, max_wait=900.0, forgiven_after=3_600.0)
# Expired logins are kept this long, so that the tool gets the reason.
REMEMBERED_SECONDS = 600.0


class Started(Struct, frozen=True):
    """A started device login."""

    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str
    expires_in: int
    interval: int

    def __repr__(self) -> str:
        return "Started(…)"


class OAuthError(TollgateError):
    """An error of RFC 6749 or RFC 8628."""

    codes: ClassVar[dict[str, str]] = {
        "authorization_pending": "It is not approved yet.",
        "slow_down": "Poll less often.",
        "access_denied": "The login was denied in the browser.",
        "expired_token": "The code has expired: start again.",
        "invalid_grant": "The code or refresh token is invalid or expired.",
        "invalid_request": "A parameter is missing or malformed.",
        "invalid_client": f"The client_id must be {CLIENT_ID}.",
        "unsupported_grant_type": "Use the device_code or the refresh_token grant.",
    }

    def __init__(self, code: str) -> None:
        self.code = code
        self.description = self.codes[code]
        super().__init__(self.description)


class Devices:
    """Tools that wait for approval."""

    def __init__(self, context: ServiceContext, logins: Logins) -> None:
        self._context = context
        self._logins = logins

    async def start(self, client: ClientInfo, machine: str) -> Started:
        """Start a login: a secret for the tool, a code for the person."""
        settings = self._context.settings.accounts
        now = self._context.now()
        device_code, user_code = secrets.new_token(secrets.DEVICE), secrets.new_code()
        login = DeviceLogin(
            id=secrets.new_id("dev"),
            digest=self._context.digest(device_code),
            code_digest=self._code_digest(user_code.replace("-", "")),
            machine=name_of(machine, field="machine", min_length=0),
            address=client.address,
            agent=client.agent[:256],
            created_at=now,
            expires_at=now + 60.0 * settings.device_minutes,
            interval=settings.device_interval,
        )
        async with self._context.store.changing() as records:
            from_here = await records.device_logins.count(address=client.address)
            if from_here >= MAX_WAITING_FROM_ADDRESS or not await self._has_room(records, now):
                raise TooManyAttempts("Too many logins wait for approval: finish or wait for them.", 60)
            guards = self._guards(client)
            await throttle.begin(self._context, records, guards, "logins that were not approved")
            await records.device_logins.add(login)
        page = self._context.base_url + PAGE_PATH
        whole = f"{page}?user_code={user_code}"
        return Started(device_code, user_code, page, whole, 60 * settings.device_minutes, login.interval)

    def _guards(self, client: ClientInfo) -> list[throttle.Guard]:
        return throttle.guards_from(self._context, "device-from", client, STARTS)

    async def _has_room(self, records: Repositories, now: float) -> bool:
        if await records.device_logins.count() < MAX_WAITING:
            return True
        await records.device_logins.remove_older("polled_at", now - SILENT_SECONDS, state=PENDING)
        await records.device_logins.remove_older("created_at", now - SILENT_SECONDS, state=PENDING, polled_at=None)
        if await records.device_logins.count() < MAX_WAITING:
            return True
        waiting = await records.device_logins.page(MAX_WAITING, newest_first=True, state=PENDING)
        leaving = crowding([(login.id, login.address) for login in waiting])
        for begin in range(0, len(leaving), AT_ONCE):
            await records.device_logins.remove(id=tuple(leaving[begin : begin + AT_ONCE]))
        return bool(leaving)

    async def poll(self, client: ClientInfo, device_code: str) -> Secrets:
        """Answer a poll: the tool's secrets, or an OAuthError."""
        now = self._context.now()
        async with self._context.store.changing() as records:
            login = await records.device_logins.find(digest=self._context.digests(device_code))
            if login is None:
                raise OAuthError("invalid_grant")
            if now >= login.expires_at:
                raise OAuthError("expired_token")
            why = _waiting(login, now)
            if why in {"", "access_denied"}:
                await records.device_logins.remove(id=login.id)
                await throttle.take_back_all(records, self._guards(ClientInfo(login.address)), {})
                account = await records.accounts.get(login.account_id or "") if not why else None
                if account is not None and account.active:
                    return await self._logins.issue(
                        records, client, account, login.machine, login.authenticated_at
                    )
            else:
                interval = login.interval + (SLOW_DOWN_SECONDS if why == "slow_down" else 0)
                await records.device_logins.replace(replace(login, polled_at=now, interval=interval))
        raise OAuthError(why or "access_denied")

    # --- The person's side -----------------------------------------------------------------------------

    async def look(self, actor: Actor, typed: str) -> DeviceLogin:
        """The login that waits with this code."""
        return await self._act(actor, typed, None)

    async def approve(self, actor: Actor, typed: str) -> DeviceLogin:
        self._context.recent(actor, "approve a login")
        return await self._act(actor, typed, APPROVED)

    async def deny(self, actor: Actor, typed: str) -> DeviceLogin:
        return await self._act(actor, typed, DENIED)

    async def _act(self, actor: Actor, typed: str, state: str | None) -> DeviceLogin:
        guards = [
            (self._context.key("code", actor.id), throttle.CODE),
            *throttle.guards_from(self._context, "code-from", actor.client, throttle.CODE),
        ]
        async with self._context.store.changing() as records:
            before = await throttle.begin(self._context, records, guards, "wrong codes")
            login = await self._find(records, typed)
            if login is not None:
                await throttle.take_back_all(records, guards, before)
                if state is not None:
                    authenticated_at = self._context.authenticated_at(actor)
                    login = replace(login, state=state, account_id=actor.id, authenticated_at=authenticated_at)
                    await records.device_logins.replace(login)
                    await self._context.note(records, actor, f"login.{state}", target=login.id, name=login.machine)
        # After the transaction, so that the failure stays counted.
        if login is None:
            raise NotFound("No login waits with this code: check it, or run `tollgate auth login` again.")
        return login

    async def _find(self, records: Repositories, typed: str) -> DeviceLogin | None:
        code = secrets.plain_code(typed)
        login = await records.device_logins.find(code_digest=self._code_digest(code)) if code else None
        if login is None or login.state != PENDING or self._context.now() >= login.expires_at:
            return None
        return login

    def _code_digest(self, code: str) -> bytes:
        return self._context.digest(code, secrets.USER_CODES)


def crowding(waiting: Sequence[tuple[str, str]]) -> list[str]:
    """Choose which logins to evict when all slots are taken, from pairs of id and address, newest first.

    The newest few of each network stay; if that frees nothing, the older half goes. So a flood from many addresses
    cannot lock a tool out for longer than it takes to start thousands of logins.
    """
    seen: Counter[str] = Counter()
    leaving = []
    for login_id, address in waiting:
        network = network_of(address)
        seen[network] += 1
        if seen[network] > KEPT_OF_NETWORK:
            leaving.append(login_id)
    return leaving or [login_id for login_id, _ in waiting[len(waiting) // 2 :]]


def _waiting(login: DeviceLogin, now: float) -> str:
    """The error for a poll; empty when the login is approved."""
    if login.state == APPROVED:
        return ""
    if login.state == DENIED:
        return "access_denied"
    # A poll in the future was answered by a node whose clock is ahead: its age is unknown.
    if login.polled_at is not None and 0 <= now - login.polled_at < login.interval - EARLY_SECONDS:
        return "slow_down"
    return "authorization_pending"
