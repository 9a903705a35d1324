"""Passwords: a forgotten one, with the same answer for all addresses and a link that works once; a changed one."""

from collections.abc import Callable

import pytest
from tests.control.console.site import ADA, PASSWORD, Site, leads_to, words
from tests.control.services.harness import CHEAP

from tollgate.control.mail import Mailer
from tollgate.control.passwords import Passwords
from tollgate.control.service_context import OPERATOR
from tollgate.control.services.accounts import Accounts
from tollgate.settings.model import MailSettings

OpenSite = Callable[..., Site]
NEW = "another long password"


class Box(Mailer):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__(MailSettings(host="mail.example.com"))
        self.sent: list[tuple[str, str]] = []

    def post(self, to: str, subject: str, text: str) -> bool:
        self.sent.append((to, text))
        return True


@pytest.fixture
def box(site: Site) -> Box:
    mailer = Box()
    site.plane.mailer = mailer
    site.plane.accounts = Accounts(site.plane.context, Passwords(CHEAP), mailer)
    return mailer


def _link(site: Site) -> str:
    return site.do(site.plane.accounts.reset_link(OPERATOR, ADA)).removeprefix(site.base_url)


def test_answer_is_the_same_whether_there_is_an_account_or_not(site: Site, box: Box) -> None:
    site.account()
    browser = site.browser()
    assert "Send the link" in words(browser.get("/console/forgot"))
    known, unknown = (browser.post("/console/forgot", email=email) for email in (ADA, "eve@example.com"))
    assert "If ada@example.com has an account, a link was sent to it." in words(known)
    assert known.status_code == unknown.status_code == 200
    assert known.text.replace(ADA, "X") == unknown.text.replace("eve@example.com", "X")
    assert [to for to, _ in box.sent] == [ADA]


def test_link_that_was_sent_sets_the_password(site: Site, box: Box) -> None:
    site.account()
    browser = site.browser()
    browser.post("/console/forgot", email=ADA)
    path = box.sent[0][1].partition(site.base_url)[2].split()[0]
    assert "For ada@example.com" in words(browser.get(path))
    assert leads_to(browser.post(path, password=NEW, again=NEW)) == "/console/sign-in?done=reset"
    assert "The password was changed" in words(browser.get("/console/sign-in", done="reset"))
    assert browser.post("/console/sign-in", email=ADA, password=PASSWORD).status_code == 401
    assert leads_to(browser.post("/console/sign-in", email=ADA, password=NEW)) == "/console"


def test_error_of_a_mistyped_address_is_beside_its_field(site: Site, box: Box) -> None:
    answer = site.browser().post("/console/forgot", email="ada")
    assert answer.status_code == 400
    assert "is not an email address" in words(answer)
    assert 'value="ada"' in answer.text


def test_repeated_requests_from_one_address_are_limited(site: Site, box: Box) -> None:
    browser = site.browser()
    for _ in range(21):
        assert browser.post("/console/forgot", email=ADA).status_code == 200
    answer = browser.post("/console/forgot", email=ADA)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")
    assert "wait 2 seconds" in words(answer)


def test_without_mail_the_page_refers_to_the_operator(site: Site) -> None:
    site.account()
    browser = site.browser()
    pages = [
        browser.get("/console/forgot"),
        *(browser.post("/console/forgot", email=each) for each in (ADA, "e@f.gh")),
    ]
    assert len({page.text for page in pages}) == 1
    assert "tollgate admin reset-link you@example.com" in words(pages[0])


def test_link_is_good_once_and_ends_every_session(site: Site) -> None:
    site.account()
    signed_in, path = site.signed_in(), _link(site)
    answer = site.browser().post(path, password=NEW, again=NEW)
    assert leads_to(answer) == "/console/sign-in?done=reset"
    assert "set-cookie" not in answer.headers
    assert leads_to(signed_in.get("/console")).startswith("/console/sign-in")
    for again in (site.browser().get(path), site.browser().post(path, password=NEW, again=NEW)):
        assert again.status_code == 404
        assert "This link was used or has expired: ask for another." in words(again)


def test_link_expires(site: Site) -> None:
    site.account()
    path = _link(site)
    site.now += 3_600
    assert site.browser().get(path).status_code == 404


@pytest.mark.parametrize(
    ("password", "again", "field"),
    [("short", "short", "password"), (NEW, PASSWORD, "again"), (ADA, ADA, "password")],
)
def test_password_that_will_not_do_leaves_the_link_good(site: Site, password: str, again: str, field: str) -> None:
    site.account()
    path = _link(site)
    answer = site.browser().post(path, password=password, again=again)
    assert answer.status_code == 400
    assert f'aria-invalid="true" aria-describedby="{field}-words"' in answer.text
    assert 'type="password" value' not in answer.text
    assert leads_to(site.browser().post(path, password=NEW, again=NEW)) == "/console/sign-in?done=reset"


def test_password_managers_get_the_address_of_the_account(site: Site) -> None:
    site.account()
    page = site.browser().get(_link(site)).text
    assert 'value="ada@example.com" autocomplete="username"' in page
    assert page.count('autocomplete="new-password"') == 2


@pytest.mark.parametrize(
    ("current", "new", "status", "text"),
    [
        ("", NEW, 401, "Your current password is wrong: nothing was changed."),
        ("wrong", "short", 401, "Your current password is wrong: nothing was changed."),
        (PASSWORD, "short", 400, "A password has 10 to 256 characters."),
    ],
)
def test_account_page_checks_the_current_password_before_the_new_one(
    site: Site, current: str, new: str, status: int, text: str
) -> None:
    site.account()
    browser = site.signed_in()
    refused = browser.post("/console/account", act="password", current=current, new=new, again=new)
    assert refused.status_code == status
    assert text in words(refused)
    assert words(browser.get("/console/account")).count("Passkeys") > 1
    changed = browser.post("/console/account", act="password", current=PASSWORD, new=NEW, again=NEW)
    assert leads_to(changed) == "/console/account?done=password"


@pytest.mark.parametrize("ticked", [True, False])
def test_account_page_ends_other_browsers_where_that_box_is_ticked(site: Site, ticked: bool) -> None:
    site.account()
    browser, other = site.signed_in(), site.signed_in()
    boxes = {"end_sessions": "on"} if ticked else {}
    browser.post("/console/account", act="password", current=PASSWORD, new=NEW, again=NEW, **boxes)
    assert other.get("/console/account").status_code == (303 if ticked else 200)
