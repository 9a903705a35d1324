"""Signing in with a real OpenID Connect provider: its pages by plain HTTP, and once in real Chromium."""

from __future__ import annotations

import asyncio
import html
import re
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest

from parts.browser import chromium, served_page
from parts.oidc import provider
from parts.ports import LOOPBACK, accepts, free_port
from tollgate.control.oidc import OidcClient
from tollgate.control.oidc_rules import OidcError, ProviderIdentity, SignInStart
from tollgate.settings.model import OidcSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

SECRET = "a secret/with+odd%characters"
CALLBACK = f"http://{LOOPBACK}:1/oidc/callback"  # nothing listens there: the visitor stops before it
ACCOUNTS: dict[str, dict[str, object]] = {
    "ada": {"email": "ada@example.com", "email_verified": True, "name": "Ada Lovelace"},
    "bob": {"email": "bob@example.com", "email_verified": False, "name": "Bob"},
    "nemo": {"name": "Nemo"},
}


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with provider(
        tmp_path_factory.mktemp("oidc"),
        client_id="tollgate",
        client_secret=SECRET,
        redirect_uris=[CALLBACK],
        accounts=ACCOUNTS,
    ) as url:
        yield url


@asynccontextmanager
async def open_client(
    issuer: str,
    *,
    secret: str = SECRET,
    scopes: str = "openid email profile",
    callback: str = CALLBACK,
) -> AsyncIterator[OidcClient]:
    settings = OidcSettings(issuer=issuer, client_id="tollgate", client_secret=secret, scopes=scopes)
    client = OidcClient(settings, callback, now=time.time)
    try:
        yield client
    finally:
        await client.close()


async def visit(start: SignInStart, login: str, *, deny: bool = False) -> dict[str, str]:
    """Go through the provider's pages as a browser would, and give the query of the callback."""
    async with httpx.AsyncClient(trust_env=False, timeout=30) as browser:
        answer = await browser.get(start.url)
        for _ in range(10):
            if answer.has_redirect_location:
                target = str(answer.url.join(answer.headers["Location"]))
                if target.startswith(CALLBACK):
                    return dict(parse_qsl(urlsplit(target).query))
                answer = await browser.get(target)
                continue
            assert answer.status_code == 200, answer.text
            if deny:
                answer = await browser.get(_found(r'href="([^"]+/abort)"', answer.text))
                continue
            prompt = _found(r'name="prompt" value="(\w+)"', answer.text)
            form = {"prompt": prompt} | ({"login": login, "password": "any"} if prompt == "login" else {})
            answer = await browser.post(_found(r'<form[^>]* action="([^"]+)"', answer.text), data=form)
    raise AssertionError("the provider's pages do not lead back")


def _found(pattern: str, page: str) -> str:
    found = re.search(pattern, page)
    assert found is not None, page
    return html.unescape(found[1])


async def sign_in(client: OidcClient, login: str) -> ProviderIdentity:
    start = await client.start()
    return await client.finish(await visit(start, login), start)


async def test_whole_sign_in_returns_the_identity_of_the_user(issuer: str) -> None:
    async with open_client(issuer) as client:
        claim = await sign_in(client, "ada")
    assert claim == ProviderIdentity(issuer, "ada", "ada@example.com", True, "Ada Lovelace")


async def test_email_that_the_provider_has_not_verified_is_reported_to_be_so(issuer: str) -> None:
    async with open_client(issuer) as client:
        claim = await sign_in(client, "bob")
    assert (claim.email, claim.email_verified) == ("bob@example.com", False)


async def test_denial_is_reported_in_plain_words(issuer: str) -> None:
    async with open_client(issuer) as client:
        start = await client.start()
        params = await visit(start, "ada", deny=True)
        with pytest.raises(OidcError, match=r"cancelled at the provider\. Start again"):
            await client.finish(params, start)


async def test_wrong_client_secret_is_reported_to_be_the_operators_matter(issuer: str) -> None:
    async with open_client(issuer, secret="wrong secret") as client:
        with pytest.raises(OidcError, match=r"check `oidc\.client_id` and `oidc\.client_secret`") as caught:
            await sign_in(client, "ada")
    assert "wrong secret" not in str(caught.value)


async def test_code_is_good_once(issuer: str) -> None:
    async with open_client(issuer) as client:
        start = await client.start()
        params = await visit(start, "ada")
        await client.finish(params, start)
        with pytest.raises(OidcError, match="was finished before"):
            await client.finish(params, start)


async def test_stolen_code_is_worth_nothing_without_the_verifier(issuer: str) -> None:
    async with open_client(issuer) as client:
        thief, victim = await client.start(), await client.start()
        params = await visit(victim, "ada")
        with pytest.raises(OidcError, match="was finished before"):
            await client.finish({**params, "state": thief.state}, thief)


async def test_account_without_an_email_is_reported(issuer: str) -> None:
    async with open_client(issuer) as client:
        with pytest.raises(OidcError, match="must allow the scope `email`"):
            await sign_in(client, "nemo")


async def test_missing_scope_is_named(issuer: str) -> None:
    async with open_client(issuer, scopes="openid profile") as client:
        with pytest.raises(OidcError, match=r"add the scope `email` to `oidc\.scopes`"):
            await sign_in(client, "ada")


async def test_provider_that_is_gone_is_reported() -> None:
    port = free_port()
    assert not accepts(port)
    async with open_client(f"http://{LOOPBACK}:{port}") as client:
        with pytest.raises(OidcError, match="cannot be reached"):
            await client.start()


def test_pages_can_be_filled_in_by_a_browser(tmp_path: Path) -> None:
    """No coroutine: the browser is driven from outside of any loop."""

    async def begin(issuer: str, callback: str) -> SignInStart:
        async with open_client(issuer, callback=callback) as client:
            return await client.start()

    async def finish(issuer: str, callback: str, params: dict[str, str], start: SignInStart) -> ProviderIdentity:
        async with open_client(issuer, callback=callback) as client:
            return await client.finish(params, start)

    with served_page("<title>back</title>") as port:
        callback = f"http://{LOOPBACK}:{port}/callback"
        with provider(
            tmp_path, client_id="tollgate", client_secret=SECRET, redirect_uris=[callback], accounts=ACCOUNTS
        ) as issuer:
            start = asyncio.run(begin(issuer, callback))
            with chromium() as browser, browser.new_context() as context:
                page = context.new_page()
                page.goto(start.url)
                page.fill("input[name=login]", "ada")
                page.fill("input[name=password]", "any")
                page.get_by_role("button", name="Sign-in").click()
                page.get_by_role("button", name="Continue").click()
                page.wait_for_url(f"{callback}?*")
                params = dict(parse_qsl(urlsplit(page.url).query))
            claim = asyncio.run(finish(issuer, callback, params, start))
    assert claim == ProviderIdentity(issuer, "ada", "ada@example.com", True, "Ada Lovelace")
