"""Calling webhooks: the rules of every fetch, shown against a server with TLS on loopback."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parts.certs import Certificate, make_certificate
from tollgate.api.billing import MAX_WEBHOOK
from tollgate.control.outbound import Fetcher, FetchRefused, Missing, Unreachable
from tollgate.control.webhooks import Target, target_of

HOST = "hooks.example"
SECRET = "T0-secret-part"
BODY = b'{"id":"alr_1"}'


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("certificate"), HOST)


class Names:
    """DNS as the test sets it."""

    def __init__(self, *addresses: str) -> None:
        self.addresses_ = list(addresses)
        self.lookups: list[str] = []

    async def addresses(self, host: str) -> list[str]:
        self.lookups.append(host)
        return self.addresses_


class Receiver:
    """Answers every call with the same bytes, and keeps what it was sent."""

    def __init__(self, reply: bytes, *, silent: bool = False) -> None:
        self.reply = reply
        self.silent = silent
        self.port = 0
        self.calls: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            self.calls.append(head + await reader.readexactly(int(length.partition(b":")[2])))
            if self.silent:
                await reader.read()
            writer.write(self.reply)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the other side gave up
        finally:
            writer.close()

    @asynccontextmanager
    async def listening(self, certificate: Certificate) -> AsyncIterator[Receiver]:
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0, ssl=certificate.server_context())
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self


async def call(
    receiver: Receiver,
    certificate: Certificate,
    *,
    names: Names | None = None,
    allow_private: bool = True,
    seconds: float = 5.0,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Call a receiver under the name of the host."""
    async with receiver.listening(certificate):
        fetcher = Fetcher(
            names or Names("127.0.0.1"),
            allow_private=allow_private,
            seconds=seconds,
            tls=tls or certificate.client_context(),
        )
        target = target_of(f"https://{HOST}:{receiver.port}/{SECRET}?a=b")
        await fetcher.post(target.host, target.url, BODY, {"Content-Type": "application/json", "X-One": "1"})


def answer(status: str, *headers: str, body: bytes = b"") -> bytes:
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers])
    return head.encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize("status", ["200 OK", "201 Created", "202 Accepted", "204 No Content"])
async def test_every_2xx_is_a_success(certificate: Certificate, status: str) -> None:
    receiver = Receiver(answer(status))
    await call(receiver, certificate)
    (sent,) = receiver.calls
    head, _, body = sent.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    assert first == f"POST /{SECRET}?a=b HTTP/1.1"
    assert body == BODY
    assert headers["host"] == f"{HOST}:{receiver.port}"
    assert (headers["content-type"], headers["x-one"]) == ("application/json", "1")
    assert headers["content-length"] == str(len(BODY))
    assert headers["user-agent"].startswith("tollgate/")


async def test_body_of_a_success_is_not_read(certificate: Certificate) -> None:
    await call(Receiver(answer("200 OK", body=b"x" * 1_000_000)), certificate)


@pytest.mark.parametrize(
    "status", ["301 Moved Permanently", "302 Found", "307 Temporary Redirect", "308 Elsewhere"]
)
async def test_a_redirect_is_refused_and_not_followed(certificate: Certificate, status: str) -> None:
    receiver = Receiver(answer(status, "Location: https://inner.example/"))
    names = Names("127.0.0.1")
    with pytest.raises(FetchRefused, match="redirects are not followed"):
        await call(receiver, certificate, names=names)
    assert (len(receiver.calls), names.lookups) == (1, [HOST])


@pytest.mark.parametrize("status", ["400 Bad Request", "404 Not Found", "410 Gone", "500 Oops", "503 Away"])
async def test_everything_else_may_be_tried_again(certificate: Certificate, status: str) -> None:
    with pytest.raises(Unreachable, match=f"answers {status[:3]}"):
        await call(Receiver(answer(status)), certificate)


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["10.0.0.1"], ["9.9.9.9", "169.254.169.254"], ["::1"]])
async def test_no_address_inside_a_network_is_called(certificate: Certificate, addresses: list[str]) -> None:
    receiver = Receiver(answer("200 OK"))
    with pytest.raises(FetchRefused, match="only public addresses"):
        await call(receiver, certificate, names=Names(*addresses), allow_private=False)
    assert receiver.calls == []


async def test_a_name_without_an_address_is_missing(certificate: Certificate) -> None:
    with pytest.raises(Missing):
        await call(Receiver(b""), certificate, names=Names())


async def test_a_receiver_that_is_silent_costs_no_more_than_the_deadline(certificate: Certificate) -> None:
    with pytest.raises(Unreachable, match=r"did not answer within 0\.3 s"):
        await call(Receiver(b"", silent=True), certificate, seconds=0.3)


async def test_an_untrusted_certificate_is_refused(certificate: Certificate, tmp_path: Path) -> None:
    untrusted = make_certificate(tmp_path, HOST)
    receiver = Receiver(answer("200 OK"))
    with pytest.raises(Unreachable, match="certificate is refused"):
        await call(receiver, certificate, tls=untrusted.client_context())
    assert receiver.calls == []


@pytest.mark.parametrize("reply", [b"", b"SSH-2.0\r\n", answer("500 Oops"), answer("302 Found")])
async def test_no_error_message_contains_the_path(certificate: Certificate, reply: bytes) -> None:
    with pytest.raises((FetchRefused, Unreachable)) as caught:
        await call(Receiver(reply), certificate)
    assert SECRET not in str(caught.value)
    assert HOST in str(caught.value)


# ---- addresses


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://hooks.example", "https://hooks.example/"),
        ("https://hooks.example?x=1", "https://hooks.example/?x=1"),
        ("https://HOOKS.example:443/A", "https://hooks.example/A"),
        ("https://hooks.example.:8443/a/b?c=d&e", "https://hooks.example:8443/a/b?c=d&e"),
        ("https://xn--hks-tna.example/", "https://xn--hks-tna.example/"),
        ("https://hooks.example/a@b?c=@d", "https://hooks.example/a@b?c=@d"),
    ],
)
def test_an_address_is_kept_in_one_form(text: str, url: str) -> None:
    assert target_of(text).url == url


def test_repr_shows_the_host_alone() -> None:
    assert repr(target_of(f"https://{HOST}/{SECRET}")) == f"Target({HOST!r})"


@given(st.text(max_size=60) | st.text(max_size=60).map("https://hooks.example".__add__))
def test_whatever_is_accepted_leads_to_a_named_host_by_https(text: str) -> None:
    try:
        target = target_of(text)
    except FetchRefused:
        return
    assert isinstance(target, Target)
    assert target.url.startswith(f"https://{target.host}")
    assert len(text) <= MAX_WEBHOOK
    assert target.url.isascii()
    assert target_of(target.url) == target
