"""Mail, against a server on a socket that follows the test. Nothing hangs, and no text reaches the log."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from email import message_from_bytes, policy
from email.message import EmailMessage
from io import BufferedReader
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.inner import Hands, advance

from parts.certs import Certificate, make_certificate
from tollgate.control.mail import MAX_WAITING, SECONDS, Mailer
from tollgate.settings.model import MailSettings

LINK = "https://toll.example/console/reset/tgl_" + "s3cr3t" * 6 + "x"
TEXT = f"Open this link:\n\n{LINK}\n\n.\nGrüße\n"
Lines = list[MutableMapping[str, Any]]


class Server:
    """Speaks SMTP on a port of its own, to one after the other, in a thread."""

    def __init__(self, tls: ssl.SSLContext | None, starttls: ssl.SSLContext | None, **answers: str) -> None:
        self._tls, self._starttls, self._answers = tls, starttls, answers
        self.lines: list[str] = []
        self.mails: list[EmailMessage] = []
        self.connected, self.answering = threading.Event(), threading.Event()
        self.answering.set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            connection.settimeout(20)
            self.connected.set()
            self.answering.wait(20)
            with suppress(OSError), connection:
                if self._tls:
                    connection = self._tls.wrap_socket(connection, server_side=True)
                connection.sendall(b"220 test\r\n")
                self._talk(connection, secure=bool(self._tls))

    def _talk(self, connection: socket.socket, *, secure: bool) -> None:
        with connection, connection.makefile("rb") as words:
            while line := words.readline().decode().strip():
                self.lines.append(line)
                command = line.split(maxsplit=1)[0].upper()
                answer = "550 who" if "unknown@" in line else self._answer(command, secure)
                connection.sendall(answer.encode() + b"\r\n")
                if command == "STARTTLS" and self._starttls:
                    self._talk(self._starttls.wrap_socket(connection, server_side=True), secure=True)
                    return
                if command == "DATA" and "DATA" not in self._answers:
                    self.mails.append(_read(words))
                    connection.sendall(b"250 taken\r\n")

    def _answer(self, command: str, secure: bool) -> str:
        offer = "STARTTLS" if self._starttls and not secure else "AUTH PLAIN"
        usual = {
            "EHLO": f"250-test\r\n250-{offer}\r\n250 SIZE 9999", "DATA": "354 go on", "QUIT": "221 bye",
            "STARTTLS": "220 go on", "AUTH": "235 in",
        }  # fmt: skip
        return self._answers.get(command, usual.get(command, "250 fine"))


def _read(words: BufferedReader) -> EmailMessage:
    body = b""
    while (line := words.readline()) not in {b".\r\n", b""}:
        body += line.removeprefix(b".") if line.startswith(b"..") else line
    mail = message_from_bytes(body, policy=policy.default)
    assert isinstance(mail, EmailMessage)
    return mail


@contextmanager
def serving(
    tls: ssl.SSLContext | None = None, starttls: ssl.SSLContext | None = None, **answers: str
) -> Iterator[Server]:
    server = Server(tls, starttls, **answers)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    yield server
    server.answering.set()
    server.listener.shutdown(socket.SHUT_RDWR)
    server.listener.close()
    thread.join(20)
    assert not thread.is_alive()


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Certificate:
    """A certificate that this process trusts."""
    made = make_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(made.authority))
    return made


@pytest.fixture
def lines() -> Iterator[Lines]:
    """What was logged so far."""
    with capture_logs() as captured:
        yield captured


def settings(port: int, security: str = "none", **more: str) -> MailSettings:
    return MailSettings(host="127.0.0.1", port=port, security=security, sender="Tollgate <toll@x.example>", **more)


async def send(chosen: MailSettings, to: str = "ada@x.example", subject: str = "Reset your password") -> bool:
    """Post one mail and wait until it is gone."""
    mailer = Mailer(chosen)
    posted = mailer.post(to, subject, TEXT)
    await mailer.close()
    return posted


def failures(lines: Lines) -> list[tuple[Any, ...]]:
    assert not any(part in str(lines) for part in ("s3cr3t", "Open this", "Grüße", "swordfish"))
    return [(line["event"], line.get("subject"), line.get("error")) for line in lines]


def failed(error: str) -> list[tuple[Any, ...]]:
    return [("a mail could not be sent", "Reset your password", error)]


# --- Sending -------------------------------------------------------------------------------------------


async def test_mail_arrives_whole(lines: Lines) -> None:
    with serving() as server:
        assert await send(settings(server.port))
    [mail] = server.mails
    assert (mail["From"], mail["To"], mail["Subject"]) == (
        "Tollgate <toll@x.example>", "ada@x.example", "Reset your password"
    )  # fmt: skip
    assert mail["Date"]
    assert mail["Message-ID"].endswith("@tollgate>")
    assert mail.get_content().splitlines() == TEXT.splitlines()
    assert [line.partition(" size=")[0].lower() for line in server.lines[1:]] == [
        "mail from:<toll@x.example>", "rcpt to:<ada@x.example>", "data", "quit"
    ]  # fmt: skip
    assert lines == []


async def test_mails_go_out_one_after_the_other() -> None:
    with serving() as server:
        mailer = Mailer(settings(server.port))
        for number in range(5):
            assert mailer.post(f"n{number}@x.example", "Hello", TEXT)
        await mailer.close()
    assert [mail["To"] for mail in server.mails] == [f"n{number}@x.example" for number in range(5)]


async def test_mail_is_encrypted_by_starttls(certificate: Certificate, lines: Lines) -> None:
    with serving(starttls=certificate.server_context()) as server:
        assert await send(settings(server.port, "starttls", username="toll", password="swordfish"))
    assert [line.split()[0].upper() for line in server.lines] == [
        "EHLO", "STARTTLS", "EHLO", "AUTH", "MAIL", "RCPT", "DATA", "QUIT"
    ]  # fmt: skip
    assert len(server.mails) == 1
    assert lines == []


async def test_mail_is_encrypted_by_tls(certificate: Certificate, lines: Lines) -> None:
    with serving(tls=certificate.server_context()) as server:
        assert await send(settings(server.port, "tls", username="toll", password="swordfish"))
    assert len(server.mails) == 1
    assert lines == []


async def test_without_a_host_there_is_no_mail() -> None:
    mailer = Mailer(MailSettings())
    assert not mailer.enabled
    assert not mailer.post("ada@x.example", "Hello", TEXT)
    await mailer.close()


# --- Failing -------------------------------------------------------------------------------------------


async def test_server_without_starttls_gets_nothing(lines: Lines) -> None:
    with serving() as server:
        assert await send(settings(server.port, "starttls", username="toll", password="swordfish"))
    assert [line.split()[0].upper() for line in server.lines] == ["EHLO", "QUIT"]
    assert failures(lines) == failed("SMTPNotSupportedError")


@pytest.mark.parametrize("security", ["starttls", "tls"])
async def test_server_with_an_untrusted_certificate_gets_nothing(
    tmp_path: Path, lines: Lines, security: str
) -> None:
    context = make_certificate(tmp_path).server_context()
    starttls, tls = (context, None) if security == "starttls" else (None, context)
    with serving(tls, starttls) as server:
        await send(settings(server.port, security, username="toll", password="swordfish"))
    assert server.mails == []
    assert not any("AUTH" in line.upper() for line in server.lines)
    assert failures(lines) == failed("SSLCertVerificationError")


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ({"MAIL": "451 later"}, "SMTPSenderRefused"),
        ({"RCPT": "550 who"}, "SMTPRecipientsRefused"),
        ({"DATA": "554 no"}, "SMTPDataError"),
        ({"AUTH": "535 wrong"}, "SMTPAuthenticationError"),
        ({"EHLO": "500 what", "HELO": "500 what"}, "SMTPHeloError"),
        ({"MAIL": "what is this"}, "SMTPSenderRefused"),
    ],
)
async def test_refusals_are_logged_without_the_text(lines: Lines, answers: dict[str, str], error: str) -> None:
    with serving(None, None, **answers) as server:
        assert await send(settings(server.port, username="toll", password="swordfish"))
    assert server.mails == []
    assert failures(lines) == failed(error)


async def test_server_that_is_down_is_logged(lines: Lines) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert await send(settings(port))
    assert failures(lines) == failed("ConnectionRefusedError")


async def test_login_that_cannot_be_encoded_is_logged(lines: Lines) -> None:
    with serving() as server:
        assert await send(settings(server.port, username="toll", password="swordfish-ü"))
    assert failures(lines) == failed("UnicodeEncodeError")


async def test_one_failure_does_not_keep_the_next_mail(lines: Lines) -> None:
    with serving() as server:
        mailer = Mailer(settings(server.port))
        mailer.post("unknown@x.example", "First", TEXT)
        mailer.post("ada@x.example", "Second", TEXT)
        await mailer.close()
    assert [mail["Subject"] for mail in server.mails] == ["Second"]
    assert failures(lines) == [("a mail could not be sent", "First", "SMTPRecipientsRefused")]


# --- A server that is silent ---------------------------------------------------------------------------

by_hand = pytest.mark.parametrize("new_loop", [Hands])
"""On a loop whose clock the test sets."""


@by_hand
async def test_silent_server_does_not_block_callers_or_shutdown(lines: Lines) -> None:
    with serving() as server:
        server.answering.clear()
        mailer = Mailer(settings(server.port))
        assert all(mailer.post("ada@x.example", "Hello", TEXT) for _ in range(3))
        await asyncio.to_thread(server.connected.wait, 20)
        closing = asyncio.create_task(mailer.close())
        await advance(SECONDS - 1)
        assert not closing.done()
        await advance(1)
        await closing
        server.answering.set()
    # The one that was under way went out; those behind it were given up.
    assert len(server.mails) == 1


@by_hand
async def test_waiting_mails_are_bounded(lines: Lines) -> None:
    with serving() as server:
        server.answering.clear()
        mailer = Mailer(settings(server.port))
        posted = [mailer.post("ada@x.example", "Hello", TEXT) for _ in range(MAX_WAITING + 2)]
        assert posted == [True] * MAX_WAITING + [False] * 2
        closing = asyncio.create_task(mailer.close())
        await asyncio.to_thread(server.connected.wait, 20)
        await advance(SECONDS)
        await closing
        server.answering.set()
    assert failures(lines)[:2] == [("a mail was dropped: too many wait for the server", "Hello", None)] * 2
