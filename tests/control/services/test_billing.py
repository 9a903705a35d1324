"""Spending caps and where alerts go: chosen, audited, obeyed by the collector."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from msgspec import UNSET
from msgspec.structs import replace
from tests.control.services.house import ACME, PEPPER, details_of
from tests.control.till import DOLLAR, Till

from tollgate.control.problems import ChangedMeanwhile, InvalidInput, NoSuchTeam, RoleNeeded, TooManyAttempts
from tollgate.control.services.billing import MAX_CAP, BillingTerms, BillingUpdate
from tollgate.control.versions import version_of
from tollgate.core.alerts import webhook_secret
from tollgate.core.months import start_of
from tollgate.core.pricing import MILLION

HOOK = "https://hooks.example/T0/secret-part"


def change(till: Till, who: str = "owner", **wish: object) -> tuple[BillingTerms, str | None]:
    return till.do(till.plane.billing.change(till.actor(who), "acme", BillingUpdate(**wish)))  # type: ignore[arg-type]


def show(till: Till, who: str = "owner") -> BillingTerms:
    return till.do(till.plane.billing.show(till.actor(who), "acme"))


def test_a_team_has_no_cap_and_mail_on_to_begin_with(till: Till) -> None:
    assert show(till) == BillingTerms(None, None, alert_emails=True)


def test_what_is_left_out_stays_as_it_is(till: Till) -> None:
    change(till, spending_cap=25 * DOLLAR)
    change(till, alert_webhook=HOOK)
    change(till, alert_emails=False)
    assert replace(show(till), edition="") == BillingTerms(25 * DOLLAR, HOOK, alert_emails=False)
    assert change(till)[0] == show(till)
    change(till, spending_cap=None)
    change(till, alert_webhook=None)
    assert show(till) == BillingTerms(None, None, alert_emails=False)


def test_every_change_is_noted_with_before_and_after_and_no_secret_address(till: Till) -> None:
    change(till, spending_cap=7, alert_webhook=HOOK)
    (entry,) = till.notes()
    assert (entry.action, entry.actor, entry.team_id) == ("billing.change", "owner@acme.example", till.team().id)
    no_buyer = {"buyer": "", "tax_number": ""}
    assert details_of(entry) == {
        "before": {"spending_cap_micros": None, "alert_webhook": None, "alert_emails": True, **no_buyer},
        "after": {"spending_cap_micros": 7, "alert_webhook": "hooks.example", "alert_emails": True, **no_buyer},
    }
    change(till, spending_cap=7)
    assert len(till.notes()) == 1


def test_a_cap_stops_the_team_until_it_is_raised_or_the_month_ends(till: Till) -> None:
    change(till, spending_cap=10)
    till.call(MILLION + 1)
    assert till.team().capped_until is None
    till.call(1)
    assert till.team().capped_until == start_of("2026-12")
    change(till, spending_cap=15)
    till.reconcile()
    assert till.team().capped_until is None
    till.call(1)
    assert till.team().capped_until is not None
    change(till, spending_cap=None)
    till.reconcile()
    assert till.team().capped_until is None


def test_a_cap_that_is_reached_already_stops_the_team_as_it_is_set(till: Till) -> None:
    """Otherwise calls would be let in under it for a moment, and cost nothing."""
    till.call(MILLION + 9)
    assert till.team().capped_until is None
    for _ in range(3):
        change(till, spending_cap=0)
        stopped = till.team()
        assert (stopped.spending_cap, stopped.capped_until) == (0, start_of("2026-12")), "without the collector"
        change(till, spending_cap=None)
        free = till.team()
        assert (free.spending_cap, free.capped_until) == (None, None)
    change(till, spending_cap=25 * DOLLAR)
    assert till.team().capped_until is None


def test_a_team_is_never_charged_above_its_cap(till: Till) -> None:
    change(till, spending_cap=12)
    till.call(MILLION + 50)
    found = till.do(till.plane.usage.of_team(till.actor("owner"), "acme"))
    assert (found.billable, found.cost) == (MILLION + 50, 12)


def test_a_webhook_gets_a_secret_that_is_shown_once_and_kept_nowhere(till: Till) -> None:
    terms, secret = change(till, alert_webhook=HOOK)
    assert (terms.alert_webhook, secret is not None) == (HOOK, True)
    assert change(till, spending_cap=1)[1] is None
    row = till.write(lambda records: records.billing.get(ACME.id))
    assert row is not None
    assert secret == webhook_secret(PEPPER, row.id, row.salt)
    with closing(sqlite3.connect(till.folder / "control.db")) as connection:
        assert str(secret) not in "\n".join(connection.iterdump())


def test_setting_a_webhook_again_makes_another_secret(till: Till) -> None:
    first, second = (change(till, alert_webhook=HOOK)[1] for _ in range(2))
    assert first != second
    assert till.actions() == ["billing.change"] * 2
    assert change(till, alert_webhook=None)[1] is None


@pytest.mark.parametrize(
    "address",
    [
        "",
        "http://hooks.example/",
        "hooks.example",
        "ftp://hooks.example/",
        "https://",
        "https:///path",
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://2130706433/",
        "https://user@hooks.example/",
        "https://user:word@hooks.example/",
        "https://hooks.example@evil.example/",
        "https://hooks.example\\@evil.example/",
        "https://hooks.example/#fragment",
        "https://hooks.example:22/",
        "https://hooks.example:0/",
        "https://hooks.example:99999/",
        "https://hooks.example:x/",
        "https://hooks.example/ space",
        "https://hooks.example/\r\nX-Evil: 1",
        "https://höoks.example/",
        "https://hooks.example/" + "x" * 1_000,
    ],
)
def test_an_address_that_is_no_webhook_is_refused_with_the_accepted_form(till: Till, address: str) -> None:
    refusal = till.refused(
        InvalidInput,
        till.plane.billing.change(till.actor("owner"), "acme", BillingUpdate(alert_webhook=address)),
    )
    assert "https://example.com/tollgate" in refusal.detail
    assert refusal.extras == {"field": "alert_webhook"}
    assert show(till).alert_webhook is None


@pytest.mark.parametrize("cap", [-1, MAX_CAP + 1])
def test_a_cap_beyond_its_bounds_is_refused(till: Till, cap: int) -> None:
    refusal = till.refused(
        InvalidInput, till.plane.billing.change(till.actor("owner"), "acme", BillingUpdate(spending_cap=cap))
    )
    assert refusal.extras == {"field": "spending_cap_micros"}


@pytest.mark.parametrize("who", ["owner", "admin", "billing"])
def test_whoever_leads_or_pays_may_choose(till: Till, who: str) -> None:
    assert change(till, who, spending_cap=5)[0] == show(till, who)


@pytest.mark.parametrize("who", ["developer", "viewer"])
def test_others_may_neither_choose_nor_see(till: Till, who: str) -> None:
    till.refused(RoleNeeded, till.plane.billing.change(till.actor(who), "acme", BillingUpdate(spending_cap=5)))
    till.refused(RoleNeeded, till.plane.billing.show(till.actor(who), "acme"))
    assert till.team().spending_cap is None


def test_another_teams_settings_do_not_exist(till: Till) -> None:
    till.refused(NoSuchTeam, till.plane.billing.show(till.actor("stranger"), "acme"))
    till.refused(
        NoSuchTeam, till.plane.billing.change(till.actor("stranger"), "acme", BillingUpdate(spending_cap=5))
    )


def test_a_change_of_what_someone_else_changed_is_refused(till: Till) -> None:
    seen = version_of(show(till))
    change(till, spending_cap=5)
    till.refused(
        ChangedMeanwhile,
        till.plane.billing.change(till.actor("owner"), "acme", BillingUpdate(spending_cap=6), seen),
    )
    # That the cap stops the team is nobody's change.
    seen = version_of(show(till))
    till.call(MILLION + 1)
    assert till.team().capped_until is not None
    till.do(till.plane.billing.change(till.actor("owner"), "acme", BillingUpdate(UNSET, UNSET, False), seen))


def test_a_cap_is_raised_so_often_and_no_more_but_lowered_at_any_time(till: Till) -> None:
    """Each raise lets calls in for some seconds that cost nothing."""

    def raised(cap: int | None) -> None:
        till.do(till.plane.billing.change(till.actor("owner"), "acme", BillingUpdate(spending_cap=cap)))

    change(till, spending_cap=0)
    for _ in range(5):
        raised(None)
        change(till, spending_cap=0)
        raised(7)
        change(till, spending_cap=0)
    refusal = till.refused(
        TooManyAttempts, till.plane.billing.change(till.actor("owner"), "acme", BillingUpdate(spending_cap=None))
    )
    assert refusal.detail == "Too many raises of the spending cap: wait 10 minutes, then try again."
    assert (refusal.status, refusal.headers) == (429, {"Retry-After": "600"})
    assert till.team().spending_cap == 0
    # One in ten minutes from now on, and what is no raise at any time.
    till.clock.advance(600)
    raised(None)
    change(till, spending_cap=5)
    change(till, alert_emails=False)
    change(till, spending_cap=5)
    till.refused(
        TooManyAttempts, till.plane.billing.change(till.actor("owner"), "acme", BillingUpdate(spending_cap=6))
    )
    till.clock.advance(3_600)
    raised(6)
    raised(None)
