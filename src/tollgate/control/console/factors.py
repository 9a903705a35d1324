"""Setting up codes of an authenticator app and passkeys, and signing in with them."""

from __future__ import annotations

import msgspec
from litestar import Response, post

from tollgate.api.factors import Code, NewPasskey, PasskeyCredential
from tollgate.control.api.access import client
from tollgate.control.commands import decoded
from tollgate.control.console import account, render, session
from tollgate.control.console.forms import command, read_form
from tollgate.control.console.frame import Frame, open_frame, page
from tollgate.control.console.paths import HttpRequest, Part, Plane, shown
from tollgate.control.console.safety import local_path
from tollgate.control.console.sign_in import code_page, form_page
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import Problem
from tollgate.control.services.factors import Challenge


@shown("/account/totp")
async def totp_page(request: HttpRequest, plane: Plane) -> Response[str]:
    """A secret for an authenticator app."""
    frame = await _frame(request, plane)
    try:
        made = await plane.factors.begin_totp(frame.actor)
    except Problem as problem:
        return await account.show(frame, plane, problem=problem)
    return page(frame, "totp.html", secret=made.secret, uri=made.uri)


@post("/account/totp")
async def change_totp(request: HttpRequest, plane: Plane) -> Response[str]:
    """Turn codes on with a first code, or off with a code."""
    frame = await _frame(request, plane)
    form = await read_form(request)
    code = command(form, Code)
    if form.get("act") == "off":
        try:
            await plane.factors.end_totp(frame.actor, code)
        except Problem as problem:
            return await account.show(frame, plane, problem=problem)
        return render.to(f"{account.HERE}?done=removed")
    try:
        codes = await plane.factors.confirm_totp(frame.actor, code)
    except Problem as problem:
        return page(
            frame, "totp.html", problem=problem, secret=form.get("secret", "")[:100], uri=form.get("uri", "")[:400]
        )
    frame.toast = "Codes are on: signing in requires one."
    return await account.show(frame, plane, codes=codes)


@post("/account/passkeys/options", status_code=200)
async def passkey_options(request: HttpRequest, plane: Plane) -> Response[bytes]:
    frame = await _frame(request, plane)
    return _options(await plane.factors.begin_passkey(frame.actor))


@post("/account/passkeys")
async def add_passkey(request: HttpRequest, plane: Plane) -> Response[str]:
    frame = await _frame(request, plane)
    form = await read_form(request)
    agent = frame.actor.login.name if frame.actor.login else ""
    try:
        credential = decoded(form.get("credential", "").encode(), PasskeyCredential)
        await plane.factors.add_passkey(frame.actor, NewPasskey(form.get("ticket", ""), credential, agent))
    except Problem as problem:
        return await account.show(frame, plane, problem=problem)
    return render.to(f"{account.HERE}?done=passkey")


@post("/account/factors/{factor:str}")
async def remove(request: HttpRequest, plane: Plane, factor: Part) -> Response[str]:
    frame = await _frame(request, plane)
    await plane.factors.remove(frame.actor, factor)
    return render.to(f"{account.HERE}?done=removed")


# --- Signing in --------------------------------------------------------------------------------------------


@post("/sign-in/options", status_code=200)
async def sign_in_options(plane: Plane) -> Response[bytes]:
    return _options(plane.factors.begin_sign_in())


@post("/sign-in/passkey")
async def sign_in_with_passkey(request: HttpRequest, plane: Plane) -> Response[str]:
    form = await read_form(request)
    back = local_path(form.get("next"))
    try:
        found = await plane.factors.sign_in(form.get("ticket", ""), form.get("credential", ""))
    except Problem as problem:
        return form_page(plane, back, problem=problem)
    return await session.enter(request, plane, found, back)


@post("/sign-in/code")
async def sign_in_with_code(request: HttpRequest, plane: Plane) -> Response[str]:
    """Finish signing in with a code, after the password."""
    form = await read_form(request)
    back, ticket = local_path(form.get("next")), form.get("ticket", "")
    try:
        found = await plane.factors.account_of(ticket)
    except Problem as problem:
        return form_page(plane, back, problem=problem)
    try:
        await plane.factors.check_code(client(request), found, form.get("code", ""))
    except Problem as problem:
        return code_page(back, ticket, problem)
    return await session.enter(request, plane, found, back)


async def _frame(request: HttpRequest, plane: ControlPlane) -> Frame:
    crumbs, commands = (("Account", account.HERE),), ("tollgate account codes on",)
    return await open_frame(
        request, plane, here="account", title="Codes of an app", crumbs=crumbs, commands=commands
    )


def _options(challenge: Challenge) -> Response[bytes]:
    options = msgspec.Raw(challenge.options.encode())
    body = msgspec.json.encode({"ticket": challenge.ticket, "options": options})
    return Response(body, media_type="application/json")
