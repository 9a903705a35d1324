"""Alerts teams whose spending nears the cap: once per threshold, month and channel.

A unique row is written before anything is sent, so a threshold is alerted once, however often and wherever this
runs. Delivery is retried until it succeeds or the last attempt fails: a webhook may receive an alert again after a
failure, with the same id. Each attempt is recorded before it is made, so that a process that is killed during one
does not retry for ever.

A threshold that is passed in the last seconds of a month is not alerted: spending starts again from zero.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tollgate import log
from tollgate.control.mail import Mailer
from tollgate.control.outbound import FetchRefused, Missing, Unreachable
from tollgate.control.problems import InvalidInput
from tollgate.control.service_context import MAX_ROWS, Actor, ServiceContext, every, required
from tollgate.control.services import throttle
from tollgate.control.services.billing import BillingService
from tollgate.control.webhooks import target_of
from tollgate.core import alerts, secrets
from tollgate.core.alerts import DELIVERED, DROPPED, EMAIL, GIVEN_UP, PENDING, WEBHOOK, Alert, BillingSettings
from tollgate.core.models import Team
from tollgate.core.months import month_of
from tollgate.core.origins import NotARootDomain, root_domain
from tollgate.core.pricing import dollars
from tollgate.core.roles import Action, Role
from tollgate.store.base import AccountBook, Conflict, Repositories

EVERY_SECONDS = 5.0
# A slow receiver takes five seconds: many calls run in parallel, few to one site, so that a site delays only
# itself.
AT_ONCE, AT_ONCE_PER_SITE = 32, 4
# How long a round delivers before thresholds are checked again; calls in progress continue.
ROUND_SECONDS = 5.0
# Longer than a month: a threshold must not be reported again within it.
KEPT_SECONDS = 90 * 86_400.0
TIDY_SECONDS = 3_600.0
TESTS = throttle.Backoff(free=10, first_wait=60.0, max_wait=3_600.0, forgiven_after=3_600.0)
# The threshold of a test; no real one is 0 %.
TEST_THRESHOLD = 0
DELIVERY_HEADER = "X-Tollgate-Delivery"
# The actor of what the service does by itself.
_OURSELVES = Actor(None, other="tollgate")
_ROLES = (Role.OWNER.value, Role.BILLING.value)
_log = log.get("alerts")


class Poster(Protocol):
    """Calls webhooks: `outbound.Fetcher`."""

    async def post(self, host: str, url: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Call one; raise Refused, Missing or Unreachable."""


class _Delivery(Struct, frozen=True):
    """An alert with everything needed to deliver it."""

    alert: Alert
    team: Team
    settings: BillingSettings
    recipients: tuple[str, ...] = ()


