"""Signing in and out, the session's cookie, and its end."""

from collections.abc import Callable

import pytest
from tests.control.console.site import ADA, BOB, COOKIE, PASSWORD, Site, leads_to, words

from tollgate.api.me import NewPersonalToken
from tollgate.control.service_context import PageRequest
from tollgate.core import secrets

HOUR = 3_600.0


def test_home_redirects_to_sign_in_without_a_session_and_back(site: Site) -> None:
    site.account()
    browser = site.browser()
    assert leads_to(browser.get("/console")) == "/console/sign-in?next=%2Fconsole"
    page = browser.get("/console/sign-in", next="/console")
    assert '<input type="hidden" name="next" value="/console">' in page.text
    assert leads_to(browser.post("/console/sign-in", email=ADA, password=PASSWORD, next="/console")) == "/console"
    assert "Signed in as ada@example.com" in words(browser.get("/console"))


def test_target_page_is_kept_through_a_wrong_password(site: Site) -> None:
    site.account()
    browser, back = site.browser(), "/console/device?user_code=BCDF-GHJK"
    page = browser.post("/console/sign-in", email=ADA, password="wrong", next=back)
    assert f'name="next" value="{back}"' in page.text
    assert leads_to(browser.post("/console/sign-in", email=ADA, password=PASSWORD, next=back)) == back


def test_signed_in_person_is_not_prompted_again(site: Site) -> None:
    site.account()
    assert leads_to(site.signed_in().get("/console/sign-in", next="/console/device")) == "/console/device"


@pytest.mark.parametrize("email", [ADA, "unknown@example.com", "no address at all"])
def test_wrong_password_and_unknown_address_are_reported_alike(site: Site, email: str) -> None:
    site.account()
    answer = site.browser().post("/console/sign-in", email=email, password="typed-secret")
    assert answer.status_code == 401
    assert "The email or the password is wrong." in words(answer)
    assert f'value="{email}"' in answer.text
    assert "typed-secret" not in answer.text
    assert "set-cookie" not in answer.headers


def test_missing_fields_are_a_wrong_password(site: Site) -> None:
    assert site.browser().post("/console/sign-in").status_code == 401


def test_what_was_typed_is_escaped(site: Site) -> None:
    answer = site.browser().post("/console/sign-in", email='"><script>alert(1)</script>', password="x")
    assert "<script>" not in answer.text
    assert "&#34;&gt;&lt;script&gt;" in answer.text


def test_too_many_failures_show_how_long_to_wait(site: Site) -> None:
    site.account()
    browser = site.browser()
    for _ in range(5):
        assert browser.post("/console/sign-in", email=ADA, password="wrong").status_code == 401
    answer = browser.post("/console/sign-in", email=ADA, password=PASSWORD)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")
    assert "Too many failed sign-ins: wait 2 seconds, then try again." in words(answer)
    assert f'value="{ADA}"' in answer.text
    site.now += 2
    assert leads_to(browser.post("/console/sign-in", email=ADA, password=PASSWORD)) == "/console"


def test_cookie_over_https_belongs_to_this_host_alone(site: Site) -> None:
    site.account()
    answer = site.browser().post("/console/sign-in", email=ADA, password=PASSWORD)
    name, value, attributes = _cookie(answer.headers["set-cookie"])
    assert name == COOKIE
    assert secrets.well_formed(value, secrets.SESSION)
    assert attributes == {"secure", "httponly", "samesite=lax", "path=/", f"max-age={12 * 3600}"}


def test_cookie_over_plain_http_is_without_secure(open_site: Callable[..., Site]) -> None:
    site = open_site(base_url="http://127.0.0.1:8402")
    site.account()
    answer = site.browser().post("/console/sign-in", email=ADA, password=PASSWORD)
    name, _, attributes = _cookie(answer.headers["set-cookie"])
    assert name == "tollgate"
    assert attributes == {"httponly", "samesite=lax", "path=/", f"max-age={12 * 3600}"}


