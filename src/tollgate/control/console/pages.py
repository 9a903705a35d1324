"""The root page, and all pages of the console as one router with their common middleware."""

from __future__ import annotations

from litestar import MediaType, Response, Router
from litestar.exceptions import HTTPException, NotFoundException
from litestar.handlers import HTTPRouteHandler

from tollgate.control.console import (
    account,
    charts,
    device,
    domains,
    endpoints,
    errors,
    factors,
    home,
    invitations,
    logs,
    operator,
    overview,
    paths,
    provider,
    render,
    sign_in,
    tail,
    team,
    tokens,
    usage,
)
from tollgate.control.console.forms import MAX_BYTES
from tollgate.control.console.frame import open_frame, page
from tollgate.control.console.paths import HttpRequest, Plane, shown
from tollgate.control.console.safety import HOME, refuse_other_sites, with_headers
from tollgate.control.console.session import SignInFirst
from tollgate.control.problems import Problem
from tollgate.store.base import StoreUnavailable


@shown("/_styles")
async def styles_page(request: HttpRequest, plane: Plane) -> Response[str]:
    """The style guide: all components on one page. Only in the demo."""
    # Enabled only by the demo.
    if not plane.settings.whitelist.allow_localhost:
        raise NotFoundException
    frame = await open_frame(request, plane, title="Parts", crumbs=(("Console", "/console"),))
    frame.toast, frame.commands = "This is a toast.", ("tollgate --help",)
    return page(frame, "styles.html", spark=charts.sparkline([3, 5, 2, 8, 9, 4, 6, 7, 1, 0, 4, 9]))


_FOR_EVER = "public, max-age=31536000, immutable"


def _served(asset: render.Asset) -> HTTPRouteHandler:
    @shown(asset.path)
    async def serve(request: HttpRequest) -> Response[bytes]:
        headers = {"Cache-Control": _FOR_EVER, "Vary": "Accept-Encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
            return Response(asset.packed, media_type=asset.media_type, headers=headers)
        return Response(asset.content, media_type=asset.media_type, headers=headers)

    return serve


@shown("/")
async def root(request: HttpRequest, plane: Plane) -> Response[bytes]:
    """The service's root: redirects browsers to the console, answers programs with a short text."""
    if "text/html" in request.headers.get("accept", ""):
        return Response(b"", status_code=303, media_type=MediaType.TEXT, headers={"Location": HOME})
    words = (
        "Tollgate: blockchain RPC access.\n"
        f"Call:     POST {plane.base_url}/x/<family>/<network>\n"
        f"Manage:   {plane.base_url}/api/v1 (documentation: {plane.base_url}/api/v1/docs)\n"
        f"Console:  {plane.base_url}{HOME}\n"
    )
    return Response(words.encode(), media_type=MediaType.TEXT, headers={"Cache-Control": "no-store"})


def router() -> Router:
    """All pages, for an application that has the dependency `plane`."""
    handlers = [
        *(home.home, home.teams_page, home.create_team, home.more_page),
        *(overview.overview_page, endpoints.endpoints_page, endpoints.called, endpoints.playground_token),
        *(tokens.tokens_page, tokens.new_page, tokens.create, tokens.token_page, tokens.change),
        *(domains.domains_page, domains.root_of, domains.add, domains.domain_page, domains.change),
        *(logs.logs_page, logs.export, tail.tail),
        *(usage.usage_page, usage.change, usage.invoices_page, usage.invoice_page, usage.invoice_file),
        *(team.members_page, team.invite, team.change_member, team.revoke),
        *(team.audit_page, team.settings_page, team.change_team),
        *(account.account_page, account.change, account.end_login, account.email_page, account.confirm_email),
        *(factors.totp_page, factors.change_totp, factors.passkey_options, factors.add_passkey, factors.remove),
        *(factors.sign_in_options, factors.sign_in_with_passkey, factors.sign_in_with_code),
        *(operator.operator_page, operator.run_checks, operator.set_terms, operator.team_page, styles_page),
        *(sign_in.sign_in_page, sign_in.sign_in, sign_in.sign_out, sign_in.sign_up_page, sign_in.sign_up),
        *(invitations.invitation_page, invitations.follow),
        *(sign_in.forgot_page, sign_in.forgot, sign_in.reset_page, sign_in.reset),
        *(device.device_page, device.decide, device.approved_page, device.denied_page),
        *(provider.start, provider.callback),
        *map(_served, (render.STYLE, render.SCRIPT, render.FAVICON)),
    ]
    return Router(
        path=HOME,
        route_handlers=[*handlers, *paths.nowhere(handlers)],
        guards=[refuse_other_sites],
        middleware=[with_headers],
        exception_handlers={
            SignInFirst: errors.sign_in_first,
            Problem: errors.problem_page,
            StoreUnavailable: errors.outage_page,
            HTTPException: errors.refusal_page,
            Exception: errors.failure_page,
        },
        request_max_body_size=MAX_BYTES,
        include_in_schema=False,
    )
