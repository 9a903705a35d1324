"""The device login of RFC 8628: a code is shown, a browser approves it, the tool polls until it has.

`polling` decides, without a clock, a socket or a sleep; `wait_for_approval` does the I/O.
"""

from __future__ import annotations

import getpass
import socket
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec.structs import replace

from tollgate.cli import answers
from tollgate.cli.address import from_here
from tollgate.cli.failures import Failure, Lost, NoServer, NotTollgate, OAuthRefusal, TooSlow
from tollgate.cli.login import CLIENT_ID, TOKEN_PATH, post_form
from tollgate.cli.shapes import DeviceGrant, TokenResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tollgate.cli.transport import Transport

GRANT_TYPE = "urn:ietf:params:oauth:grant-type:device_code"
START_PATH = "/api/v1/oauth/device_authorization"

SLOW_DOWN_SECONDS = 5.0
"""What `slow_down` adds to the interval (RFC 8628)."""
_MAX_PAUSE = 60.0

PollAnswer = TokenResponse | Failure
"""The result of a poll: the tokens, or the reason why there are none yet."""


def polling(
    interval: float, expires_in: float, now: float
) -> Generator[float, tuple[PollAnswer, float], TokenResponse]:
    """Yield how long to wait before the next poll; take its answer and the time; return the tokens.

    A server that cannot be reached is polled at growing intervals until the code has expired.
    """
    deadline = now + expires_in
    pause = interval
    while True:
        answer, now = yield max(0.0, min(pause, deadline - now))
        if isinstance(answer, TokenResponse):
            return answer
        match answer.reason:
            case "authorization_pending":
                pause = interval
            case "slow_down":
                interval += SLOW_DOWN_SECONDS
                pause = interval
            case _ if _passing(answer):
                pause = min(pause * 2, max(_MAX_PAUSE, interval))
            case _:
                raise _final(answer)
        if now >= deadline:
            raise _expired()


def start(transport: Transport, machine: str) -> DeviceGrant:
    reply = post_form(transport, START_PATH, {"client_id": CLIENT_ID, "machine": machine})
    grant = answers.read(reply, DeviceGrant, transport.url).value
    for page in (grant.verification_uri, grant.verification_uri_complete or grant.verification_uri):
        # It may be opened in a browser, so it must be a web page.
        if urlsplit(page).scheme not in {"http", "https"} or not page.isprintable():
            raise NotTollgate(f"{transport.url} gives no page to approve the login on. Check the address.")
    whole = grant.verification_uri_complete
    return replace(
        grant,
        verification_uri=from_here(grant.verification_uri, transport.url),
        verification_uri_complete=None if whole is None else from_here(whole, transport.url),
    )


def wait_for_approval(
    transport: Transport,
    grant: DeviceGrant,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> TokenResponse:
    """Poll at the interval until the code is approved, denied or expired."""
    steps = polling(grant.interval, grant.expires_in, clock())
    pause = next(steps)
    while True:
        sleep(pause)
        answer = _poll(transport, grant.device_code)
        try:
            pause = steps.send((answer, clock()))
        except StopIteration as end:
            tokens: TokenResponse = end.value
            return tokens


def machine_name() -> str:
    """Return this machine's name, for the page that approves it."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # an account without a name, as in containers
        user = "unknown"
    name = f"{user}@{socket.gethostname()}"
    return "".join(character for character in name if character.isprintable())[:100]


def _poll(transport: Transport, device_code: str) -> PollAnswer:
    form = {"grant_type": GRANT_TYPE, "device_code": device_code, "client_id": CLIENT_ID}
    try:
        return answers.read(post_form(transport, TOKEN_PATH, form), TokenResponse, transport.url).value
    except Failure as failure:
        return failure
    finally:
        # The server may close a connection that was idle for the interval just when it is used again.
        transport.close()


def _passing(failure: Failure) -> bool:
    """Whether a retry makes sense: the server is unavailable, overloaded, or restarting."""
    return isinstance(failure, NoServer | Lost | TooSlow) or failure.reason in {
        "store_unavailable",
        "too_many_attempts",
        "internal_error",
        "unavailable",
    }


def _final(failure: Failure) -> Failure:
    if not isinstance(failure, OAuthRefusal):
        return failure
    if failure.reason == "access_denied":
        return Failure("The login was denied in the browser.")
    if failure.reason == "expired_token":
        return _expired()
    return Failure(f"The login failed: {failure} ({failure.reason}). Run tollgate auth login again.")


def _expired() -> Failure:
    return Failure("The code has expired. Run tollgate auth login again.")
