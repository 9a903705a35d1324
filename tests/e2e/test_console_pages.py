"""The console's pages from a fresh demo, in real Chromium: each flow, by keyboard, without JavaScript, and by axe.

With `WRITE_SCREENSHOTS` set, every page is also written to docs/img, at both widths, light and dark.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import re
import signal
import sqlite3
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from parts.browser import chromium
from parts.need import DEPS, ROOT, need
from parts.processes import eventually
from parts.raw_http import JSON
from parts.tollgate import TOLLGATE, demo
from tollgate.api.invoices import Invoice
from tollgate.control.api.invoices import Parties, file_of
from tollgate.core import totp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, BrowserContext, Page, Route

    from parts.tollgate import Demo

pytestmark = pytest.mark.e2e

TEAM = "/console/teams/demo"
PAGES = {
    "overview": TEAM,
    "endpoints": f"{TEAM}/endpoints",
    "tokens": f"{TEAM}/tokens",
    "token-new": f"{TEAM}/tokens/new",
    "domains": f"{TEAM}/domains?origin=https%3A%2F%2Fapp.example.com",
    "logs": f"{TEAM}/logs",
    "usage": f"{TEAM}/usage?by=method",
    "invoices": f"{TEAM}/invoices",
    "members": f"{TEAM}/members",
    "audit": f"{TEAM}/audit",
    "settings": f"{TEAM}/settings",
    "account": "/console/account",
    "teams": "/console/teams",
    "more": f"{TEAM}/more",
    "operator": "/console/operator",
    "operator-team": "/console/operator/teams/demo",
    "styles": "/console/_styles",
    "missing": "/console/nowhere",
    "api-docs": "/api/v1/docs",
}
WIDTHS = (1280, 390)
# What was transferred for a page and all that it loads.
WEIGHT = """["navigation", "resource"].flatMap((kind) => performance.getEntriesByType(kind))
    .reduce((sum, entry) => sum + entry.transferSize, 0)"""
IMAGES = ROOT / "docs" / "img"


@dataclass(frozen=True)
class Console:
    """A demo and a browser."""

    demo: Demo
    browser: Browser

    @property
    def printed(self) -> dict[str, Any]:
        return self.demo.printed

    @property
    def base_url(self) -> str:
        # By name: a passkey belongs to one, never to an address.
        return str(self.printed["base_url"]).replace("127.0.0.1", "localhost")

    @contextmanager
    def context(self, **options: Any) -> Iterator[BrowserContext]:
        """A browser of its own, signed in as the demo's owner; its complaints fail the test."""
        with self.browser.new_context(**options) as context:
            page = context.new_page()
            page.goto(self.base_url + "/console/sign-in")
            sign_in(page, self.printed["email"], self.printed["password"])
            page.wait_for_url(re.compile(r"/console(/teams.*)?$"))
            page.close()
            yield context

    @contextmanager
    def page(self, path: str = TEAM, **options: Any) -> Iterator[Page]:
        with self.context(**options) as context:
            page = context.new_page()
            complaints: list[str] = []
            page.on("console", lambda message: complaints.append(message.text))
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.goto(self.base_url + path)
            yield page
            assert [text for text in complaints if "status of" not in text] == []


def sign_in(page: Page, email: str, password: str) -> None:
    page.fill("#email", email)
    page.fill("#password", password)
    click(page, "Sign in")


