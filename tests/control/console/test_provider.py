"""Signing in with OpenID Connect, against a scripted provider; the real one is in tests/e2e/test_console.py."""

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from tests.control.console.site import ADA, BOB, COOKIE, Browser, Site, leads_to, words
from tests.control.oidc_fake import DISCOVERY, ISSUER, SETTINGS, Provider

from tollgate.api.members import NewInvitation
from tollgate.control.service_context import OPERATOR

KEPT = "__Host-tollgate-oidc"
OpenSite = Callable[..., Site]


class Visited:
    """An installation with a provider, and a browser that goes there and back."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.provider = Provider()
        site.plane.oidc = self.provider.client()
        self.browser = site.browser()

    def start(self, back: str = "/console") -> dict[str, str]:
        """Go to the provider; return what it is sent."""
        answer = self.browser.get("/console/oidc/start", next=back)
        target = urlsplit(leads_to(answer))
        assert f"{target.scheme}://{target.netloc}{target.path}" == f"{ISSUER}/auth"
        params = {name: values[0] for name, values in parse_qs(target.query).items()}
        self.provider.claims["nonce"] = params["nonce"]
        return params

    def back(self, params: dict[str, str], browser: Browser | None = None, **query: str) -> httpx.Response:
        """Come back from the provider."""
        return (browser or self.browser).get(
            "/console/oidc/callback", state=params["state"], **{"code": "c", **query}
        )


@pytest.fixture
def visited(open_site: OpenSite) -> Visited:
    return Visited(open_site(oidc=SETTINGS))


def test_whole_sign_in_opens_a_session_and_goes_on(visited: Visited) -> None:
    visited.site.account()
    page = visited.browser.get("/console/sign-in", next="/console/device")
    assert 'href="/console/oidc/start?next=/console/device"' in page.text
    assert "Continue with OpenID Connect" in words(page)
    answer = visited.back(visited.start("/console/device"))
    assert leads_to(answer) == "/console/device"
    assert visited.browser.session
    assert "Signed in as ada@example.com" in words(visited.browser.get("/console"))


def test_state_of_a_sign_in_is_kept_for_minutes_in_a_sealed_cookie(visited: Visited) -> None:
    answer = visited.browser.get("/console/oidc/start")
    pair, *attributes = answer.headers["set-cookie"].split(";")
    assert pair.partition("=")[0] == KEPT
    flags = {attribute.strip().lower() for attribute in attributes}
    assert flags == {"secure", "httponly", "samesite=lax", "path=/", "max-age=600"}


def test_cookie_over_plain_http_has_no_secure(open_site: OpenSite) -> None:
    visited = Visited(open_site(oidc=SETTINGS, base_url="http://127.0.0.1:8402"))
    header = visited.browser.get("/console/oidc/start").headers["set-cookie"]
    assert header.startswith("tollgate-oidc=")
    assert "secure" not in header.lower()


def test_callback_works_once(visited: Visited) -> None:
    visited.site.account()
    params = visited.start()
    first = visited.back(params)
    assert any(
        each.startswith(f'{KEPT}=""; ') and "Max-Age=0" in each for each in first.headers.get_list("set-cookie")
    )
    again = visited.back(params)
    assert again.status_code == 400
    assert "took too long, or was started in another browser. Start again." in words(again)


def test_callback_in_another_browser_is_refused(visited: Visited) -> None:
    visited.site.account()
    victim = visited.site.browser()
    answer = visited.back(visited.start(), victim)
    assert answer.status_code == 400
    assert victim.session is None


def test_callback_with_another_state_is_refused(visited: Visited) -> None:
    visited.site.account()
    answer = visited.back({**visited.start(), "state": "another"})
    assert answer.status_code == 400
    assert "Sign in" in words(answer)
    assert visited.browser.session is None
    assert KEPT not in visited.browser.client.cookies


@pytest.mark.parametrize("value", ["", "x", "W10", "WyJhIiwiYiIsImMiXQ", "é" * 3, "A" * 4_000])
def test_foreign_cookie_causes_no_server_error(visited: Visited, value: str) -> None:
    headers = {"Cookie": f"{KEPT}={value}".encode("latin-1")}
    answer = visited.browser.request("GET", "/console/oidc/callback?state=x&code=y", headers=headers)
    assert answer.status_code == 400


def test_cancelling_at_the_provider_leads_back_to_the_form(visited: Visited) -> None:
    answer = visited.browser.get("/console/oidc/callback", state=visited.start()["state"], error="access_denied")
    assert answer.status_code == 400
    assert "The sign-in was cancelled at the provider." in words(answer)
    assert 'action="/console/sign-in"' in answer.text


def test_unavailable_provider_is_reported_beside_the_form(visited: Visited) -> None:
    visited.provider.instead[DISCOVERY] = lambda _: httpx.Response(503)
    answer = visited.browser.get("/console/oidc/start", next="/console/device")
    assert answer.status_code == 502
    assert "returns no discovery document (HTTP 503)" in words(answer)
    assert 'name="next" value="/console/device"' in answer.text


def test_unknown_person_gets_no_account_while_sign_up_is_closed(visited: Visited) -> None:
    answer = visited.back(visited.start())
    assert answer.status_code == 403
    assert "ada@example.com has no account here." in words(answer)
    assert visited.browser.session is None


def test_account_with_an_unverified_address_is_not_taken_over(open_site: OpenSite) -> None:
    visited = Visited(open_site(oidc=SETTINGS, sign_up="open"))
    form = {"email": ADA, "password": "a password of another", "again": "a password of another"}
    visited.site.browser().post("/console/sign-up", **form)
    answer = visited.back(visited.start())
    assert answer.status_code == 409
    assert "sign in with its password" in words(answer)


def test_account_is_made_where_sign_up_is_open(open_site: OpenSite) -> None:
    visited = Visited(open_site(oidc=SETTINGS, sign_up="open"))
    assert "Continue with OpenID Connect" in words(visited.browser.get("/console/sign-up"))
    assert leads_to(visited.back(visited.start())) == "/console"
    assert words(visited.browser.get("/console/account")).startswith("Ada Lovelace")


def test_invitation_lets_an_account_be_made_and_waits_to_be_accepted(visited: Visited) -> None:
    link = visited.site.do(
        visited.site.plane.invitations.create_by_operator(OPERATOR, NewInvitation(ADA, "viewer"))
    ).link
    path = link.removeprefix(visited.site.base_url)
    assert f'href="/console/oidc/start?next={path}"' in visited.browser.get(path).text
    assert leads_to(visited.back(visited.start(path))) == path
    assert "Accept" in words(visited.browser.get(path))
    assert leads_to(visited.browser.post(path, act="accept")) == "/console?done=joined"


def test_invitation_of_another_person_creates_no_account(visited: Visited) -> None:
    link = visited.site.do(
        visited.site.plane.invitations.create_by_operator(OPERATOR, NewInvitation(BOB, "viewer"))
    ).link
    answer = visited.back(visited.start(link.removeprefix(visited.site.base_url)))
    assert answer.status_code == 403
    assert visited.browser.session is None


def test_previous_session_is_ended(visited: Visited) -> None:
    visited.site.account()
    visited.site.account(BOB)
    visited.browser = visited.site.signed_in(BOB)
    before = visited.browser.session
    visited.back(visited.start())
    assert visited.browser.session != before
    old = visited.site.browser()
    old.client.cookies.set(COOKIE, before or "")
    assert leads_to(old.get("/console")).startswith("/console/sign-in")


@pytest.mark.parametrize("given", ["//evil.example", "https://evil.example", "/console\\evil"])
def test_sign_in_by_provider_never_leads_to_another_site(visited: Visited, given: str) -> None:
    visited.site.account()
    assert leads_to(visited.back(visited.start(given))) == "/console"


def test_without_a_provider_there_is_no_button_and_no_page(site: Site) -> None:
    browser = site.browser()
    assert "oidc" not in browser.get("/console/sign-in").text
    for path in ("/console/oidc/start", "/console/oidc/callback"):
        answer = browser.get(path)
        assert answer.status_code == 404
        assert "sign in with email and password" in words(answer)


def test_page_contains_no_secret_of_the_sign_in(visited: Visited) -> None:
    params = visited.start()
    answer: Any = visited.browser.get(
        "/console/oidc/callback", state=params["state"], error="<script>alert(1)</script>"
    )
    assert "<script>" not in answer.text
    assert params["state"] not in answer.text
