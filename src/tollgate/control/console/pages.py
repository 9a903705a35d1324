"""All pages of the console as one router, with what every one of them goes through."""

from __future__ import annotations

from litestar import MediaType, Response, Router
from litestar.exceptions import HTTPException

from tollgate.control.console import (
    device,
    errors,
    home,
    invitations,
    passwords,
    paths,
    provider,
    render,
    sign_in,
    sign_up,
)
from tollgate.control.console.forms import MAX_BYTES
from tollgate.control.console.paths import shown
from tollgate.control.console.safety import HOME, refuse_other_sites, with_headers
from tollgate.control.console.session import SignInFirst
from tollgate.control.problems import Problem
from tollgate.store.base import StoreUnavailable


@shown("/style.css")
async def style() -> Response[str]:
    """The style sheet of all pages."""
    return Response(
        render.STYLE,
        media_type=MediaType.CSS,
        headers={"Cache-Control": "public, max-age=31536000, immutable"},
    )


def router() -> Router:
    """All pages, for an application that has the dependency `plane`."""
    handlers = [
        home.home,
        home.end_login,
        sign_in.sign_in_page,
        sign_in.sign_in,
        sign_in.sign_out,
        sign_up.sign_up_page,
        sign_up.sign_up,
        invitations.invitation_page,
        invitations.follow,
        passwords.forgot_page,
        passwords.forgot,
        passwords.reset_page,
        passwords.reset,
        device.device_page,
        device.decide,
        device.approved_page,
        device.denied_page,
        provider.start,
        provider.callback,
        style,
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
