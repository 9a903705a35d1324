"""Attacks by bytes: upgrades, trailers, garbage, clients that never read. Time, memory and log stay bounded."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest

from parts.certs import make_certificate
from parts.memory import within_budget
from parts.processes import eventually
from parts.raw_http import JSON, RawConnection, call, request
from parts.stack import PATH, Stack, open_stack
from parts.tollgate import linux_only
from parts.upstream import Reply

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.e2e, linux_only]

BUDGET = 64 << 20
LIMITS = {"buffer_bytes": BUDGET, "misses_per_second_per_address": 100_000, "misses_per_second": 100_000}
# A worker that is taken for longer than this by one sender is taken from the others.
MAX_STALL_SECONDS = 10.0
HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@pytest.fixture(scope="module")
def whole_road(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with open_stack(tmp_path_factory.mktemp("bytes"), {"limits": LIMITS}) as it:
        yield it


@pytest.fixture
def stack(whole_road: Stack) -> Iterator[Stack]:
    """The service, which must answer others meanwhile, stay light, and write no traceback."""
    whole_road.node.clear()
    with within_budget(whole_road.gateway, BUDGET):
        yield whole_road
    assert whole_road.exchange(call("eth_chainId")).status == 200
    assert "Traceback" not in log_of(whole_road)


def log_of(stack: Stack) -> str:
    return stack.gateway.program.err.read_text()


def drained(connection: RawConnection, seconds: float = 10.0) -> bytes:
    """All that comes until the other side closes, or nothing more comes."""
    received = bytearray()
    connection.socket.settimeout(seconds)
    with suppress(OSError):
        while data := connection.socket.recv(1 << 20):
            received += data
            connection.socket.settimeout(min(0.5, seconds))
    return bytes(received)


def answered_soon(stack: Stack) -> float:
    """How long another caller waits for an answer."""
    started = time.monotonic()
    assert stack.exchange(call("eth_chainId")).status == 200
    return time.monotonic() - started


# ---- the reader


@pytest.mark.parametrize(
    "head",
    [
        b"CONNECT /x/ HTTP/1.1\r\nHost: a\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"CONNECT /x/eth/mainnet HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
        b"CONNECT /api/v1/me HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        request(
            PATH, headers={"Upgrade": "h2c", "Connection": "Upgrade, HTTP2-Settings", "HTTP2-Settings": "AAMA"}
        ),
        b"GET /api/v1/me HTTP/1.1\r\nHost: a\r\nUpgrade: a\r\nConnection: upgrade\r\n\r\n",
        b"GET /x/eth/mainnet HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
        request(
            PATH,
            b"0\r\nUpgrade: b\r\n\r\n",
            {"Upgrade": "a", "Connection": "upgrade", "Transfer-Encoding": "chunked"},
        ),
    ],
)
def test_offers_of_another_protocol_again_and_again(stack: Stack, head: bytes) -> None:
    with stack.gateway.connect() as connection:
        started = time.monotonic()
        with suppress(OSError):
            connection.send(head * 4_000)
        waited = answered_soon(stack)
        received = drained(connection)
    assert waited < MAX_STALL_SECONDS
    assert received.count(b"HTTP/1.1 ") <= 4_000
    assert time.monotonic() - started < 20
    assert len(received) < 4_000 * 1_000


@pytest.mark.parametrize("path", [PATH, "/api/v1/oauth/token", "/console/sign-in"])
@pytest.mark.parametrize(
    "trailer", [b"aa:bb\r\n", b"a" * 60_000 + b":b\r\n", b"a:" + b"b" * 60_000 + b"\r\n", b":\r\n", b"\x00\r\n"]
)
def test_endless_trailers(stack: Stack, path: str, trailer: bytes) -> None:
    sent = 0
    with stack.gateway.connect() as connection:
        connection.send(request(path, headers={**JSON, "Transfer-Encoding": "chunked"}) + b"2\r\n{}\r\n0\r\n")
        piece = trailer * max(1, 65_536 // len(trailer))
        with suppress(OSError):
            while sent < 40 << 20:
                connection.send(piece)
                sent += len(piece)
        assert answered_soon(stack) < MAX_STALL_SECONDS
    if path == PATH:
        # What was sent before the end came is in the buffers of the kernel.
        assert sent < 20 << 20, "trailers are taken without an end"


@pytest.mark.parametrize(
    "endless",
    [
        b"POST /x/eth/mainnet HTTP/1.1\r\n" + b"a: b\r\n" * 100,
        b"POST /" + b"x" * 70_000,
        b"POST /x/eth/mainnet HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"e" * 70_000,
        b"POST /x/eth/mainnet HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0" * 70_000,
    ],
)
def test_heads_and_sizes_of_chunks_without_an_end(stack: Stack, endless: bytes) -> None:
    sent = 0
    with stack.gateway.connect() as connection, suppress(OSError):
        while sent < 30 << 20:
            connection.send(endless if sent == 0 else endless[-60_000:])
            sent += len(endless)
    assert sent < 30 << 20
    assert answered_soon(stack) < MAX_STALL_SECONDS


def test_trailer_is_not_taken_for_a_header(tmp_path: Path) -> None:
    with open_stack(tmp_path, {"server": {"trusted_proxies": ["127.0.0.1"]}}) as stack:
        body = b"3f\r\n" + b"client_id=tollgate-cli&machine=" + b"m" * 32 + b"\r\n0\r\n"
        head = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Transfer-Encoding": "chunked",
            "Trailer": "X-Forwarded-For",
            "X-Forwarded-For": "192.0.2.77",
        }
        with stack.gateway.connect() as connection:
            connection.send(request("/api/v1/oauth/device_authorization", headers=head))
            connection.send(body + b"X-Forwarded-For: 8.8.8.8\r\nX-Request-Id: forged\r\n\r\n")
            answer = connection.read()
        assert answer.status == 200, answer
        assert answer.headers["x-request-id"] != "forged"
        rows = stack.gateway.books.do(lambda records: records.device_logins.page(10))
        assert [row.address for row in rows] == ["192.0.2.77"]


# ---- many requests at once


@pytest.mark.parametrize(
    "small",
    [
        b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /x/ HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
)
def test_thousands_of_requests_in_one_packet_behind_one_that_takes_its_time(stack: Stack, small: bytes) -> None:
    first = b"GET /console/sign-in HTTP/1.1\r\nHost: a\r\n\r\n"
    with ExitStack() as held:
        connections = [held.enter_context(stack.gateway.connect()) for _ in range(20)]
        for connection in connections:
            connection.socket.setblocking(False)
            with suppress(OSError):
                connection.socket.send(first + small * (250_000 // len(small)))
        assert answered_soon(stack) < MAX_STALL_SECONDS


@pytest.mark.parametrize("path", [PATH, "/api/v1/oauth/token"])
def test_requests_behind_one_that_takes_its_time_count_against_the_budget(stack: Stack, path: str) -> None:
    gate = threading.Event()
    stack.node.on("eth_slow", Reply(gate=gate))
    behind = request(path, b" " * 60_000, stack.headers) * 12
    with ExitStack() as held:
        for _ in range(20):
            connection = held.enter_context(stack.gateway.connect())
            connection.socket.setblocking(False)
            with suppress(OSError):
                connection.socket.send(request(PATH, call("eth_slow"), stack.headers) + behind)
        eventually(
            lambda: stack.gateway.metrics()["tollgate_buffered_bytes"] > 20 * 60_000, what="what waits in line"
        )
        gate.set()
    eventually(lambda: stack.gateway.metrics()["tollgate_buffered_bytes"] == 0, what="its memory")


@pytest.mark.parametrize("path", [PATH, "/api/v1/oauth/token", "/x/no/where"])
def test_bodies_in_tiny_chunks(stack: Stack, path: str) -> None:
    head = request(path, headers={**stack.headers, "Transfer-Encoding": "chunked"})
    with ExitStack() as held:
        connections = [held.enter_context(stack.gateway.connect()) for _ in range(30)]
        for connection in connections:
            connection.socket.setblocking(False)
            with suppress(OSError):
                connection.socket.send(head + b"2\r\nab\r\n" * 300_000)
        assert answered_soon(stack) < MAX_STALL_SECONDS


@pytest.mark.parametrize("path", [PATH, "/api/v1/oauth/token", "/console/sign-in", "/healthz"])
@pytest.mark.parametrize(
    ("framing", "body"),
    [
        ("Transfer-Encoding: chunked", b"-1\r\n{}\r\n0\r\n\r\n"),
        ("Transfer-Encoding: chunked", b"+2\r\n{}\r\n0\r\n\r\n"),
        ("Transfer-Encoding: chunked", b"0x2\r\n{}\r\n0\r\n\r\n"),
        ("Transfer-Encoding: chunked", b"0_2\r\n{}\r\n0\r\n\r\n"),
        ("Transfer-Encoding: chunked", b"10000000000000002\r\n{}\r\n0\r\n\r\n"),
        ("Transfer-Encoding: chunked", b"2\n{}\n0\n\n"),
        ("Transfer-Encoding: chunked", b"2\r\n{}XX0\r\n\r\n"),
        ("Transfer-Encoding: chunked", b"2\r\n{}\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("Transfer-Encoding: xchunked", b"2\r\n{}\r\n0\r\n\r\n"),
        ("Transfer-Encoding: gzip, chunked", b"2\r\n{}\r\n0\r\n\r\n"),
        ("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked", b"2\r\n{}\r\n0\r\n\r\n"),
        ("Transfer-Encoding: chunked, identity", b"2\r\n{}\r\n0\r\n\r\n"),
        ("Transfer-Encoding: chunked\r\nContent-Length: 2", b"{}"),
        ("Content-Length: 2\r\nContent-Length: 2", b"{}"),
        ("Content-Length: 0x2", b"{}"),
        ("Content-Length:\r\n 2", b"{}"),
        ("X: a\n b: c\r\nContent-Length: 2", b"{}"),
        ("X\x00: a\r\nContent-Length: 2", b"{}"),
        ("Host: b\r\nContent-Length: 2", b"{}"),
    ],
)
def test_request_that_two_readers_may_read_differently_is_the_last_of_its_connection(
    stack: Stack, path: str, framing: str, body: bytes
) -> None:
    smuggled = b"GET /healthz?smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
    lines = "".join(f"{name}: {value}\r\n" for name, value in stack.headers.items())
    with stack.gateway.connect() as connection:
        connection.send(
            f"POST {path} HTTP/1.1\r\nHost: a\r\n{lines}{framing}\r\n\r\n".encode("latin-1") + body + smuggled
        )
        received = drained(connection)
        assert received.count(b"HTTP/1.1 ") == 1, received
        # The page that needs no body may have answered before the body is seen to be broken.
        assert received.startswith(
            (b"HTTP/1.1 400 ", b"HTTP/1.1 200 " if path == "/healthz" else b"HTTP/1.1 400 ")
        )
        assert connection.ended()


@pytest.mark.parametrize("path", [PATH, "/api/v1/me", "/healthz"])
@pytest.mark.parametrize(
    ("version", "lines"),
    [
        ("HTTP/1.1", []),
        ("HTTP/1.1", ["Host: a, b"]),
        ("HTTP/1.1", ["Host: a/b"]),
        ("HTTP/1.1", ["Host: a@b"]),
        ("HTTP/0.9", ["Host: a"]),
        ("HTTP/2.0", ["Host: a"]),
        ("RTSP/1.0", ["Host: a"]),
        ("RTSP/1.1", ["Host: a"]),
        ("HTTP/1.0", ["Host: a", "Transfer-Encoding: chunked"]),
        ("HTTP/1.1", ["Host: a", f"Content-Length: {'0' * 5_000}"]),
    ],
)
@pytest.mark.parametrize("offer", [{}, HANDSHAKE])
def test_head_that_two_readers_may_read_differently_is_refused(
    stack: Stack, path: str, version: str, lines: list[str], offer: dict[str, str]
) -> None:
    headers = [*lines, *(f"{name}: {value}" for name, value in {**stack.headers, **offer}.items())]
    with stack.gateway.connect() as connection:
        connection.send("\r\n".join([f"GET {path} {version}", *headers, "", ""]).encode())
        connection.send(b"GET /healthz?smuggled HTTP/1.1\r\nHost: a\r\n\r\n")
        received = drained(connection)
        assert received.startswith(b"HTTP/1.1 400 ")
        assert received.count(b"HTTP/1.1 ") == 1, received
        assert connection.ended()


def test_handshake_of_an_older_version_becomes_no_websocket(stack: Stack) -> None:
    with stack.gateway.connect() as connection:
        connection.send(request(PATH, headers={**stack.headers, **HANDSHAKE}, method="GET", version="1.0"))
        assert connection.read().status == 405


# ---- open connections


def test_websockets_count_as_connections_of_the_worker_and_of_their_address(tmp_path: Path) -> None:
    bounds = {"connections": 60, "connections_per_address": 20}
    with open_stack(tmp_path, {"server": bounds}) as stack, ExitStack() as held:
        stack.gateway.books.domain(stack.team, "example.com")
        forged = request(PATH, headers={**HANDSHAKE, "Origin": "https://example.com"}, method="GET")

        def opened(source: str, count: int) -> list[int]:
            connections = [held.enter_context(stack.gateway.connect(source=source)) for _ in range(count)]
            for connection in connections:
                connection.send(forged)
            return [connection.read(to="HEAD").status for connection in connections]

        assert opened("127.0.0.2", 30) == [101] * 20 + [503] * 10
        with stack.gateway.connect(source="127.0.0.9") as connection:
            assert connection.exchange(PATH, call("eth_chainId"), stack.headers).status == 200
        assert opened("127.0.0.3", 20) == [101] * 10 + [503] * 10, "its network leaves as many to others"
        assert opened("127.0.0.4", 5) == [503] * 5
        assert opened("127.0.1.4", 20) == [101] * 15 + [503] * 5
        assert opened("127.0.2.4", 1) == [101]
        held.close()
        eventually(lambda: opened("127.0.0.5", 1) == [101], what="room again")


def test_handshakes_that_are_never_finished_count_by_worker_and_address(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    files = {"tls_certificate": str(certificate.certificate), "tls_key": str(certificate.key)}
    server = {**files, "connections": 50, "connections_per_address": 20}
    context = certificate.client_context()
    with ExitStack() as held, open_stack(tmp_path / "service", {"server": server}, tls=context) as stack:

        def unfinished(source: str, count: int) -> list[RawConnection]:
            connections = [
                held.enter_context(RawConnection.open(stack.gateway.port, source=source)) for _ in range(count)
            ]
            for number, connection in enumerate(connections):
                # The beginning of a handshake, or nothing at all.
                with suppress(OSError):
                    connection.send(b"\x16\x03\x01\x02\x00" if number % 2 else b"")
            return connections

        def open_still(connections: list[RawConnection]) -> int:
            return sum(not _has_ended(connection) for connection in connections)

        def is_answered(source: str) -> bool:
            try:
                with stack.gateway.connect(source=source) as connection:
                    return connection.exchange(PATH, call("eth_chainId"), stack.headers).status == 200
            except OSError:
                return False

        first = unfinished("127.0.0.2", 40)
        eventually(lambda: open_still(first) == 20, what="the end of those beyond the bound of an address")
        assert is_answered("127.0.0.9")
        others = unfinished("127.0.0.3", 20) + unfinished("127.0.1.4", 30)
        eventually(lambda: open_still(first + others) <= 50, what="the end of those beyond the bound of a worker")
        for connection in first + others:
            connection.socket.close()
        eventually(lambda: is_answered("127.0.0.9"), what="room again")
        unfinished("127.0.0.5", 10)
    # The service has stopped meanwhile, though some never finished.


def _has_ended(connection: RawConnection) -> bool:
    connection.socket.setblocking(False)
    try:
        return not connection.socket.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


# ---- unread answers


def test_unread_answers_count_against_the_budget(stack: Stack) -> None:
    body = b'{"jsonrpc":"2.0","id":1,"result":"%b"}' % (b"a" * (8 << 20))
    stack.node.on("eth_getLogs", Reply(body))
    with ExitStack() as held:
        connections = [held.enter_context(stack.gateway.connect()) for _ in range(60)]
        for connection in connections:
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            connection.send(stack.request(1, "eth_getLogs") * 4)
        eventually(lambda: len(stack.node.bodies("eth_getLogs")) >= 5, what="the calls upstream")
        assert answered_soon(stack) < MAX_STALL_SECONDS


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("tls")
    certificate = make_certificate(folder)
    files = {"tls_certificate": str(certificate.certificate), "tls_key": str(certificate.key)}
    with open_stack(folder / "service", {"server": files}, tls=certificate.client_context()) as it:
        yield it
        assert "Traceback" not in log_of(it)


@pytest.fixture(params=["stack", "encrypted"])
def road(request: pytest.FixtureRequest) -> Stack:
    found: Stack = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("how", ["kept", "close", "1.0", "half-closed"])
def test_unread_answer_counts_however_its_connection_ends(road: Stack, how: str) -> None:
    body = b'{"jsonrpc":"2.0","id":1,"result":"%b"}' % (b"a" * (8 << 20))
    road.node.on("eth_getLogs", Reply(body))

    def held() -> float:
        return road.gateway.metrics()["tollgate_buffered_bytes"]

    headers = {**road.headers, **({"Connection": "close"} if how == "close" else {})}
    version = "1.0" if how == "1.0" else "1.1"
    eventually(lambda: held() == 0, what="the end of what came before")
    with road.gateway.connect() as connection:
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.send(request(PATH, call("eth_getLogs"), headers, version=version))
        if how == "half-closed" and road.gateway.tls is None:
            connection.socket.shutdown(socket.SHUT_WR)
        # What the kernel has not taken. As a whole it counts for moments, while it is read and handed on.
        eventually(lambda: 1 << 20 < held() < len(body), what="an answer that waits")
        assert answered_soon(road) < MAX_STALL_SECONDS
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    eventually(lambda: held() == 0, what="its memory")


def test_unread_answer_to_a_websocket_counts(road: Stack) -> None:
    body = b'{"jsonrpc":"2.0","id":1,"result":"%b"}' % (b"a" * (8 << 20))
    road.node.on("eth_getLogs", Reply(body))

    def held() -> float:
        return road.gateway.metrics()["tollgate_buffered_bytes"]

    eventually(lambda: held() == 0, what="the end of what came before")
    with road.gateway.connect() as connection:
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.send(request(PATH, headers={**HANDSHAKE, **road.headers}, method="GET"))
        assert connection.read(to="HEAD").status == 101
        message = call("eth_getLogs")
        connection.send(b"\x81" + bytes([0x80 | len(message)]) + b"\x00" * 4 + message)
        eventually(lambda: 1 << 20 < held() < len(body), what="an answer that waits")
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    eventually(lambda: held() == 0, what="its memory")


def test_answers_that_are_read_byte_by_byte_count_against_the_budget(stack: Stack) -> None:
    body = b'{"jsonrpc":"2.0","id":1,"result":"%b"}' % (b"a" * (8 << 20))
    stack.node.on("eth_getLogs", Reply(body))
    with ExitStack() as held:
        connections = [held.enter_context(stack.gateway.connect()) for _ in range(40)]
        for connection in connections:
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            connection.send(stack.request(1, "eth_getLogs"))
        until = time.monotonic() + 3
        while time.monotonic() < until:
            for connection in connections:
                connection.socket.setblocking(False)
                with suppress(OSError):
                    connection.socket.recv(1)
        assert answered_soon(stack) < MAX_STALL_SECONDS


def test_one_address_takes_a_part_of_the_budget_with_bodies_that_never_end(tmp_path: Path) -> None:
    with open_stack(tmp_path, {"limits": {"buffer_bytes": 16 << 20}}) as stack, ExitStack() as held:
        # Without a credential: that is looked at when a body is whole.
        for _ in range(40):
            connection = held.enter_context(stack.gateway.connect(source="127.0.0.2"))
            connection.send(request(PATH, headers={**JSON, "Content-Length": "1000000"}))
            with suppress(OSError):
                connection.send(b" " * 900_000)
        eventually(lambda: stack.gateway.metrics()["tollgate_buffered_bytes"] > 2 << 20, what="the bodies")
        large = request(PATH, call("eth_chainId", "a" * 900_000), stack.headers)
        with stack.gateway.connect(source="127.0.0.2") as connection:
            connection.send(large)
            assert connection.read().status == 503
        with stack.gateway.connect(source="127.0.0.3") as connection:
            connection.send(large)
            assert connection.read().status == 200
        for number in range(3, 9):
            for _ in range(6):
                connection = held.enter_context(stack.gateway.connect(source=f"127.0.0.{number}"))
                connection.send(request(PATH, headers={**JSON, "Content-Length": "1000000"}))
                with suppress(OSError):
                    connection.send(b" " * 900_000)
        with stack.gateway.connect(source="127.0.1.3") as connection:
            connection.send(large)
            assert connection.read().status == 200, "all addresses of a network leave room for others"


def test_one_address_takes_a_part_of_the_control_plane_with_bodies_that_never_end(stack: Stack) -> None:
    head = {"Content-Type": "application/x-www-form-urlencoded"}
    path = "/api/v1/oauth/device_authorization"
    with ExitStack() as held:
        # Ever smaller ones, until not even a short form fits.
        for size in (200_000, 20_000, 2_000, 200):
            for _ in range(100):
                connection = held.enter_context(stack.gateway.connect(source="127.0.0.2"))
                connection.send(request(path, b"a" * size, {**head, "Content-Length": str(size + 1)}))
        form = b"client_id=tollgate-cli&machine=" + b"m" * 100
        with stack.gateway.connect(source="127.0.0.2") as connection:
            assert eventually(
                lambda: connection.exchange(path, form, head).status == 503, what="the part to be taken"
            )
        with stack.gateway.connect(source="127.0.0.3") as connection:
            assert connection.exchange(path, form, head).status == 200


def test_handshake_behind_an_answer_that_waits_for_its_caller_frees_its_memory(stack: Stack) -> None:
    body = b'{"jsonrpc":"2.0","id":1,"result":"%b"}' % (b"a" * (12 << 20))
    stack.node.on("eth_getLogs", Reply(body))

    def held() -> float:
        return stack.gateway.metrics()["tollgate_buffered_bytes"]

    for _ in range(3):
        with stack.gateway.connect() as connection:
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            connection.send(stack.request(1, "eth_getLogs"))
            eventually(lambda: held() > 1 << 20, what="an answer that waits")
            connection.send(request(PATH, headers={**HANDSHAKE, **stack.headers}, method="GET"))
            assert answered_soon(stack) < MAX_STALL_SECONDS
        eventually(lambda: held() == 0, what="its memory")


# ---- messages without an end


@pytest.mark.parametrize(
    "unfinished",
    [
        b"\x81\xff" + (1_000_001).to_bytes(8, "big") + b"\x00" * 4 + b" " * 1_000_000,
        b"\x01\xfe\xff\xff"
        + b"\x00" * 4
        + b" " * 65_535
        + (b"\x00\xfe\xff\xff" + b"\x00" * 4 + b" " * 65_535) * 14,
    ],
)
def test_messages_of_websockets_that_never_end_count_against_the_budget(stack: Stack, unfinished: bytes) -> None:
    with ExitStack() as held:
        connections = [held.enter_context(stack.gateway.connect()) for _ in range(400)]
        for connection in connections:
            connection.send(request(PATH, headers={**HANDSHAKE, **stack.headers}, method="GET"))
            assert connection.read(to="HEAD").status == 101
        for connection in connections:
            with suppress(OSError):
                connection.send(unfinished)
        # All that was sent is read, and who found no room got an error.
        cut = eventually(
            lambda: [connection for connection in connections if _has_come(connection)], what="the end of some"
        )
        assert b"Too many large messages" in drained(cut[0], 1.0)
        assert answered_soon(stack) < MAX_STALL_SECONDS


def _has_come(connection: RawConnection) -> bool:
    connection.socket.setblocking(False)
    try:
        return bool(connection.socket.recv(1, socket.MSG_PEEK))
    except OSError:
        return False


# ---- the log


def frame(opcode: int, payload: bytes) -> bytes:
    """A masked frame of a client."""
    size = bytes([0x80 | len(payload)]) if len(payload) < 126 else b"\xfe" + struct.pack(">H", len(payload))
    return bytes([0x80 | opcode]) + size + b"\x00" * 4 + payload


@pytest.mark.parametrize(
    "frames",
    [
        frame(1, b"\xff\xfe\xed\xa0\x80"),
        frame(2, b"\xff" * 100),
        frame(3, b"x"),
        frame(8, b"\x00"),
        frame(8, b"\x03\xe8\xff"),
        frame(9, b"x" * 126),
        b"\x81\x05hello",
        b"\xf1\x80\x00\x00\x00\x00",
        b"\x81\xff" + b"\x7f" * 8 + b"\x00" * 4,
        b"\x80\x81\x00\x00\x00\x00x",
        frame(1, b"[" * 20_000),
        frame(1, b""),
    ],
)
def test_frames_of_any_kind_put_no_traceback_into_the_log(stack: Stack, frames: bytes) -> None:
    for _ in range(3):
        with stack.gateway.connect() as connection:
            connection.send(request(PATH, headers={**HANDSHAKE, **stack.headers}, method="GET"))
            assert connection.read(to="HEAD").status == 101
            with suppress(OSError):
                connection.send(frames * 2)
            drained(connection, 1.0)


def test_ten_thousand_bad_requests_leave_few_lines_in_the_log(stack: Stack) -> None:
    before = log_of(stack).count("\n")
    kinds = [
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST /x/eth/mainnet HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: a\r\nConnection: upgrade\r\n\r\n",
        b"POST /api/v1/oauth/token HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n\xff\xfe{",
        request(PATH, b"{", stack.headers),
        request(PATH, call("eth_chainId"), {**JSON, "Authorization": "Bearer tg_" + "x" * 38}),
        request(PATH, call("eth_chainId"), {**JSON, "Origin": "https://\xed"}),
        request("/api/v1/teams/%ff%00/audit", headers={"Authorization": "Bearer \xff"}, method="GET"),
        request("/console/../../etc/passwd?%00", method="GET"),
    ]
    sent = 0
    for kind in kinds:
        for _ in range(50):
            with stack.gateway.connect() as connection, suppress(OSError):
                connection.send(kind * 20)
                sent += 20
                connection.socket.shutdown(socket.SHUT_WR)
                drained(connection, 0.05)
    assert sent == 10_000
    assert log_of(stack).count("\n") - before < 500


def test_garbage_at_a_tls_listener_leaves_few_lines_and_no_traceback(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    files = {"tls_certificate": str(certificate.certificate), "tls_key": str(certificate.key)}
    with open_stack(tmp_path / "service", {"server": files}, tls=certificate.client_context()) as stack:
        for number in range(500):
            kinds = (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"\x00" * 300, b"\x16", b"")
            with RawConnection.open(stack.gateway.port) as connection, suppress(OSError):
                connection.send(kinds[number % 4])
                if number % 3 == 0:
                    # A reset instead of an end.
                    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert stack.exchange(call("eth_chainId")).status == 200
        received = log_of(stack)
        assert "Traceback" not in received
        assert received.count("\n") < 500


def test_goodbyes_behind_calls_over_tls_leave_nothing_in_the_log(encrypted: Stack) -> None:
    gate = threading.Event()
    encrypted.node.on("eth_slow", Reply(gate=gate))
    for _ in range(10):
        with encrypted.gateway.connect() as connection, suppress(OSError):
            connection.send(request(PATH, call("eth_slow"), encrypted.headers))
            connection.socket.unwrap()  # type: ignore[attr-defined]
    gate.set()
    assert encrypted.exchange(call("eth_chainId")).status == 200
    assert "eof_received" not in log_of(encrypted)


def test_lines_of_one_kind_that_are_left_out_are_counted(stack: Stack) -> None:
    """The log is JSON for programs: what is cut must still be readable, line by line."""
    for line in log_of(stack).splitlines():
        assert isinstance(json.loads(line), dict), line
