"""A whole `tollgate auth login`: the tool waits in a terminal, a person decides in Chromium without JavaScript."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from parts.browser import chromium
from parts.processes import running
from parts.tollgate import TOLLGATE, serving
from parts.tool import Tool, admin

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from parts.processes import Program
    from parts.tollgate import Gateway

pytestmark = pytest.mark.e2e

EMAIL, PASSWORD = "ada@example.com", "correct horse battery"
NO_CALLS = {"eth/mainnet": ["http://127.0.0.1:9"]}
BACK = "You can close this page and go back to the terminal."


@dataclass(frozen=True)
class Waiting:
    """A tool that waits, as its terminal shows it."""

    program: Program
    tool: Tool

    @property
    def errors(self) -> str:
        return self.program.err.read_text()

    @property
    def code(self) -> str:
        return _found(r"Your code is  (\S+)", self.errors)

    @property
    def address(self) -> str:
        return _found(r"Approve it on\n  (\S+)", self.errors)

    def end(self) -> int:
        """Wait for its end; return its exit code."""
        return self.program.popen.wait(30)


@dataclass(frozen=True)
class LoginSetup:
    """A service, a person's browser, and terminals."""

    gateway: Gateway
    page: Page
    folder: Path

    @contextmanager
    def terminal(self, name: str = "terminal") -> Iterator[Waiting]:
        """Run `tollgate auth login` until it waits."""
        tool = Tool(self.folder / name, self.gateway.base_url)
        with running(
            [TOLLGATE, "auth", "login", "--no-browser"],
            folder=self.folder / f"{name}-output",
            env=tool.environment,
            ready=lambda program: "Waiting" in program.err.read_text(),
        ) as program:
            yield Waiting(program, tool)

    def open(self, path: str) -> int:
        """Open a page; give its status."""
        answer = self.page.goto(self.gateway.base_url + path)
        assert answer is not None
        return answer.status

    def sign_in(self) -> None:
        """Fill in the form on the page."""
        self.page.get_by_label("Email").fill(EMAIL)
        self.page.get_by_label("Password").fill(PASSWORD)
        self.click("Sign in")

    def click(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).click()

    @property
    def words(self) -> str:
        return self.page.locator("main").inner_text()

    def by_hand(self, statement: str, *values: object) -> None:
        """Change the database past the service."""
        with closing(sqlite3.connect(self.folder / "data" / "control.db", timeout=30)) as connection:
            connection.execute(statement, values)
            connection.commit()


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found is not None, text
    return found[1]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def setup(tmp_path: Path, browser: Browser) -> Iterator[LoginSetup]:
    with serving(tmp_path, NO_CALLS, {"accounts": {"device_interval": 1}}) as gateway:
        made = admin(
            tmp_path / "tollgate.toml",
            "create-account",
            EMAIL,
            "--team",
            "acme",
            "--password-stdin",
            typed=PASSWORD,
        )
        assert made.code == 0, made.err
        with browser.new_context(java_script_enabled=False) as context:
            yield LoginSetup(gateway, context.new_page(), tmp_path)


def test_whole_login_by_the_address_that_the_tool_shows(setup: LoginSetup) -> None:
    with setup.terminal() as waiting:
        setup.page.goto(waiting.address)
        assert "Sign in to see which terminal requests" in setup.words
        setup.sign_in()
        assert f"as {EMAIL}" in setup.words
        assert waiting.code in setup.words
        assert "127.0.0.1" in setup.words
        assert "Approve only what you started yourself" in setup.words
        setup.click("Approve")
        assert BACK in setup.words
        assert waiting.end() == 0, waiting.program.report()
        assert f"Logged in to {setup.gateway.base_url} as {EMAIL}." in waiting.errors
        listed = waiting.tool("teams", "list", "--json")
        assert [team["name"] for team in listed.json["items"]] == ["acme"], listed


def test_code_typed_by_hand_and_a_login_ended_from_the_console(setup: LoginSetup) -> None:
    with setup.terminal() as waiting:
        setup.open("/console/device")
        setup.sign_in()
        setup.page.get_by_label("Code").fill(waiting.code.lower().replace("-", " "))
        setup.page.keyboard.press("Enter")
        setup.click("Approve")
        assert waiting.end() == 0, waiting.program.report()
        assert waiting.tool("auth", "status").code == 0
        setup.page.get_by_role("link", name="your logins").click()
        row = setup.page.get_by_role("listitem").filter(has_text="Command-line tool")
        row.get_by_role("button", name="End").click()
        assert "That login has ended." in setup.words
        assert row.count() == 0
        ended = waiting.tool("auth", "status")
        assert (ended.code, "tollgate auth login" in ended.err) == (4, True), ended


def test_denial_reaches_the_terminal(setup: LoginSetup) -> None:
    with setup.terminal() as waiting:
        setup.page.goto(waiting.address)
        setup.sign_in()
        setup.click("Deny")
        assert "The terminal was not logged in." in setup.words
        assert BACK in setup.words
        assert waiting.end() == 1, waiting.program.report()
        assert "denied in the browser" in waiting.errors
        assert waiting.tool("auth", "status").code == 4


def test_expiry_reaches_page_and_terminal(setup: LoginSetup) -> None:
    with setup.terminal() as waiting:
        setup.page.goto(waiting.address)
        setup.sign_in()
        # Between the page and the button.
        setup.by_hand("UPDATE device_logins SET expires_at = created_at")
        setup.click("Approve")
        assert "No login waits with this code" in setup.words
        assert waiting.end() == 1, waiting.program.report()
        assert "The code has expired. Run tollgate auth login again." in waiting.errors


def test_after_ten_wrong_codes_the_right_one_is_refused(setup: LoginSetup) -> None:
    with setup.terminal() as waiting:
        setup.open("/console/device")
        setup.sign_in()
        # Differs from every code: no code has the same letter eight times, but by a chance of one in 10^9.
        for _ in range(10):
            setup.page.get_by_label("Code").fill("BBBB-BBBB")
            setup.click("Continue")
            assert "No login waits with this code" in setup.words
        assert setup.open(f"/console/device?user_code={waiting.code}") == 429
        assert "Too many wrong codes: wait 15 minutes, then try again." in setup.words
        assert waiting.program.running
        # The lock runs out, and the tool still waits.
        setup.by_hand("UPDATE failures SET created_at = created_at - 900")
        assert setup.open(f"/console/device?user_code={waiting.code}") == 200
        setup.click("Approve")
        assert waiting.end() == 0, waiting.program.report()
