"""The operator's page of one team: its plan, and suspending it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.control.console.site import Browser, Site, words
from tests.store.migrated import make_ledger

from tollgate.control.services.operator import Operator
from tollgate.store import sqlite

PAGE = "/console/operator/teams/acme"
PLAN = {"act": "plan", "on": "team", "price": "", "free_requests": "", "requests_per_second": "", "cap": ""}


@pytest.fixture
def browser(site: Site, tmp_path: Path) -> Iterator[Browser]:
    """An operator, signed in, on a site with a ledger."""
    make_ledger(tmp_path)
    book = sqlite.open_accountbook(sqlite.ledger_url(tmp_path))
    site.plane.operator = Operator(site.plane.context, site.plane.networks, book)
    account = site.account()
    site.team(account)
    site.do(site.plane.admin.mark(account.email, operator=True))
    yield site.signed_in()
    site.do(book.close())


def test_plan_of_a_team_is_set_and_reset(browser: Browser) -> None:
    sent = {**PLAN, "price": "3.00", "free_requests": "2,000,000", "cap": "250"}
    assert browser.post(PAGE, **sent).headers["location"] == f"{PAGE}?done=changed"
    shown = browser.get(PAGE).text
    assert 'value="3.00"' in shown
    assert 'value="2000000"' in shown
    assert "$250.00" in shown
    browser.post(PAGE, **PLAN)
    assert 'value="3.00"' not in browser.get(PAGE).text


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("price", "cheap", "Write an amount such as 25.00"),
        ("price", "99999999.00", "from 0 to 1000000000000"),
        ("requests_per_second", "0", "from 1 to 1000000"),
    ],
)
def test_what_is_wrong_is_reported_beside_the_field_and_what_was_typed_stays(
    browser: Browser, field: str, value: str, message: str
) -> None:
    answer = browser.post(PAGE, **{**PLAN, field: value})
    assert message in words(answer)
    assert f'id="{field}-words" role="alert"' in answer.text
    assert f'value="{value}"' in answer.text


def test_team_is_suspended_with_a_reason_and_resumed(browser: Browser) -> None:
    browser.post(PAGE, act="suspend", on="team", suspended_reason="unpaid")
    shown = words(browser.get(PAGE))
    assert "Suspended" in shown
    assert "unpaid" in shown
    assert "The operator has suspended this team (unpaid)" in words(browser.get("/console/teams/acme/members"))
    browser.post(PAGE, act="lift", on="team")
    assert "The operator has suspended" not in words(browser.get("/console/teams/acme/members"))
    assert "Suspended" not in words(browser.get(PAGE))


def test_person_who_is_no_operator_sees_no_team(site: Site, browser: Browser) -> None:
    site.do(site.plane.admin.mark("ada@example.com", operator=False))
    assert browser.get(PAGE).status_code == 403
    assert browser.post(PAGE, **PLAN).status_code == 403
