"""The first page: teams, logins, and ending one."""

import pytest
from tests.control.console.site import ADA, BOB, Site, leads_to, words

from tollgate.api.me import NewPersonalToken
from tollgate.api.members import InvitationLink, NewInvitation
from tollgate.core.people import Login


def test_page_shows_teams_with_roles_and_what_to_do_next(site: Site) -> None:
    ada, bob = site.account(name="Ada Lovelace"), site.account(BOB)
    actor = site.team(ada, "research")
    other = site.team(bob, "acme")
    link = site.do(site.plane.invitations.create(other, "acme", NewInvitation(ADA, "viewer"))).link
    site.do(site.plane.invitations.accept(actor, InvitationLink(link)))
    shown = words(site.signed_in().get("/console"))
    assert shown.startswith("Teams Signed in as ada@example.com")
    assert "a acme viewer r research owner" in shown
    assert f"tollgate auth login --url {site.base_url}" in shown
    assert "tollgate rpc tokens create my-app --team research" in shown
    assert "teams create" not in shown


def test_answer_names_the_caller_of_a_valid_session_to_the_worker(site: Site) -> None:
    site.account()
    assert site.signed_in().get("/console/teams").headers["x-tollgate-known"] == "1"
    assert "x-tollgate-known" not in site.browser().get("/console/teams").headers


def test_role_without_the_right_to_create_tokens_is_not_advised_to(site: Site) -> None:
    ada, bob = site.account(), site.account(BOB)
    link = site.do(site.plane.invitations.create(site.team(bob), "acme", NewInvitation(ADA, "billing"))).link
    site.do(site.plane.invitations.accept(site.actor(ada), InvitationLink(link)))
    shown = words(site.signed_in().get("/console/teams"))
    assert "tollgate rpc tokens list --team acme" in shown
    assert "tokens create" not in shown


def test_member_of_one_team_is_redirected_to_it(site: Site) -> None:
    site.team(site.account(), "research")
    assert leads_to(site.signed_in().get("/console")) == "/console/teams/research"


def test_team_is_made_and_a_name_that_is_taken_is_reported_beside_the_field(site: Site) -> None:
    site.account()
    site.team(site.account(BOB), "acme")
    browser = site.signed_in()
    taken = browser.post("/console/teams", name="acme")
    assert (taken.status_code, "is taken: choose another" in words(taken)) == (409, True)
    assert leads_to(browser.post("/console/teams", name="mine")) == "/console/teams/mine/endpoints?done=team"


def test_person_without_a_team_is_shown_how_to_create_one(site: Site) -> None:
    site.account()
    shown = words(site.signed_in().get("/console"))
    assert "You belong to no team yet" in shown
    assert "tollgate teams create my-team" in shown


def test_login_can_be_ended(site: Site) -> None:
    ada = site.account()
    _, secret = site.do(site.plane.logins.new_personal(site.actor(ada), NewPersonalToken("ci", None)))
    browser = site.signed_in()
    personal = next(each for each in _logins(site) if each.kind == "personal")
    page = browser.get("/console/account")
    assert "Personal access tokens ci Created" in words(page)
    assert f'action="/console/logins/{personal.id}/end"' in page.text
    assert leads_to(browser.post(f"/console/logins/{personal.id}/end")) == "/console/account?done=ended"
    assert "That login has ended." in words(browser.get("/console/account", done="ended"))
    assert personal.id not in [each.id for each in _logins(site)]
    assert secret not in page.text


def test_ending_the_login_in_use_signs_out(site: Site) -> None:
    site.account()
    browser = site.signed_in()
    (mine,) = [each for each in _logins(site) if each.address]
    answer = browser.post(f"/console/logins/{mine.id}/end")
    assert leads_to(answer) == "/console/sign-in?done=signed-out"
    assert "max-age=0" in answer.headers["set-cookie"].lower()
    assert leads_to(browser.get("/console")).startswith("/console/sign-in")


def test_login_of_another_person_cannot_be_ended(site: Site) -> None:
    site.account()
    theirs = site.actor(site.account(BOB)).login
    assert theirs is not None
    answer = site.signed_in().post(f"/console/logins/{theirs.id}/end")
    assert answer.status_code == 404
    assert "You have no login" in words(answer)


def test_ending_a_login_needs_a_session(site: Site) -> None:
    assert leads_to(site.browser().post("/console/logins/log_1/end")).startswith("/console/sign-in")


def test_names_of_logins_and_people_are_escaped(site: Site) -> None:
    ada = site.account(name="<b>Ada</b>")
    site.do(
        site.plane.logins.new_personal(site.actor(ada), NewPersonalToken('"><img src=x onerror=alert(1)>', None))
    )
    page = site.signed_in().get("/console/account").text
    assert "<b>Ada" not in page
    assert "<img" not in page


def test_unknown_notice_is_not_shown(site: Site) -> None:
    site.account()
    assert "evil words" not in site.signed_in().get("/console", done="evil words").text


def _logins(site: Site) -> list[Login]:
    async def listed() -> list[Login]:
        account = await site.plane.accounts.find(ADA)
        assert account is not None
        async with site.plane.context.store.reading() as records:
            return await records.logins.page(100, account_id=account.id)

    return site.do(listed())


@pytest.mark.parametrize(
    "headers",
    [
        {"Accept": "application/xhtml+xml, text/html;q=0.9", "User-Agent": "lynx"},
        {"Accept": "*/*", "Sec-Fetch-Mode": "navigate", "User-Agent": "app"},
        {"Accept": "*/*"},
    ],
)
def test_root_leads_every_browser_to_the_console(site: Site, headers: dict[str, str]) -> None:
    assert leads_to(site.browser().request("GET", "/", headers=headers)) == "/console"


def test_root_informs_a_program(site: Site) -> None:
    answer = site.browser().request("GET", "/", headers={"Accept": "*/*", "User-Agent": "curl/8"})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert "/api/v1/docs" in answer.text


def test_every_page_leads_to_the_documentation(site: Site) -> None:
    site.account()
    for page in (site.browser().get("/console/sign-in"), site.signed_in().get("/console/teams")):
        assert 'href="/api/v1/docs"' in page.text
