"""HTTP on real sockets: retries, bounds, and each way to fail."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from parts.certs import make_certificate
from tollgate.cli import transport as transport_module
from tollgate.cli.failures import Failure, Lost, NoServer, NotTollgate, TooSlow
from tollgate.cli.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@pytest.fixture(autouse=True)
def _no_proxies(clean_environment: None) -> None:
    """The machine's own proxies are not used."""


@contextmanager
def serving(answer: Callable[[socket.socket], None], listener: socket.socket | None = None) -> Iterator[str]:
    """A server that does with each connection as scripted, until the test ends."""
    listening = listener or socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(10)
                with suppress(OSError):  # the client may leave first
                    answer(connection)

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(30)


def sending(*parts: bytes) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        connection.recv(65536)
        for part in parts:
            connection.sendall(part)

    return answer


def unheard() -> tuple[socket.socket, str]:
    """A port that is taken and refuses, until `listen` is called."""
    closed = socket.socket()
    closed.bind(("127.0.0.1", 0))
    return closed, f"http://127.0.0.1:{closed.getsockname()[1]}"


def failure_at(url: str) -> Failure:
    with Transport(url) as transport, pytest.raises(Failure) as caught:
        transport.send("GET", "/")
    return caught.value


def test_an_answer_has_its_status_headers_and_body() -> None:
    with serving(sending(OK)) as url, Transport(url) as transport:
        reply = transport.send("GET", "/")
    assert (reply.status, reply.headers["CONTENT-length"], reply.body) == (200, "2", b"{}")
    assert "{}" not in repr(reply)


def test_a_get_that_is_refused_is_sent_once_more() -> None:
    closed, url = unheard()
    pauses: list[float] = []

    def answer_once() -> None:
        connection, _ = closed.accept()
        with connection:
            sending(OK)(connection)

    thread = threading.Thread(target=answer_once, daemon=True)

    def server_comes_back(pause: float) -> None:
        pauses.append(pause)
        closed.listen()
        thread.start()

    with closed, Transport(url, sleep=server_comes_back) as transport:
        assert transport.send("GET", "/").status == 200
        thread.join(30)
    assert len(pauses) == 1


def test_a_get_that_is_refused_twice_gives_up() -> None:
    closed, url = unheard()
    pauses: list[float] = []
    with closed, Transport(url, sleep=pauses.append) as transport, pytest.raises(NoServer, match="is it running"):
        transport.send("GET", "/")
    assert len(pauses) == 1


@pytest.mark.parametrize("method", ["POST", "PATCH", "DELETE"])
def test_nothing_but_a_get_is_sent_twice(method: str) -> None:
    closed, url = unheard()
    pauses: list[float] = []
    with closed, Transport(url, sleep=pauses.append) as transport, pytest.raises(NoServer):
        transport.send(method, "/")
    assert pauses == []


def test_a_name_that_does_not_resolve_is_not_tried_twice() -> None:
    pauses: list[float] = []
    with Transport("http://nowhere.invalid", sleep=pauses.append) as transport, pytest.raises(NoServer):
        transport.send("GET", "/")
    assert pauses == []


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [b"HTTP/1.1"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhal"],
        [b"SSH-2.0-OpenSSH_9.2\r\n"],
    ],
)
def test_an_answer_that_breaks_off_or_is_no_http_is_lost(parts: list[bytes]) -> None:
    with serving(sending(*parts)) as url, Transport(url) as transport, pytest.raises(Lost, match="broke before"):
        transport.send("GET", "/")


def test_a_chunked_answer_is_read_whole() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    with serving(sending(chunked)) as url, Transport(url) as transport:
        assert transport.send("GET", "/").body == b"abcde"


def test_a_server_that_is_silent_is_given_up_in_time() -> None:
    done = threading.Event()

    def say_nothing(connection: socket.socket) -> None:
        done.wait(30)

    with serving(say_nothing) as url, Transport(url, total=0.05) as transport:
        with pytest.raises(TooSlow, match="did not answer within"):
            transport.send("GET", "/")
        done.set()


