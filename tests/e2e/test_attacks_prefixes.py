"""One client with a /48 of IPv6, 65,536 /64s: it must not count as so many clients."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import httpx
import pytest

from parts.raw_http import JSON, call, request
from parts.stack import PATH, Stack, open_stack
from parts.tollgate import bearer
from tollgate.core import secrets

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

BODY = call("eth_chainId")
ORIGIN = {"Origin": "https://example.com"}
HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings: dict[str, dict[str, object]] = {
        "server": {"trusted_proxies": ["127.0.0.0/8"], "workers": 1},
        "limits": {"misses_per_second_per_address": 2, "misses_per_second": 20, "api_address_per_minute": 40},
        "websocket": {"connections_per_caller": 2, "connections_per_domain": 10},
    }
    with open_stack(tmp_path_factory.mktemp("prefixes"), settings) as it:
        fields = {"address_per_minute": 10, "domain_per_minute": 400}
        it.gateway.books.domain(it.team, "example.com", **fields)
        yield it


def of_network(number: int, site: int = 7) -> dict[str, str]:
    """A /64 of an attacker's /48, each in another /56."""
    return {"X-Forwarded-For": f"2001:db8:{site}:{number % 256:x}{number // 256:02x}::1"}


def of_visitor(number: int) -> dict[str, str]:
    return {"X-Forwarded-For": f"198.51.{number}.1"}


def test_one_network_does_not_use_up_the_limit_of_a_domain(stack: Stack) -> None:
    with stack.gateway.connect() as connection:

        def status(client: dict[str, str]) -> int:
            return connection.exchange(PATH, BODY, {**JSON, **ORIGIN, **client}).status

        passed = [status(of_network(number)) for number in range(500)].count(200)
        assert passed <= 45, "four times the limit of an address, and what a minute gives back meanwhile"
        assert [status(of_visitor(number)) for number in range(200)] == [200] * 200


def test_one_network_does_not_hold_all_websockets_of_a_domain(stack: Stack) -> None:
    with ExitStack() as held:

        def opened(client: dict[str, str]) -> bool:
            connection = held.enter_context(stack.gateway.connect())
            connection.send(
                request(PATH, headers={**HANDSHAKE, **client, "Origin": ORIGIN["Origin"]}, method="GET")
            )
            connection.read(to="HEAD")
            connection.send(masked(BODY))
            return b'"result"' in connection.socket.recv(65_536)

        assert [opened(of_network(number, 8)) for number in range(8)].count(True) == 5
        assert [opened(of_visitor(number)) for number in range(4)] == [True] * 4


def masked(text: bytes) -> bytes:
    """A text frame of a client, with the mask 0."""
    return bytes([0x81, 0x80 | len(text)]) + bytes(4) + text


def test_new_tokens_are_found_while_one_network_tries_unknown_ones(stack: Stack) -> None:
    with stack.gateway.connect() as connection:

        def status(secret: str, client: dict[str, str]) -> int:
            return connection.exchange(PATH, BODY, {**JSON, **bearer(secret), **client}).status

        good = [stack.gateway.books.token(stack.team)[0] for _ in range(39)]
        guessed, found = [], []
        for number, secret in enumerate(good):
            guessed += [status(secrets.new_token(), of_network(10 * number + each)) for each in range(10)]
            found.append(status(secret, of_visitor(number)))
        assert set(guessed) == {401, 429}
        assert found == [200] * len(good)


def test_one_network_is_limited_at_the_management_api(stack: Stack) -> None:
    with httpx.Client(base_url=stack.gateway.base_url, trust_env=False, timeout=20) as client:
        statuses = [client.get("/api/v1/me", headers=of_network(number)).status_code for number in range(250)]
        assert statuses.count(401) <= 175, "four times the limit of an address"
        assert statuses.count(429) >= 75
        assert client.get("/api/v1/me", headers=of_visitor(1)).status_code == 401
