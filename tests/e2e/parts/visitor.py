"""A person at the console's pages, with a browser that keeps cookies and runs no script."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from collections.abc import Iterator

GRANT = "urn:ietf:params:oauth:grant-type:device_code"


@dataclass(frozen=True)
class Visitor:
    """A browser of its own."""

    http: httpx.Client

    def get(self, address: str) -> httpx.Response:
        """Open a page, by its path or the whole link."""
        return self.http.get(address)

    def post(self, address: str, **form: str) -> httpx.Response:
        """Send a form."""
        return self.http.post(address, data=form)

    def sign_in(self, email: str, password: str) -> httpx.Response:
        """Sign in: 303 where that is granted."""
        return self.post("/console/sign-in", email=email, password=password, next="/console")

    def sign_up(self, email: str, password: str) -> httpx.Response:
        """Create an account without an invitation."""
        return self.post("/console/sign-up", email=email, password=password, again=password)

    def join(self, link: str, password: str) -> httpx.Response:
        """Make the account that an invitation is for, and accept it."""
        return self.post(link, act="sign-up", password=password, again=password)

    def set_password(self, link: str, password: str) -> httpx.Response:
        """Choose a password by a link."""
        return self.post(link, password=password, again=password)

    def signed_in(self) -> bool:
        """Whether the console lets this browser in."""
        return self.get("/console/account").status_code == 200

    def log_tool_in(self) -> dict[str, Any]:
        """Approve a login of the tool, as the user who is signed in; give its tokens."""
        started = self.post("/api/v1/oauth/device_authorization", client_id="tollgate-cli").json()
        approved = self.post("/console/device", user_code=started["user_code"], act="approve")
        assert approved.status_code == 303, approved.text
        given = self.post(
            "/api/v1/oauth/token",
            grant_type=GRANT,
            device_code=started["device_code"],
            client_id="tollgate-cli",
        )
        assert given.status_code == 200, given.text
        tokens: dict[str, Any] = given.json()
        return tokens


@contextmanager
def visitor(base_url: str) -> Iterator[Visitor]:
    """Open a browser at a service."""
    headers = {"Sec-Fetch-Site": "same-origin"}
    with httpx.Client(base_url=base_url, headers=headers, trust_env=False, timeout=20) as http:
        yield Visitor(http)
