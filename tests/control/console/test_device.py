"""Approving `tollgate auth login`: what is shown, what a button does, and wrong codes."""

import pytest
from tests.control.console.site import ADA, PASSWORD, Site, leads_to, words

from tollgate.control.service_context import ClientInfo
from tollgate.control.services.devices import OAuthError, Started
from tollgate.core.people import TOOL

WRONG = "BCDF-GHJK"


def _poll(site: Site, started: Started) -> str:
    """What the tool gets: an error of OAuth, or whose login it got."""
    site.now += 30
    try:
        given = site.do(site.plane.devices.poll(ClientInfo(), started.device_code))
    except OAuthError as error:
        return error.code
    return site.do(site.plane.logins.actor(ClientInfo(), given.access, TOOL)).label


def test_visitor_without_a_session_signs_in_first_and_the_code_is_kept(site: Site) -> None:
    site.account()
    started, browser = site.waiting(), site.browser()
    path = started.verification_uri_complete.removeprefix(site.base_url)
    back = f"%2Fconsole%2Fdevice%3Fuser_code%3D{started.user_code}"
    assert leads_to(browser.get(path)) == f"/console/sign-in?next={back}"
    assert leads_to(browser.post("/console/sign-in", email=ADA, password=PASSWORD, next=path)) == path
    assert "Log this terminal in?" in words(browser.get(path))


def test_page_shows_which_machine_logs_in_and_as_whom(site: Site) -> None:
    site.account()
    browser, started = site.signed_in(), site.waiting()
    site.now += 125
    shown = words(browser.get("/console/device", user_code=started.user_code))
    assert "act as ada@example.com , in all your teams" in shown
    assert "Machine ada@laptop" in shown
    assert "Address 198.51.100.9" in shown
    assert "Program tollgate/1.0" in shown
    assert "Requested 2 minutes ago (2027-01-15 08:00 UTC)" in shown
    assert f"Code {started.user_code}" in shown
    assert "Approve only what you started yourself" in shown


def test_machine_without_a_name_is_shown_as_unknown(site: Site) -> None:
    site.account()
    shown = words(site.signed_in().get("/console/device", user_code=site.waiting("", "").user_code))
    assert "Machine unknown" in shown
    assert "Program unknown" in shown


@pytest.mark.parametrize("how", ["{}", " {} ", "{lower}", "{plain}", "{spaced}"])
def test_code_may_be_typed_in_many_ways(site: Site, how: str) -> None:
    site.account()
    code = site.waiting().user_code
    typed = how.format(code, lower=code.lower(), plain=code.replace("-", ""), spaced=code.replace("-", " "))
    page = site.signed_in().get("/console/device", user_code=typed)
    assert f'name="user_code" value="{code}"' in page.text


def test_form_prompts_for_the_code(site: Site) -> None:
    site.account()
    page = site.signed_in().get("/console/device")
    assert page.status_code == 200
    assert '<label for="user_code">' in page.text
    assert 'autocomplete="one-time-code"' in page.text


def test_approved_tool_acts_as_the_person_who_approved(site: Site) -> None:
    site.account()
    browser, started = site.signed_in(), site.waiting()
    answer = browser.post("/console/device", user_code=started.user_code, act="approve")
    assert leads_to(answer) == "/console/device/approved"
    assert "You can close this page and go back to the terminal." in words(browser.get("/console/device/approved"))
    assert _poll(site, started) == ADA
    assert "ada@laptop Command-line tool" in words(browser.get("/console/account"))


def test_denied_tool_is_refused(site: Site) -> None:
    site.account()
    browser, started = site.signed_in(), site.waiting()
    answer = browser.post("/console/device", user_code=started.user_code, act="deny")
    assert leads_to(answer) == "/console/device/denied"
    shown = words(browser.get("/console/device/denied"))
    assert "was not logged in. You can close this page and go back to the terminal." in shown
    assert _poll(site, started) == "access_denied"


