"""What an OpenID Connect provider publishes about itself, and how: late, too long, elsewhere, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import httpx
import pytest
from tests.control.oidc_fake import (
    CALLBACK,
    DISCOVERY,
    ISSUER,
    NOON,
    PERSON,
    SECRET,
    Body,
    Clock,
    Provider,
)

from tollgate.control.oidc import BODY_BYTES, OidcClient
from tollgate.control.oidc_rules import OidcError
from tollgate.settings.model import OidcSettings


@pytest.fixture
def provider() -> Provider:
    return Provider()


# ---- the discovery document


@pytest.mark.parametrize("issuer", ["https://evil.example.com", f"{ISSUER}/", "HTTPS://id.example.com"])
async def test_document_of_another_issuer_is_refused(provider: Provider, issuer: str) -> None:
    provider.metadata["issuer"] = issuer
    with pytest.raises(OidcError, match=r"written exactly as `issuer`"):
        await provider.run()


@pytest.mark.parametrize("issuer", ["http://id.example.com", "", "id.example.com", f"{ISSUER}?x=1", f"{ISSUER}#x"])
def test_issuer_must_be_https(issuer: str) -> None:
    with pytest.raises(OidcError, match=r"`oidc\.issuer` must be an https"):
        OidcClient(OidcSettings(issuer=issuer, client_id="x", client_secret="y"), CALLBACK, now=Clock())


@pytest.mark.parametrize("host", ["127.0.0.1:9000", "localhost:9000", "[::1]:9000"])
async def test_provider_on_this_machine_may_use_http(provider: Provider, host: str) -> None:
    issuer = f"http://{host}"
    provider.metadata = {
        name: text.replace(ISSUER, issuer) if isinstance(text, str) else text
        for name, text in provider.metadata.items()
    }
    provider.claims["iss"] = issuer
    assert (
        await provider.run(OidcSettings(issuer=issuer, client_id="tollgate", client_secret=SECRET))
    ).issuer == issuer


@pytest.mark.parametrize("missing", ["client_id", "client_secret"])
def test_client_needs_its_credentials(missing: str) -> None:
    given = {"client_id": "x", "client_secret": "y", missing: ""}
    with pytest.raises(OidcError, match=r"Set `oidc\.client_id` and `oidc\.client_secret`"):
        OidcClient(OidcSettings(issuer=ISSUER, **given), CALLBACK, now=Clock())


@pytest.mark.parametrize("name", ["authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint"])
@pytest.mark.parametrize(
    "url", ["http://id.example.com/x", "http://127.0.0.1/x", "javascript:alert(1)", "https://[x"]
)
async def test_unsafe_endpoint_is_refused(provider: Provider, name: str, url: str) -> None:
    provider.metadata[name] = url
    with pytest.raises(OidcError, match="every endpoint"):
        await provider.run()


async def test_document_is_kept_for_an_hour(provider: Provider) -> None:
    client, counts = provider.client(), []
    for moment in (NOON, NOON + 3599, NOON + 3600, NOON - 10):
        provider.clock.time = moment
        await client.start()
        counts.append(provider.paths.count(DISCOVERY))
    assert counts == [1, 1, 2, 3]  # a clock that was set back proves no freshness


async def test_sign_ins_at_once_read_the_document_once(provider: Provider) -> None:
    client = provider.client()
    await asyncio.gather(*(client.start() for _ in range(10)))
    assert provider.paths == [DISCOVERY, "/keys"]


async def test_failure_is_not_kept(provider: Provider) -> None:
    client = provider.client()
    provider.instead[DISCOVERY] = lambda _: httpx.Response(503)
    with pytest.raises(OidcError, match=r"returns no discovery document \(HTTP 503\)"):
        await client.start()
    provider.instead.clear()
    assert await provider.sign_in(client) == PERSON


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[]", b"{}", b'{"issuer":5}', b'{"issuer":"\xff"}', b"[" * 100_000, b'{"x":' * 10_000],
)
@pytest.mark.parametrize("path", [DISCOVERY, "/keys", "/token"])
async def test_nonsense_is_refused(provider: Provider, path: str, body: bytes) -> None:
    provider.instead[path] = lambda _: httpx.Response(200, content=body)
    with pytest.raises(OidcError, match=r"cannot be read|no id token"):
        await provider.run()


async def test_provider_without_an_acceptable_algorithm_is_refused(provider: Provider) -> None:
    provider.metadata["id_token_signing_alg_values_supported"] = ["HS256", "none"]
    with pytest.raises(OidcError, match="RS256"):
        await provider.run()


async def test_provider_that_takes_no_secret_is_refused(provider: Provider) -> None:
    provider.metadata["token_endpoint_auth_methods_supported"] = ["private_key_jwt"]
    with pytest.raises(OidcError, match="client_secret_basic or client_secret_post"):
        await provider.run()


# ---- requests to the provider


@pytest.mark.parametrize("path", [DISCOVERY, "/keys", "/token"])
async def test_provider_that_is_down_is_reported(provider: Provider, path: str) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused", request=request)

    provider.instead[path] = refuse
    with pytest.raises(OidcError, match=r"cannot be reached\. Try again"):
        await provider.run()


async def never(request: httpx.Request) -> httpx.Response:
    await asyncio.Event().wait()
    raise AssertionError


async def half(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, stream=Body(iter([b"{"]), then_hang=True))


@pytest.mark.parametrize("path", [DISCOVERY, "/keys", "/token"])
@pytest.mark.parametrize("slow", [never, half])
async def test_slow_provider_is_given_up(
    provider: Provider, path: str, slow: Callable[[httpx.Request], Awaitable[httpx.Response]]
) -> None:
    provider.instead[path] = slow
    with pytest.raises(OidcError, match=r"did not answer in time\. Try again"):
        await provider.run(seconds=0.2)


@pytest.mark.parametrize("path", [DISCOVERY, "/keys", "/token"])
async def test_huge_answer_is_not_read_to_its_end(provider: Provider, path: str) -> None:
    read: list[int] = []

    def parts() -> Iterator[bytes]:
        while True:
            read.append(8192)
            yield b" " * 8192

    provider.instead[path] = lambda _: httpx.Response(200, stream=Body(parts()))
    with pytest.raises(OidcError, match="too long"):
        await provider.run()
    assert sum(read) <= BODY_BYTES + 8192


async def test_compressed_answer_is_not_unpacked(provider: Provider) -> None:
    provider.instead[DISCOVERY] = lambda _: httpx.Response(
        200, headers={"Content-Encoding": "gzip"}, stream=Body(iter([b"\x1f\x8b"]))
    )
    with pytest.raises(OidcError, match="compressed"):
        await provider.run()


@pytest.mark.parametrize("path", [DISCOVERY, "/keys", "/token", "/me"])
async def test_redirects_are_not_followed(provider: Provider, path: str) -> None:
    del provider.claims["email"]
    provider.instead[path] = lambda _: httpx.Response(307, headers={"Location": "https://evil.example.com/"})
    with pytest.raises(OidcError, match=r"HTTP 307"):
        await provider.run()
    assert {request.url.host for request in provider.requests} == {"id.example.com"}
