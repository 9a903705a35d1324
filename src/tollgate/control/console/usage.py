"""A team's usage and its cost; its cap, alerts and buyer; its invoices."""

from __future__ import annotations

from typing import Any

from litestar import Response, post
from msgspec import UNSET

from tollgate.api.billing import BillingChange, SecretRoll
from tollgate.api.usage import By, UsageQuery
from tollgate.control.api import invoices
from tollgate.control.console import render
from tollgate.control.console.forms import Form, amount, command, read_form, whole
from tollgate.control.console.frame import Frame, open_frame, page
from tollgate.control.console.paths import HttpRequest, Part, Plane, shown
from tollgate.control.console.tokens import OVERLAPS
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import InvalidInput, Problem
from tollgate.control.service_context import PageRequest
from tollgate.core.months import last_months, month_of

MONTHS = 12
_TOASTS = {
    "cap": "The cap was changed. The change takes effect within 5 seconds.",
    "alerts": "The alerts were changed.",
    "buyer": "The details were changed. Invoices show them from now on.",
    "tested": "The webhook accepted the test call.",
}
# Which members each form of the page has.
_FORMS = {"alerts": {"alert_webhook", "alert_emails"}, "buyer": {"buyer", "tax_number"}}


@shown("/teams/{team:str}/usage")
async def usage_page(request: HttpRequest, plane: Plane, team: Part) -> Response[str]:
    """A month by token, domain, network, method or day."""
    frame = await open_frame(request, plane, team, here="usage", toasts=_TOASTS)
    return await _usage(frame, plane, request)


@post("/teams/{team:str}/usage")
async def change(request: HttpRequest, plane: Plane, team: Part) -> Response[str]:
    """Set the cap, the alerts or the buyer, send a test, or roll the webhook's secret."""
    frame = await open_frame(request, plane, team, here="usage")
    form = await read_form(request)
    act = form.get("act", "")
    try:
        if act == "test":
            failure = await plane.alerts.test(frame.actor, team)
            if failure:
                raise InvalidInput(f"The call of the webhook failed: {failure}", field="alert_webhook")
            return render.to(f"{frame.base}/usage?done=tested")
        if act == "roll":
            _, made = await plane.billing.roll(frame.actor, team, SecretRoll(whole(form, "overlap") or 0))
            return await _usage(frame, plane, request, secret=made)
        _, secret = await plane.billing.change(frame.actor, team, _change(act, form))
    except Problem as problem:
        return await _usage(frame, plane, request, problem=problem, typed=form)
    if secret is not None:
        return await _usage(frame, plane, request, secret=secret)
    return render.to(f"{frame.base}/usage?done={act}")


def _change(act: str, form: Form) -> BillingChange:
    if act == "cap":
        return BillingChange(spending_cap_micros=amount(form, "cap"))
    if act in _FORMS:
        return command(form, BillingChange, but=set(BillingChange.__struct_fields__) - _FORMS[act])
    raise InvalidInput("No action was chosen: use the buttons of the page.")


async def _usage(
    frame: Frame,
    plane: ControlPlane,
    request: HttpRequest,
    *,
    problem: Problem | None = None,
    secret: str = "",
    typed: Form | None = None,
) -> Response[str]:
    name = frame.team_name
    query = UsageQuery(request.query_params.get("month") or UNSET, request.query_params.get("by") or By.DAY)
    usage = await plane.usage.of_team(frame.actor, name, query)
    frame.commands = (f"tollgate usage --team {name} --month {usage.month} --by {usage.by}",)
    terms = await plane.billing.show(frame.actor, name) if frame.may("CHANGE_BILLING") else None
    return page(
        frame,
        "usage.html",
        problem=problem,
        usage=usage,
        months=last_months(month_of(frame.now), MONTHS),
        ways=[each.value for each in By],
        terms=terms,
        mail=plane.mailer.enabled,
        secret=secret,
        overlaps=OVERLAPS,
        typed={name: (typed or {}).get(name, "") for name in ("cap", "alert_webhook", "buyer", "tax_number")},
    )


# --- Invoices ----------------------------------------------------------------------------------------------


@shown("/teams/{team:str}/invoices")
async def invoices_page(request: HttpRequest, plane: Plane, team: Part) -> Response[str]:
    frame = await open_frame(request, plane, team, here="invoices")
    frame.commands = (f"tollgate invoices list --team {team}",)
    listed = await plane.invoices.list(frame.actor, team, PageRequest(24, request.query_params.get("after")))
    return page(frame, "invoices.html", invoices=[each.invoice for each in listed.items], next=listed.next)


@shown("/teams/{team:str}/invoices/{month:str}")
async def invoice_page(request: HttpRequest, plane: Plane, team: Part, month: Part) -> Response[str]:
    frame = await open_frame(request, plane, team, here="invoices", title=month)
    frame.crumbs = (("Invoices", f"{frame.base}/invoices"),)
    frame.commands = (f"tollgate invoices show {month} --team {team}",)
    invoice = await plane.invoices.show(frame.actor, team, month)
    return page(
        frame,
        "invoice.html",
        invoice=invoices.shown(invoice),
        terms=await plane.billing.show(frame.actor, team),
        seller=plane.settings.billing,
        base_url=plane.base_url,
    )


@shown("/teams/{team:str}/invoices/{month:str}/{form:str}")
async def invoice_file(request: HttpRequest, plane: Plane, team: Part, month: Part, form: Part) -> Response[Any]:
    """One invoice as a page to print or as CSV."""
    frame = await open_frame(request, plane, team)
    invoice = invoices.shown(await plane.invoices.show(frame.actor, team, month))
    parties = invoices.Parties.of(plane.settings.billing, await plane.billing.show(frame.actor, team))
    return invoices.file_of(invoice, parties, form, plane.base_url)
