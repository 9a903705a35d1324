"""The credential of a command: from the environment, or stored by `tollgate auth login`.

Owns refreshing: once for an expired access token, under a lock, so that of two concurrent tools one refreshes and
the other uses its result. `credentials.py` stores credentials.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlencode

from tollgate.cli import answers
from tollgate.cli.credentials import Credential
from tollgate.cli.failures import LoginNeeded, OAuthRefusal, login_expired, not_logged_in
from tollgate.cli.shapes import TokenResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tollgate.cli.credentials import CredentialStore
    from tollgate.cli.transport import HttpReply, Transport

CLIENT_ID = "tollgate-cli"
TOKEN_PATH = "/api/v1/oauth/token"  # noqa: S105 - a path

# A token that expires in transit is refused, so it is renewed a little early.
_EARLY_SECONDS = 30.0


class LoginSource(Protocol):
    """What a client needs of a credential."""

    def secret(self) -> str: ...

    def renewed(self, refused: str) -> str | None:
        """Return another token to try instead of a refused one, if there is one."""

    def refusal(self) -> LoginNeeded: ...


class FixedLogin:
    """A token from TOLLGATE_TOKEN, or one that is about to be kept."""

    def __init__(self, token: str, refusal: str) -> None:
        self._token = token
        self._refusal = refusal

    def secret(self) -> str:
        return self._token

    def renewed(self, refused: str) -> str | None:  # noqa: ARG002 - of the port
        """A fixed token cannot be renewed."""
        return None

    def refusal(self) -> LoginNeeded:
        return LoginNeeded(self._refusal)


class KeptLogin:
    """The login that `tollgate auth login` stored for a server."""

    def __init__(
        self,
        credentials: CredentialStore,
        transport: Transport,
        credential: Credential,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._credentials = credentials
        self._transport = transport
        self._credential = credential
        self._clock = clock

    def secret(self) -> str:
        """Return the access token, renewed if it is about to expire."""
        end = self._credential.expires_at
        if end is not None and self._clock() > end - _EARLY_SECONDS:
            self._renew(self._credential.access)
        return self._credential.access

    def renewed(self, refused: str) -> str | None:
        """Get a new access token, once; a personal access token has no successor."""
        if self._credential.refresh is None:
            return None
        self._renew(refused)
        return self._credential.access

    def refusal(self) -> LoginNeeded:
        return login_expired()

    def _renew(self, refused: str) -> None:
        if self._credential.refresh is None:
            raise login_expired()
        with self._credentials.locked():
            # Another tool may have renewed it, or logged out, while this one waited for the lock.
            current = self._credentials.credential(self._transport.url)
            if current is None:
                raise not_logged_in(self._transport.url)
            if current.access == refused:
                current = self._refresh(current)
                self._credentials.renew(self._transport.url, current)
            self._credential = current

    def _refresh(self, current: Credential) -> Credential:
        if current.refresh is None:
            raise login_expired()
        form = {"grant_type": "refresh_token", "refresh_token": current.refresh, "client_id": CLIENT_ID}
        reply = post_form(self._transport, TOKEN_PATH, form)
        try:
            tokens = answers.read(reply, TokenResponse, self._transport.url).value
        except OAuthRefusal as error:
            if error.reason == "invalid_grant":
                raise login_expired() from None
            raise
        return credential_of(tokens, self._clock(), refresh=current.refresh)


def credential_of(tokens: TokenResponse, now: float, *, refresh: str | None = None) -> Credential:
    """Build a login from a token response; a refresh token that it does not replace stays valid."""
    return Credential(
        "tool",
        tokens.access_token,
        refresh=tokens.refresh_token or refresh,
        expires_at=None if tokens.expires_in is None else now + tokens.expires_in,
    )


def post_form(transport: Transport, path: str, form: Mapping[str, str]) -> HttpReply:
    """Send a form, as OAuth requires."""
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    return transport.send("POST", path, headers=headers, body=urlencode(form).encode())