def click(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def failed_request(console: Console, page: Page) -> str:
    """The address of a request with two attempts, opened beside the list."""
    page.goto(f"{console.base_url}{TEAM}/logs?status=502")
    return f"{TEAM}/logs{page.locator('#lines a').first.get_attribute('href')}"


def words(page: Page) -> str:
    return page.locator("main").inner_text()


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    with (
        demo(tmp_path_factory.mktemp("console"), "--workers", "1", past=True) as running,
        chromium() as browser,
    ):
        yield Console(running, browser)


# --- Every page --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_fits_its_window_and_axe_finds_nothing_serious(
    console: Console, width: int, scheme: str
) -> None:
    need("node")
    axe = (DEPS / "js" / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
    found: dict[str, list[str]] = {}
    # Around the policy, because axe is no file of ours.
    options: dict[str, Any] = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
    if os.environ.get("WRITE_SCREENSHOTS"):
        options["device_scale_factor"] = 0.75  # small files; the layout stays as it is
    with console.context(**options, bypass_csp=True) as context:
        page = context.new_page()
        for name, path in {**PAGES, "attempts": failed_request(console, page)}.items():
            page.goto(console.base_url + path)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (name, width)
            if os.environ.get("WRITE_SCREENSHOTS"):
                page.screenshot(path=IMAGES / f"{name}-{width}-{scheme}.png")
            page.evaluate(axe)
            result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
            grave = [each for each in result["violations"] if each["impact"] in ("serious", "critical")]
            if grave:
                found[name] = [f"{each['id']}: {each['nodes'][0]['html'][:160]}" for each in grave]
    assert found == {}


def test_pages_are_light(console: Console) -> None:
    with console.context() as context:
        page = context.new_page()
        page.goto(console.base_url + TEAM)
        assert 0 < page.evaluate(WEIGHT) <= 60_000
        for path in (f"{TEAM}/logs", f"{TEAM}/tokens", TEAM):
            page.goto(console.base_url + path)
            assert 0 < page.evaluate(WEIGHT) <= 15_000


# --- Signing in --------------------------------------------------------------------------------------------


def test_codes_are_set_up_and_requested_and_a_recovery_code_works_once(console: Console) -> None:
    with console.page("/console/account/totp") as page:
        secret = page.locator("#secret").inner_text()
        padded = secret + "=" * (-len(secret) % 8)
        key = base64.b32decode(padded)
        page.fill("#code", "000000")
        click(page, "Turn on")
        assert "The code is wrong" in words(page)
        code = totp.code_at(key, int(time.time()) // totp.STEP_SECONDS)
        page.fill("#code", code)
        click(page, "Turn on")
        recovery = page.get_by_label("recovery codes").first.inner_text().split()
        assert len(recovery) == 10
    with console.browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(console.base_url + "/console/sign-in")
        sign_in(page, console.printed["email"], console.printed["password"])
        assert "One more step" in words(page)
        page.fill("#code", code)
        click(page, "Sign in")
        assert "was used before" in words(page)
        page.fill("#code", recovery[0])
        click(page, "Sign in")
        assert page.url == console.base_url + TEAM
        page.goto(console.base_url + "/console/account")
        assert "9 recovery codes left" in words(page)
        page.get_by_role("button", name="Turn off").first.click()
        page.fill("#off-code", recovery[1])
        page.locator("#totp-off").get_by_role("button", name="Turn off").click()
        assert "It was removed." in words(page)


def test_passkey_is_made_and_signs_in_without_a_password(console: Console) -> None:
    with console.context() as context:
        page = context.new_page()
        session = context.new_cdp_session(page)
        session.send("WebAuthn.enable")
        device = {
            "protocol": "ctap2", "transport": "internal", "hasResidentKey": True, "hasUserVerification": True,
            "isUserVerified": True,
        }  # fmt: skip
        session.send("WebAuthn.addVirtualAuthenticator", {"options": device})
        page.goto(console.base_url + "/console/account")
        click(page, "Add a passkey")
        page.wait_for_url(re.compile("done=passkey"))
        assert "The passkey was added." in words(page)
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url(re.compile("signed-out"))
        click(page, "Sign in with a passkey")
        page.wait_for_url(console.base_url + TEAM)
        page.goto(console.base_url + "/console/account")
        page.get_by_role("button", name=re.compile("Remove the passkey")).click()
        click(page, "Remove")
        assert "It was removed." in words(page)


def test_wrong_password_is_refused_and_the_address_stays(console: Console) -> None:
    with console.browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(console.base_url + "/console/sign-in")
        sign_in(page, console.printed["email"], "not the password")
        assert "/console/sign-in" in page.url
        assert page.input_value("#email") == console.printed["email"]
        assert page.locator(".fault").count() == 1
        assert context.cookies() == []


def test_everything_is_reached_by_keyboard(console: Console) -> None:
    with console.page(f"{TEAM}/tokens") as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        names = set()
        for _ in range(60):
            page.keyboard.press("Tab")
            names.add(page.evaluate("document.activeElement.innerText"))
        assert "New token" in names
        page.goto(console.base_url + f"{TEAM}/tokens/new")
        # The name has the focus: typing and Enter are enough.
        page.keyboard.type("by-keyboard")
        page.keyboard.press("Enter")
        page.locator("#secret").wait_for()
        page.goto(console.base_url + TEAM)
        page.locator("summary").first.focus()
        page.keyboard.press("Enter")
        assert page.locator(".switcher .menu").is_visible()


# --- Widths ------------------------------------------------------------------------------------------------

LONG_NAME = "indexer-" + "of-a-very-long-name-" * 4 + "x"


def test_tablet_shows_every_page_without_sideways_scrolling(console: Console) -> None:
    with console.context(viewport={"width": 768, "height": 900}) as context:
        page = context.new_page()
        for name, path in PAGES.items():
            page.goto(console.base_url + path)
            assert page.evaluate("document.documentElement.scrollWidth") <= 768, name
        page.goto(f"{console.base_url}{TEAM}/logs")
        card = page.locator(".card", has=page.locator("table.log")).bounding_box()
        table = page.locator("table.log").bounding_box()
        assert card is not None
        assert table is not None
        assert table["x"] + table["width"] <= card["x"] + card["width"]


def test_phone_shows_the_time_of_each_request_and_no_badge_over_a_long_name(console: Console) -> None:
    with console.page(f"{TEAM}/tokens/new", viewport={"width": 390, "height": 800}) as page:
        page.fill("#name", LONG_NAME)
        click(page, "Create token")
        page.goto(f"{console.base_url}{TEAM}/tokens")
        row = page.locator("tr", has_text=LONG_NAME)
        name, badge = (row.locator(each).bounding_box() for each in ("a.name", ".badge"))
        assert name is not None
        assert badge is not None
        assert name["x"] + name["width"] <= badge["x"]
        page.goto(f"{console.base_url}{TEAM}/logs")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, "the name is in a filter"
        assert page.locator("#lines tr time").first.is_visible()
        page.goto(f"{console.base_url}{TEAM}/tokens")
        page.get_by_role("link", name=LONG_NAME).click()
        page.fill("#typed", LONG_NAME)
        click(page, "Delete token")


def test_header_of_a_printed_invoice_stays_on_the_paper(console: Console) -> None:
    invoice = Invoice(
        number="TG-1", month="2026-11", status="final", issued_at=None, requests=1, billable_requests=1,
        cost_micros=0, total_cents=0, total="$0.00", team="acme", period_start=datetime(2026, 11, 1, tzinfo=UTC),
        period_end=datetime(2026, 12, 1, tzinfo=UTC), plan="per_request", free_requests=1, micros_per_million=1,
        spending_cap_micros=None, lines=[], team_id="team_1", currency="usd",
    )  # fmt: skip
    parties = Parties("The" + "LongestNameOfAnyCompany" * 8 + " Ltd\nStreet 1", "DE1", "Buyer", "")
    answer = file_of(invoice, parties, "html", "https://tollgate.example.com")
    # A4 without its margins of 2 cm.
    with console.browser.new_context(viewport={"width": 642, "height": 970}) as context:
        page = context.new_page()
        page.emulate_media(media="print")
        page.set_content(answer.content.decode())
        assert page.evaluate("document.documentElement.scrollWidth") <= 642
        title, seller = (page.locator(each).bounding_box() for each in ("h1", "header p"))
        assert title is not None
        assert seller is not None
        assert title["x"] + title["width"] <= seller["x"]
        assert abs(title["y"] - seller["y"]) < 40, "beside the title"


# --- Overview ----------------------------------------------------------------------------------------------


def tile(page: Page, name: str) -> list[str]:
    return page.locator(".tile", has_text=name).inner_text().splitlines()


@pytest.mark.parametrize("script", [True, False])
def test_one_range_is_that_of_tiles_subtitle_chart_and_lists(console: Console, script: bool) -> None:
    with console.page(java_script_enabled=script) as page:
        month = int(tile(page, "Requests")[1].replace(",", ""))
        assert "compared with 1 to " in words(page)
        assert " from " in " ".join(tile(page, "Requests"))
        assert "lighter bars: forecast" in words(page)
        page.get_by_role("link", name="24 hours").click()
        day = int(tile(page, "Requests")[1].replace(",", ""))
        assert 0 < day < month
        assert page.locator(".top p").inner_text().count(":00 to ") == 2
        listed = page.locator(".card", has_text="Top methods").locator(".num").all_inner_texts()
        assert 0 < sum(int(each.replace(",", "")) for each in listed) <= day
        page.get_by_role("link", name="Outcome").click()
        assert "range=24h" in page.url
        page.locator("summary", has_text="Custom").click()
        today = datetime.now(UTC).date()
        page.fill("#since", f"{today - timedelta(days=9)}")
        page.fill("#until", f"{today - timedelta(days=3)}")
        click(page, "Apply")
        week = int(tile(page, "Requests")[1].replace(",", ""))
        page.get_by_role("link", name="Network", exact=True).click()
        assert tile(page, "Requests")[1] == f"{week:,}", "the split keeps the range"
        page.locator(".data summary").click()
        sums = page.locator(".data tbody td:last-child").all_inner_texts()
        assert len(sums) == 7
        assert sum(int(each.replace(",", "")) for each in sums) == week
        page.goto(f"{console.base_url}{TEAM}?range=custom&since=2020-01-01")
        assert "92 are the maximum" in words(page)


# --- Tokens ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", [True, False])
def test_token_is_made_used_disabled_rotated_and_deleted(console: Console, script: bool) -> None:
    name = f"flow-{script}".lower()
    with console.page(f"{TEAM}/tokens/new", java_script_enabled=script) as page:
        page.fill("#name", name)
        page.get_by_label("eth/mainnet").check()
        click(page, "Create token")
        secret = page.locator("#secret").inner_text()
        assert secret.startswith("tg_")
        assert secret in page.locator("pre").first.inner_text()
        assert call(console, secret) == 200
        assert call(console, secret, "/x/eth/sepolia") == 403
        page.goto(console.base_url + f"{TEAM}/tokens")
        assert secret not in page.content()
        page.get_by_role("link", name=name).click()
        click(page, "Disable")
        assert "stops working within a second" in words(page)
        eventually(lambda: call(console, secret) == 401, what="the change")
        click(page, "Enable")
        click(page, "Rotate")
        page.locator("#rotate").get_by_role("button", name="Rotate").click()
        assert "is ready" in words(page)
        page.get_by_role("link", name="Token settings").click()
        page.fill("#typed", "another name")
        click(page, "Delete token")
        assert "to delete it" in words(page)
        page.fill("#typed", name)
        click(page, "Delete token")
        assert "The token was deleted" in words(page)


def test_token_deleted_in_one_browser_while_open_in_another(console: Console) -> None:
    with console.page(f"{TEAM}/tokens/new") as first:
        first.fill("#name", "shared")
        click(first, "Create token")
        first.get_by_role("link", name="Token settings").click()
        with console.page(first.url.removeprefix(console.base_url)) as second:
            first.fill("#typed", "shared")
            click(first, "Delete token")
            click(second, "Disable")
            assert "has no token" in words(second)


# --- Domains -----------------------------------------------------------------------------------------------


def test_domain_is_checked_while_typed_added_tried_and_removed(console: Console) -> None:
    with console.page(f"{TEAM}/domains") as page:
        page.locator("#domain").press_sequentially("app.example.net")
        page.locator("#domain-words.down").wait_for()
        assert "example.net" in page.locator("#domain-words").inner_text()
        page.fill("#domain", "example.net")
        page.locator("#domain-words.up").wait_for()
        click(page, "Add domain")
        assert "The domain is whitelisted" in words(page)
        page.fill("#origin", "https://www.example.net")
        click(page, "Check")
        assert "Allowed" in words(page)
        page.get_by_role("link", name="example.net").click()
        page.fill("#typed", "example.net")
        click(page, "Remove domain")
        assert "The entry was removed" in words(page)


# --- Logs --------------------------------------------------------------------------------------------------


def test_logs_are_filtered_by_address_opened_beside_the_list_and_exported(console: Console) -> None:
    with console.page(f"{TEAM}/logs?network=eth%2Fmainnet&method=eth_getLogs") as page:
        rows = page.locator("#lines tr")
        assert rows.count() > 3
        assert set(page.locator("#lines a").all_inner_texts()) == {"eth_getLogs"}
        page.locator("#lines a").nth(1).click()
        detail = page.locator("#opened").inner_text()
        assert "Request id" in detail
        assert "Upstream" in detail
        with page.expect_navigation():
            page.get_by_label("Errors only").check()
        assert "errors=on" in page.url
        click(page, "Export")
        with page.expect_download() as download:
            page.get_by_role("link", name="CSV").click()
        text = download.value.path().read_text()
        table = list(csv.DictReader(io.StringIO(text)))
        assert {row["network"] for row in table} <= {"mainnet"}
        page.goto(f"{console.base_url}{TEAM}/logs?request_id=nothing-of-the-kind")
        assert "Nothing matches" in words(page)


def test_opened_request_shows_its_attempts_one_below_the_other(console: Console) -> None:
    with console.page() as page:
        page.goto(console.base_url + failed_request(console, page))
        group = page.locator("#opened .group")
        assert re.fullmatch(r"Attempts\s*[\d,.]+ ms, 2 attempts", group.locator("h3").inner_text())
        assert [what.inner_text() for what in group.locator(".what").all()] == [
            "HTTP 503, tried elsewhere",
            "Timeout",
        ]
        first, second = (lane.bounding_box() for lane in group.locator("rect.k-bad").all())
        assert first is not None
        assert second is not None
        assert first["x"] + first["width"] <= second["x"] + 1
        assert first["y"] < second["y"]
        page.goto(f"{console.base_url}{TEAM}/logs?method=eth_getLogs&status=200")
        page.locator("#lines a").first.click()
        assert group.locator("li").count() in (0, 1), "a hit has none"


def test_live_tail_shows_a_call_within_seconds(console: Console) -> None:
    with console.page(f"{TEAM}/logs?method=eth_gasPrice") as page:
        click(page, "Live tail")
        page.get_by_text("Waiting for requests").wait_for()
        assert call(console, console.printed["token"], method="eth_gasPrice") == 200
        page.locator("#lines").get_by_text("eth_gasPrice").first.wait_for()
        click(page, "Stop")


def test_live_tail_waits_for_requests_only_once_it_would_see_them(console: Console) -> None:
    asked: list[Route] = []
    with console.page(f"{TEAM}/logs") as page:
        page.route("**/logs/tail?*", lambda route: asked.append(route))  # noqa: PLW0108 - Playwright marks what it is given
        with page.expect_request("**/logs/tail?*"):
            click(page, "Live tail")
        assert page.locator("#tail-words").inner_text() == "Connecting…"
        asked[0].continue_()
        page.get_by_text("Waiting for requests").wait_for()


# --- Endpoints ---------------------------------------------------------------------------------------------


def test_playground_calls_through_the_gateway(console: Console) -> None:
    with console.page(f"{TEAM}/endpoints?network=starknet%2Fsepolia") as page:
        page.fill("#method", "starknet_chainId")
        click(page, "Send")
        answer = page.locator("#result pre")
        answer.wait_for()
        assert json.loads(answer.inner_text())["result"].startswith("0x")
        answered = page.locator("#result dl").inner_text()
        assert "200" in answered
        assert "Request id" in answered


def test_first_call_turns_the_guide_green(console: Console) -> None:
    with console.page("/console/teams") as page:
        page.fill("#name", "brand-new")
        click(page, "Create team")
        assert "First call" in words(page)
        page.goto(console.base_url + "/console/teams/brand-new/tokens/new")
        page.fill("#name", "first")
        click(page, "Create token")
        secret = page.locator("#secret").inner_text()
        page.goto(console.base_url + "/console/teams/brand-new/endpoints")
        assert page.locator("#guide-last.done").count() == 0
        assert call(console, secret) == 200
        page.locator("#guide-last.done").wait_for()
        page.goto(console.base_url + "/console/teams/brand-new/settings")
        page.fill("#typed", "brand-new")
        click(page, "Delete team")
        assert "The team was deleted." in words(page)


# --- Team --------------------------------------------------------------------------------------------------


@contextmanager
def visitor(console: Console, *team: str) -> Iterator[Page]:
    """Another user, who follows an operator's invitation and chooses a password."""
    email = f"{'-'.join(team[1:]) or 'outsider'}@example.com".replace("--", "")
    argv = [TOLLGATE, "admin", "invite", email, *team, "--url", console.base_url]
    environment = {**os.environ, "TOLLGATE_DATA_DIR": console.printed["data_dir"]}
    link = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True).stdout.strip()
    with console.browser.new_context() as context:
        page = context.new_page()
        page.goto(link.splitlines()[-1])
        page.fill("#password", "a long enough word")
        page.fill("#again", "a long enough word")
        page.locator("main form button").last.click()
        page.wait_for_url(re.compile(r"/console(/teams.*|\?done=.*)?$"))
        yield page


def test_viewer_looks_and_may_not_change(console: Console) -> None:
    with visitor(console, "--team", "demo", "--role", "viewer") as page:
        for path in ("", "/endpoints", "/tokens", "/domains", "/logs", "/usage", "/members", "/settings"):
            answer = page.goto(console.base_url + TEAM + path)
            assert answer is not None
            assert answer.status == 200, path
        page.goto(f"{console.base_url}{TEAM}/tokens")
        assert page.get_by_role("link", name="New token").count() == 0
        assert page.get_by_role("link", name="Audit log").count() == 0
        answer = page.goto(f"{console.base_url}{TEAM}/audit")
        assert answer is not None
        assert answer.status == 403
        assert "owner" in words(page)
        page.goto(f"{console.base_url}{TEAM}/tokens/new")
        assert page.locator("#name").is_disabled()
        made = page.request.post(
            f"{console.base_url}{TEAM}/tokens", form={"name": "sly"}, headers={"Origin": console.base_url}
        )
        assert made.status == 403
        assert page.goto(console.base_url + "/console/operator").status == 403  # type: ignore[union-attr]


def test_user_of_no_team_learns_nothing_of_a_team(console: Console) -> None:
    with visitor(console) as page:
        for path in ("", "/tokens", "/logs", "/logs/tail", "/logs/export/csv", "/invoices"):
            answered = {}
            for team in ("demo", "no-such-team"):
                answer = page.request.get(f"{console.base_url}/console/teams/{team}{path}")
                answered[team] = (answer.status, answer.text().replace(team, "TEAM"))
            assert answered["demo"] == answered["no-such-team"]
            assert answered["demo"][0] == 403


def test_invitation_is_a_link_where_no_mail_is_set(console: Console) -> None:
    with console.page(f"{TEAM}/members", java_script_enabled=False) as page:
        assert "cannot accept" not in words(page)
        page.fill("#email", "viewer@example.com")
        page.select_option("#role", "viewer")
        click(page, "Invite")
        assert "viewer@example.com is invited" in words(page)
        assert "/console/invitations/" in page.locator("#secret").inner_text()
        page.goto(f"{console.base_url}{TEAM}/audit?action=invitation.create")
        assert "viewer@example.com" in words(page)
        answer = page.goto(f"{console.base_url}/console/teams/no-such-team")
        assert answer is not None
        assert answer.status == 403


@pytest.mark.parametrize("script", [True, False])
def test_saving_alerts_keeps_the_secret_and_rolling_it_is_confirmed(console: Console, script: bool) -> None:
    with console.page(f"{TEAM}/usage", java_script_enabled=script) as page:
        page.fill("#alert_webhook", f"https://hooks.example.com/{script}")
        click(page, "Save alerts")
        first = page.locator("#secret").inner_text()
        page.goto(f"{console.base_url}{TEAM}/usage")
        click(page, "Save alerts")
        assert page.locator("#secret").count() == 0
        click(page, "Roll secret")
        page.locator("#roll").get_by_role("button", name="Roll secret").click()
        assert page.locator("#secret").inner_text() not in ("", first)
        assert "also signed with the previous secret until" in words(page)
        click(page, "Roll secret")
        page.locator("#roll").get_by_role("button", name="Roll secret").click()
        assert "The secret was rolled already" in words(page)
        page.goto(f"{console.base_url}{TEAM}/audit?action=webhook.roll")
        assert "hooks.example.com" in words(page)


def test_list_of_invoices_counts_the_requests_of_each_invoice(console: Console) -> None:
    with console.page(f"{TEAM}/invoices") as page:
        for row in range(page.locator("tbody tr").count()):
            page.goto(f"{console.base_url}{TEAM}/invoices")
            line = page.locator("tbody tr").nth(row)
            listed = line.locator("td").nth(3).inner_text()
            line.locator("a").click()
            assert page.locator("tfoot td").nth(1).inner_text() == listed


def test_settings_of_billing_and_an_invoice_to_print(console: Console) -> None:
    with console.page(f"{TEAM}/usage") as page:
        page.fill("#cap", "31.50")
        click(page, "Save cap")
        assert "$31.50" in words(page)
        page.fill("#cap", "much")
        click(page, "Save cap")
        assert "Write an amount such as 25.00" in words(page)
        page.goto(f"{console.base_url}{TEAM}/invoices")
        page.locator("main a.name").first.click()
        assert "Example Labs Ltd" in words(page)
        page.get_by_role("link", name="Print").click()
        page.emulate_media(media="print")
        assert "Example Labs Ltd" in page.inner_text("main")
        # A4, one sheet.
        assert page.pdf(prefer_css_page_size=True).count(b"/Type /Page\n") == 1


def test_operator_suspends_a_team_and_lifts_it(console: Console) -> None:
    with console.page("/console/operator") as page:
        assert "eth/mainnet" in words(page)
        assert "collector" in words(page)
        assert page.locator(".strip").count() == 4
        click(page, "Check consistency")
        assert page.get_by_text("Agrees").count() >= 5
        assert page.get_by_text("Differs").count() == 0
        page.get_by_role("button", name="Suspend demo").click()
        click(page, "Suspend")
        assert "Suspended" in words(page)
        eventually(lambda: call(console, console.printed["token"]) == 401, what="the change")
        page.get_by_role("button", name="Lift the suspension of demo").click()
        eventually(lambda: call(console, console.printed["token"]) == 200, what="the change")


def test_operator_sets_the_plan_of_a_team_on_its_page(console: Console) -> None:
    with console.page("/console/operator") as page:
        page.locator("a[href='/console/operator/teams/demo']").click()
        page.get_by_label("US dollars for a million requests").fill("cheap")
        click(page, "Save plan")
        assert "Write an amount such as 25.00" in words(page)
        page.get_by_label("US dollars for a million requests").fill("3.00")
        page.get_by_label("Free requests a month").fill("2,000,000")
        click(page, "Save plan")
        assert "take effect within a second" in words(page)
        assert page.get_by_label("Free requests a month").input_value() == "2000000"
        for name in ("US dollars for a million requests", "Free requests a month"):
            page.get_by_label(name).fill("")
        click(page, "Save plan")
        assert page.get_by_label("US dollars for a million requests").input_value() == ""


def test_session_that_has_ended_leads_to_sign_in_and_back(console: Console) -> None:
    with console.context() as context:
        page = context.new_page()
        page.goto(f"{console.base_url}{TEAM}/logs?since=1h")
        context.clear_cookies()
        page.reload()
        assert "/console/sign-in?next=" in page.url
        sign_in(page, console.printed["email"], console.printed["password"])
        assert page.url == f"{console.base_url}{TEAM}/logs?since=1h"


def test_what_was_typed_is_still_there_after_a_session_that_ended_in_between(console: Console) -> None:
    with console.context() as context:
        page = context.new_page()
        page.goto(f"{console.base_url}{TEAM}/tokens/new")
        page.fill("#name", "typed-before")
        page.fill("#methods", "eth_call eth_getLogs")
        page.get_by_label("eth/sepolia").check()
        context.clear_cookies()
        click(page, "Create token")
        assert "/console/sign-in?next=" in page.url
        sign_in(page, console.printed["email"], console.printed["password"])
        page.wait_for_url(f"{console.base_url}{TEAM}/tokens/new")
        assert "still here" in words(page)
        assert page.input_value("#methods") == "eth_call eth_getLogs"
        assert page.get_by_label("eth/sepolia").is_checked()
        click(page, "Create token")
        assert "typed-before is ready" in words(page)
        page.goto(f"{console.base_url}{TEAM}/tokens/new")
        assert page.input_value("#name") == ""


def test_double_click_makes_one_token_and_shows_its_secret(console: Console) -> None:
    with console.page(f"{TEAM}/tokens/new") as page:
        page.fill("#name", "clicked-twice")
        page.get_by_role("button", name="Create token").dblclick()
        page.locator("#secret").wait_for()
        page.go_back()
        page.get_by_role("button", name="Create token").click()
        assert "already" in words(page)


def test_address_of_the_account_is_changed_with_the_password(console: Console) -> None:
    with console.page("/console/account", java_script_enabled=False) as page:
        page.fill("#email", "ada@tollgate.test")
        page.fill("#email-password", "not the password")
        click(page, "Change email")
        assert page.input_value("#email") == "ada@tollgate.test"
        page.fill("#email-password", console.printed["password"])
        click(page, "Change email")
        assert "Your address was changed." in words(page)
        assert "Signed in as ada@tollgate.test" in words(page)
        page.goto(f"{console.base_url}{TEAM}/audit?action=member.email")
        assert "email: demo@tollgate.test → ada@tollgate.test" in words(page)
        page.goto(f"{console.base_url}/console/account")
        page.fill("#email", console.printed["email"])
        page.fill("#email-password", console.printed["password"])
        click(page, "Change email")
        assert f"Signed in as {console.printed['email']}" in words(page)


def test_process_that_was_replaced_is_shown_to_the_operator(console: Console) -> None:
    with console.page("/console/operator", java_script_enabled=False) as page:
        row = page.get_by_role("row").filter(has_text="collector")
        os.kill(int(row.locator(".tag").inner_text()), signal.SIGKILL)

        def restarts() -> str:
            page.reload()
            found = page.get_by_role("row").filter(has_text="collector")
            return found.locator("[data-label=Restarts]").inner_text().strip() if found.count() else ""

        eventually(lambda: restarts() == "1", what="the change")


def test_defect_is_a_page_that_shows_what_to_do(console: Console) -> None:
    # No date can be made of it, so the page fails; nothing else reads it.
    with sqlite3.connect(Path(console.printed["data_dir"]) / "control.db", timeout=30) as store:
        store.execute("UPDATE invitations SET expires_at = expires_at + 1e17")
    try:
        with console.context() as context:
            page = context.new_page()
            answer = page.goto(f"{console.base_url}{TEAM}/members")
            assert answer is not None
            assert answer.status == 500
            assert "Internal error" in words(page)
            assert "Request " in words(page)
            assert "Traceback" not in page.content()
            page.get_by_role("link", name="Go to the start").click()
            assert page.url == console.base_url + TEAM
    finally:
        with sqlite3.connect(Path(console.printed["data_dir"]) / "control.db", timeout=30) as store:
            store.execute("UPDATE invitations SET expires_at = expires_at - 1e17")
        store.close()


def test_root_leads_a_browser_to_the_console_and_informs_a_program(console: Console) -> None:
    with console.context() as context:
        page = context.new_page()
        page.goto(console.base_url + "/")
        assert page.url == console.base_url + TEAM
        answered = context.request.get(console.base_url + "/", headers={"Accept": "*/*"})
        assert "Tollgate" in answered.text()


def call(console: Console, token: str, path: str = "/x/eth/mainnet", method: str = "eth_blockNumber") -> int:
    """Call the gateway; give the status."""
    import httpx  # noqa: PLC0415 - for this alone

    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": []}
    headers = {"Authorization": f"Bearer {token}", **JSON}
    return httpx.post(str(console.printed["base_url"]) + path, json=body, headers=headers, timeout=20).status_code
