"""Signing in with a real OpenID Connect provider: its pages by plain HTTP, and once in real Chromium."""

from __future__ import annotations

import asyncio
import html
import re
import time
from typing import TYPE_CHECKING, TypeVar
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
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

T = TypeVar("T")

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


def with_client(
    issuer: str,
    use: Callable[[OidcClient], Awaitable[T]],
    *,
    secret: str = SECRET,
    scopes: str = "openid email profile",
    callback: str = CALLBACK,
) -> T:
    settings = OidcSettings(issuer=issuer, client_id="tollgate", client_secret=secret, scopes=scopes)

    async def run() -> T:
        client = OidcClient(settings, callback, now=time.time)
        try:
            return await use(client)
        finally:
            await client.close()

    return asyncio.run(run())


async def visit(start: SignInStart, login: str, *, deny: bool = False) -> dict[str, str]:
    """Go through the provider's pages as a browser would, and give the query of the callback."""
    async with httpx.AsyncClient(trust_env=False, timeout=10) as browser:
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


def test_whole_sign_in_gives_who_somebody_is(issuer: str) -> None:
    claim = with_client(issuer, lambda client: sign_in(client, "ada"))
    assert claim == ProviderIdentity(issuer, "ada", "ada@example.com", True, "Ada Lovelace")


def test_email_that_the_provider_has_not_verified_is_said_to_be_so(issuer: str) -> None:
    claim = with_client(issuer, lambda client: sign_in(client, "bob"))
    assert (claim.email, claim.email_verified) == ("bob@example.com", False)


def test_denial_is_said_in_plain_words(issuer: str) -> None:
    async def deny(client: OidcClient) -> None:
        start = await client.start()
        await client.finish(await visit(start, "ada", deny=True), start)

    with pytest.raises(OidcError, match=r"cancelled at the provider\. Start again"):
        with_client(issuer, deny)


def test_wrong_client_secret_is_said_to_be_the_operators_matter(issuer: str) -> None:
    with pytest.raises(OidcError, match=r"check `oidc\.client_id` and `oidc\.client_secret`") as caught:
        with_client(issuer, lambda client: sign_in(client, "ada"), secret="wrong secret")
    assert "wrong secret" not in str(caught.value)


def test_code_is_good_once(issuer: str) -> None:
    async def twice(client: OidcClient) -> None:
        start = await client.start()
        params = await visit(start, "ada")
        await client.finish(params, start)
        await client.finish(params, start)

    with pytest.raises(OidcError, match="was finished before"):
        with_client(issuer, twice)


def test_stolen_code_is_worth_nothing_without_the_verifier(issuer: str) -> None:
    async def steal(client: OidcClient) -> None:
        thief, victim = await client.start(), await client.start()
        params = await visit(victim, "ada")
        await client.finish({**params, "state": thief.state}, thief)

    with pytest.raises(OidcError, match="was finished before"):
        with_client(issuer, steal)


def test_account_without_an_email_is_told_so(issuer: str) -> None:
    with pytest.raises(OidcError, match="must allow the scope `email`"):
        with_client(issuer, lambda client: sign_in(client, "nemo"))


def test_missing_scope_is_named(issuer: str) -> None:
    with pytest.raises(OidcError, match=r"add the scope `email` to `oidc\.scopes`"):
        with_client(issuer, lambda client: sign_in(client, "ada"), scopes="openid profile")


def test_provider_that_is_gone_is_said_to_be(issuer: str) -> None:
    port = free_port()
    assert not accepts(port)
    with pytest.raises(OidcError, match="cannot be reached"):
        with_client(f"http://{LOOPBACK}:{port}", lambda client: client.start())


def test_pages_can_be_filled_in_by_a_browser(tmp_path: Path) -> None:
    with served_page("<title>back</title>") as port:
        callback = f"http://{LOOPBACK}:{port}/callback"
        with provider(
            tmp_path, client_id="tollgate", client_secret=SECRET, redirect_uris=[callback], accounts=ACCOUNTS
        ) as issuer:
            start = with_client(issuer, lambda client: client.start(), callback=callback)
            with chromium() as browser, browser.new_context() as context:
                page = context.new_page()
                page.goto(start.url)
                page.fill("input[name=login]", "ada")
                page.fill("input[name=password]", "any")
                page.get_by_role("button", name="Sign-in").click()
                page.get_by_role("button", name="Continue").click()
                page.wait_for_url(f"{callback}?*")
                params = dict(parse_qsl(urlsplit(page.url).query))
            claim = with_client(issuer, lambda client: client.finish(params, start), callback=callback)
    assert claim == ProviderIdentity(issuer, "ada", "ada@example.com", True, "Ada Lovelace")
