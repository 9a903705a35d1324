"""The console's pages in real Chromium, JavaScript switched off, against a real service."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from parts.browser import chromium, served_page
from parts.certs import make_certificate
from parts.oidc import provider
from parts.ports import LOOPBACK, free_port
from parts.tollgate import serving
from parts.tool import admin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from playwright.sync_api import Browser, BrowserContext, Page

pytestmark = pytest.mark.e2e

ADA, BOB, PASSWORD = "ada@example.com", "bob@example.com", "correct horse battery"
NO_CALLS = {"eth/mainnet": ["http://127.0.0.1:9"]}
NAME = "gate.tollgate.test"


@dataclass(frozen=True)
class Console:
    """A service and a browser that looks at its pages."""

    base_url: str
    config: Path
    browser: Browser

    @contextmanager
    def person(self, **options: object) -> Iterator[Person]:
        """Open a browser of its own for one person; whatever it complains of fails the test."""
        with self.browser.new_context(
            java_script_enabled=False,
            ignore_https_errors=True,
            **options,  # type: ignore[arg-type]
        ) as context:
            page = context.new_page()
            complaints: list[tuple[str, str]] = []
            page.on("console", lambda message: complaints.append((message.location["url"], message.text)))
            yield Person(self, context, page)
            # A refusal's status is one too; the provider's pages are not ours.
            ours = [text for url, text in complaints if url.startswith(self.base_url)]
            assert [text for text in ours if "status of" not in text] == []

    def admin(self, *arguments: str, typed: str = "") -> str:
        """Do something as the operator; give what was printed."""
        ran = admin(self.config, *arguments, typed=typed)
        assert ran.code == 0, ran.err
        return ran.out.strip()

    def account(self, email: str = ADA) -> None:
        self.admin("create-account", email, "--team", email.partition("@")[0], "--password-stdin", typed=PASSWORD)


@dataclass(frozen=True)
class Person:
    """A user at a browser."""

    console: Console
    context: BrowserContext
    page: Page

    def open(self, path: str) -> int:
        answer = self.page.goto(path if "://" in path else self.console.base_url + path)
        assert answer is not None
        return answer.status

    def fill(self, **fields: str) -> None:
        for name, text in fields.items():
            self.page.fill(f"#{name}", text)

    def click(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).click()

    def sign_in(self, email: str = ADA, password: str = PASSWORD) -> None:
        self.fill(email=email, password=password)
        self.click("Sign in")

    @property
    def path(self) -> str:
        return self.page.url.removeprefix(self.console.base_url)

    @property
    def who(self) -> str:
        """Who is signed in, as the frame of the page shows."""
        return (self.page.locator(".who .unseen").text_content() or "").removeprefix("Account of ")

    @property
    def words(self) -> str:
        return self.page.locator("main").inner_text()


@contextmanager
def open_console(
    folder: Path,
    browser: Browser,
    *,
    base_url: str = "",
    port: int = 0,
    settings: Mapping[str, Mapping[str, object]] | None = None,
) -> Iterator[Console]:
    """Run a service whose address is known beforehand, so that the operator's links are right."""
    port = port or free_port()
    tables = {name: dict(table) for name, table in (settings or {}).items()}
    tables["server"] = {
        **tables.get("server", {}),
        "port": port,
        "base_url": base_url or f"http://{LOOPBACK}:{port}",
    }
    with serving(folder, NO_CALLS, tables) as gateway:
        yield Console(gateway.base_url, folder / "tollgate.toml", browser)


@pytest.fixture(scope="module")
def tls_port() -> int:
    """Where https://gate.tollgate.test leads."""
    return free_port()


@pytest.fixture(scope="module")
def browser(tls_port: int) -> Iterator[Browser]:
    with chromium({NAME: tls_port}) as started:
        yield started


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Console]:
    with open_console(tmp_path_factory.mktemp("console"), browser) as opened:
        opened.account()
        yield opened


def test_sign_in_by_keyboard_and_sign_out(console: Console) -> None:
    with console.person() as person:
        person.open("/console")
        assert person.path == "/console/sign-in?next=%2Fconsole"
        person.page.locator("#email").focus()
        person.page.keyboard.type(ADA)
        person.page.keyboard.press("Tab")
        person.page.keyboard.type(PASSWORD)
        person.page.keyboard.press("Enter")
        person.page.wait_for_url(f"{console.base_url}/console/teams/ada")
        assert person.who == ADA
        person.click("Sign out")
        assert "You are signed out." in person.words
        person.open("/console")
        assert person.path.startswith("/console/sign-in")


def test_wrong_password_keeps_the_address_and_forgets_the_password(console: Console) -> None:
    with console.person() as person:
        person.open("/console/sign-in")
        person.sign_in(password="wrong password")
        assert "The email or the password is wrong." in person.words
        assert person.page.input_value("#email") == ADA
        assert person.page.input_value("#password") == ""


@pytest.mark.parametrize("width", [1280, 390])
def test_page_has_its_style_and_fits_its_window(console: Console, width: int) -> None:
    with console.person(viewport={"width": width, "height": 800}) as person:
        person.open("/console/sign-in")
        box = person.page.locator("main").bounding_box()
        assert box is not None
        assert box["width"] == min(420, width - 32)
        assert person.page.locator("html").evaluate("element => element.scrollWidth") <= width
        button = person.page.get_by_role("button", name="Sign in").bounding_box()
        assert button is not None
        assert button["height"] >= 44


