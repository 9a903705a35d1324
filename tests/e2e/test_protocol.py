"""HTTP from outside: addresses, headers, methods and versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from parts.raw_http import JSON, RawConnection, call, request
from parts.stack import PATH, Stack, open_stack, reason

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with open_stack(tmp_path_factory.mktemp("protocol")) as it:
        yield it


@pytest.fixture
def connection(stack: Stack) -> Iterator[RawConnection]:
    with stack.gateway.connect() as opened:
        yield opened


# ---- addresses and headers


@pytest.mark.parametrize("path", ["/x/eth/mainnet/", "/x/eth/mainnet?a=b", "/x/eth/mainnet/?a=b&c"])
def test_trailing_slash_and_query_are_tolerated(stack: Stack, connection: RawConnection, path: str) -> None:
    assert connection.exchange(path, call("eth_chainId"), stack.headers).status == 200


@pytest.mark.parametrize(
    "value",
    [
        "application/json; charset=utf-8",
        "application/json;charset=UTF-8",
        "Application/JSON",
        'application/json ; a="b;c"',
    ],
)
def test_media_type_may_have_parameters(stack: Stack, connection: RawConnection, value: str) -> None:
    assert connection.exchange(PATH, call("m"), {**stack.headers, "Content-Type": value}).status == 200


@pytest.mark.parametrize("scheme", ["bearer", "BEARER", "bEaReR", "Bearer "])
def test_scheme_in_any_case(stack: Stack, connection: RawConnection, scheme: str) -> None:
    assert connection.exchange(PATH, call("m"), {**JSON, "Authorization": f"{scheme} {stack.token}"}).status == 200


def test_authorization_given_twice_is_refused(stack: Stack, connection: RawConnection) -> None:
    twice = {**JSON, "Authorization": f"Bearer {stack.token}", "authorization": f"Bearer {stack.token}"}
    answer = connection.exchange(PATH, call("m"), twice)
    assert (answer.status, reason(answer)) == (401, "token_invalid")


def test_token_in_the_address(stack: Stack, connection: RawConnection) -> None:
    url_token, _ = stack.gateway.books.token(stack.team, allow_in_url=True)
    for path in (f"{PATH}/{url_token}", f"{PATH}/{url_token}/", f"{PATH}/{url_token}?a=b"):
        assert connection.exchange(path, call("m"), JSON).status == 200
    answer = connection.exchange(f"{PATH}/{stack.token}", call("m"), JSON)
    assert (answer.status, reason(answer)) == (401, "token_invalid")
    assert "Authorization" in answer.json()["error"]["message"]
    assert stack.token.encode() not in answer.body
    # Authorization decides alone.
    assert connection.exchange(f"{PATH}/{stack.token}", call("m"), stack.headers).status == 200
    bad = {**JSON, "Authorization": "Bearer x"}
    assert connection.exchange(f"{PATH}/{url_token}", call("m"), bad).status == 401


def test_token_in_the_address_is_not_written_anywhere(stack: Stack, connection: RawConnection) -> None:
    url_token, _ = stack.gateway.books.token(stack.team, allow_in_url=True)
    connection.exchange(f"/x/eth/goerli/{url_token}", call("m"), JSON)
    answer = connection.exchange(f"/x/eth/mainnet/{url_token}/more", call("m"), JSON)
    assert url_token.encode() not in answer.body
    assert url_token not in stack.gateway.program.err.read_text()


def test_request_id_is_taken_over_where_it_is_well_formed(stack: Stack, connection: RawConnection) -> None:
    answer = connection.exchange(PATH, call("m"), {**stack.headers, "X-Request-Id": "trace-1.2:3/4"})
    assert answer.headers["x-request-id"] == "trace-1.2:3/4"
    for bad in ("", "a b", "a" * 200, "<script>", "é"):
        made = connection.exchange(PATH, call("m"), {**stack.headers, "X-Request-Id": bad}).headers["x-request-id"]
        assert made != bad
        assert len(made) >= 16


def test_request_ids_that_are_made_differ(stack: Stack, connection: RawConnection) -> None:
    made = {connection.exchange(PATH, call("m"), stack.headers).headers["x-request-id"] for _ in range(20)}
    assert len(made) == 20


# ---- methods and versions


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD"])
def test_connection_goes_on_after_another_method(stack: Stack, connection: RawConnection, method: str) -> None:
    answer = connection.exchange(PATH, b"", stack.headers, method=method)
    assert answer.status == 405
    assert "POST" in answer.headers["allow"]
    assert connection.exchange(PATH, call("m"), stack.headers).status == 200


def test_head_gets_no_body(stack: Stack, connection: RawConnection) -> None:
    connection.send(
        request(PATH, method="HEAD", headers=stack.headers) + request("/healthz", headers={}, method="GET")
    )
    assert connection.read(to="HEAD").status == 405
    assert connection.read(to="GET").json() == {"status": "ok"}


def test_upgrade_without_credentials_is_refused_in_words(stack: Stack, connection: RawConnection) -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    answer = connection.exchange(
        PATH, b"", {**upgrade, "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}, method="GET"
    )
    assert answer.status == 401
    assert answer.json()["error"]["data"]["reason"] == "token_missing"


def test_http_1_0_is_answered_and_closed(stack: Stack, connection: RawConnection) -> None:
    answer = connection.exchange(PATH, call("m"), stack.headers, version="1.0")
    assert answer.status == 200
    assert connection.ended()


def test_http_1_0_that_requests_to_be_kept_is_not_left_waiting(stack: Stack, connection: RawConnection) -> None:
    answer = connection.exchange(PATH, call("m"), {**stack.headers, "Connection": "keep-alive"}, version="1.0")
    assert answer.status == 200
    assert answer.headers.get("connection") == "keep-alive" or connection.ended()


def test_caller_that_wants_to_close_is_let_go(stack: Stack, connection: RawConnection) -> None:
    answer = connection.exchange(PATH, call("m"), {**stack.headers, "Connection": "close"})
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert connection.ended()


def test_other_paths_and_metrics_are_not_served_here(connection: RawConnection) -> None:
    assert connection.exchange("/healthz", method="GET").json() == {"status": "ok"}
    assert connection.exchange("/readyz", method="GET").json() == {"status": "ready"}
    assert connection.exchange("/metrics", method="GET").status == 404
    assert connection.exchange("/x", method="GET").status == 404
