"""Making an account: where that is open, and how to get one elsewhere."""

from collections.abc import Callable

import pytest
from tests.control.console.site import ADA, ADDRESS, PASSWORD, Site, leads_to, words

from tollgate.control.services import throttle
from tollgate.core.people import Failures
from tollgate.settings.model import MailSettings

OpenSite = Callable[..., Site]
FORM = {"email": ADA, "name": "Ada", "password": PASSWORD, "again": PASSWORD}


def test_account_is_made_and_signed_in(open_site: OpenSite) -> None:
    site = open_site(sign_up="open")
    browser = site.browser()
    assert "Create an account" in words(browser.get("/console/sign-in"))
    assert "Repeat the password" in words(browser.get("/console/sign-up"))
    assert leads_to(browser.post("/console/sign-up", **FORM, next="/console/device")) == "/console/device"
    assert words(browser.get("/console/account")).startswith("Ada Signed in as ada@example.com")


@pytest.mark.parametrize(
    ("setting", "how"),
    [
        ("closed", "Accounts are created by the operator of this service."),
        ("invited", "tollgate teams members invite you@example.com --role developer --team TEAM"),
    ],
)
def test_page_shows_how_to_get_an_account_where_it_is_not_open(
    open_site: OpenSite, setting: str, how: str
) -> None:
    site = open_site(sign_up=setting)
    browser = site.browser()
    assert "How to get an account" in words(browser.get("/console/sign-in"))
    page = browser.get("/console/sign-up")
    assert page.status_code == 200
    assert how in words(page)
    assert "tollgate admin invite you@example.com" in words(page)
    assert 'type="password"' not in page.text


@pytest.mark.parametrize("setting", ["closed", "invited"])
def test_form_sent_while_sign_up_is_closed_creates_no_account(open_site: OpenSite, setting: str) -> None:
    site = open_site(sign_up=setting)
    answer = site.browser().post("/console/sign-up", **FORM)
    assert answer.status_code == 403
    assert "How to get an account" in words(answer)
    assert "set-cookie" not in answer.headers
    assert site.do(site.plane.accounts.find(ADA)) is None


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"email": "ada"}, "email", "is not an email address: write one such as ada@example.com"),
        ({"password": "short", "again": "short"}, "password", "A password has 10 to 256 characters."),
        ({"password": ADA, "again": ADA}, "password", "must not be your email"),
        ({"again": "another password"}, "again", "The two passwords differ: enter the same one twice."),
        ({"name": "x" * 101}, "name", "100 printable characters"),
    ],
)
def test_error_is_shown_beside_its_field(
    open_site: OpenSite, change: dict[str, str], field: str, message: str
) -> None:
    form = {**FORM, **change}
    answer = open_site(sign_up="open").browser().post("/console/sign-up", **form)
    assert answer.status_code == 400
    assert message in words(answer)
    assert f'aria-invalid="true" aria-describedby="{field}-words"' in answer.text
    assert answer.text.count("aria-invalid") == 1
    assert f'value="{form["email"]}"' in answer.text
    assert f'value="{form["password"]}"' not in answer.text.replace(f'value="{form["email"]}"', "")


def test_error_of_a_taken_address_is_beside_its_field(open_site: OpenSite) -> None:
    site = open_site(sign_up="open")
    site.account()
    answer = site.browser().post("/console/sign-up", **FORM)
    assert answer.status_code == 409
    assert "ada@example.com has an account already: sign in" in words(answer)


def test_sign_ups_from_one_address_are_limited(open_site: OpenSite) -> None:
    site = open_site(sign_up="open")

    async def many() -> None:
        async with site.plane.context.store.changing() as records:
            await records.failures.add(
                Failures(site.plane.context.key("sign-up", ADDRESS), throttle.ADDRESS.free, site.now)
            )

    site.do(many())
    browser = site.browser()
    assert browser.post("/console/sign-up", **FORM).status_code == 303
    answer = site.browser().post("/console/sign-up", **{**FORM, "email": "eve@example.com"})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")
    assert "wait 2 seconds" in words(answer)
    assert 'value="eve@example.com"' in answer.text


def test_where_mail_can_be_sent_a_link_makes_the_account(
    open_site: OpenSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = open_site(sign_up="open", mail=MailSettings(host="127.0.0.1", port=1, security="none"))
    posted: list[tuple[str, str]] = []

    def post(to: str, subject: str, text: str) -> bool:
        posted.append((to, text))
        return bool(subject)

    monkeypatch.setattr(site.plane.mailer, "post", post)
    browser = site.browser()
    page = browser.get("/console/sign-up")
    assert 'type="password"' not in page.text
    answer = browser.post("/console/sign-up", **FORM)
    assert (answer.status_code, "set-cookie" in answer.headers) == (200, False)
    assert f"A mail was sent to {ADA}" in words(answer)
    assert site.do(site.plane.accounts.find(ADA)) is None
    [(to, text)] = posted
    path = next(line for line in text.splitlines() if "/invitations/" in line).removeprefix(site.base_url)
    assert to == ADA
    assert "yourself, by mail" in words(browser.get(path))
    form = {"act": "sign-up", "name": "Ada", "password": PASSWORD, "again": PASSWORD}
    assert leads_to(browser.post(path, **form)) == "/console?done=joined"
    account = site.do(site.plane.accounts.find(ADA))
    assert account is not None
    assert account.verified_at == site.now
    # The next one gets the same answer, though there is an account.
    again = site.browser().post("/console/sign-up", **FORM)
    assert (again.status_code, words(again)) == (200, words(answer))
