"""A scripted OpenID Connect provider behind httpx's transport: the client's own requests are what is tested."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import httpx
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

from tollgate.control.oidc import OidcClient
from tollgate.control.oidc_rules import ProviderIdentity
from tollgate.settings.model import OidcSettings

ISSUER = "https://id.example.com"
CALLBACK = "https://tollgate.example.com/oidc/callback"
SECRET = "s3cret+/ %"  # must be form-encoded within Basic
SETTINGS = OidcSettings(issuer=ISSUER, client_id="tollgate", client_secret=SECRET)
DISCOVERY = "/.well-known/openid-configuration"
NOON = 1_800_000_000.0
KEY = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
NEXT_KEY = RSAKey.generate_key(2048, {"kid": "two", "use": "sig"})
EC_KEY = ECKey.generate_key("P-256", {"kid": "curve"})
PERSON = ProviderIdentity(ISSUER, "248289761001", "ada@example.com", True, "Ada Lovelace")

Answer = httpx.Response | Awaitable[httpx.Response]


class Clock:
    def __init__(self) -> None:
        self.time = NOON

    def __call__(self) -> float:
        return self.time


class Provider:
    """Answers by the script, and remembers what it was sent."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.requests: list[httpx.Request] = []
        self.metadata: dict[str, Any] = {
            "issuer": ISSUER,
            "authorization_endpoint": f"{ISSUER}/auth",
            "token_endpoint": f"{ISSUER}/token",
            "jwks_uri": f"{ISSUER}/keys",
            "userinfo_endpoint": f"{ISSUER}/me",
            "id_token_signing_alg_values_supported": ["RS256", "ES256", "HS256", "none"],
        }
        self.keys: list[dict[str, Any]] = [dict(KEY.as_dict(private=False))]
        self.claims: dict[str, Any] = {
            "iss": ISSUER,
            "sub": PERSON.subject,
            "aud": "tollgate",
            "iat": NOON,
            "exp": NOON + 300,
            "email": PERSON.email,
            "email_verified": True,
            "name": PERSON.name,
        }
        self.userinfo: dict[str, Any] = {"sub": PERSON.subject}
        self.sign: Callable[[dict[str, Any]], str] = signed()
        self.tokens: dict[str, Any] = {"access_token": "at-1", "token_type": "Bearer"}
        self.instead: dict[str, Callable[[httpx.Request], Answer]] = {}

    @property
    def paths(self) -> list[str]:
        return [request.url.path for request in self.requests]

    async def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        path = request.url.path
        if path in self.instead:
            answer = self.instead[path](request)
            return await answer if inspect.isawaitable(answer) else answer
        answers: dict[str, Callable[[], object]] = {
            DISCOVERY: lambda: self.metadata,
            "/keys": lambda: {"keys": self.keys},
            "/token": lambda: {"id_token": self.sign(self.claims), **self.tokens},
            "/me": lambda: self.userinfo,
        }
        return httpx.Response(200, json=answers[path](), headers={"Set-Cookie": "visitor=1; Path=/"})

    def client(self, settings: OidcSettings = SETTINGS, seconds: float = 10.0) -> OidcClient:
        transport = httpx.MockTransport(self.answer)
        return OidcClient(settings, CALLBACK, seconds=seconds, now=self.clock, transport=transport)

    async def sign_in(self, client: OidcClient, **params: str | None) -> ProviderIdentity:
        """Begin and finish with one client; `params` are put over those of a good callback, None removes one."""
        start = await client.start()
        self.claims.setdefault("nonce", start.nonce)
        query = {"state": start.state, "code": "code-1", **params}
        return await client.finish({name: text for name, text in query.items() if text is not None}, start)

    async def run(
        self, settings: OidcSettings = SETTINGS, seconds: float = 10.0, **params: str | None
    ) -> ProviderIdentity:
        """Begin and finish with a client that is closed afterwards."""
        client = self.client(settings, seconds)
        try:
            return await self.sign_in(client, **params)
        finally:
            await client.close()


class Body(httpx.AsyncByteStream):
    """A body of which the parts are made while it is read."""

    def __init__(self, parts: Iterator[bytes], *, then_hang: bool = False) -> None:
        self._parts = parts
        self._then_hang = then_hang

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            yield part
        if self._then_hang:
            await asyncio.Event().wait()


def signed(key: RSAKey | ECKey = KEY, alg: str = "RS256", **header: str) -> Callable[[dict[str, Any]], str]:
    return lambda claims: jwt.encode({"alg": alg, "kid": key.kid, **header}, claims, key, algorithms=[alg])


def by_hand(header: dict[str, str], secret: bytes | None) -> Callable[[dict[str, Any]], str]:
    """Make a token that a library would refuse to make."""

    def encode(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    def sign(claims: dict[str, Any]) -> str:
        text = f"{encode(json.dumps(header).encode())}.{encode(json.dumps(claims).encode())}"
        mac = b"" if secret is None else hmac.digest(secret, text.encode(), hashlib.sha256)
        return f"{text}.{encode(mac)}"

    return sign


def half_hash(token: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(token.encode()).digest()[:16]).rstrip(b"=").decode()
