"""Following an invitation, by who one is and what the setting of sign-up allows."""

from collections.abc import Callable

import pytest
from tests.control.console.site import ADA, BOB, PASSWORD, Site, leads_to, words

from tollgate.api.members import NewInvitation
from tollgate.control.service_context import OPERATOR
from tollgate.core.people import Account
from tollgate.core.roles import Role

OpenSite = Callable[..., Site]
NEW = {"act": "sign-up", "name": "Bob", "password": PASSWORD, "again": PASSWORD}
DAY = 86_400.0


def _invited(site: Site, email: str = BOB, *, role: str = "developer") -> str:
    """Invite a person to Ada's team, and give the path of the link."""
    owner: Account | None = site.do(site.plane.accounts.find(ADA))
    actor = site.actor(owner) if owner else site.team(site.account())
    link = site.do(site.plane.invitations.create(actor, "acme", NewInvitation(email, role))).link
    return link.removeprefix(site.base_url)


def _by_operator(site: Site, team: str | None = None) -> str:
    link = site.do(site.plane.invitations.create_by_operator(OPERATOR, NewInvitation(BOB, "viewer"), team)).link
    return link.removeprefix(site.base_url)


def test_page_shows_what_it_invites_to_from_whom_and_for_whom(site: Site) -> None:
    shown = words(site.browser().get(_invited(site)))
    assert shown.startswith(
        "Join the team acme For bob@example.com From ada@example.com Role developer Until 2027-01-22 08:00 UTC"
    )


def test_page_of_the_operators_invitation_names_the_operator(site: Site) -> None:
    shown = words(site.browser().get(_by_operator(site)))
    assert shown.startswith("Use this service For bob@example.com From the operator of this service Until")


def test_invited_person_accepts_with_a_button(site: Site) -> None:
    path = _invited(site)
    site.account(BOB)
    browser = site.signed_in(BOB)
    assert "Accept" in words(browser.get(path))
    assert leads_to(browser.post(path, act="accept")) == "/console?done=joined"
    shown = words(browser.get("/console", done="joined"))
    assert "You have accepted the invitation." in shown
    assert "acme developer" in shown
    assert browser.get(path).status_code == 404


def test_opening_the_page_accepts_nothing(site: Site) -> None:
    path = _invited(site)
    site.account(BOB)
    browser = site.signed_in(BOB)
    browser.get(path)
    assert "acme" not in words(browser.get("/console"))


def test_another_person_sees_that_and_can_sign_out_and_return(site: Site) -> None:
    path = _invited(site)
    browser = site.signed_in(ADA)
    page = browser.get(path)
    assert "This invitation is for bob@example.com, and you are signed in as ada@example.com" in words(page)
    assert f'<input type="hidden" name="next" value="{path}">' in page.text
    refused = browser.post(path, act="accept")
    assert refused.status_code == 403
    assert words(refused) == words(page)
    assert leads_to(browser.post("/console/sign-out", next=path)) == path
    assert "I have an account: sign in" in words(browser.get(path))


def test_another_person_cannot_create_the_account_while_signed_in(open_site: OpenSite) -> None:
    site = open_site(sign_up="invited")
    path = _invited(site)
    assert site.signed_in(ADA).post(path, **NEW).status_code == 403
    assert site.do(site.plane.accounts.find(BOB)) is None


def test_visitor_without_a_session_signs_in_first_and_comes_back(site: Site) -> None:
    path = _invited(site)
    site.account(BOB)
    browser = site.browser()
    assert f'href="/console/sign-in?next={path}"' in browser.get(path).text
    assert leads_to(browser.post(path, act="accept")) == f"/console/sign-in?next={path.replace('/', '%2F')}"
    assert leads_to(browser.post("/console/sign-in", email=BOB, password=PASSWORD, next=path)) == path


@pytest.mark.parametrize("setting", ["invited", "open"])
def test_account_is_made_by_the_invitation_of_a_team(open_site: OpenSite, setting: str) -> None:
    site = open_site(sign_up=setting)
    path = _invited(site)
    browser = site.browser()
    assert "Choose a password to create the account bob@example.com." in words(browser.get(path))
    assert leads_to(browser.post(path, **NEW)) == "/console?done=joined"
    assert words(browser.get("/console/account")).startswith("Bob Signed in as bob@example.com")
    assert "acme developer" in words(browser.get("/console/teams"))
    assert site.browser().get(path).status_code == 404


def test_invitation_of_a_team_makes_no_account_while_sign_up_is_closed(site: Site) -> None:
    path = _invited(site)
    browser = site.browser()
    page = browser.get(path)
    assert "Accounts are created by the operator of this service: ask for one" in words(page)
    assert 'type="password"' not in page.text
    refused = browser.post(path, **NEW)
    assert refused.status_code == 403
    assert "ask for an invitation" in words(refused)
    assert site.do(site.plane.accounts.find(BOB)) is None


@pytest.mark.parametrize("setting", ["closed", "invited", "open"])
@pytest.mark.parametrize("team", [None, "acme"])
def test_operators_invitation_makes_an_account_whatever_the_setting(
    open_site: OpenSite, setting: str, team: str | None
) -> None:
    site = open_site(sign_up=setting)
    site.team(site.account())
    browser = site.browser()
    assert leads_to(browser.post(_by_operator(site, team), **NEW)) == "/console?done=joined"
    assert ("acme viewer" in words(browser.get("/console/teams"))) is (team is not None)


@pytest.mark.parametrize(
    ("change", "field"),
    [({"again": "another one"}, "again"), ({"password": "short", "again": "short"}, "password")],
)
def test_error_of_the_password_is_shown_beside_it(open_site: OpenSite, change: dict[str, str], field: str) -> None:
    site = open_site(sign_up="invited")
    path = _invited(site)
    answer = site.browser().post(path, **{**NEW, **change})
    assert answer.status_code == 400
    assert f'aria-invalid="true" aria-describedby="{field}-words"' in answer.text
    assert 'value="Bob"' in answer.text
    assert site.browser().get(path).status_code == 200


def test_person_with_an_account_is_directed_to_sign_in(open_site: OpenSite) -> None:
    site = open_site(sign_up="invited")
    path = _invited(site)
    site.account(BOB)
    answer = site.browser().post(path, **NEW)
    assert answer.status_code == 409
    assert "bob@example.com has an account already: sign in" in words(answer)


def test_member_is_shown_that_nothing_is_left_to_accept(site: Site) -> None:
    path, bob = _invited(site), site.account(BOB)

    async def join() -> None:
        async with site.plane.context.store.changing() as records:
            team = await records.teams.find(name="acme")
            assert team is not None
            await site.plane.teams.add_member(records, OPERATOR, team, bob.id, Role.VIEWER)

    site.do(join())
    answer = site.signed_in(BOB).post(path, act="accept")
    assert answer.status_code == 409
    assert "You belong to acme already." in words(answer)


def test_invitation_expires(site: Site) -> None:
    path = _invited(site)
    site.now += 7 * DAY
    for answer in (site.browser().get(path), site.browser().post(path, **NEW)):
        assert answer.status_code == 404
        assert "This invitation was used, withdrawn or has expired: ask for another." in words(answer)


def test_unknown_invitation_is_an_error_page(site: Site) -> None:
    assert site.browser().get("/console/invitations/%3Cscript%3E").status_code == 404
