"""What browsers are shown (spec.md, section 2), and who passes by Origin alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from parts.raw_http import JSON, Answer, RawConnection, call
from parts.stack import PATH, Stack, open_stack, reason
from parts.upstream import failure

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

HOME = "https://example.com"
EXPOSED = {"retry-after", "ratelimit", "ratelimit-policy", "x-request-id"}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    limits = {"misses_per_second_per_address": 1000, "body_bytes": 2000}
    with open_stack(tmp_path_factory.mktemp("cors"), {"limits": limits}) as it:
        for name in ("example.com", "xn--bcher-kva.example", "me.github.io"):
            it.gateway.books.domain(it.team, name)
        it.gateway.books.domain(it.team, "off.com", active=False)
        yield it


@pytest.fixture
def connection(stack: Stack) -> Iterator[RawConnection]:
    with stack.gateway.connect() as opened:
        yield opened


def readable(answer: Answer, origin: str) -> None:
    """Check that a page on this origin can read the answer."""
    headers = answer.headers
    assert headers["access-control-allow-origin"] == origin
    assert "origin" in headers["vary"].lower()
    assert {name.strip().lower() for name in headers["access-control-expose-headers"].split(",")} >= EXPOSED
    assert "access-control-allow-credentials" not in headers


@pytest.mark.parametrize("origin", [HOME, "https://evil.com", "null", "http://localhost:3000"])
@pytest.mark.parametrize("path", [PATH, PATH + "/", "/x/no/where"])
def test_preflight_is_answered_before_credentials(connection: RawConnection, origin: str, path: str) -> None:
    fields = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-my-header",
    }
    answer = connection.exchange(path, b"", fields, method="OPTIONS")
    assert (answer.status, answer.body) == (204, b"")
    readable(answer, origin)
    assert answer.headers["access-control-allow-methods"] == "POST"
    allowed = {name.strip() for name in answer.headers["access-control-allow-headers"].split(",")}
    assert allowed == {"authorization", "content-type", "x-my-header"}
    assert answer.headers["access-control-max-age"] == "7200"


@pytest.mark.parametrize("names", ["a" * 1025, "a b", "x:y", "a,,b", 'a,"b"', "é"])
def test_preflight_echoes_only_what_can_be_header_names(connection: RawConnection, names: str) -> None:
    fields = {"Origin": HOME, "Access-Control-Request-Headers": names}
    answer = connection.exchange(PATH, b"", fields, method="OPTIONS")
    assert answer.status == 204
    assert answer.headers.get("access-control-allow-headers", "") != names


def test_answer_without_an_origin_has_no_headers_for_one(stack: Stack) -> None:
    answer = stack.exchange(call("m"))
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("body", "headers", "path", "status"),
    [
        (call("eth_chainId"), JSON, PATH, 200),
        (b'{"jsonrpc":"2.0","method":"eth_chainId"}', JSON, PATH, 204),
        (b"{bad", JSON, PATH, 400),
        (call("m"), {**JSON, "Authorization": "Bearer nonsense"}, PATH, 401),
        (call("admin_peers"), JSON, PATH, 403),
        (call("m"), JSON, "/x/no/where", 404),
        (b" " * 3000, JSON, PATH, 413),
        (call("m"), {"Content-Type": "text/plain"}, PATH, 415),
        (call("eth_call"), JSON, PATH, 200),
    ],
)
def test_every_answer_can_be_read(
    stack: Stack, connection: RawConnection, body: bytes, headers: dict[str, str], path: str, status: int
) -> None:
    stack.node.on("eth_call", failure({"code": 3, "message": "execution reverted"}))
    answer = connection.exchange(path, body, {**headers, "Origin": HOME})
    assert answer.status == status
    readable(answer, HOME)
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("origin", ["https://evil.com", "null", "https://127.0.0.1", "x y", "http://example.com"])
def test_refused_origin_can_read_why(connection: RawConnection, origin: str) -> None:
    answer = connection.exchange(PATH, call("m"), {**JSON, "Origin": origin})
    assert (answer.status, reason(answer)) == (403, "origin_not_allowed")
    assert origin in answer.json()["error"]["message"]
    readable(answer, origin)


@pytest.mark.parametrize(
    ("origin", "passes"),
    [
        ("https://example.com", True),
        ("https://app.example.com", True),
        ("https://a.b.c.example.com", True),
        ("https://example.com:8443", True),
        ("https://EXAMPLE.com", True),
        ("https://example.com.", True),
        ("https://bücher.example", True),
        ("https://shop.xn--bcher-kva.example", True),
        ("https://me.github.io", True),
        ("https://you.github.io", False),
        ("https://notexample.com", False),
        ("https://example.com.evil.com", False),
        ("https://exampleXcom", False),
        ("https://example.com..", False),
        ("https://example.com@evil.com", False),
        ("https://user@example.com", False),
        ("https://example.com/", False),
        ("https://example.com#", False),
        ("https://example.com:99999", False),
        ("http://example.com", False),
        ("ws://example.com", False),
        ("chrome-extension://example.com", False),
        ("https://evil.com, https://example.com", False),
        ("https://com", False),
        ("https://off.com", False),
        ("http://localhost:3000", False),
        ("https://localhost", False),
    ],
)
def test_who_passes_by_origin(connection: RawConnection, origin: str, passes: bool) -> None:
    answer = connection.exchange(PATH, call("eth_chainId"), {**JSON, "Origin": origin})
    assert answer.status == (200 if passes else 403), answer


def test_referer_is_never_read(connection: RawConnection) -> None:
    answer = connection.exchange(PATH, call("m"), {**JSON, "Referer": "https://example.com/page"})
    assert (answer.status, reason(answer)) == (401, "token_missing")


def test_two_origins_match_nothing(connection: RawConnection) -> None:
    twice = {**JSON, "Origin": HOME, "origin": HOME}
    assert connection.exchange(PATH, call("m"), twice).status == 403


def test_cookie_is_no_credential(stack: Stack, connection: RawConnection) -> None:
    cookie = {**JSON, "Cookie": f"token={stack.token}; Authorization=Bearer {stack.token}"}
    assert connection.exchange(PATH, call("m"), cookie).status == 401
