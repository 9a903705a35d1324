"""Who calls: token or Origin -> Caller.

If `Authorization` is present it decides alone: a bad token is refused even from a whitelisted domain. Next
comes a token in the path, for wallets that cannot send headers, then `Origin`. Unauthenticated callers learn
nothing about teams or tokens: unknown, deleted and disabled answer alike.

`recall` answers from memory and never waits; `look_up` queries the store. Look-ups that find nothing are limited
for each address and in all.
"""

from __future__ import annotations

import hashlib
import secrets as random
from collections.abc import Callable

from tollgate.core import addresses, origins, secrets
from tollgate.core.limits import Limit
from tollgate.errors import (
    AddressNotAllowed,
    OriginNotAllowed,
    Overloaded,
    TokenExpired,
    TokenInvalid,
    TokenMissing,
)
from tollgate.gateway.access.caller import Caller, Quota, address_quotas, limits_of, quota
from tollgate.gateway.access.directory import CallerDirectory
from tollgate.gateway.access.limits import limited, within_shares
from tollgate.gateway.messages import Request
from tollgate.store.base import Meters

_MAX_HOSTS = 4_096
# Scheme, the longest host name there is, and a port.
_MAX_ORIGIN = 320
_MAX_DIGESTS = 32_768


class Credentials:
    """Knows how callers prove who they are."""

    def __init__(
        self,
        directory: CallerDirectory,
        meters: Meters,
        pepper: bytes,
        *,
        trusted: tuple[addresses.Network, ...],
        allow_localhost: bool,
        misses: Limit,
        misses_per_address: Limit,
        monotonic: Callable[[], float],
        time: Callable[[], float],
        previous_pepper: bytes | None = None,
    ) -> None:
        self._directory = directory
        self._known_token = directory.tokens.get
        self._meters = meters
        self._peppers = (pepper,) if previous_pepper is None else (pepper, previous_pepper)
        self._trusted = trusted
        self._allow_localhost = allow_localhost
        self.change(misses, misses_per_address)
        self._monotonic = monotonic
        self._time = time
        self._hosts: dict[bytes, str] = {}
        # From a quick keyed hash of what a caller sent to the token's digest: HMAC-SHA-256 costs three times as
        # much for each request, and a token in clear must not be kept, not even in memory.
        self._quick = hashlib.blake2b(digest_size=16, key=random.token_bytes(32))
        self._digests: dict[bytes, bytes] = {}

    def change(self, misses: Limit, misses_per_address: Limit) -> None:
        """Take over limits on look-ups of unknown callers."""
        self._misses = quota("service", "misses", misses)
        self._misses_per_address = misses_per_address

    def address(self, request: Request) -> str:
        """The client's address, as far as it can be believed."""
        if not self._trusted:
            return request.peer
        forwarded = request.headers.get(b"x-forwarded-for", b"").decode("latin-1")
        return addresses.client_address(request.peer, forwarded, self._trusted)

    def recall(self, request: Request) -> Caller | None:
        """Return a caller that is in memory, None where the store must be queried, or refuse."""
        if self._directory.stale:
            raise Overloaded("Tokens cannot be checked now: try again.")
        digest = request.digest
        if digest is None:
            authorization = request.headers.get(b"authorization")
            if authorization is None:
                if request.path_token is None:
                    return self._directory.known_host(self._host(request))
                authorization = _in_path(request.path_token)
            quick = self._quick.copy()
            quick.update(authorization)
            digest = request.digest = self._digests.get(quick.digest())
            if digest is None:
                return None
        caller = self._known_token(digest)
        if caller is None or (caller.expires_at is None and request.path_token is None and not caller.addresses):
            return caller
        return self._checked(caller, request)

    async def look_up(self, request: Request) -> Caller:
        """Return a caller that the store knows, or refuse."""
        token = self._token(request)
        if token is None:
            return await self._look_up_host(request)
        if not secrets.well_formed(token.decode("latin-1")):
            raise TokenInvalid
        queried = False
        for pepper in self._peppers:
            digest = secrets.digest(token, pepper)
            self._remember(request.headers.get(b"authorization") or _in_path(token), digest)
            if self._directory.unknown_token(digest):
                continue
            self._check_misses(request)
            queried = True
            caller = await self._directory.find_token(digest)
            if caller is not None:
                return self._checked(caller, request)
        if queried:
            self._count_miss(request)
        raise TokenInvalid

    async def _look_up_host(self, request: Request) -> Caller:
        host = self._host(request)
        if not self._directory.unknown_host(host):
            self._check_misses(request)
            caller = await self._directory.find_host(host)
            if caller is not None:
                return caller
            self._count_miss(request)
        raise _not_allowed(request.origin or b"", host)

    def _remember(self, authorization: bytes, digest: bytes) -> None:
        if len(self._digests) >= _MAX_DIGESTS:
            self._digests.clear()
        quick = self._quick.copy()
        quick.update(authorization)
        self._digests[quick.digest()] = digest

    def _token(self, request: Request) -> bytes | None:
        authorization = request.headers.get(b"authorization")
        if authorization is None:
            return request.path_token
        if authorization[:7].lower() != b"bearer ":
            raise TokenInvalid("The Authorization header must read: Bearer <token>.")
        return authorization[7:].strip()

    def _host(self, request: Request) -> str:
        origin = request.origin
        if origin is None:
            raise TokenMissing
        host = self._hosts.get(origin)
        if host is None and len(origin) <= _MAX_ORIGIN:
            host = origins.host_of(origin.decode("utf-8", "replace"), allow_localhost=self._allow_localhost)
            if host is not None:
                if len(self._hosts) >= _MAX_HOSTS:
                    self._hosts.clear()
                self._hosts[origin] = host
        if host is None:
            raise _never_allowed(origin)
        return host

    def _checked(self, caller: Caller, request: Request) -> Caller:
        # The token's team is known from here on: refusals are recorded for that team.
        request.caller = caller
        if caller.expires_at is not None and self._time() >= caller.expires_at:
            raise TokenExpired
        if caller.addresses and not addresses.is_within(self.address(request), caller.addresses):
            raise AddressNotAllowed(f"This token may not be used from {self.address(request)[:64]}.")
        in_path = request.path_token is not None and b"authorization" not in request.headers
        if in_path and not caller.allow_in_url:
            raise TokenInvalid("This token is not allowed in the URL: send it in the Authorization header.")
        return caller

    def _check_misses(self, request: Request) -> None:
        """Refuse to query the store for a caller whose address, or a prefix around it, had too many misses."""
        now = self._monotonic()
        own, *_ = within_shares(self._meters, self._address_misses(request), self._misses, now)
        taken = self._meters.peek(own.key, own.limit, now)
        if not taken.allowed:
            raise limited(own, taken, 1)
        if not self._meters.peek(self._misses.key, self._misses.limit, now).allowed:
            raise Overloaded("Too many unknown callers at once: try again.")

    def _count_miss(self, request: Request) -> None:
        # Behind the limit of all: those that refuse only under pressure. The first that is used up ends it.
        quotas = sorted((*self._address_misses(request), self._misses), key=lambda each: each.under_pressure)
        self._meters.take(limits_of(tuple(quotas)), self._monotonic())

    def _address_misses(self, request: Request) -> tuple[Quota, ...]:
        return address_quotas("miss", self.address(request), self._misses_per_address, self._misses.limit)


def _in_path(token: bytes) -> bytes:
    """The key of a token of the path: one of the header cannot hold this byte."""
    return b"\0" + token


def _not_allowed(origin: bytes, host: str) -> OriginNotAllowed:
    try:
        root = origins.root_domain(host)
    except origins.NotARootDomain as refused:
        root = refused.suggestion or host
    shown = origin.decode("utf-8", "replace")
    return OriginNotAllowed(
        f"The origin {shown} is not whitelisted. To allow it: tollgate rpc whitelist add {root} --team <TEAM>",
        data={"origin": shown},
    )


def _never_allowed(origin: bytes) -> OriginNotAllowed:
    shown = origin.decode("utf-8", "replace")[:256]
    return OriginNotAllowed(
        f"The origin {shown} cannot be whitelisted: only https origins with a domain name can. "
        "Send the header Authorization: Bearer <token> instead.",
        data={"origin": shown},
    )
