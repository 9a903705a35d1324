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


def test_form_of_the_account_keeps_an_address_and_no_password(open_site: OpenSite) -> None:
    site = open_site()
    site.account()
    typed = {"act": "email", "email": "not an address", "current": "the-secret-word"}
    page = site.signed_in().post("/console/account", **typed)
    assert page.status_code == 400
    assert 'value="not an address"' in page.text
    assert "the-secret-word" not in page.text
    assert ADA in page.text
