"""The account page: name, email, password, second factors, logins and personal access tokens.

Also approving `tollgate auth login`: enter the code, see the machine, approve or deny. Opening a page approves
nothing: only the button does (RFC 8628, section 5.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

from litestar import Response, post

from tollgate.api.me import EmailLink, NewEmail, NewPersonalToken, PasswordChange, SelfChange
from tollgate.control.console import render, session
from tollgate.control.console.forms import Form, command, new_password, read_form, whole
from tollgate.control.console.frame import Frame, open_frame, page
from tollgate.control.console.paths import HttpRequest, Part, Plane, shown
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import InvalidInput, NotFound, Problem
from tollgate.control.service_context import MAX_ROWS, PageRequest
from tollgate.core import secrets
from tollgate.core.people import PERSONAL

HERE = "/console/account"
DEVICE = "/console/device"
MAX_CODE = 40
_TOASTS = {
    "deleted": "The access token was deleted.",
    "ended": "That login has ended.",
    "email": "Your address was changed.",
    "mailed": "A link was sent to the new address: open it in this browser. Until then, nothing changes.",
    "name": "Your name was changed.",
    "password": "Your password was changed, and what you chose has ended.",
    "passkey": "The passkey was added.",
    "removed": "It was removed.",
    "totp": "Codes are on: signing in requires one.",
}
# Boxes of the form for a new password.
ENDINGS = ("end_sessions", "end_devices", "end_tokens", "end_passkeys")
_DAYS = ((30, "30 days"), (90, "90 days"), (365, "A year"), (0, "Never"))


@shown("/account")
async def account_page(request: HttpRequest, plane: Plane) -> Response[str]:
    frame = await open_frame(request, plane, here="account", toasts=_TOASTS)
    return await show(frame, plane)


@post("/account")
async def change(request: HttpRequest, plane: Plane) -> Response[str]:
    """Change the name or the password, create an access token, or delete the account."""
    frame = await open_frame(request, plane, here="account")
    form = await read_form(request)
    try:
        return await _act(request, plane, frame, form)
    except Problem as problem:
        return await show(frame, plane, problem=problem, typed=form)


@shown("/account/email/{link:str}")
async def email_page(request: HttpRequest, plane: Plane, link: Part) -> Response[str]:
    """Confirm the change to the address that a link was mailed to."""
    frame = await open_frame(request, plane, here="account", title="New address", crumbs=(("Account", HERE),))
    return page(frame, "email.html", link=link, address=plane.email_changes.look(frame.actor, link))


@post("/account/email/{link:str}")
async def confirm_email(request: HttpRequest, plane: Plane, link: Part) -> Response[str]:
    """Change the address with the link that was mailed to the new one."""
    frame = await open_frame(request, plane, here="account")
    await plane.email_changes.confirm(frame.actor, EmailLink(link))
    return render.to(f"{HERE}?done=email")


@post("/logins/{login_id:str}/end")
async def end_login(request: HttpRequest, plane: Plane, login_id: Part) -> Response[str]:
    """End a login; ending the current one signs out."""
    actor, _ = await session.signed_in(request, plane, back=HERE)
    if actor.login is not None and login_id == actor.login.id:
        return await session.leave(request, plane, "/console/sign-in?done=signed-out")
    personal = (await read_form(request)).get("personal")
    await plane.logins.end(actor, login_id)
    return render.to(f"{HERE}?done={'deleted' if personal else 'ended'}")


async def _act(request: HttpRequest, plane: ControlPlane, frame: Frame, form: Form) -> Response[str]:
    match form.get("act"):
        case "name":
            await plane.accounts.update(frame.actor, command(form, SelfChange))
        case "password":
            ending = {name: name in form for name in ENDINGS}
            wanted = PasswordChange(form.get("current", ""), new_password(form, "new"), **ending)
            await plane.accounts.change_password(frame.actor, wanted)
        case "email":
            address = NewEmail(form.get("email", ""), form.get("current", ""))
            if (await plane.email_changes.request(frame.actor, address)).mailed_to:
                return render.to(f"{HERE}?done=mailed")
        case "token":
            token = NewPersonalToken(form.get("token_name", "").strip(), whole(form, "days") or None)
            _, secret = await plane.logins.new_personal(frame.actor, token)
            return await show(frame, plane, secret=secret)
        case "delete":
            if form.get("typed", "").strip().lower() != frame.account.email:
                raise InvalidInput("Type your address to delete the account.", field="typed")
            await plane.accounts.delete(frame.actor)
            return await session.leave(request, plane, "/console/sign-in?done=deleted")
        case _:
            raise InvalidInput("No action was chosen: use the buttons of the page.")
    return render.to(f"{HERE}?done={form['act']}")


async def show(
    frame: Frame,
    plane: ControlPlane,
    *,
    problem: Problem | None = None,
    secret: str = "",
    codes: Sequence[str] = (),
    typed: Form | None = None,
) -> Response[str]:
    """The page, with an error, or with a secret that is shown once."""
    frame.title, frame.crumbs, frame.commands = "Account", (), ("tollgate account tokens create NAME",)
    logins = list(reversed((await plane.logins.list(frame.actor, PageRequest(MAX_ROWS))).items))
    factors = await plane.factors.list(frame.actor)
    return page(
        frame,
        "account.html",
        problem=problem,
        form=typed,
        account=frame.account,
        logins=[login for login in logins if login.kind != PERSONAL],
        tokens=[login for login in logins if login.kind == PERSONAL],
        current=frame.actor.login.id if frame.actor.login else "",
        secret=secret,
        codes=codes,
        mail=plane.mailer.enabled,
        days=_DAYS,
        passkeys=factors.passkeys,
        totp=factors.totp,
        recovery_left=factors.recovery_left,
    )


# --- Logins of the tool ------------------------------------------------------------------------------------


@shown("/device")
async def device_page(request: HttpRequest, plane: Plane) -> Response[str]:
    """The form for the code, or the waiting device."""
    code = request.query_params.get("user_code", "").strip()[:MAX_CODE]
    actor, account = await session.signed_in(request, plane, back=_device_address(code))
    if not code:
        return _code_page(account.email)
    try:
        waiting = await plane.devices.look(actor, code)
    except NotFound as problem:
        return _code_page(account.email, code, problem)
    letters = secrets.plain_code(code) or ""
    return render.page(
        "device_approve.html",
        who=account.email,
        code=f"{letters[:4]}-{letters[4:]}",
        waiting=waiting,
        now=plane.context.now(),
    )


@post("/device")
async def decide(request: HttpRequest, plane: Plane) -> Response[str]:
    form = await read_form(request)
    code, act = form.get("user_code", "").strip()[:MAX_CODE], form.get("act", "")
    actor, account = await session.signed_in(request, plane, back=_device_address(code))
    try:
        if act == "approve":
            await plane.devices.approve(actor, code)
            return render.to(f"{DEVICE}/approved")
        if act == "deny":
            await plane.devices.deny(actor, code)
            return render.to(f"{DEVICE}/denied")
    except NotFound as problem:
        return _code_page(account.email, code, problem)
    return render.to(_device_address(code))


@shown("/device/approved")
async def approved_page(request: HttpRequest, plane: Plane) -> Response[str]:
    _, account = await session.signed_in(request, plane, back=DEVICE)
    return render.page("device_done.html", who=account.email, approved=True)


@shown("/device/denied")
async def denied_page(request: HttpRequest, plane: Plane) -> Response[str]:
    _, account = await session.signed_in(request, plane, back=DEVICE)
    return render.page("device_done.html", who=account.email, approved=False)


def _device_address(code: str) -> str:
    return f"{DEVICE}?{urlencode({'user_code': code})}" if code else DEVICE


def _code_page(email: str, code: str = "", problem: NotFound | None = None) -> Response[str]:
    return render.page("device_code.html", problem=problem, who=email, code=code)
