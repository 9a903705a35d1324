"""The pages over a real SQLite store and a manual clock, and browsers that read them."""

from __future__ import annotations

import asyncio
import functools
import html
import re
import shutil
from collections.abc import Coroutine, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from urllib.parse import urlencode

import httpx
from litestar import Litestar
from tests.control.services.harness import CHEAP, PATIENCE
from tests.store.migrated import make_control

from tollgate.api.teams import NewTeam
from tollgate.control.api.rates import Rates
from tollgate.control.app import control_app
from tollgate.control.passwords import Passwords
from tollgate.control.plane import ControlPlane
from tollgate.control.service_context import OPERATOR, Actor, ClientInfo
from tollgate.control.services.accounts import Accounts
from tollgate.control.services.admin import Admin
from tollgate.control.services.devices import Started
from tollgate.control.services.email_changes import EmailChanges
from tollgate.core.people import CONSOLE, Account
from tollgate.settings.model import AccountSettings, MailSettings, OidcSettings, Settings
from tollgate.store import sqlite

T = TypeVar("T")

HOST = "tollgate.example.com"
BASE_URL = f"https://{HOST}"
ADDRESS = "192.0.2.7"
AGENT = "Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/140.0"
PASSWORD = "correct horse battery"
ADA, BOB = "ada@example.com", "bob@example.com"
NOON = 1_800_000_000.0
COOKIE = "__Host-tollgate"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
OURS = {"Sec-Fetch-Site": "same-origin"}


@functools.cache
def _app(base_url: str) -> Litestar:
    """The application; made once, which takes a while. It serves `state.plane`."""
    return control_app(cast("ControlPlane", SimpleNamespace(base_url=base_url, settings=Settings())))


class Site:
    """An installation."""

    def __init__(
        self,
        folder: Path,
        loop: asyncio.Runner,
        *,
        base_url: str = BASE_URL,
        sign_up: str = "closed",
        mail: MailSettings | None = None,
        oidc: OidcSettings | None = None,
    ) -> None:
        self.now = NOON
        self.base_url = base_url
        self.cookie = COOKIE if base_url.startswith("https") else "tollgate"
        self.loop = loop
        self.folder = folder / "data"
        self.folder.mkdir()
        make_control(self.folder)
        url = sqlite.store_url("", self.folder)
        settings = Settings(
            accounts=AccountSettings(sign_up=sign_up), mail=mail or MailSettings(), oidc=oidc or OidcSettings()
        )
        self.plane = ControlPlane(
            sqlite.open_store(url, deadline=PATIENCE), settings, b"p" * 32, base_url, lambda: self.now
        )
        passwords = Passwords(CHEAP)
        self.plane.accounts = Accounts(self.plane.context, passwords, self.plane.mailer)
        self.plane.email_changes = EmailChanges(self.plane.context, self.plane.accounts, self.plane.mailer)
        self.plane.admin = Admin(self.plane.context, passwords, self.plane.accounts, self.plane.teams)
        self.app = _app(base_url)
        self.app.state.rates = Rates()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something on the site's own loop."""
        return self.loop.run(work)

    def account(self, email: str = ADA, *, name: str = "") -> Account:
        """Create an account with the usual password."""

        async def add() -> Account:
            async with self.plane.context.store.changing() as records:
                return await self.plane.accounts.add(
                    records, OPERATOR, email, CHEAP.hash(PASSWORD), name=name, verified=True
                )

        return self.do(add())

    def actor(self, account: Account) -> Actor:
        async def enter() -> Actor:
            secret = await self.plane.logins.open_session(ClientInfo(), account)
            return await self.plane.logins.actor(ClientInfo(), secret, CONSOLE)

        return self.do(enter())

    def team(self, owner: Account, name: str = "acme") -> Actor:
        actor = self.actor(owner)
        self.do(self.plane.teams.create(actor, NewTeam(name)))
        return actor

    def waiting(
        self, machine: str = "ada@laptop", agent: str = "tollgate/1.0", address: str = "198.51.100.9"
    ) -> Started:
        """A tool that waits for approval."""
        return self.do(self.plane.devices.start(ClientInfo(address, agent), machine))

    def browser(self, address: str = ADDRESS) -> Browser:
        return Browser(self, address)

    def signed_in(self, email: str = ADA) -> Browser:
        """A browser with a session, without the slow way through the password."""
        browser = self.browser()

        async def enter() -> str:
            account = await self.plane.accounts.find(email)
            assert account is not None
            return await self.plane.logins.open_session(ClientInfo(ADDRESS, AGENT), account)

        browser.client.cookies.set(self.cookie, self.do(enter()), domain=HOST, path="/")
        return browser

    def lose_the_store(self) -> None:
        """New connections to the store fail from now on."""
        self.do(self.plane.context.store.close())
        shutil.rmtree(self.folder)

    def close(self) -> None:
        self.do(self.plane.close())


class Browser:
    """One browser with its cookies. It follows no redirect by itself."""

    def __init__(self, site: Site, address: str) -> None:
        self._site = site
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(cast(Any, site.app), client=(address, 50_000)),
            base_url=site.base_url,
            headers={"User-Agent": AGENT},
        )

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        self._site.app.state.plane = self._site.plane
        return self._site.do(self.client.request(method, path, **more))

    def get(self, path: str, **query: str) -> httpx.Response:
        return self.request("GET", path, params=query or None)

    def post(self, path: str, /, **form: str) -> httpx.Response:
        """Send a form, as one of our own pages does."""
        return self.post_from(OURS, path, **form)

    def post_from(self, source: Mapping[str, str], path: str, /, **form: str) -> httpx.Response:
        """Send a form with headers that show where it comes from."""
        return self.request("POST", path, content=urlencode(form), headers={**FORM, **source})

    @property
    def session(self) -> str | None:
        return self.client.cookies.get(self._site.cookie)


def words(answer: httpx.Response) -> str:
    """The text of a page, without the markup."""
    body = answer.text.partition("<main")[2].partition(">")[2].partition("</main>")[0]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def leads_to(answer: httpx.Response) -> str:
    """Where a redirect goes."""
    assert answer.status_code == 303, (answer.status_code, answer.text)
    return answer.headers["Location"]
