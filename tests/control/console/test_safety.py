"""Where a redirect may lead, where a form may come from, and the headers of every answer."""

from collections.abc import Callable

import pytest
from tests.control.console.site import ADA, BASE_URL, HOST, PASSWORD, Browser, Site, leads_to, words

from tollgate.control.console.safety import HEADERS, HOME, MAX_PATH, from_our_pages, local_path

OPEN_REDIRECTS = [
    "",
    "/",
    "//evil.example",
    "/\\evil.example",
    "\\\\evil.example",
    "https://evil.example",
    "https:evil.example",
    "javascript:alert(1)",
    "evil.example",
    "/api/v1/me",
    "/consoles",
    "/console.evil.example",
    "/console@evil.example",
    "/console//evil.example",
    "/console/..//evil.example",
    "/console/../api",
    "/console/%2e%2e/api",
    "/console/%2f%2fevil.example",
    "/console\\evil.example",
    "/console/\tx",
    "/console/x\r\nSet-Cookie: a=b",
    " /console",
    "/console ",
    "/console/x#y",
    "/console/ä",
    "/console?x=\\",
    "/console/" + "x" * MAX_PATH,
]


@pytest.mark.parametrize("given", OPEN_REDIRECTS)
def test_path_outside_the_console_redirects_home(given: str) -> None:
    assert local_path(given) == HOME


@pytest.mark.parametrize(
    "given",
    [
        "/console",
        "/console/device?user_code=BCDF-GHJK",
        "/console/invitations/tgi_Ab09",
        "/console/sign-up?next=%2F",
    ],
)
def test_path_of_a_page_is_kept(given: str) -> None:
    assert local_path(given) == given


def test_signing_in_never_leads_to_another_site(site: Site) -> None:
    site.account()
    for given in OPEN_REDIRECTS:
        answer = site.browser().post("/console/sign-in", email=ADA, password=PASSWORD, next=given)
        assert leads_to(answer) == HOME, given


ORIGIN = f"https://{HOST}"


@pytest.mark.parametrize(
    ("headers", "ours"),
    [
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": ""}, False),
        ({"sec-fetch-site": "cross-site", "origin": ORIGIN}, False),
        ({"origin": ORIGIN}, True),
        ({"origin": ORIGIN.upper()}, True),
        ({"origin": "http://10.0.0.5:8402"}, True),
        ({"referer": f"{ORIGIN}/console/sign-in"}, True),
        ({"origin": "https://evil.example"}, False),
        ({"origin": "https://evil.example", "referer": ORIGIN}, False),
        ({"origin": f"https://{HOST}.evil.example"}, False),
        ({"origin": f"https://evil.example/{HOST}"}, False),
        ({"origin": f"https://{HOST}@evil.example"}, False),
        ({"origin": f"https://{HOST}:8443"}, False),
        ({"origin": "null"}, False),
        ({"origin": "https://["}, False),
        ({"referer": "https://evil.example/?https://tollgate.example.com"}, False),
        ({}, False),
    ],
)
def test_form_is_accepted_by_the_source_that_the_browser_reports(headers: dict[str, str], ours: bool) -> None:
    assert from_our_pages({"host": "10.0.0.5:8402", **headers}, BASE_URL) is ours


def test_form_without_a_source_is_refused_even_without_a_host() -> None:
    assert not from_our_pages({"origin": "null"}, BASE_URL)


POSTS = [
    "/console/sign-in",
    "/console/sign-out",
    "/console/sign-up",
    "/console/forgot",
    "/console/device",
    "/console/reset/x",
    "/console/invitations/x",
    "/console/logins/log_1/end",
]


@pytest.mark.parametrize(
    "source", [{"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}, {"Origin": "null"}, {}]
)
def test_form_of_another_site_is_refused_everywhere(browser: Browser, source: dict[str, str]) -> None:
    for path in POSTS:
        answer = browser.post_from(source, path, email=ADA, password="x")
        assert answer.status_code == 403, path
        assert "This form came from another site" in words(answer)
        assert "set-cookie" not in answer.headers


def test_another_site_cannot_sign_a_person_out(site: Site) -> None:
    site.account()
    browser = site.signed_in()
    assert browser.post_from({"Sec-Fetch-Site": "cross-site"}, "/console/sign-out").status_code == 403
    assert browser.get("/console").status_code == 200


def test_form_over_plain_http_is_known_by_its_origin(open_site: Callable[..., Site]) -> None:
    site = open_site(base_url="http://gate.lan:8402")
    site.account()
    form = {"email": ADA, "password": PASSWORD}
    for headers in ({"Origin": "http://gate.lan:8402"}, {"Referer": "http://gate.lan:8402/console/sign-in"}):
        assert leads_to(site.browser().post_from(headers, "/console/sign-in", **form)) == HOME


def test_security_headers_are_on_every_answer(browser: Browser) -> None:
    for method, path, status in (
        ("GET", "/console/sign-in", 200),
        ("HEAD", "/console/sign-in", 200),
        ("GET", "/console", 303),
        ("GET", "/console/nowhere", 404),
        ("GET", "/console/reset/x", 404),
        ("GET", "/console/sign-out", 405),
        ("POST", "/console/sign-in", 403),
    ):
        answer = browser.request(method, path)
        assert answer.status_code == status, (method, path)
        for name, value in HEADERS.items():
            assert answer.headers.get_list(name) == [value], (method, path)


def test_policy_lets_our_own_files_in_and_nothing_else(browser: Browser) -> None:
    policy = browser.get("/console/sign-in").headers["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "connect-src": "'self'",
        "img-src": "'self' data:",
        "form-action": "'self'",
        "frame-ancestors": "'none'",
        "base-uri": "'none'",
    }


def test_name_of_a_token_is_escaped_on_every_page_of_its_team(site: Site) -> None:
    site.team(site.account())
    browser = site.signed_in()
    name = '"><img src=x onerror=alert(1)>{{7*7}}'
    made = browser.post("/console/teams/acme/tokens", name=name)
    assert made.status_code == 201, words(made)
    pages = {
        path: browser.get(f"/console/teams/acme{path}").text
        for path in ("", "/tokens", "/logs", "/usage", "/audit")
    }
    assert any("&lt;img" in page for page in (*pages.values(), made.text)), "it is shown somewhere"
    for page in (*pages.values(), made.text):
        assert "<img src=x" not in page
        assert "49" not in page.partition("onerror")[2][:40]
