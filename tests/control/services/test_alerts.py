"""Alerts: once for each threshold, month and channel, tried until delivered or given up, signed."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import itertools
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.control.metering import DOLLAR, Metering
from tests.control.services.harness import ACME, DAY, PEOPLE, RIVAL, details_of
from tests.store.account_rows import MONTH

from tollgate.api.billing import BillingChange
from tollgate.control.outbound import FetchRefused, Missing, Unreachable
from tollgate.control.problems import InvalidInput, NoSuchTeam, RoleNeeded, TooManyAttempts
from tollgate.control.services import alerts as alerts_module
from tollgate.control.services.alerts import DELIVERY_HEADER, KEPT_SECONDS, TESTS, TIDY_SECONDS
from tollgate.core import secrets
from tollgate.core.alerts import DELIVERED, DROPPED, GIVEN_UP, PENDING, SIGNATURE_HEADER, WAITS, Alert
from tollgate.core.months import start_of
from tollgate.core.pricing import MILLION

HOOK = "https://hooks.example/T0/secret-part"
HALF = 100_000  # requests that cost half a dollar
PAYERS = {PEOPLE["owner"], PEOPLE["billing"]}


@pytest.fixture
def hooked(metering: Metering) -> Metering:
    """A team with a cap of one dollar, a webhook and no mail, that has used its free requests."""
    choose(metering, spending_cap_micros=DOLLAR, alert_webhook=HOOK, alert_emails=False)
    metering.call(MILLION)
    return metering


def choose(metering: Metering, **wanted: Any) -> str:
    return metering.set_billing(**wanted)[1] or ""


def run(metering: Metering) -> None:
    metering.do(metering.plane.alerts.run())


def notified(metering: Metering) -> list[int]:
    return [sent.json["threshold_percent"] for sent in metering.hooks.sent]


def rows(metering: Metering) -> list[Alert]:
    return metering.write(lambda records: records.alerts.page(100))


def test_each_threshold_is_reported_once_as_it_is_passed(hooked: Metering) -> None:
    passed = []
    for part in (HALF - 1, 1, 59_999, 1, 39_999, 1, 5):
        hooked.call(part)
        run(hooked)
        run(hooked)
        passed.append(notified(hooked))
    assert passed == [[], [50], [50], [50, 80], [50, 80], [50, 80, 100], [50, 80, 100]]


def test_all_that_were_passed_at_once_are_reported(hooked: Metering) -> None:
    hooked.call(MILLION)
    run(hooked)
    assert sorted(notified(hooked)) == [50, 80, 100]


def test_call_shows_what_happened_and_is_signed_with_the_secret_that_was_shown(metering: Metering) -> None:
    secret = choose(metering, spending_cap_micros=DOLLAR, alert_webhook=HOOK, alert_emails=False)
    metering.call(MILLION + HALF)
    run(metering)
    (sent,) = metering.hooks.sent
    (row,) = rows(metering)
    assert (sent.host, sent.url) == ("hooks.example", HOOK)
    assert sent.json == {
        "id": row.id,
        "type": "spending_cap.threshold",
        "created_at": "2026-11-15T12:00:00Z",
        "team": {"id": ACME.id, "name": "acme"},
        "month": MONTH,
        "threshold_percent": 50,
        "spent_micros": 500_000,
        "spending_cap_micros": 1_000_000,
        "spent": "$0.50",
        "spending_cap": "$1.00",
    }
    moment = f"{int(metering.clock.now)}"
    expected = hmac.new(secret.encode(), f"{moment}.".encode() + sent.body, hashlib.sha256).hexdigest()
    assert sent.headers == {
        "Content-Type": "application/json",
        DELIVERY_HEADER: row.id,
        SIGNATURE_HEADER: f"t={moment},v1={expected}",
    }
    assert row.state == DELIVERED


@pytest.mark.parametrize("failure", [Unreachable("away"), FetchRefused("inner address"), Missing("no address")])
def test_failed_delivery_is_retried_later_with_the_same_id(hooked: Metering, failure: Exception) -> None:
    hooked.hooks.failures.append(failure)
    hooked.call(HALF)
    run(hooked)
    run(hooked)
    assert len(hooked.hooks.sent) == 1
    hooked.clock.advance(WAITS[0] - 1)
    run(hooked)
    assert len(hooked.hooks.sent) == 1
    hooked.clock.advance(1)
    run(hooked)
    first, second = hooked.hooks.sent
    assert first.body == second.body
    assert first.headers[DELIVERY_HEADER] == second.headers[DELIVERY_HEADER]
    assert first.headers[SIGNATURE_HEADER] != second.headers[SIGNATURE_HEADER]
    assert [(row.state, row.attempts) for row in rows(hooked)] == [(DELIVERED, 2)]


def test_after_the_last_retry_delivery_fails_and_is_recorded(hooked: Metering) -> None:
    hooked.hooks.down = True
    hooked.call(HALF)
    run(hooked)
    for attempt, wait in enumerate((60, 300, 1_800, 7_200, 21_600), start=1):
        assert len(hooked.hooks.sent) == attempt
        hooked.clock.advance(wait - 1)
        run(hooked)
        assert len(hooked.hooks.sent) == attempt, "before its time"
        hooked.clock.advance(1)
        run(hooked)
    for _ in range(24):
        hooked.clock.advance(3_600)
        run(hooked)
    assert len(hooked.hooks.sent) == 6
    (row,) = rows(hooked)
    assert (row.state, row.attempts) == (GIVEN_UP, 6)
    (entry,) = [entry for entry in hooked.notes() if entry.action == "alert.give_up"]
    assert (entry.team_id, entry.target) == (ACME.id, row.id)
    assert details_of(entry) == {
        "channel": "webhook",
        "month": MONTH,
        "threshold": 50,
        "attempts": 6,
        "why": "hooks.example cannot be reached.",
    }
    assert "secret-part" not in entry.details


def test_an_attempt_counts_if_its_process_is_killed(hooked: Metering) -> None:
    class Killed(BaseException):
        pass

    class Deadly:
        async def post(self, *_: object) -> None:
            raise Killed

    hooked.call(HALF)
    dying = hooked.another(hooked.plane.settings)
    dying.alerts._poster = Deadly()
    hooked.refused(Killed, dying.alerts.run())  # type: ignore[type-var]
    assert [(row.state, row.attempts) for row in rows(hooked)] == [(PENDING, 1)]
    run(hooked)
    assert hooked.hooks.sent == []
    hooked.clock.advance(WAITS[0])
    run(hooked)
    assert [(row.state, row.attempts) for row in rows(hooked)] == [(DELIVERED, 2)]


def test_concurrent_checks_and_deliveries_send_an_alert_once(hooked: Metering) -> None:
    hooked.call(MILLION)
    hooked.at_once(*(hooked.plane.alerts.run() for _ in range(5)))
    run(hooked)
    assert sorted(notified(hooked)) == [50, 80, 100]


def test_a_slow_receiver_does_not_hold_up_the_others(metering: Metering) -> None:
    for team, who in ((ACME, "owner"), (RIVAL, "outsider")):
        wanted = BillingChange(
            spending_cap_micros=DOLLAR, alert_webhook=f"https://{team.name}.example/", alert_emails=False
        )
        metering.do(metering.plane.billing.change(metering.actor(who), team.id, wanted))
        metering.call(MILLION + HALF, team=team.id)

    async def written() -> list[str]:
        others = asyncio.Event()
        order: list[str] = []

        class Slow:
            async def post(self, host: str, *_: object) -> None:
                if host == "acme.example":
                    await others.wait()
                order.append(host)
                others.set()

        metering.plane.alerts._poster = Slow()
        async with asyncio.timeout(30):
            await metering.plane.alerts.run()
        return order

    assert metering.do(written()) == ["rival.example", "acme.example"]


def test_slow_site_of_many_alerts_leaves_room_for_others_and_the_next_round_comes(
    metering: Metering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts_module, "AT_ONCE_PER_SITE", 2)
    monkeypatch.setattr(alerts_module, "AT_ONCE", 3)
    monkeypatch.setattr(alerts_module, "ROUND_SECONDS", 0.05)
    hooks = {ACME: "https://a.slow.com/", RIVAL: "https://rival.org/"}
    for (team, url), who in zip(hooks.items(), ("owner", "outsider"), strict=True):
        wanted = BillingChange(spending_cap_micros=DOLLAR, alert_webhook=url, alert_emails=False)
        metering.do(metering.plane.billing.change(metering.actor(who), team.id, wanted))
    metering.call(2 * MILLION, team=ACME.id)

    forever, called = asyncio.Event(), Counter[str]()

    class Slow:
        async def post(self, host: str, *_: object) -> None:
            called[host] += 1
            if host == "a.slow.com":
                await forever.wait()

    metering.plane.alerts._poster = Slow()
    run(metering)
    assert called == {"a.slow.com": 2}, "of three that are due"
    metering.call(MILLION + HALF, team=RIVAL.id)
    run(metering)
    assert called == {"a.slow.com": 2, "rival.org": 1}
    metering.call(HALF, team=RIVAL.id)
    run(metering)
    assert called == {"a.slow.com": 2, "rival.org": 3}
    forever.set()
    run(metering)
    assert called == {"a.slow.com": 3, "rival.org": 3}
    assert {row.state for row in rows(metering)} == {DELIVERED}


def test_alerts_that_have_not_failed_yet_come_first(hooked: Metering, monkeypatch: pytest.MonkeyPatch) -> None:
    # In the order in which they are read, the one that failed would be the first.
    numbers = itertools.count()
    monkeypatch.setattr(secrets, "new_id", lambda kind: f"{kind}_{next(numbers):08}")
    hooked.hooks.down = True
    hooked.call(HALF)
    run(hooked)
    hooked.hooks.down = False
    hooked.clock.advance(WAITS[0])
    hooked.call(HALF)
    run(hooked)
    first, *new, again = notified(hooked)
    assert (first, sorted(new), again) == (50, [80, 100], 50)


@pytest.mark.parametrize(
    ("webhook", "site"),
    [
        ("https://a.b.example.com:8443/x", "example.com"),
        ("https://example.com/", "example.com"),
        ("https://hooks.inner/", "hooks.inner"),
        ("", ""),
    ],
)
def test_site_of_a_webhook_is_the_root_of_its_domain(webhook: str, site: str) -> None:
    assert alerts_module._site(webhook) == site


def test_alerts_start_again_with_a_new_month(hooked: Metering) -> None:
    hooked.call(HALF)
    run(hooked)
    hooked.clock.now = start_of("2026-12") + DAY
    run(hooked)
    assert notified(hooked) == [50]
    hooked.call(MILLION + HALF)
    run(hooked)
    assert [sent.json["month"] for sent in hooked.hooks.sent] == [MONTH, "2026-12"]


def test_another_cap_does_not_show_the_same_threshold_again(hooked: Metering) -> None:
    hooked.call(HALF)
    run(hooked)
    choose(hooked, spending_cap_micros=2 * DOLLAR)
    hooked.call(HALF)
    run(hooked)
    assert notified(hooked) == [50]
    hooked.call(60_000 * 2)
    run(hooked)
    assert notified(hooked) == [50, 80]


def test_without_a_cap_or_a_channel_nothing_is_reported(metering: Metering) -> None:
    metering.post.open = False
    metering.call(2 * MILLION)
    run(metering)
    choose(metering, spending_cap_micros=DOLLAR)
    run(metering)
    choose(metering, spending_cap_micros=None, alert_webhook=HOOK)
    run(metering)
    assert (metering.hooks.sent, metering.post.posted, rows(metering)) == ([], [], [])


def test_a_webhook_set_later_gets_thresholds_passed_before(hooked: Metering) -> None:
    choose(hooked, alert_webhook=None)
    hooked.call(HALF)
    run(hooked)
    assert rows(hooked) == []
    choose(hooked, alert_webhook="https://other.example/hook")
    run(hooked)
    assert [sent.host for sent in hooked.hooks.sent] == ["other.example"]


def test_a_removed_webhook_is_not_called(hooked: Metering) -> None:
    hooked.hooks.down = True
    hooked.call(HALF)
    run(hooked)
    choose(hooked, alert_webhook=None)
    hooked.clock.advance(WAITS[0])
    run(hooked)
    assert len(hooked.hooks.sent) == 1
    assert [row.state for row in rows(hooked)] == [DROPPED]


def test_owners_and_billing_members_get_mail_if_mail_is_set_up(metering: Metering) -> None:
    choose(metering, spending_cap_micros=DOLLAR)
    metering.call(MILLION + HALF)
    run(metering)
    run(metering)
    assert {to for to, _, _ in metering.post.posted} == PAYERS
    assert len(metering.post.posted) == 2
    _, subject, text = metering.post.posted[0]
    assert subject == "Team acme has spent 50 % of its cap for 2026-11"
    assert "$0.50 of its cap of $1.00" in text
    assert "tollgate usage --team acme" in text
    assert "402" not in text


def test_mail_at_the_cap_shows_that_calls_are_refused(metering: Metering) -> None:
    choose(metering, spending_cap_micros=DOLLAR)
    metering.call(2 * MILLION)
    run(metering)
    assert len(metering.post.posted) == 6
    assert ["402" in text for _, subject, text in metering.post.posted if " 100 %" in subject] == [True, True]


def test_mail_that_cannot_be_taken_is_tried_again(metering: Metering) -> None:
    class Full(type(metering.post)):  # type: ignore[misc]
        def post(self, to: str, subject: str, text: str) -> bool:
            return False

    choose(metering, spending_cap_micros=DOLLAR)
    metering.call(MILLION + HALF)
    metering.plane.alerts._mailer = Full()
    run(metering)
    metering.plane.alerts._mailer = metering.post
    metering.clock.advance(WAITS[0])
    run(metering)
    assert {to for to, _, _ in metering.post.posted} == PAYERS


def test_members_who_were_switched_off_get_no_mail(metering: Metering) -> None:
    choose(metering, spending_cap_micros=DOLLAR)
    metering.do(metering.plane.admin.switch(PEOPLE["billing"], active=False))
    metering.call(MILLION + HALF)
    run(metering)
    assert [to for to, _, _ in metering.post.posted] == [PEOPLE["owner"]]


def test_old_rows_are_removed(hooked: Metering) -> None:
    hooked.call(HALF)
    run(hooked)
    hooked.clock.advance(91 * DAY)
    run(hooked)
    assert rows(hooked) == []


def test_old_alerts_are_forgotten_once_in_a_while(metering: Metering) -> None:
    run(metering)
    old = Alert(
        "alr_1", ACME.id, "2026-01", 50, "webhook", metering.clock.now - KEPT_SECONDS, 0, 0, DELIVERED, next_at=0.0
    )
    metering.write(lambda records: records.alerts.add(old))
    metering.clock.advance(TIDY_SECONDS - 1)
    run(metering)
    assert rows(metering) == [old]
    metering.clock.advance(1)
    run(metering)
    assert rows(metering) == []


# --- Testing a webhook ---------------------------------------------------------------------------------


def try_out(metering: Metering, who: str = "owner") -> Coroutine[Any, Any, str]:
    return metering.plane.alerts.test(metering.actor(who), "acme")


def test_webhook_is_called_once_as_an_alert_would_be(hooked: Metering) -> None:
    hooked.hooks.failures += [Unreachable("hooks.example cannot be reached.")]
    assert hooked.do(try_out(hooked)) == "hooks.example cannot be reached."
    assert hooked.do(try_out(hooked, "billing")) == ""
    run(hooked)
    first, second = hooked.hooks.sent
    assert {sent.json["type"] for sent in (first, second)} == {"test"}
    assert (first.host, first.url, first.json["team"]["name"]) == ("hooks.example", HOOK, "acme")
    assert (first.json["threshold_percent"], first.json["spent_micros"]) == (0, 0)
    assert first.json["spending_cap_micros"] == DOLLAR
    assert first.headers[DELIVERY_HEADER] == first.json["id"] != second.json["id"]
    assert SIGNATURE_HEADER in first.headers
    assert rows(hooked) == [], "it is not tried again"
    entry = hooked.notes()[-1]
    assert (entry.action, entry.team_id, details_of(entry)) == ("webhook.test", ACME.id, {"host": "hooks.example"})


def test_team_without_a_webhook_or_a_cap_has_none_or_zero_to_test(metering: Metering) -> None:
    assert metering.refused(InvalidInput, try_out(metering)).extras == {"field": "alert_webhook"}
    choose(metering, alert_webhook=HOOK)
    metering.do(try_out(metering))
    assert metering.hooks.sent[0].json["spending_cap_micros"] == 0


def test_webhook_is_not_tested_over_and_over(hooked: Metering) -> None:
    """Otherwise a team could use the service to attack another server."""
    for _ in range(TESTS.free + 1):
        hooked.do(try_out(hooked))
    hooked.refused(TooManyAttempts, try_out(hooked, "billing"))
    assert len(hooked.hooks.sent) == TESTS.free + 1
    hooked.clock.advance(TESTS.first_wait)
    hooked.do(try_out(hooked))


def test_webhook_is_tested_by_roles_that_may_set_it(hooked: Metering) -> None:
    for who in ("developer", "viewer"):
        hooked.refused(RoleNeeded, try_out(hooked, who))
    hooked.refused(NoSuchTeam, try_out(hooked, "outsider"))
    assert hooked.hooks.sent == []
