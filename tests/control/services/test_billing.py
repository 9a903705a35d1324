"""Spending caps and alert settings: set, audited, applied by the collector."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace
from tests.control.metering import DOLLAR, Metering
from tests.control.services.harness import ACME, PEPPER, details_of

from tollgate.api.billing import MAX_BUYER, MAX_CAP, MAX_TAX_NUMBER, BillingChange, SecretRoll
from tollgate.api.tokens import MAX_OVERLAP
from tollgate.control.problems import ChangedMeanwhile, InvalidInput, NoSuchTeam, RoleNeeded, TooManyAttempts
from tollgate.control.services.billing import BillingTerms
from tollgate.control.versions import version_of
from tollgate.core.alerts import webhook_secret
from tollgate.core.months import start_of
from tollgate.core.pricing import MILLION

HOOK = "https://hooks.example/T0/secret-part"


def change(metering: Metering, who: str = "owner", **wanted: Any) -> tuple[BillingTerms, str | None]:
    return metering.do(metering.plane.billing.change(metering.actor(who), "acme", BillingChange(**wanted)))


def show(metering: Metering, who: str = "owner") -> BillingTerms:
    return metering.do(metering.plane.billing.show(metering.actor(who), "acme"))


def test_a_team_has_no_cap_and_mail_on_to_begin_with(metering: Metering) -> None:
    assert show(metering) == BillingTerms(None, None, alert_emails=True)


def test_what_is_left_out_stays_as_it_is(metering: Metering) -> None:
    change(metering, spending_cap_micros=25 * DOLLAR)
    change(metering, alert_webhook=HOOK)
    change(metering, alert_emails=False)
    assert replace(show(metering), edition="") == BillingTerms(25 * DOLLAR, HOOK, alert_emails=False)
    assert change(metering)[0] == show(metering)
    change(metering, spending_cap_micros=None)
    change(metering, alert_webhook=None)
    assert show(metering) == BillingTerms(None, None, alert_emails=False)


def test_every_change_is_recorded_with_before_and_after_and_no_secret_address(metering: Metering) -> None:
    change(metering, spending_cap_micros=7, alert_webhook=HOOK)
    (entry,) = metering.notes()
    assert (entry.action, entry.actor, entry.team_id) == (
        "billing.change",
        "owner@acme.example",
        metering.team().id,
    )
    no_buyer = {"buyer": "", "tax_number": ""}
    assert details_of(entry) == {
        "before": {"spending_cap_micros": None, "alert_webhook": None, "alert_emails": True, **no_buyer},
        "after": {"spending_cap_micros": 7, "alert_webhook": "hooks.example", "alert_emails": True, **no_buyer},
    }
    change(metering, spending_cap_micros=7)
    assert len(metering.notes()) == 1


def test_a_cap_stops_the_team_until_it_is_raised_or_the_month_ends(metering: Metering) -> None:
    change(metering, spending_cap_micros=10)
    metering.call(MILLION + 1)
    assert metering.team().capped_until is None
    metering.call(1)
    assert metering.team().capped_until == start_of("2026-12")
    change(metering, spending_cap_micros=15)
    metering.reconcile()
    assert metering.team().capped_until is None
    metering.call(1)
    assert metering.team().capped_until is not None
    change(metering, spending_cap_micros=None)
    metering.reconcile()
    assert metering.team().capped_until is None


def test_a_cap_that_is_reached_already_stops_the_team_as_it_is_set(metering: Metering) -> None:
    """Otherwise calls would be accepted under it for a moment, and cost nothing."""
    metering.call(MILLION + 9)
    assert metering.team().capped_until is None
    for _ in range(3):
        change(metering, spending_cap_micros=0)
        stopped = metering.team()
        assert (stopped.spending_cap, stopped.capped_until) == (0, start_of("2026-12")), "without the collector"
        change(metering, spending_cap_micros=None)
        free = metering.team()
        assert (free.spending_cap, free.capped_until) == (None, None)
    change(metering, spending_cap_micros=25 * DOLLAR)
    assert metering.team().capped_until is None


def test_a_team_that_has_called_nothing_yet_has_its_free_requests_under_a_cap_of_zero(metering: Metering) -> None:
    metering.charge(free_requests=1)
    change(metering, spending_cap_micros=0)
    assert metering.team().capped_until is None
    metering.call(1)
    assert metering.team().capped_until == start_of("2026-12")


def test_a_team_is_never_charged_above_its_cap(metering: Metering) -> None:
    change(metering, spending_cap_micros=12)
    metering.call(MILLION + 50)
    found = metering.do(metering.plane.usage.of_team(metering.actor("owner"), "acme"))
    assert (found.billable_requests, found.cost_micros) == (MILLION + 50, 12)


def test_a_webhook_gets_a_secret_that_is_shown_once_and_not_stored(metering: Metering) -> None:
    terms, secret = change(metering, alert_webhook=HOOK)
    assert (terms.alert_webhook, secret is not None) == (HOOK, True)
    assert change(metering, spending_cap_micros=1)[1] is None
    row = metering.write(lambda records: records.billing.get(ACME.id))
    assert row is not None
    assert secret == webhook_secret(PEPPER, row.id, row.salt)
    with closing(sqlite3.connect(metering.folder / "control.db")) as connection:
        assert str(secret) not in "\n".join(connection.iterdump())


def test_a_webhook_that_is_sent_again_keeps_its_secret(metering: Metering) -> None:
    """A form sends the address with every other change."""
    _, first = change(metering, alert_webhook=HOOK)
    assert change(metering, alert_webhook=HOOK, alert_emails=False)[1] is None
    assert working(metering) == (first,)
    assert change(metering, alert_webhook=HOOK)[1] is None
    assert metering.actions() == ["billing.change"] * 2
    assert change(metering, alert_webhook="https://other.example/")[1] not in (None, first)
    assert change(metering, alert_webhook=None)[1] is None


def roll(metering: Metering, overlap: int = 86_400, who: str = "owner") -> tuple[BillingTerms, str]:
    return metering.do(metering.plane.billing.roll(metering.actor(who), "acme", SecretRoll(overlap)))


def working(metering: Metering) -> tuple[str, ...]:
    row = metering.write(lambda records: records.billing.get(ACME.id))
    assert row is not None
    return metering.plane.billing.secrets_of(row)


def test_a_rolled_secret_works_beside_the_new_one_for_the_overlap(metering: Metering) -> None:
    _, old = change(metering, alert_webhook=HOOK)
    terms, new = roll(metering, 3_600, "billing")
    assert terms.previous_secret_until == datetime.fromtimestamp(metering.clock.now + 3_600, UTC)
    assert working(metering) == (new, old)
    metering.clock.advance(3_599)
    assert (working(metering), show(metering).previous_secret_until) == ((new, old), terms.previous_secret_until)
    metering.clock.advance(1)
    assert (working(metering), show(metering).previous_secret_until) == ((new,), None)


def test_a_roll_is_recorded_with_the_host_and_the_end_of_the_old_secret(metering: Metering) -> None:
    change(metering, alert_webhook=HOOK)
    _, secret = roll(metering, 60)
    entry = metering.notes()[-1]
    assert (entry.action, entry.actor, entry.name) == ("webhook.roll", "owner@acme.example", "acme")
    assert details_of(entry) == {"host": "hooks.example", "old_works_until": metering.clock.now + 60}
    assert secret not in entry.details


def test_a_second_roll_in_an_overlap_ends_no_secret_unless_told_so(metering: Metering) -> None:
    _, old = change(metering, alert_webhook=HOOK)
    _, second = roll(metering)
    refused = metering.refused(
        InvalidInput, metering.plane.billing.roll(metering.actor("owner"), "acme", SecretRoll(60))
    )
    assert refused.extras == {"field": "overlap_seconds"}
    assert "overlap of 0" in str(refused)
    assert working(metering) == (second, old)
    _, third = roll(metering, 0)
    assert working(metering) == (third,)
    roll(metering)
    change(metering, alert_webhook="https://other.example/")
    assert len(working(metering)) == 1, "the old secret was another receiver's"


def test_only_a_webhook_has_a_secret_to_roll_and_only_some_roles_may(metering: Metering) -> None:
    rolled = metering.plane.billing.roll
    assert metering.refused(InvalidInput, rolled(metering.actor("owner"), "acme", SecretRoll())).extras == {
        "field": "alert_webhook"
    }
    change(metering, alert_webhook=HOOK)
    for overlap in (-1, MAX_OVERLAP + 1):
        metering.refused(InvalidInput, rolled(metering.actor("owner"), "acme", SecretRoll(overlap)))
    for who in ("developer", "viewer"):
        metering.refused(RoleNeeded, rolled(metering.actor(who), "acme", SecretRoll()))
    metering.refused(NoSuchTeam, rolled(metering.actor("outsider"), "acme", SecretRoll()))
    assert metering.actions() == ["billing.change"]


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
    ],
)
def test_an_invalid_webhook_is_refused_with_the_accepted_form(metering: Metering, address: str) -> None:
    refusal = metering.refused(
        InvalidInput,
        metering.plane.billing.change(metering.actor("owner"), "acme", BillingChange(alert_webhook=address)),
    )
    assert "https://example.com/tollgate" in refusal.detail
    assert refusal.extras == {"field": "alert_webhook"}
    assert show(metering).alert_webhook is None


def test_an_address_longer_than_a_webhook_can_have_is_refused(metering: Metering) -> None:
    with pytest.raises(InvalidInput, match="`alert_webhook` is a text of 0 to 1000 characters") as refused:
        change(metering, alert_webhook="https://hooks.example/" + "x" * 1_000)
    assert refused.value.extras["field"] == "alert_webhook"


@pytest.mark.parametrize("cap", [-1, MAX_CAP + 1])
def test_a_cap_beyond_its_bounds_is_refused(metering: Metering, cap: int) -> None:
    refusal = metering.refused(
        InvalidInput,
        metering.plane.billing.change(metering.actor("owner"), "acme", BillingChange(spending_cap_micros=cap)),
    )
    assert refusal.extras == {"field": "spending_cap_micros"}


@pytest.mark.parametrize("who", ["owner", "admin", "billing"])
def test_owners_admins_and_billing_members_may_change_settings(metering: Metering, who: str) -> None:
    assert change(metering, who, spending_cap_micros=5)[0] == show(metering, who)


@pytest.mark.parametrize("who", ["developer", "viewer"])
def test_other_roles_may_neither_change_nor_see_settings(metering: Metering, who: str) -> None:
    metering.refused(
        RoleNeeded,
        metering.plane.billing.change(metering.actor(who), "acme", BillingChange(spending_cap_micros=5)),
    )
    metering.refused(RoleNeeded, metering.plane.billing.show(metering.actor(who), "acme"))
    assert metering.team().spending_cap is None


def test_another_teams_settings_do_not_exist(metering: Metering) -> None:
    metering.refused(NoSuchTeam, metering.plane.billing.show(metering.actor("outsider"), "acme"))
    metering.refused(
        NoSuchTeam,
        metering.plane.billing.change(metering.actor("outsider"), "acme", BillingChange(spending_cap_micros=5)),
    )


def test_a_change_of_what_someone_else_changed_is_refused(metering: Metering) -> None:
    seen = version_of(show(metering))
    change(metering, spending_cap_micros=5)
    metering.refused(
        ChangedMeanwhile,
        metering.plane.billing.change(metering.actor("owner"), "acme", BillingChange(spending_cap_micros=6), seen),
    )
    # The flag of a reached cap is not part of the version.
    seen = version_of(show(metering))
    metering.call(MILLION + 1)
    assert metering.team().capped_until is not None
    metering.do(
        metering.plane.billing.change(metering.actor("owner"), "acme", BillingChange(alert_emails=False), seen)
    )


def test_raises_of_a_cap_are_rate_limited_and_it_can_be_lowered_at_any_time(metering: Metering) -> None:
    """After each raise, calls that cost nothing are accepted for some seconds."""

    def raised(cap: int | None) -> None:
        metering.set_billing(spending_cap_micros=cap)

    change(metering, spending_cap_micros=0)
    for _ in range(5):
        raised(None)
        change(metering, spending_cap_micros=0)
        raised(7)
        change(metering, spending_cap_micros=0)
    refusal = metering.refused(
        TooManyAttempts,
        metering.plane.billing.change(metering.actor("owner"), "acme", BillingChange(spending_cap_micros=None)),
    )
    assert refusal.detail == "Too many raises of the spending cap: wait 10 minutes, then try again."
    assert (refusal.status, refusal.headers) == (429, {"Retry-After": "600"})
    assert metering.team().spending_cap == 0
    # One in ten minutes from now on, and what is no raise at any time.
    metering.clock.advance(600)
    raised(None)
    change(metering, spending_cap_micros=5)
    change(metering, alert_emails=False)
    change(metering, spending_cap_micros=5)
    metering.refused(
        TooManyAttempts,
        metering.plane.billing.change(metering.actor("owner"), "acme", BillingChange(spending_cap_micros=6)),
    )
    metering.clock.advance(3_600)
    raised(6)
    raised(None)


@pytest.mark.parametrize(("field", "most"), [("buyer", MAX_BUYER), ("tax_number", MAX_TAX_NUMBER)])
def test_buyer_and_tax_number_have_a_maximum_length(metering: Metering, field: str, most: int) -> None:
    for text in ("x" * most, ""):
        assert getattr(change(metering, **{field: text})[0], field) == text
    for text in ("x" * (most + 1), "a\x00b"):
        with pytest.raises(InvalidInput) as refused:
            change(metering, **{field: text})
        assert refused.value.extras == {"field": field}


def test_empty_lines_of_the_buyer_are_left_out(metering: Metering) -> None:
    assert change(metering, buyer="Acme Ltd\n\n 1 High Street \n")[0].buyer == "Acme Ltd\n1 High Street"
