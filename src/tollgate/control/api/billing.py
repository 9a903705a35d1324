"""A team's spending cap and alerts."""

from __future__ import annotations

from tollgate.control.api import bodies, money, reading
from tollgate.control.api.access import Asked, Part, Plane, Who
from tollgate.control.api.operations import USAGE, Operation, endpoint
from tollgate.control.api.render import Answer, shown
from tollgate.control.problems import RoleNeeded
from tollgate.control.services.billing import Change


@endpoint(
    "GET",
    "/teams/{team}/billing",
    Operation(
        id="getBilling",
        tag=USAGE,
        summary="Show a team's spending cap and alerts",
        gives=money.Billing,
        tagged=True,
        raises=(RoleNeeded,),
    ),
)
async def show(plane: Plane, actor: Who, team: Part) -> Answer:
    """Show the cap and the alerts."""
    terms = await plane.billing.show(actor, team)
    return shown(money.billing(terms), terms)


@endpoint(
    "PATCH",
    "/teams/{team}/billing",
    Operation(
        id="updateBilling",
        tag=USAGE,
        summary="Set the spending cap and the alerts",
        description=(
            "What is left out stays as it is. A cap takes effect within 5 seconds: calls are then refused with "
            "402 until the month ends or the cap is raised, and nothing above it is charged. Whoever is called by "
            "the webhook checks `X-Tollgate-Signature: t=<unix time>,v1=<hex>`: the HMAC-SHA-256, under the "
            "secret, of the time, a dot and the body. Setting a webhook again makes another secret."
        ),
        takes=bodies.BillingChange,
        conditional=True,
        gives=money.BillingWithSecret,
        tagged=True,
        raises=(RoleNeeded,),
    ),
)
async def update(request: Asked, plane: Plane, actor: Who, team: Part) -> Answer:
    """Set the cap and the alerts."""
    wish = await reading.body(request, bodies.BillingChange)
    change = Change(wish.spending_cap_micros, wish.alert_webhook, wish.alert_emails)
    terms, secret = await plane.billing.change(actor, team, change, reading.if_match(request))
    return shown(money.billing_with_secret(terms, secret), terms)


HANDLERS = [show, update]
