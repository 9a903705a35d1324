"""What was typed into a form that is refused is shown again, beside what is wrong."""

from tests.control.console.conftest import OpenSite
from tests.control.console.site import ADA


def test_form_of_a_token_keeps_what_was_typed(open_site: OpenSite) -> None:
    site = open_site()
    site.team(site.account())
    typed = {"name": "ci", "monthly_requests": "many", "methods": "eth_call  eth_getLogs", "allow_in_url": "on"}
    page = site.signed_in().post("/console/teams/acme/tokens", **typed)
    assert page.status_code == 400
    for value in ('value="ci"', 'value="many"', 'value="eth_call  eth_getLogs"'):
        assert value in page.text
    assert page.text.count(" checked") == 1


def test_every_wrong_field_shows_what_is_wrong_with_it(open_site: OpenSite) -> None:
    site = open_site()
    site.team(site.account())
    browser = site.signed_in()
    for typed in (
        {"name": "", "monthly_requests": "many", "requests_per_second": "0"},
        {"name": "", "methods": "eth_**", "addresses": "nowhere", "contracts": "none"},
    ):
        page = browser.post("/console/teams/acme/tokens", **typed)
        assert page.status_code == 400
        assert page.text.count('role="alert"') == len(typed)
        for name in typed:
            assert f'id="{name}-words" role="alert"' in page.text


def test_form_of_the_account_keeps_an_address_and_no_password(open_site: OpenSite) -> None:
    site = open_site()
    site.account()
    typed = {"act": "email", "email": "not an address", "current": "the-secret-word"}
    page = site.signed_in().post("/console/account", **typed)
    assert page.status_code == 400
    assert 'value="not an address"' in page.text
    assert "the-secret-word" not in page.text
    assert ADA in page.text
