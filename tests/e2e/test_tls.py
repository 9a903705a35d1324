"""TLS by settings, and HTTP/2 by the nginx that people put in front; who the client is, behind it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx
import pytest

from parts.certs import Certificate, make_certificate
from parts.nginx import Nginx, tls_proxy
from parts.raw_http import JSON, RawConnection, call, request
from parts.stack import PATH, Stack, open_stack
from parts.tollgate import linux_only, refusal_to_start, write_settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.e2e, linux_only]

HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
PAGE = {**JSON, "Origin": "https://example.com"}


@dataclass(frozen=True)
class Front:
    stack: Stack
    proxy: Nginx
    certificate: Certificate

    def client(self, address: str) -> httpx.Client:
        """Make a client that calls nginx by HTTP/2 from this address."""
        context = self.certificate.client_context()
        transport = httpx.HTTPTransport(http2=True, verify=context, local_address=address)
        return httpx.Client(transport=transport, base_url=f"https://127.0.0.1:{self.proxy.port}")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def front(tmp_path: Path, certificate: Certificate) -> Iterator[Front]:
    settings = {"server": {"trusted_proxies": ["127.0.0.1"]}}
    with open_stack(tmp_path / "gateway", settings) as stack:
        stack.gateway.books.domain(stack.team, "example.com", address_per_minute=2)
        with tls_proxy(tmp_path / "nginx", certificate, f"127.0.0.1:{stack.gateway.port}") as proxy:
            yield Front(stack, proxy, certificate)


def test_tls_with_a_generated_certificate(tmp_path: Path, certificate: Certificate) -> None:
    files = {"tls_certificate": str(certificate.certificate), "tls_key": str(certificate.key)}
    with open_stack(tmp_path, {"server": files}, tls=certificate.client_context()) as stack:
        assert stack.gateway.base_url.startswith("https://")
        with stack.gateway.connect() as connection:
            for number in range(3):
                answer = connection.exchange(PATH, call("eth_chainId", id=number), stack.headers)
                assert answer.json()["id"] == number
            connection.send(b"".join(stack.request(number) for number in range(5)))
            assert [connection.read().json()["id"] for _ in range(5)] == list(range(5))
            assert connection.exchange(PATH, b" " * (3 << 20), stack.headers).status == 413
        with pytest.raises(ssl.SSLCertVerificationError):
            RawConnection.open(stack.gateway.port, tls=ssl.create_default_context())


def test_every_answer_binds_browsers_to_https_where_the_certificate_is_ours(
    tmp_path: Path, certificate: Certificate
) -> None:
    files = {"tls_certificate": str(certificate.certificate), "tls_key": str(certificate.key)}
    with open_stack(tmp_path, {"server": files}, tls=certificate.client_context()) as stack:
        requests = {
            "a result": stack.request(1),
            "a batch": request(PATH, b"[" + call("eth_chainId") + b"]", stack.headers),
            "a refusal": request(PATH, call("eth_chainId"), JSON),
            "a preflight": request(PATH, headers=PAGE, method="OPTIONS"),
            "another method": request(PATH, method="GET"),
            "no JSON": request(PATH, b"{", stack.headers),
            "no such path": request("/nowhere", method="GET"),
            "the console": request("/console/sign-in", method="GET"),
            "the API": request("/api/v1/me", method="GET"),
            "health": request("/healthz", method="GET"),
            "no HTTP": b"\x00\x01\r\n\r\n",
            "no WebSocket": request(PATH, headers={**HANDSHAKE, "Sec-WebSocket-Version": "9"}, method="GET"),
            "a WebSocket without a token": request(PATH, headers=HANDSHAKE, method="GET"),
            "a WebSocket": request(PATH, headers={**HANDSHAKE, **stack.headers}, method="GET"),
        }
        for what, sent in requests.items():
            with stack.gateway.connect() as connection:
                connection.send(sent)
                assert connection.read(to="HEAD").headers["strict-transport-security"] == "max-age=31536000", what


def test_certificate_that_cannot_be_used_is_reported(tmp_path: Path, certificate: Certificate) -> None:
    swapped = {"tls_certificate": str(certificate.key), "tls_key": str(certificate.certificate)}
    file = write_settings(tmp_path, {"eth/mainnet": ["http://127.0.0.1:1"]}, {"server": swapped})
    assert "tls_certificate" in refusal_to_start(file)


def test_http2_through_nginx(front: Front) -> None:
    with front.client("127.0.0.2") as client:
        answer = client.post(PATH, content=call("eth_chainId", id="h2"), headers=front.stack.headers)
        assert (answer.http_version, answer.status_code) == ("HTTP/2", 200)
        assert answer.json()["id"] == "h2"
        assert answer.headers["x-request-id"]
        refused = client.post(PATH, content=b"{bad", headers=front.stack.headers)
        assert (refused.http_version, refused.status_code) == ("HTTP/2", 400)
        assert refused.json()["error"]["data"]["reason"] == "parse_error"


def test_address_limit_is_the_clients_behind_a_trusted_proxy(front: Front) -> None:
    with front.client("127.0.0.2") as one, front.client("127.0.0.3") as other:
        statuses = [one.post(PATH, content=call("eth_chainId"), headers=PAGE).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]
        assert other.post(PATH, content=call("eth_chainId"), headers=PAGE).status_code == 200


def test_forged_address_in_front_of_the_proxy_is_ignored(front: Front) -> None:
    with front.client("127.0.0.2") as client:
        statuses = [
            client.post(
                PATH, content=call("eth_chainId"), headers={**PAGE, "X-Forwarded-For": f"10.0.0.{number}"}
            ).status_code
            for number in range(3)
        ]
    assert statuses == [200, 200, 429]


def test_forged_address_past_the_proxy_is_ignored(front: Front) -> None:
    with front.stack.gateway.connect(source="127.0.0.4") as connection:
        statuses = [
            connection.exchange(PATH, call("eth_chainId"), {**PAGE, "X-Forwarded-For": f"10.0.0.{number}"}).status
            for number in range(3)
        ]
    assert statuses == [200, 200, 429]


def test_no_proxy_is_trusted_unless_configured(tmp_path: Path) -> None:
    with open_stack(tmp_path) as stack:
        stack.gateway.books.domain(stack.team, "example.com", address_per_minute=2)
        with stack.gateway.connect() as connection:
            statuses = [
                connection.exchange(
                    PATH, call("eth_chainId"), {**PAGE, "X-Forwarded-For": f"10.0.0.{number}"}
                ).status
                for number in range(3)
            ]
    assert statuses == [200, 200, 429]
