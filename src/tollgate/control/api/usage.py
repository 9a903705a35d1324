"""A team's usage of a month, its requests over time, its spending cap and alerts."""

from __future__ import annotations

from datetime import UTC, datetime

from litestar import Response
from litestar.params import JSONBody

from tollgate.api import billing, usage
from tollgate.api.billing import Billing, BillingChange, BillingWithSecret, RolledSecret, SecretRoll, WebhookTest
from tollgate.api.usage import Split, Step, Timeline, TimelineQuery, Usage, UsageQuery
from tollgate.control.api.access import CurrentActor, Part, Plane
from tollgate.control.api.creation import CreatesOnce, Made
from tollgate.control.api.operations import USAGE, serves
from tollgate.control.api.reading import IfMatch, Wanted
from tollgate.control.api.render import Versioned, of, unstored, versioned
from tollgate.control.problems import InvalidInput, RoleNeeded, TooManyAttempts
from tollgate.control.services.billing import BillingTerms
from tollgate.control.services.timelines import window_of
from tollgate.core.roles import Action

USUAL_ROLL = SecretRoll()


@serves(usage.SHOW, tag=USAGE)
async def get_usage(plane: Plane, actor: CurrentActor, team: Part, wanted: Wanted[UsageQuery]) -> Response[Usage]:
    """Show a team's usage of a month, and its cost.

    Of the billing month: calls whose records arrived after their own month was closed are in the next. The items
    add up to the month exactly (by `month` they are this month and the eleven before); beyond 1,000 the smallest
    are summed in one. With `token`, `free_left` and the cap are the team's, and all else is the token's. A rotated
    token is listed as its newest successor.
    """
    return unstored(await plane.usage.of_team(actor, team, wanted))


@serves(usage.TIMELINE, tag=USAGE)
async def get_timeline(
    plane: Plane, actor: CurrentActor, team: Part, wanted: Wanted[TimelineQuery]
) -> Response[Timeline]:
    """Show a team's requests over time.

    Steps without requests are listed too; of a month also future ones.
    """
    window = window_of(wanted, plane.context.now())
    found = await plane.timelines.within(actor, team, window, Split(wanted.split))
    took = await plane.timelines.latency(actor, team, window)
    steps = [Step(datetime.fromtimestamp(each.start, UTC), each.total, each.requests) for each in found.steps]
    return unstored(Timeline(found.span.value, found.split.value, found.step, took.p50, took.p95, steps))


@serves(billing.SHOW, RoleNeeded, tag=USAGE)
async def get_billing(plane: Plane, actor: CurrentActor, team: Part) -> Versioned[Billing]:
    """Show a team's spending cap and alerts."""
    terms = await plane.billing.show(actor, team)
    return versioned(of(Billing, terms, previous_secret_until=terms.previous_secret_until), terms)


@serves(billing.UPDATE, RoleNeeded, TooManyAttempts, tag=USAGE)
async def update_billing(
    plane: Plane, actor: CurrentActor, team: Part, data: JSONBody[BillingChange], if_match: IfMatch
) -> Versioned[BillingWithSecret]:
    """Set the spending cap and the alerts.

    Omitted members keep their value. A cap takes effect within 5 seconds: calls are then refused with 402 until
    the month ends or the cap is raised, and nothing above it is charged. It can be raised ten times, then once in
    ten minutes, and lowered at any time. The receiver of the webhook checks `X-Tollgate-Signature: t=<unix
    time>,v1=<hex>`: the HMAC-SHA-256, under the secret, of the time, a dot and the body. An
    address that is sent again keeps its secret: `billing/roll` replaces it.
    """
    terms, secret = await plane.billing.change(actor, team, data, if_match)
    shown = of(BillingWithSecret, terms, webhook_secret=secret, previous_secret_until=terms.previous_secret_until)
    return versioned(shown, terms)


@serves(billing.ROLL, RoleNeeded, InvalidInput, tag=USAGE)
async def roll_webhook_secret(
    plane: Plane, actor: CurrentActor, team: Part, once: CreatesOnce, data: JSONBody[SecretRoll] = USUAL_ROLL
) -> Versioned[RolledSecret]:
    """Replace the secret of the webhook.

    The answer shows the new one, once. For the overlap, calls are signed with both (`t=…,v1=…,v1=…`).
    """
    return await once(lambda: plane.billing.roll(actor, team, data), _rolled, (team, Action.CHANGE_BILLING))


def _rolled(done: tuple[BillingTerms, str]) -> Made:
    terms, secret = done
    return Made(RolledSecret(secret, terms.previous_secret_until), terms)


@serves(billing.TEST, RoleNeeded, InvalidInput, TooManyAttempts, tag=USAGE)
async def test_webhook(plane: Plane, actor: CurrentActor, team: Part) -> Response[WebhookTest]:
    """Call the team's webhook once, as an alert would.

    The `type` of the body is `test`. The answer is the result; the call is not retried.
    """
    failure = await plane.alerts.test(actor, team)
    return unstored(WebhookTest(not failure, failure or None))