class Alerts:
    """Finds thresholds that were passed, and sends the alerts."""

    def __init__(
        self,
        context: ServiceContext,
        book: AccountBook | None,
        billing: BillingService,
        mailer: Mailer,
        poster: Poster,
    ) -> None:
        self._context = context
        self._book = book
        self._billing = billing
        self._mailer = mailer
        self._poster = poster
        self._tidied_at = 0.0
        self._under_way: dict[asyncio.Task[None], str] = {}
        """Webhook calls in progress, each with its site."""

    async def run(self) -> None:
        await self.look()
        await self.deliver()

    async def test(self, actor: Actor, team: str) -> str:
        """Call the team's webhook once, as an alert would; return why it failed, or an empty text."""
        async with self._context.changing(actor, team, Action.CHANGE_BILLING) as (records, membership):
            settings = await self._billing.settings_of(records, membership.team)
            if not settings.webhook:
                raise InvalidInput("The team has no webhook: set one first.", field="alert_webhook")
            # Without a limit, a team could attack another server through this one.
            guards = [(self._context.key("webhook-test", membership.team.id), TESTS)]
            await throttle.begin(self._context, records, guards, "tests of the webhook")
            host = target_of(settings.webhook).host
            await self._context.note(
                records, actor, "webhook.test", team_id=membership.team.id, target=membership.team.id, host=host
            )
        alert = self._alert(membership.team, month_of(self._context.now()), TEST_THRESHOLD, WEBHOOK, 0)
        return await self._call(_Delivery(alert, membership.team, settings))

    async def look(self) -> None:
        now = self._context.now()
        async with self._context.store.reading() as records:
            chosen = [each async for each in every(records.billing, BillingSettings)]
        for start in range(0, len(chosen), MAX_ROWS):
            await self._look_at(chosen[start : start + MAX_ROWS], month_of(now))
        if now - self._tidied_at >= TIDY_SECONDS:
            self._tidied_at = now
            async with self._context.store.changing() as records:
                await records.alerts.remove_older("created_at", now - KEPT_SECONDS)

    async def deliver(self) -> None:
        """Deliver what is due for one round: mails, then webhooks, those without failures first."""
        now = self._context.now()
        async with self._context.store.reading() as records:
            pending = every(records.alerts, Alert, state=PENDING)
            due = [alert async for alert in pending if alert.next_at <= now]
            hooked = tuple({alert.team_id for alert in due if alert.channel == WEBHOOK})
            sites: dict[str, str] = {}
            for start in range(0, len(hooked), MAX_ROWS):
                some = hooked[start : start + MAX_ROWS]
                sites |= {each.id: _site(each.webhook) for each in await records.billing.page(len(some), id=some)}
        for alert in due:
            if alert.channel == EMAIL:
                await self._try(alert)
        waiting = [(alert, sites.get(alert.team_id, "")) for alert in due if alert.channel == WEBHOOK]
        waiting.sort(key=lambda each: each[0].attempts)
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + ROUND_SECONDS
        while True:
            waiting = self._start(waiting)
            if not self._under_way:
                return
            timeout = max(0.0, ends_at - loop.time())
            done, _ = await asyncio.wait(self._under_way, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                return
            for task in done:
                del self._under_way[task]
            for task in done:
                task.result()

    def _start(self, waiting: list[tuple[Alert, str]]) -> list[tuple[Alert, str]]:
        """Start calls up to the limits; return the others."""
        left: list[tuple[Alert, str]] = []
        of_site = Counter(self._under_way.values())
        for alert, site in waiting:
            if len(self._under_way) < AT_ONCE and of_site[site] < AT_ONCE_PER_SITE:
                of_site[site] += 1
                self._under_way[asyncio.create_task(self._try(alert))] = site
            else:
                left.append((alert, site))
        return left

    async def _look_at(self, chosen: list[BillingSettings], month: str) -> None:
        ids = tuple(each.id for each in chosen)
        async with self._context.store.reading() as records:
            teams = {team.id: team for team in await records.teams.page(len(ids), id=ids)}
            recorded = await records.alerts.page(len(ids) * 6, team_id=ids, month=month)
        known = {(alert.team_id, alert.threshold, alert.channel) for alert in recorded}
        spent = await required(self._book).spent(month, teams.values())
        price = self._context.settings.billing.price()
        for settings in chosen:
            team = teams.get(settings.id)
            if team is None or not spent[team.id].requests:
                continue
            use = spent[team.id]
            for threshold in alerts.reached(team.price_over(price), use, team.cap):
                for channel in self._channels(settings):
                    if (team.id, threshold, channel) not in known:
                        await self._add(team, month, threshold, channel, use.cost)

    def _channels(self, settings: BillingSettings) -> Iterable[str]:
        if settings.webhook:
            yield WEBHOOK
        if settings.emails and self._mailer.enabled:
            yield EMAIL

    async def _add(self, team: Team, month: str, threshold: int, channel: str, spent: int) -> None:
        # In case of a conflict, another process stored it first, and sends it.
        with suppress(Conflict):
            async with self._context.store.changing() as records:
                await records.alerts.add(self._alert(team, month, threshold, channel, spent))

    def _alert(self, team: Team, month: str, threshold: int, channel: str, spent: int) -> Alert:
        now, alert_id = self._context.now(), secrets.new_id("alr")
        return Alert(alert_id, team.id, month, threshold, channel, now, spent, team.cap or 0, next_at=now)

    # --- Delivery --------------------------------------------------------------------------------------

    async def _try(self, alert: Alert) -> None:
        delivery = await self._claim(alert)
        if delivery is None:
            return
        failure = await (self._call(delivery) if alert.channel == WEBHOOK else self._mail(delivery))
        await self._finish(delivery.alert, failure)

    async def _claim(self, alert: Alert) -> _Delivery | None:
        """Record the attempt before it is made; None if there is nothing left to deliver."""
        now = self._context.now()
        async with self._context.store.changing() as records:
            current = await records.alerts.get(alert.id)
            team = await records.teams.get(alert.team_id)
            if current is None or team is None or current.state != PENDING or current.next_at > now:
                return None
            settings = await self._billing.settings_of(records, team)
            if alert.channel not in self._channels(settings):
                await records.alerts.replace(replace(current, state=DROPPED))
                return None
            attempts = current.attempts + 1
            # Recorded as if it failed: if the process is killed now, the next attempt waits as after any failure.
            wait = alerts.wait_after(attempts) or alerts.WAITS[-1]
            claimed = replace(current, attempts=attempts, next_at=now + wait)
            await records.alerts.replace(claimed)
            people = await _recipients(records, team) if alert.channel == EMAIL else ()
        return _Delivery(claimed, team, settings, people)

    async def _call(self, delivery: _Delivery) -> str:
        """Call a webhook; return why it failed, or an empty text."""
        body = msgspec.json.encode(payload(delivery.alert, delivery.team))
        now = self._context.now()
        headers = {
            "Content-Type": "application/json",
            DELIVERY_HEADER: delivery.alert.id,
            alerts.SIGNATURE_HEADER: alerts.signature(self._billing.secrets_of(delivery.settings), now, body),
        }
        try:
            target = target_of(delivery.settings.webhook)
            await self._poster.post(target.host, target.url, body, headers)
        except (FetchRefused, Missing, Unreachable) as error:
            return str(error)
        return ""

    async def _mail(self, delivery: _Delivery) -> str:
        subject, text = _mail_of(delivery.alert, delivery.team, self._context.base_url)
        taken = [self._mailer.post(to, subject, text) for to in delivery.recipients]
        return "" if all(taken) else "Too many mails wait for the server."

    async def _finish(self, alert: Alert, failure: str) -> None:
        """Record the result of an attempt. The last failure goes to the audit log."""
        if failure and alerts.wait_after(alert.attempts) is not None:
            _log.warning("an alert could not be delivered", alert=alert.id, attempts=alert.attempts, why=failure)
            return
        async with self._context.store.changing() as records:
            await records.alerts.replace(replace(alert, state=GIVEN_UP if failure else DELIVERED))
            if failure:
                await self._context.note(
                    records, _OURSELVES, "alert.give_up", team_id=alert.team_id, target=alert.id,
                    channel=alert.channel, month=alert.month, threshold=alert.threshold,
                    attempts=alert.attempts, why=failure,
                )  # fmt: skip


def _site(webhook: str) -> str:
    """The site of a webhook: the root of its domain."""
    try:
        host = target_of(webhook).host
    except FetchRefused:
        return ""
    try:
        return root_domain(host)
    except NotARootDomain as error:
        return error.suggestion or host


def payload(alert: Alert, team: Team) -> dict[str, object]:
    """The body of a call, the same at every attempt."""
    return {
        "id": alert.id,
        "type": "test" if alert.threshold == TEST_THRESHOLD else "spending_cap.threshold",
        "created_at": datetime.fromtimestamp(int(alert.created_at), UTC),
        "team": {"id": team.id, "name": team.name},
        "month": alert.month,
        "threshold_percent": alert.threshold,
        "spent_micros": alert.spent,
        "spending_cap_micros": alert.cap,
        "spent": dollars(alert.spent),
        "spending_cap": dollars(alert.cap),
    }


def _mail_of(alert: Alert, team: Team, base_url: str) -> tuple[str, str]:
    subject = f"Team {team.name} has spent {alert.threshold} % of its cap for {alert.month}"
    stopped = (
        "Calls are refused (402) until the month ends or the cap is raised.\n" if alert.threshold >= 100 else ""
    )
    text = (
        f"Team {team.name} at {base_url} has spent {dollars(alert.spent)} of its cap of {dollars(alert.cap)} "
        f"for {alert.month} (UTC).\n{stopped}\n"
        f"See what it is spent on:  tollgate usage --team {team.name}\n"
        f"Set another cap:          tollgate usage cap AMOUNT --team {team.name}\n"
        f"Receive no more of these: tollgate usage alerts --no-emails --team {team.name}\n"
    )
    return subject, text


async def _recipients(records: Repositories, team: Team) -> tuple[str, ...]:
    """The addresses of a team's owners and billing members."""
    members = await records.members.page(MAX_ROWS, team_id=team.id, role=_ROLES)
    ids = tuple(member.account_id for member in members)
    accounts = await records.accounts.page(MAX_ROWS, id=ids, active=True)
    return tuple(account.email for account in accounts)