def test_an_answer_without_an_end_is_not_read_for_ever() -> None:
    def flood(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b"x" * 1_000_000)

    with serving(flood) as url, Transport(url) as transport, pytest.raises(NotTollgate, match="is too long"):
        transport.send("GET", "/")


def test_a_redirect_is_an_answer_like_any_other() -> None:
    away = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    with serving(sending(away)) as url, Transport(url) as transport:
        assert transport.send("GET", "/").status == 302


def test_an_untrusted_certificate_is_refused_and_the_error_names_how_to_trust_it(tmp_path: Path) -> None:
    context = make_certificate(tmp_path).server_context()

    def shake_hands(connection: socket.socket) -> None:
        with pytest.raises((ssl.SSLError, OSError)):
            context.wrap_socket(connection, server_side=True)

    with serving(shake_hands) as url:
        failure = failure_at(url.replace("http://", "https://"))
    assert "cannot be trusted or TLS fails there (unable to get local issuer certificate)" in str(failure)
    assert "SSL_CERT_FILE" in str(failure)


def test_https_on_a_port_for_plain_http_proposes_http() -> None:
    with serving(sending(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as url:
        secure = url.replace("http://", "https://")
        assert str(failure_at(secure)) == f"{secure} does not speak TLS: use {url} instead."


def test_http_on_a_port_for_tls_proposes_https(tmp_path: Path) -> None:
    context = make_certificate(tmp_path).server_context()

    def shake_hands(connection: socket.socket) -> None:
        with suppress(ssl.SSLError):
            context.wrap_socket(connection, server_side=True).close()

    with serving(shake_hands) as url:
        assert str(failure_at(url)) == f"{url} speaks TLS: use {url.replace('http', 'https')} instead."


@pytest.mark.parametrize(("method", "speaks"), [("GET", False), ("POST", True), ("PATCH", True), ("DELETE", True)])
def test_only_requests_that_change_something_warn_of_a_possible_change(method: str, speaks: bool) -> None:
    def leave(connection: socket.socket) -> None:
        connection.recv(65_536)

    with serving(leave) as url, Transport(url) as transport, pytest.raises(Lost) as caught:
        transport.send(method, "/api/v1/teams")
    assert ("A change may have been made" in str(caught.value)) is speaks


def test_a_certificate_of_an_authority_that_is_trusted_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = make_certificate(tmp_path)
    context = certificate.server_context()
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.authority))

    def answer(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secure:
            secure.recv(65536)
            secure.sendall(OK)

    with serving(answer) as url, Transport(url.replace("http://", "https://")) as transport:
        assert transport.send("GET", "/").status == 200


def test_a_proxy_of_the_environment_is_used_but_never_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[bytes] = []

    def proxy(connection: socket.socket) -> None:
        requests.append(connection.recv(65536).splitlines()[0])
        connection.sendall(OK)

    with serving(proxy) as url:
        monkeypatch.setenv("HTTP_PROXY", url)
        monkeypatch.setenv("http_proxy", url)
        with Transport("http://tollgate.invalid") as transport:
            assert transport.send("GET", "/api/v1/service").status == 200
        with serving(sending(OK)) as own, Transport(own) as transport:
            assert transport.send("GET", "/").status == 200
    assert requests == [b"GET http://tollgate.invalid/api/v1/service HTTP/1.1"]


def test_an_unavailable_proxy_is_distinguished_from_an_unavailable_server(monkeypatch: pytest.MonkeyPatch) -> None:
    closed, url = unheard()
    monkeypatch.setenv("http_proxy", url)
    with closed, Transport("http://tollgate.invalid") as transport, pytest.raises(NoServer, match="The proxy on"):
        transport.send("POST", "/")


def test_the_deadlines_are_as_documented() -> None:
    assert (transport_module.CONNECT_SECONDS, transport_module.READ_SECONDS) == (10, 40)
