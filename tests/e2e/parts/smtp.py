"""A mail server of the test's own: it keeps every mail that it is given, and delivers none.

Plain, with STARTTLS, or in TLS from the first byte. A wait is a gate that the test opens.
"""

from __future__ import annotations

import base64
import email
import email.policy
import re
import socketserver
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .ports import LOOPBACK
from .processes import eventually

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator
    from email.message import EmailMessage

Security = Literal["none", "starttls", "tls"]
SECONDS = 20.0


@dataclass(frozen=True)
class Mail:
    """A mail as it was handed over."""

    sender: str
    recipients: tuple[str, ...]
    message: EmailMessage
    encrypted: bool

    @property
    def text(self) -> str:
        """Its text."""
        content: str = self.message.get_content()
        return content.replace("\r\n", "\n")

    @property
    def link(self) -> str:
        """The one link in it."""
        (found,) = re.findall(r"^https?://\S+$", self.text, re.MULTILINE)
        return str(found)


class MailServer(socketserver.ThreadingTCPServer):
    """A running mail server."""

    daemon_threads = False  # so that closing waits for them
    allow_reuse_address = True

    def __init__(self, port: int, security: Security, tls: ssl.SSLContext | None) -> None:
        self.security = security
        self.tls = tls
        self.mails: list[Mail] = []
        self.logins: list[str] = []
        """User name and password of each login, parted by a colon."""
        self.greets = threading.Event()
        """While it is not set, the server accepts connections and sends nothing."""
        self.greets.set()
        self.over = threading.Event()
        super().__init__((LOOPBACK, port), _Conversation)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server_address[1])

    def to(self, address: str) -> list[Mail]:
        """Give the mails to an address so far."""
        return [mail for mail in list(self.mails) if address in mail.recipients]

    def first_to(self, address: str, subject: str = "") -> Mail:
        """Wait for a mail to an address whose subject has these words."""

        def found() -> Mail | None:
            fitting = (mail for mail in self.to(address) if subject in mail.message["Subject"])
            return next(fitting, None)

        mail = eventually(found, what=f"a mail to {address}")
        assert mail is not None
        return mail

    def handle_error(self, request: object, client_address: object) -> None:
        """Keep quiet: the other side may leave whenever it likes."""


class _Conversation(socketserver.BaseRequestHandler):
    server: MailServer

    def setup(self) -> None:
        self.request.settimeout(SECONDS)
        self._lines = self.request.makefile("rb")
        self._encrypted = False

    def finish(self) -> None:
        self._lines.close()
        self.request.close()

    def handle(self) -> None:
        if self.server.security == "tls":
            self._encrypt()
        while not (self.server.greets.wait(0.02) or self.server.over.is_set()):
            pass
        self._send_line("220 test ESMTP")
        while line := self._lines.readline():
            verb, _, rest = line.decode("ascii").strip().partition(" ")
            self._send_line(self._answer(verb.upper(), rest))
            if verb.upper() == "STARTTLS":
                self._encrypt()
            if verb.upper() == "QUIT":
                return

    def _answer(self, verb: str, rest: str) -> str:
        match verb:
            case "EHLO":
                offers_tls = self.server.security == "starttls" and not self._encrypted
                return "\r\n".join(["250-test", *(["250-STARTTLS"] if offers_tls else []), "250 AUTH PLAIN"])
            case "AUTH":
                _, user, password = base64.b64decode(rest.partition(" ")[2]).decode().split("\0")
                self.server.logins.append(f"{user}:{password}")
                return "235 welcome"
            case "STARTTLS":
                return "220 go on"
            case "MAIL":
                self._sender, self._recipients = _address(rest), []
            case "RCPT":
                self._recipients.append(_address(rest))
            case "DATA":
                self._send_line("354 go on")
                self._take()
        return "221 bye" if verb == "QUIT" else "250 ok"

    def _take(self) -> None:
        lines: list[bytes] = []
        while (line := self._lines.readline()) not in (b".\r\n", b""):
            lines.append(line.removeprefix(b"."))
        message = email.message_from_bytes(b"".join(lines), policy=email.policy.default)
        self.server.mails.append(Mail(self._sender, tuple(self._recipients), message, self._encrypted))

    def _encrypt(self) -> None:
        assert self.server.tls is not None
        self._lines.close()
        self.request = self.server.tls.wrap_socket(self.request, server_side=True)
        self._lines = self.request.makefile("rb")
        self._encrypted = True

    def _send_line(self, line: str) -> None:
        self.request.sendall(line.encode() + b"\r\n")


def _address(rest: str) -> str:
    """Read `FROM:<ada@example.com>` and the like."""
    return rest.partition("<")[2].partition(">")[0]


@contextmanager
def mail_server(
    *, port: int = 0, security: Security = "none", tls: ssl.SSLContext | None = None
) -> Iterator[MailServer]:
    """Run a mail server; a given port lets one that was down come back."""
    with MailServer(port, security, tls) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
            server.over.set()
