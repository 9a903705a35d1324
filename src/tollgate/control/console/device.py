"""Approving `tollgate auth login`: enter the code, see the machine, approve or deny.

Opening a page approves nothing: only the button does (RFC 8628, section 5.4).
"""

from __future__ import annotations

from urllib.parse import urlencode

from litestar import Response, post

from tollgate.control.console import render, session
from tollgate.control.console.forms import read_form
from tollgate.control.console.paths import HttpRequest, Plane, shown
from tollgate.control.problems import NotFound
from tollgate.core import secrets

PATH = "/console/device"
MAX_CODE = 40


@shown("/device")
async def device_page(request: HttpRequest, plane: Plane) -> Response[str]:
    """The form for the code, or the waiting device."""
    code = request.query_params.get("user_code", "").strip()[:MAX_CODE]
    actor, account = await session.signed_in(request, plane, back=_address(code))
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
    """Approve or deny the machine's login."""
    form = await read_form(request)
    code, act = form.get("user_code", "").strip()[:MAX_CODE], form.get("act", "")
    actor, account = await session.signed_in(request, plane, back=_address(code))
    try:
        if act == "approve":
            await plane.devices.approve(actor, code)
            return render.to(f"{PATH}/approved")
        if act == "deny":
            await plane.devices.deny(actor, code)
            return render.to(f"{PATH}/denied")
    except NotFound as problem:
        return _code_page(account.email, code, problem)
    return render.to(_address(code))


@shown("/device/approved")
async def approved_page(request: HttpRequest, plane: Plane) -> Response[str]:
    """The page after an approval."""
    _, account = await session.signed_in(request, plane, back=PATH)
    return render.page("device_done.html", who=account.email, approved=True)


@shown("/device/denied")
async def denied_page(request: HttpRequest, plane: Plane) -> Response[str]:
    """The page after a denial."""
    _, account = await session.signed_in(request, plane, back=PATH)
    return render.page("device_done.html", who=account.email, approved=False)


def _address(code: str) -> str:
    """The page of the login that waits with this code."""
    return f"{PATH}?{urlencode({'user_code': code})}" if code else PATH


def _code_page(email: str, code: str = "", problem: NotFound | None = None) -> Response[str]:
    return render.page("device_code.html", problem=problem, who=email, code=code)
