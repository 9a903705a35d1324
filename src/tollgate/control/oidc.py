"""Signing in with an OpenID Connect provider: the authorization code flow with PKCE, state and nonce.

Owns the requests to the provider: their order, deadlines and size bounds. `oidc_rules.py` decides whether an
answer is trusted. What a claim means (which account, whether one is created, the session) must not enter, nor a
cookie, a route or a page: the caller keeps a `SignInStart` for the browser for a few minutes and passes it back
once.

Authlib builds the authorization URL. The requests are our own: Authlib's client for httpx keeps the last person's
token, reads answers of any size, and is deprecated by its authors.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, TypeVar
from urllib.parse import quote_plus

import httpx
import msgspec
from authlib.oauth2 import OAuth2Client  # type: ignore[import-untyped]
from joserfc.errors import InvalidKeyIdError

from tollgate.control import oidc_rules as rules
from tollgate.control.oidc_rules import AGAIN, CONTACT, LATER, OidcError, ProviderIdentity, SignInStart
from tollgate.control.safe_connect import Bounded, TooMuch
from tollgate.settings.model import OidcSettings

CACHE_SECONDS = 3600.0
# Ten times the size of the largest key sets in wide use.
BODY_BYTES = 262_144
# Heads, chunks and interim answers (1xx), which httpx reads past without an end.
FRAMING_BYTES = 65_536
# Chunks of an answer: one that arrives byte by byte takes a hundred times as long to read.
MAX_PIECES = 2_048
# Sign-ins that wait for the provider: a silent one must not use up the slots of all other requests.
MAX_AT_ONCE = 20

T = TypeVar("T")


class OidcClient:
    """A client of one provider. Keeps nothing about the people who sign in."""

    def __init__(
        self,
        settings: OidcSettings,
        redirect_uri: str,
        *,
        seconds: float = 10.0,
        now: Callable[[], float],
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Each of `start` and `finish` may take `seconds` as a whole; `now` gives seconds since 1970."""
        rules.check_settings(settings)
        self._settings = settings
        self._redirect_uri = redirect_uri
        self._seconds = seconds
        self._now = now
        self._oauth = OAuth2Client(
            None,
            client_id=settings.client_id,
            scope=settings.scopes,
            redirect_uri=redirect_uri,
            code_challenge_method="S256",
        )
        self._http = httpx.AsyncClient(
            timeout=seconds,
            follow_redirects=False,
            limits=httpx.Limits(max_connections=MAX_AT_ONCE, max_keepalive_connections=2),
            # A provider on this machine is not behind the proxy that the environment names.
            trust_env=not rules.is_local(settings.issuer),
            # Cookies of one sign-in must not be sent with the next.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            # A compressed answer could grow far beyond the bound on what is read.
            headers={"Accept": "application/json", "Accept-Encoding": "identity"},
            transport=transport,
        )
        _bound(self._http)
        self._under_way = 0
        self._reading = asyncio.Lock()
        self._known: rules.OidcProvider | None = None

    def __repr__(self) -> str:
        return f"OidcClient(issuer={self._settings.issuer!r})"

    async def start(self) -> SignInStart:
        """Return the address to send the browser to, and what to keep until it returns."""
        provider = self._known
        if provider is None or not self._is_fresh(provider):
            async with self._border():
                provider = await self._provider()
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        url, _ = self._oauth.create_authorization_url(
            provider.metadata.authorization_endpoint, state=state, code_verifier=verifier, nonce=nonce
        )
        return SignInStart(url, state, nonce, verifier)

    async def finish(self, params: Mapping[str, str], start: SignInStart) -> ProviderIdentity:
        """Check the query with which the browser returned; return who signed in."""
        rules.check_start(params, start)
        async with self._border():
            provider = await self._provider()
            metadata = provider.metadata
            code = rules.callback_code(params, metadata)
            tokens = await self._redeem(metadata, code, start.verifier)
            claims = await self._verify(provider, tokens, start.nonce)
            needs_userinfo = not rules.email_of(claims) and metadata.userinfo_endpoint
            userinfo = await self._userinfo(metadata, claims, tokens) if needs_userinfo else {}
        return rules.make_claim(metadata.issuer, claims, userinfo, self._settings.scopes)

    async def close(self) -> None:
        await self._http.aclose()

    async def _provider(self, but_not: rules.OidcProvider | None = None) -> rules.OidcProvider:
        """Return the provider's metadata and keys: at most an hour old, and not `but_not`."""
        # One sign-in reads it; the others wait, each within its own deadline.
        async with self._reading:
            known = self._known
            if known is None or known is but_not or not self._is_fresh(known):
                known = self._known = await self._read_provider()
            return known

    def _is_fresh(self, provider: rules.OidcProvider) -> bool:
        return 0 <= self._now() - provider.read_at < CACHE_SECONDS

    async def _read_provider(self) -> rules.OidcProvider:
        issuer = self._settings.issuer
        address = issuer.rstrip("/") + "/.well-known/openid-configuration"
        metadata = await self._document(address, rules.Metadata)
        rules.check_metadata(metadata, issuer)
        keys = await self._document(metadata.jwks_uri, rules.KeyDocument)
        return rules.OidcProvider(metadata, rules.import_keys(keys), self._now())

    async def _document(self, url: str, kind: type[T]) -> T:
        status, body = await self._request("GET", url)
        if status != httpx.codes.OK:
            raise OidcError(
                f"The sign-in provider returns no discovery document (HTTP {status}). {LATER} {CONTACT}:"
                " `oidc.issuer` may be wrong."
            )
        return _decoded(body, kind)

    async def _redeem(self, metadata: rules.Metadata, code: str, verifier: str) -> rules.ProviderTokens:
        client_id, client_secret = self._settings.client_id, self._settings.client_secret
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect_uri,
            "code_verifier": verifier,
        }
        auth: httpx.Auth | None = None
        if rules.auth_method(metadata) == "client_secret_basic":
            # RFC 6749, 2.3.1: both halves are form-encoded first.
            auth = httpx.BasicAuth(quote_plus(client_id), quote_plus(client_secret))
        else:
            form |= {"client_id": client_id, "client_secret": client_secret}
        status, body = await self._request("POST", metadata.token_endpoint, data=form, auth=auth)
        if status != httpx.codes.OK:
            raise rules.token_refusal(status, body)
        tokens = _decoded(body, rules.ProviderTokens)
        if not tokens.id_token:
            raise OidcError(
                "The sign-in provider sent no id token. Contact the operator of this service: `oidc.scopes` must"
                " contain `openid`."
            )
        return tokens

    async def _verify(
        self, provider: rules.OidcProvider, tokens: rules.ProviderTokens, nonce: str
    ) -> dict[str, Any]:
        client_id = self._settings.client_id
        try:
            return rules.verified_claims(provider, tokens, client_id, nonce, self._now())
        except InvalidKeyIdError:
            # Providers rotate their keys: read them once more.
            provider = await self._provider(but_not=provider)
        try:
            return rules.verified_claims(provider, tokens, client_id, nonce, self._now())
        except InvalidKeyIdError as error:
            raise rules.untrusted(error) from error

    async def _userinfo(
        self, metadata: rules.Metadata, claims: Mapping[str, Any], tokens: rules.ProviderTokens
    ) -> dict[str, Any]:
        if tokens.token_type.lower() != "bearer" or not re.fullmatch(r"[\x21-\x7e]+", tokens.access_token):
            raise OidcError(f"The sign-in provider sent no usable access token. {AGAIN} {CONTACT}.")
        headers = {"Authorization": f"Bearer {tokens.access_token}"}
        status, body = await self._request("GET", metadata.userinfo_endpoint, headers=headers)
        if status != httpx.codes.OK:
            raise OidcError(f"The sign-in provider did not return your identity (HTTP {status}). {AGAIN}")
        userinfo = _decoded(body, dict[str, Any])
        # OpenID Connect Core 1.0, 5.3.2: the access token might have been swapped for another person's.
        if userinfo.get("sub") != rules.subject_of(claims):
            raise OidcError(f"The sign-in provider returned another person. {AGAIN}")
        return userinfo

    async def _request(self, method: str, url: str, **more: Any) -> tuple[int, bytes]:
        async with self._http.stream(method, url, **more) as response:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise OidcError(
                    f"The sign-in provider sent a compressed answer, which was not requested. {LATER} {CONTACT}."
                )
            body, pieces = bytearray(), 0
            async for part in response.aiter_bytes():
                body += part
                pieces += 1
                if len(body) > BODY_BYTES or pieces > MAX_PIECES:
                    raise OidcError(f"The sign-in provider sent an answer that is too long. {LATER} {CONTACT}.")
            return response.status_code, bytes(body)

    @asynccontextmanager
    async def _border(self) -> AsyncIterator[None]:
        """Bound an exchange with the provider, and map network errors to messages."""
        if self._under_way >= MAX_AT_ONCE:
            raise OidcError(f"Too many sign-ins wait for the provider. {LATER}")
        self._under_way += 1
        try:
            async with asyncio.timeout(self._seconds):
                yield
        except (TimeoutError, httpx.TimeoutException) as error:
            raise OidcError(f"The sign-in provider did not answer in time. {LATER}") from error
        except TooMuch as error:
            raise OidcError(f"The sign-in provider sent an answer that is too long. {LATER} {CONTACT}.") from error
        except httpx.HTTPError as error:
            raise OidcError(f"The sign-in provider cannot be reached. {LATER} {CONTACT}.") from error
        finally:
            self._under_way -= 1


def _bound(client: httpx.AsyncClient) -> None:
    """Bound the bytes of an answer on the network, also behind a proxy: httpx has no setting for it."""
    for transport in (client._transport, *client._mounts.values()):
        if isinstance(transport, httpx.AsyncHTTPTransport):
            transport._pool._network_backend = Bounded(BODY_BYTES + FRAMING_BYTES)


def _decoded(body: bytes, kind: type[T]) -> T:
    # The cause is dropped: a UnicodeDecodeError holds the body, which may contain tokens.
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise OidcError(f"The sign-in provider sent an answer that cannot be read. {LATER} {CONTACT}.") from None