def test_each_sign_in_has_a_session_of_its_own_and_ends_the_one_before(site: Site) -> None:
    ada, bob = site.account(), site.account(BOB)
    browser = site.signed_in()
    planted = browser.session
    browser.post("/console/sign-in", email=BOB, password=PASSWORD)
    assert browser.session != planted
    thief = site.browser()
    thief.client.cookies.set(COOKIE, planted or "")
    assert leads_to(thief.get("/console")).startswith("/console/sign-in")
    for account, held in ((ada, 1), (bob, 2)):
        assert len(site.do(site.plane.logins.list(site.actor(account), PageRequest())).items) == held


def test_session_id_chosen_by_a_client_is_not_accepted(site: Site) -> None:
    site.account()
    browser = site.browser()
    chosen = secrets.new_token(secrets.SESSION)
    browser.client.cookies.set(COOKIE, chosen, domain="tollgate.example.com", path="/")
    assert leads_to(browser.get("/console")).startswith("/console/sign-in")
    browser.post("/console/sign-in", email=ADA, password=PASSWORD)
    assert browser.session != chosen
    assert browser.get("/console").status_code == 200


def test_signing_out_ends_the_session_and_takes_the_cookie(site: Site) -> None:
    site.account()
    browser = site.signed_in()
    kept = browser.session
    answer = browser.post("/console/sign-out")
    assert leads_to(answer) == "/console/sign-in?done=signed-out"
    name, value, attributes = _cookie(answer.headers["set-cookie"])
    assert (name, value) == (COOKIE, "")
    assert {"max-age=0", "path=/", "secure"} <= attributes
    assert "You are signed out." in words(browser.get("/console/sign-in", done="signed-out"))
    again = site.browser()
    again.client.cookies.set(COOKIE, kept or "")
    assert leads_to(again.get("/console")).startswith("/console/sign-in")


def test_signing_out_without_a_session_is_no_error(site: Site) -> None:
    assert leads_to(site.browser().post("/console/sign-out")) == "/console/sign-in?done=signed-out"


def test_session_expires(site: Site) -> None:
    site.account()
    browser = site.signed_in()
    site.now += 12 * HOUR - 1
    assert browser.get("/console").status_code == 200
    site.now += 1
    assert leads_to(browser.get("/console")).startswith("/console/sign-in")


@pytest.mark.parametrize("prefix", [secrets.ACCESS, secrets.PERSONAL, secrets.PREFIX])
def test_only_a_session_is_good_as_a_cookie(site: Site, prefix: str) -> None:
    browser = site.browser()
    browser.client.cookies.set(COOKIE, secrets.new_token(prefix))
    assert leads_to(browser.get("/console")).startswith("/console/sign-in")


def test_personal_token_does_not_open_the_console(site: Site) -> None:
    actor = site.actor(site.account())
    _, secret = site.do(site.plane.logins.new_personal(actor, NewPersonalToken("ci", 30)))
    browser = site.browser()
    browser.client.cookies.set(COOKIE, secret)
    assert leads_to(browser.get("/console")).startswith("/console/sign-in")


def test_fields_are_labelled_and_known_to_password_managers(site: Site) -> None:
    page = site.browser().get("/console/sign-in").text
    for field, kind in (("email", "username"), ("password", "current-password")):
        assert f'<label for="{field}">' in page
        assert f'id="{field}" name="{field}"' in page
        assert f'autocomplete="{kind}"' in page


@pytest.mark.parametrize(
    ("back", "purpose"),
    [("/console/device", "which terminal requests"), ("/console/invitations/tgi_x", "accept your invitation")],
)
def test_page_shows_the_reason_for_signing_in(site: Site, back: str, purpose: str) -> None:
    assert purpose in words(site.browser().get("/console/sign-in", next=back))


def _cookie(header: str) -> tuple[str, str, set[str]]:
    pair, *attributes = header.split(";")
    name, _, value = pair.partition("=")
    return name, value.strip('"'), {attribute.strip().lower() for attribute in attributes}
