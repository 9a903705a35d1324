"""Members: what is shown before a person is invited."""

import pytest
from tests.control.console.conftest import OpenSite
from tests.control.console.site import words


@pytest.mark.parametrize(("sign_up", "is_warned"), [("closed", True), ("invited", False), ("open", False)])
def test_inviter_is_warned_that_a_guest_could_not_accept(
    open_site: OpenSite, sign_up: str, is_warned: bool
) -> None:
    site = open_site(sign_up=sign_up)
    site.team(site.account())
    shown = words(site.signed_in().get("/console/teams/acme/members"))
    assert ("cannot accept" in shown) is is_warned
