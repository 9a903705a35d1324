"""Every button and every link of the console, on a demo of its own: none fails or leads to a page without words.

Forms are sent as they are, and empty where the browser would refuse that: the service must explain it too.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from parts.browser import chromium
from parts.tollgate import demo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import BrowserContext, Locator, Response

pytestmark = pytest.mark.e2e

TEAM = "/console/teams/demo"
# The first link of that kind leads to a page of its own.
DETAILS = {
    f"{TEAM}/tokens": "main a.name",
    f"{TEAM}/domains": "main a.name",
    f"{TEAM}/invoices": "main a.name",
    f"{TEAM}/logs": "#lines a",
}
PAGES = (
    TEAM, f"{TEAM}/endpoints", f"{TEAM}/endpoints?network=starknet%2Fmainnet", f"{TEAM}/tokens/new",
    f"{TEAM}/usage", f"{TEAM}/audit", f"{TEAM}/more", f"{TEAM}/members", *DETAILS, "/console/device",
    "/console/teams", "/console/operator", "/console/operator/teams/demo", "/console/account/totp",
    "/console/account", f"{TEAM}/settings",
)  # fmt: skip
SIGN_OUT = "Sign out"
# What can be clicked, with what identifies it; whether a click sends a request.
CONTROLS = """[...document.querySelectorAll("button, summary")].map((control, place) => {
  const form = control.form;
  if (form) form.noValidate = true;
  const words = (control.getAttribute("aria-label") || control.innerText || control.textContent).trim();
  const kept = form ? [...form.querySelectorAll("input[type=hidden][name=act]")].map((field) => field.value) : [];
  return {
    place, words, sends: Boolean(form) && control.type === "submit" && !form.matches(".playground"),
    key: [control.tagName, words, form ? form.getAttribute("action") : "", ...kept, control.value || ""].join(" "),
  };
})"""
# Whatever hides it is opened: a dialog or a fold.
REVEAL = """(control) => {
  control.closest("[popover]:not(:popover-open)")?.showPopover();
  for (let fold = control.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  return control.checkVisibility();
}"""
CLOSE = """document.querySelectorAll(":popover-open").forEach((dialog) => dialog.hidePopover())"""
LINKS = """[...document.querySelectorAll("a[href]")].map((link) => link.href)"""
IDS = re.compile(r"\b(tok|dom|mem|inv|login|log|ent|team)_[\w-]+|[0-9:. -]{16,}")


class Visit:
    """A signed-in user, and the errors so far."""

    def __init__(self, context: BrowserContext, printed: dict[str, Any]) -> None:
        self.context, self.printed = context, printed
        self.base_url = str(printed["base_url"])
        self.wrong: list[str] = []
        self.clicked: set[str] = set()
        self.followed: set[str] = set()
        self.page = context.new_page()
        self.page.on("pageerror", lambda error: self.wrong.append(f"{self.page.url}: {error}"))
        self.page.on("response", self._look)
        self.open("/console")

    def open(self, path: str) -> None:
        self.page.goto(self.base_url + path)
        if "/console/sign-in" in self.page.url:
            self.page.fill("#email", self.printed["email"])
            self.page.fill("#password", self.printed["password"])
            self.page.get_by_role("button", name="Sign in", exact=True).click()
            self.page.wait_for_url(re.compile(r"/console/(?!sign-in)"))
            self.page.goto(self.base_url + path)

    def click_all(self, path: str) -> None:
        self.open(path)
        self._follow()
        # First what stays on the page.
        for control in sorted(self.page.evaluate(CONTROLS), key=lambda control: bool(control["sends"])):
            key = IDS.sub("", control["key"])
            if control["words"] == SIGN_OUT or key in self.clicked:
                continue
            self.clicked.add(key)
            if control["sends"]:
                self._send(path, control)
            elif (found := self._control(control)) is not None:
                found.click()
                self.page.evaluate(CLOSE)

    def _control(self, control: dict[str, Any]) -> Locator | None:
        found = self.page.locator("button, summary").nth(control["place"])
        return found if found.count() and found.evaluate(REVEAL) else None

    def _send(self, path: str, control: dict[str, Any]) -> None:
        """Click it on a fresh page, and look at what comes."""
        self.open(path)
        self.page.evaluate(CONTROLS)
        found = self._control(control)
        if found is None:
            return
        with self.page.expect_response(lambda answer: answer.request.is_navigation_request()) as caught:
            found.click()
        self.page.wait_for_load_state()
        refused = caught.value.status >= 400
        text = self.page.locator(".fault" if refused else "main").first.text_content() or ""
        if not text.strip():
            self.wrong.append(f"{path}: {control['words']} leads to a page without words")

    def _follow(self) -> None:
        for address in self.page.evaluate(LINKS):
            plain = IDS.sub("", address).split("#", 1)[0]
            if plain in self.followed or not address.startswith(self.base_url):
                continue
            self.followed.add(plain)
            status = self.context.request.get(address).status
            if status != 200:
                self.wrong.append(f"{self.page.url} has a link to {address}: {status}")

    def _look(self, answer: Response) -> None:
        if answer.status >= 500:
            self.wrong.append(f"{answer.request.method} {answer.url}: {answer.status}")


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Any], Any]]:
    with (
        demo(tmp_path_factory.mktemp("buttons"), "--workers", "1", past=True) as running,
        chromium() as browser,
    ):
        yield running.printed, browser


@pytest.mark.timeout(400)  # every button of every page, and the machine may be busy
def test_no_button_or_link_leads_to_a_failure(contexts: tuple[dict[str, Any], Any]) -> None:
    printed, browser = contexts
    with browser.new_context() as context:
        visit = Visit(context, printed)
        for path, first in DETAILS.items():
            visit.open(path)
            visit.click_all(str(visit.page.locator(first).first.evaluate("(link) => link.pathname + link.search")))
        for path in PAGES:
            visit.click_all(path)
    assert visit.wrong == []
    assert len(visit.clicked) > 50
    assert len(visit.followed) >= 50
