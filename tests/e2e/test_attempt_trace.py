"""Which upstreams a call was sent to, and why it took so long: by the API, the tool and the console, for real."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from parts.browser import chromium
from parts.processes import eventually
from parts.raw_http import call
from parts.tollgate import Gateway, serving
from parts.tool import Tool, admin
from parts.upstream import Reply, upstream

if TYPE_CHECKING:
    from pathlib import Path

    from parts.upstream import Received

pytestmark = pytest.mark.e2e

DELAY_SECONDS = 0.3
EMAIL, PASSWORD = "ada@example.com", "correct horse battery"


def unavailable(_received: Received) -> Reply:
    """Answer 503, after a while."""
    threading.Event().wait(DELAY_SECONDS)
    return Reply(status=503)


def logged(gateway: Gateway, token: str) -> dict[str, Any]:
    """The newest entry, once it is there."""
    items: list[dict[str, Any]] = []

    def there() -> bool:
        with gateway.connect() as connection:
            headers = {"Authorization": f"Bearer {token}"}
            items[:] = connection.exchange(
                "/api/v1/teams/acme/logs?limit=5", headers=headers, method="GET"
            ).json()["items"]
        return bool(items)

    eventually(there, what="the entry of the call")
    return items[0]


def opened_in_the_console(gateway: Gateway) -> str:
    """What the console shows of the attempts at the newest call."""
    with chromium() as browser, browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{gateway.base_url}/console")
        page.fill("#email", EMAIL)
        page.fill("#password", PASSWORD)
        page.get_by_role("button", name="Sign in", exact=True).click()
        page.goto(f"{gateway.base_url}/console/teams/acme/logs")
        page.locator("#lines a").first.click()
        return page.locator("#opened .group").inner_text()


@pytest.mark.parametrize("shown", [True, False], ids=["names", "numbers"])
def test_both_attempts_of_a_failover_are_logged_with_their_times(tmp_path: Path, shown: bool) -> None:
    names = ("first", "second") if shown else ("upstream 1", "upstream 2")
    with upstream() as first, upstream() as second:
        networks: dict[str, list[dict[str, object]]] = {
            "eth/mainnet": [
                {"name": "first", "url": first.url},
                {"name": "second", "url": second.url, "priority": 5},
            ]
        }
        settings: dict[str, dict[str, object]] = {
            "ledger": {"show_upstreams": shown},
            "families.eth.mainnet": {"cache": False, "hedge": False},
        }
        with serving(tmp_path, networks, settings) as gateway:
            books = gateway.books
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
            team = books.do(lambda records: records.teams.find(name="acme"))
            assert team is not None
            token, _ = books.token(team)
            access = books.personal_token(EMAIL)
            first.on("eth_getBalance", unavailable)
            assert gateway.exchange(call("eth_getBalance"), token=token).status == 200
            entry = logged(gateway, access)
            tool = Tool(tmp_path / "home", gateway.base_url, {"TOLLGATE_TEAM": "acme"}).with_token(access)
            ran = tool("rpc", "logs", "show", entry["id"])
            opened = opened_in_the_console(gateway)
    one, two = entry["trace"]
    assert (entry["attempts"], entry["upstream"]) == (2, names[1])
    assert (one["upstream"], one["verdict"], one["status"]) == (names[0], "status", 503)
    assert (two["upstream"], two["verdict"], two["status"]) == (names[1], "answered", None)
    assert one["start_us"] < 100_000
    assert DELAY_SECONDS * 1e6 <= one["end_us"] <= two["start_us"] <= two["end_us"] <= entry["duration_us"]
    assert ran.code == 0
    rows = ran.out.split("\n\n")[1].splitlines()[1:]
    assert [
        (row.startswith(name), row.rstrip().endswith(end))
        for row, name, end in zip(rows, names, ("HTTP 503", "answered"), strict=True)
    ] == [(True, True)] * 2
    assert [line for line in opened.splitlines() if line in ("first", "second", "upstream 1", "upstream 2")] == [
        *names
    ]
    assert "HTTP 503, tried elsewhere" in opened
