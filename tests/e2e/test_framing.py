"""HTTP from outside, byte by byte: framing, order, leave to continue, and what survives an error."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

from parts.processes import eventually
from parts.raw_http import JSON, RawConnection, call, request
from parts.stack import PATH, Stack, open_stack, reason
from parts.tollgate import bearer
from parts.upstream import Reply

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with open_stack(tmp_path_factory.mktemp("framing")) as it:
        yield it


@pytest.fixture
def connection(stack: Stack) -> Iterator[RawConnection]:
    with stack.gateway.connect() as opened:
        yield opened


def test_request_that_comes_byte_by_byte(stack: Stack, connection: RawConnection) -> None:
    for byte in stack.request(id="slow"):
        connection.send(bytes([byte]))
    assert connection.read().json()["id"] == "slow"


def test_chunked_request(stack: Stack, connection: RawConnection) -> None:
    body = call("eth_chainId", id="c")
    chunks = b"5\r\n%b\r\n%x;ext=1\r\n%b\r\n0\r\nTrailer: x\r\n\r\n" % (body[:5], len(body) - 5, body[5:])
    assert connection.exchange(PATH, chunks, {**stack.headers, "Transfer-Encoding": "chunked"}).json()["id"] == "c"


def test_pipelined_requests_are_answered_in_order(stack: Stack, connection: RawConnection) -> None:
    gate = threading.Event()
    stack.node.on("eth_call", Reply(gate=gate))
    health = request("/healthz", headers={}, method="GET")
    refusal = request(PATH, b"{bad", stack.headers)
    preflight = request(PATH, method="OPTIONS", headers={"Origin": "https://a.com"})
    connection.send(
        stack.request(1, "eth_call") + health + stack.request(2) + refusal + health + preflight
        + stack.request(3, "eth_call") + stack.request(4)
    )  # fmt: skip
    eventually(lambda: stack.node.bodies("eth_call"), what="the first call upstream")
    gate.set()
    assert connection.read().json()["id"] == 1
    assert connection.read().json() == {"status": "ok"}
    assert connection.read().json()["id"] == 2
    assert connection.read().status == 400
    assert connection.read().json() == {"status": "ok"}
    assert connection.read().status == 204
    assert connection.read().json()["id"] == 3
    assert connection.read().json()["id"] == 4


def test_many_pipelined_requests(stack: Stack, connection: RawConnection) -> None:
    connection.send(b"".join(stack.request(number) for number in range(200)))
    assert [connection.read().json()["id"] for _ in range(200)] == list(range(200))


def test_broken_request_behind_a_good_one_does_not_cost_its_answer(
    stack: Stack, connection: RawConnection
) -> None:
    gate = threading.Event()
    stack.node.on("eth_getCode", Reply(gate=gate))
    connection.send(stack.request(1, "eth_getCode"))
    eventually(lambda: stack.node.bodies("eth_getCode"), what="the call upstream")
    connection.send(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
    gate.set()
    assert connection.read().json()["id"] == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 413, 415])
def test_connection_goes_on_after_an_error(stack: Stack, connection: RawConnection, status: int) -> None:
    bad = {
        400: (PATH, b"{bad", stack.headers, "POST"),
        401: (PATH, b"{}", JSON, "POST"),
        403: (PATH, call("admin_x"), stack.headers, "POST"),
        404: ("/x/no/where", b"{}", stack.headers, "POST"),
        405: (PATH, b"{}", stack.headers, "PUT"),
        413: (PATH, b" " * 1_048_577, stack.headers, "POST"),
        415: (PATH, b"{}", bearer(stack.token), "POST"),
    }
    path, body, headers, method = bad[status]
    assert connection.exchange(path, body, headers, method=method).status == status
    assert connection.exchange(PATH, call("m"), stack.headers).status == 200


@pytest.mark.parametrize("size", [2 << 20, 8 << 20])
def test_caller_that_keeps_sending_can_read_why(stack: Stack, connection: RawConnection, size: int) -> None:
    """A browser that sends on while the answer is already there must see 413, not a broken connection."""
    answer = connection.exchange(PATH, b" " * size, stack.headers)
    assert (answer.status, reason(answer)) == (413, "body_too_large")


def test_endless_body_is_cut_off(stack: Stack, connection: RawConnection) -> None:
    """The drain is bounded: 413 and the end, long before 64 MiB are taken."""
    connection.send(request(PATH, b"", {**stack.headers, "Content-Length": str(64 << 20)}))
    sent = 0
    with pytest.raises(OSError):  # noqa: PT012
        while sent < 64 << 20:
            sent += connection.socket.send(b" " * 65_536)
        raise AssertionError("it took everything")
    assert sent < 64 << 20


def test_huge_head_is_refused(stack: Stack, connection: RawConnection) -> None:
    connection.send(f"POST {PATH} HTTP/1.1\r\nHost: a\r\nX-Big: ".encode() + b"a" * 70_000)
    answer = connection.read()
    assert answer.status in (400, 431)
    assert connection.ended()


@pytest.mark.parametrize("data", [b"\x16\x03\x01\x02\x00\x01\n\n", b"GET\r\n\r\n", b"POST /x/ HTTP/9.9\r\n\r\n"])
def test_what_is_not_http_is_reported_and_closed(connection: RawConnection, data: bytes) -> None:
    connection.send(data)
    assert connection.read().status == 400
    assert connection.ended()


@pytest.mark.parametrize(
    "framing",
    [
        {"Content-Length": "5", "Transfer-Encoding": "chunked"},
        {"Content-Length": "5", "content-length": "6"},
        {"Content-Length": "-1"},
        {"Content-Length": "99999999999999999999999"},
    ],
)
def test_ambiguous_length_is_refused(stack: Stack, connection: RawConnection, framing: dict[str, str]) -> None:
    connection.send(request(PATH, b"0\r\n\r\n", {**stack.headers, **framing}))
    assert connection.read().status == 400
    assert connection.ended()


# ---- Expect: 100-continue


def test_caller_that_requests_leave_gets_it(stack: Stack, connection: RawConnection) -> None:
    body = call("eth_chainId", id=5)
    waiting = {**stack.headers, "Expect": "100-continue", "Content-Length": str(len(body))}
    for _ in range(2):
        connection.send(request(PATH, b"", waiting))
        assert connection.read().status == 100
        connection.send(body)
        assert connection.read().json()["id"] == 5


@pytest.mark.parametrize(
    ("path", "change", "status"),
    [
        (PATH, {"Content-Length": "2000000"}, 413),
        (PATH, {"Content-Type": "text/plain"}, 415),
        ("/x/no/where", {}, 404),
    ],
)
def test_caller_that_gets_no_leave_gets_the_reason(
    stack: Stack, connection: RawConnection, path: str, change: dict[str, str], status: int
) -> None:
    waiting = {**stack.headers, "Expect": "100-continue", "Content-Length": "50", **change}
    connection.send(request(path, b"", waiting))
    assert connection.read().status == status
    connection.socket.shutdown(socket.SHUT_WR)
    assert connection.ended()


def test_leave_is_given_behind_a_request_that_is_still_answered(stack: Stack, connection: RawConnection) -> None:
    gate = threading.Event()
    stack.node.on("eth_getLogs", Reply(gate=gate))
    body = call("eth_chainId", id="second")
    waiting = {**stack.headers, "Expect": "100-continue", "Content-Length": str(len(body))}
    connection.send(stack.request("first", "eth_getLogs") + request(PATH, b"", waiting))
    eventually(lambda: stack.node.bodies("eth_getLogs"), what="the first call upstream")
    gate.set()
    answers = [connection.read(), connection.read()]
    assert sorted(answer.status for answer in answers) == [100, 200]
    connection.send(body)
    assert connection.read().json()["id"] == "second"