def test_form_on_another_site_does_nothing(console: Console) -> None:
    form = f'<form method="post" action="{console.base_url}/console/sign-out"><button>Win</button></form>'
    with served_page(form) as port, console.person() as person:
        person.open("/console/sign-in")
        person.sign_in()
        person.open(f"http://localhost:{port}/")
        person.click("Win")
        assert "This form came from another site" in person.words
        person.open("/console")
        assert person.who == ADA


def test_operators_invitation_becomes_an_account(console: Console) -> None:
    link = console.admin("invite", BOB, "--team", "ada", "--role", "viewer")
    with console.person() as person:
        person.open(link)
        assert "Join the team ada" in person.words
        person.fill(name="Bob", password=PASSWORD, again=PASSWORD)
        person.click("Create the account and accept")
        assert "You have accepted the invitation." in person.words
        assert person.who == BOB
        assert person.open(link) == 404


def test_operators_reset_link_sets_another_password(console: Console) -> None:
    console.account("carol@example.com")
    link = console.admin("reset-link", "carol@example.com")
    with console.person() as person:
        person.open(link)
        assert "carol@example.com" in person.words
        person.fill(password="another password", again="another password")
        person.click("Set the password")
        assert "The password was changed" in person.words
        person.sign_in("carol@example.com", "another password")
        assert person.who == "carol@example.com"


def test_forms_work_over_plain_http_by_name(tmp_path: Path, browser: Browser) -> None:
    # There the browser sends no Sec-Fetch-Site: only the Origin shows where a form comes from.
    port = free_port()
    with open_console(tmp_path, browser, base_url=f"http://{NAME}:{port}", port=port) as console:
        console.account()
        with console.person() as person:
            person.open("/console/sign-in")
            person.sign_in()
            assert person.who == ADA
            (cookie,) = person.context.cookies()
            assert (cookie["name"], cookie["secure"], cookie["httpOnly"]) == ("tollgate", False, True)


def test_cookie_over_https_is_bound_to_the_host(tmp_path: Path, browser: Browser, tls_port: int) -> None:
    certificate = make_certificate(tmp_path, NAME)
    files = {"tls_certificate": str(certificate.certificate), "tls_key": str(certificate.key)}
    with open_console(
        tmp_path / "service", browser, base_url=f"https://{NAME}", port=tls_port, settings={"server": files}
    ) as console:
        console.account()
        with console.person() as person:
            person.open("/console/sign-in")
            person.sign_in()
            assert person.who == ADA
            (cookie,) = person.context.cookies()
    assert (cookie["name"], cookie["domain"], cookie["path"]) == ("__Host-tollgate", NAME, "/")
    assert (cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (True, True, "Lax")


# ---- with an OpenID Connect provider


@pytest.fixture(scope="module")
def with_provider(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Console]:
    folder, port = tmp_path_factory.mktemp("provider"), free_port()
    base_url = f"http://{LOOPBACK}:{port}"
    with provider(
        folder / "oidc",
        client_id="tollgate",
        client_secret="a secret between the two",
        redirect_uris=[f"{base_url}/console/oidc/callback"],
        accounts={
            "ada": {"email": ADA, "email_verified": True, "name": "Ada Lovelace"},
            "bob": {"email": BOB, "email_verified": True, "name": "Bob"},
            "eve": {"email": "eve@example.com", "email_verified": True, "name": "Eve"},
        },
    ) as issuer:
        oidc = {
            "issuer": issuer,
            "name": "Example ID",
            "client_id": "tollgate",
            "client_secret": "a secret between the two",
        }
        with open_console(folder / "service", browser, port=port, settings={"oidc": oidc}) as opened:
            opened.account()
            yield opened


def sign_in_there(person: Person, login: str) -> None:
    """Go through the provider's own pages."""
    person.page.get_by_role("link", name="Continue with Example ID").click()
    person.page.fill("input[name=login]", login)
    person.page.fill("input[name=password]", "anything")
    person.click("Sign-in")
    person.click("Continue")


def test_provider_signs_in_who_has_an_account_and_leads_on(with_provider: Console) -> None:
    with with_provider.person() as person:
        person.open("/console/device")
        sign_in_there(person, "ada")
        assert person.path == "/console/device"
        assert "Enter the code" in person.words
        person.open("/console")
        assert person.who == ADA
        assert [cookie["name"] for cookie in person.context.cookies() if "tollgate" in cookie["name"]] == [
            "tollgate"
        ]


def test_provider_makes_no_account_for_an_unknown_user(with_provider: Console) -> None:
    with with_provider.person() as person:
        person.open("/console/sign-in")
        sign_in_there(person, "eve")
        assert "eve@example.com has no account here." in person.words


def test_invitation_is_followed_by_the_provider(with_provider: Console) -> None:
    link = with_provider.admin("invite", BOB, "--team", "ada", "--role", "developer")
    with with_provider.person() as person:
        person.open(link)
        sign_in_there(person, "bob")
        assert "Join the team ada" in person.words
        person.click("Accept")
        assert person.who == BOB
        assert "developer" in (person.page.locator(".menu").text_content() or "")


def test_cancelling_at_the_provider_leads_back(with_provider: Console) -> None:
    with with_provider.person() as person:
        person.open("/console/sign-in")
        person.page.get_by_role("link", name="Continue with Example ID").click()
        person.page.get_by_role("link", name="[ Cancel ]").click()
        assert "cancelled at the provider" in person.words
        assert person.page.locator("#email").count() == 1
