"""A page on one origin in real Chromium, calling the gateway on another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from parts.browser import chromium, served_page
from parts.certs import make_certificate
from parts.raw_http import call
from parts.stack import PATH, Stack, open_stack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

pytestmark = pytest.mark.e2e

HOSTS = (
    "example.com",
    "app.example.com",
    "notexample.com",
    "example.com.evil.com",
    "limited.com",
)
GATEWAY = "rpc.tollgate.test"

PAGE = """<title>caller</title><script>
window.send = async ({url, body, headers}) => {
    const answer = await fetch(url, {
        method: "POST", body, headers: {"Content-Type": "application/json", ...headers},
    });
    const names = ["retry-after", "ratelimit", "ratelimit-policy", "x-request-id"];
    return {
        status: answer.status,
        headers: Object.fromEntries(names.map((name) => [name, answer.headers.get(name)])),
        body: answer.status === 204 ? null : await answer.json(),
    };
};
</script>"""


@dataclass(frozen=True)
class Pages:
    browser: Browser
    stack: Stack

    def exchange(
        self, host: str, body: bytes = call("eth_chainId"), *, token: str | None = None, path: str = PATH
    ) -> Any:
        """Open a page on this host and call the gateway from it."""
        with self.browser.new_context(ignore_https_errors=True) as context:
            page = context.new_page()
            page.goto(f"https://{host}/")
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            request = {"url": f"https://{GATEWAY}{path}", "body": body.decode(), "headers": headers}
            return page.evaluate("send", request)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    folder = tmp_path_factory.mktemp("browser")
    certificate = make_certificate(folder, GATEWAY, *HOSTS)
    settings = {
        "server": {"tls_certificate": str(certificate.certificate), "tls_key": str(certificate.key)},
    }
    with open_stack(folder / "gateway", settings, tls=certificate.client_context()) as stack:
        stack.gateway.books.domain(stack.team, "example.com")
        stack.gateway.books.domain(stack.team, "limited.com", address_per_minute=1)
        with served_page(PAGE, certificate) as port:
            hosts = {**dict.fromkeys(HOSTS, port), GATEWAY: stack.gateway.port}
            with chromium(hosts) as browser:
                yield Pages(browser, stack)


@pytest.mark.parametrize("host", ["example.com", "app.example.com"])
def test_page_on_a_whitelisted_root_or_its_subdomain_passes(pages: Pages, host: str) -> None:
    answer = pages.exchange(host)
    assert answer["status"] == 200
    assert answer["body"]["result"]["method"] == "eth_chainId"
    assert answer["headers"]["x-request-id"]
    assert answer["headers"]["ratelimit"]


@pytest.mark.parametrize("host", ["notexample.com", "example.com.evil.com"])
def test_page_on_a_look_alike_is_refused_and_can_read_why(pages: Pages, host: str) -> None:
    answer = pages.exchange(host)
    assert answer["status"] == 403
    error = answer["body"]["error"]
    assert error["data"]["reason"] == "origin_not_allowed"
    assert f"https://{host}" in error["message"]
    assert "tollgate rpc whitelist add" in error["message"]
    assert answer["headers"]["x-request-id"] == error["data"]["request_id"]


def test_page_anywhere_passes_with_a_token(pages: Pages) -> None:
    answer = pages.exchange("notexample.com", token=pages.stack.token)
    assert answer["status"] == 200


def test_page_can_read_what_is_wrong_with_its_token(pages: Pages) -> None:
    answer = pages.exchange("example.com", token="tg_mistyped")
    assert (answer["status"], answer["body"]["error"]["data"]["reason"]) == (401, "token_invalid")


def test_page_can_read_when_to_come_back(pages: Pages) -> None:
    assert pages.exchange("limited.com")["status"] == 200
    answer = pages.exchange("limited.com")
    assert (answer["status"], answer["body"]["error"]["data"]["limit"]) == (429, "address")
    assert 1 <= int(answer["headers"]["retry-after"]) <= 60
    assert "address" in answer["headers"]["ratelimit-policy"]


def test_page_can_read_that_its_body_is_too_large(pages: Pages) -> None:
    answer = pages.exchange("example.com", b" " * (3 << 20))
    assert (answer["status"], answer["body"]["error"]["data"]["reason"]) == (413, "body_too_large")


def test_page_can_read_that_a_network_is_unknown(pages: Pages) -> None:
    answer = pages.exchange("example.com", path="/x/eth/goerli")
    assert (answer["status"], answer["body"]["error"]["data"]["reason"]) == (404, "unknown_network")


def test_page_may_send_a_notification(pages: Pages) -> None:
    assert pages.exchange("example.com", b'{"jsonrpc":"2.0","method":"eth_chainId"}')["status"] == 204