@pytest.mark.parametrize("query", [{}, {"act": "approve"}, {"approve": "1"}])
def test_opening_a_page_approves_nothing(site: Site, query: dict[str, str]) -> None:
    site.account()
    browser, started = site.signed_in(), site.waiting()
    assert browser.get("/console/device", user_code=started.user_code, **query).status_code == 200
    browser.get("/console/device/approved")
    assert _poll(site, started) == "authorization_pending"


def test_form_without_a_decision_decides_nothing(site: Site) -> None:
    site.account()
    browser, started = site.signed_in(), site.waiting()
    answer = browser.post("/console/device", user_code=started.user_code)
    assert leads_to(answer) == f"/console/device?user_code={started.user_code}"
    assert _poll(site, started) == "authorization_pending"


def test_another_site_cannot_approve(site: Site) -> None:
    site.account()
    browser, started = site.signed_in(), site.waiting()
    form = {"user_code": started.user_code, "act": "approve"}
    assert browser.post_from({"Sec-Fetch-Site": "cross-site"}, "/console/device", **form).status_code == 403
    assert _poll(site, started) == "authorization_pending"


def test_approval_needs_a_session(site: Site) -> None:
    started = site.waiting()
    answer = site.browser().post("/console/device", user_code=started.user_code, act="approve")
    assert leads_to(answer).startswith("/console/sign-in?next=%2Fconsole%2Fdevice%3Fuser_code%3D")
    assert _poll(site, started) == "authorization_pending"


def test_wrong_code_is_reported_and_kept_in_the_field(site: Site) -> None:
    site.account()
    answer = site.signed_in().get("/console/device", user_code=WRONG)
    assert answer.status_code == 404
    assert "No login waits with this code: check it, or run tollgate auth login again." in words(answer)
    assert f'value="{WRONG}"' in answer.text


def test_code_that_has_expired_or_was_used_is_wrong(site: Site) -> None:
    site.account()
    browser, used, late = site.signed_in(), site.waiting(), site.waiting()
    browser.post("/console/device", user_code=used.user_code, act="deny")
    assert browser.post("/console/device", user_code=used.user_code, act="approve").status_code == 404
    site.now += 15 * 60
    assert browser.get("/console/device", user_code=late.user_code).status_code == 404
    assert browser.post("/console/device", user_code=late.user_code, act="approve").status_code == 404
    assert _poll(site, late) == "expired_token"


def test_after_ten_wrong_codes_even_the_right_one_is_refused_for_a_while(site: Site) -> None:
    site.account()
    browser, started = site.signed_in(), site.waiting()
    for _ in range(10):
        assert browser.get("/console/device", user_code=WRONG).status_code == 404
    right = {"user_code": started.user_code}
    for answer in (
        browser.get("/console/device", **right),
        browser.post("/console/device", act="approve", **right),
    ):
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "900")
        assert "Too many wrong codes: wait 15 minutes, then try again." in words(answer)
    assert _poll(site, started) == "authorization_pending"
    site.now += 900
    fresh = site.waiting()
    assert browser.get("/console/device", user_code=fresh.user_code).status_code == 200


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "{{ 7 * 7 }}",
        "`<b>code</b>`",
        "&lt;script&gt;",
    ],
)
def test_name_of_a_machine_is_escaped(site: Site, text: str) -> None:
    site.account()
    started = site.waiting(machine=text, agent=text)
    page = site.signed_in().get("/console/device", user_code=started.user_code)
    assert words(page).count(f"{text} ") == 2
    for markup in ("<script>", "<img", "<b>", "49"):
        assert markup not in page.text.partition("<main")[2].partition("<dl")[2].partition("Requested")[0]


def test_wrong_code_is_escaped(site: Site) -> None:
    site.account()
    page = site.signed_in().get("/console/device", user_code='"><script>alert(1)</script>').text
    assert "<script>" not in page
