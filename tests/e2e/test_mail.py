"""Mail as people get it: from a real service, or from the operator's command, by a mail server that keeps all."""

from __future__ import annotations

import json
import os
import re
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from parts.certs import Certificate, make_certificate
from parts.dns import nameserver
from parts.ports import LOOPBACK, free_port
from parts.processes import eventually, running
from parts.smtp import MailServer, Security, mail_server
from parts.tollgate import TOLLGATE, Gateway, serving, write_settings
from parts.tool import Tool
from parts.upstream import upstream
from parts.visitor import visitor
from tollgate.core.people import Account

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx

    from tollgate.store.base import Repositories

pytestmark = pytest.mark.e2e

PASSWORD = "correct horse battery"
SENDER = "tollgate@example.com"
SECRET = re.compile(r"tg[a-z]?_[0-9A-Za-z]{38}")
LOST = "a mail could not be sent"


@dataclass
class Post:
    """A service that mails, its mail server, which can be stopped and started, and DNS for proofs."""

    gateway: Gateway
    ada: Tool
    dns_port: int
    folder: Path
    mail_port: int
    server: MailServer
    held: ExitStack

    def stop_mail(self) -> None:
        self.held.close()

    def start_mail(self) -> None:
        self.server = self.held.enter_context(mail_server(port=self.mail_port))

    def invite(self, email: str) -> dict[str, Any]:
        ran = self.ada("teams", "members", "invite", email, "--role", "viewer", "--team", "acme", "--json")
        assert ran.code == 0, ran.err
        made: dict[str, Any] = ran.json
        return made

    def forgot(self, email: str) -> httpx.Response:
        with visitor(self.gateway.base_url) as person:
            return person.post("/console/forgot", email=email)

    @property
    def logs(self) -> str:
        return self.gateway.program.err.read_text() + self.gateway.program.out.read_text()


@pytest.fixture(scope="module")
def post(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Post]:
    folder = tmp_path_factory.mktemp("mail")
    with nameserver(folder / "dns") as chosen:
        dns_port = chosen.port
    with ExitStack() as held, upstream() as node:
        server = held.enter_context(mail_server())
        settings: dict[str, dict[str, object]] = {
            "mail": {"host": LOOPBACK, "port": server.port, "security": "none", "sender": SENDER},
            "accounts": {"sign_up": "invited"},
            "whitelist": {"resolvers": [f"{LOOPBACK}:{dns_port}"]},
            "logging": {"level": "debug"},
        }
        with serving(folder, {"eth/mainnet": [node.url]}, settings) as gateway:
            for team in ("acme", "others"):
                gateway.books.team(team)
            gateway.books.account("ada@example.com", acme="owner")
            tool = Tool(folder / "home", gateway.base_url)
            ada = tool.with_token(gateway.books.personal_token("ada@example.com"))
            yield Post(gateway, ada, dns_port, folder, server.port, server, held)
            # Of all that was requested and mailed, no secret was logged.
            assert SECRET.search(logs := gateway.program.err.read_text()) is None
            assert "Traceback" not in logs


# ---- invitations


def test_invitation_is_mailed_and_its_link_lets_the_person_in(post: Post) -> None:
    made = post.invite("grace@example.com")
    assert made["mailed"] is True
    mail = post.server.first_to("grace@example.com")
    assert (mail.sender, mail.recipients) == (SENDER, ("grace@example.com",))
    assert mail.message["From"] == SENDER
    assert mail.message["To"] == "grace@example.com"
    assert mail.message["Subject"] == "You are invited to join the team acme"
    assert "ada@example.com invites you" in mail.text
    assert mail.link == made["link"]
    with visitor(post.gateway.base_url) as person:
        assert person.get(mail.link).status_code == 200
        assert person.join(mail.link, PASSWORD).status_code == 303
        assert person.signed_in()
        assert person.get(mail.link).status_code == 404
    assert len(post.server.to("grace@example.com")) == 1


def test_words_show_that_the_link_was_mailed(post: Post) -> None:
    ran = post.ada("teams", "members", "invite", "words@example.com", "--role", "viewer", "--team", "acme")
    assert ran.code == 0
    assert "was mailed to words@example.com" in ran.err
    assert post.server.first_to("words@example.com").link in ran.out


# ---- open sign-up


def test_open_sign_up_makes_no_account_before_the_mailed_link_is_used(tmp_path: Path) -> None:
    with mail_server() as server, upstream() as node:
        settings: dict[str, dict[str, object]] = {
            "mail": {"host": LOOPBACK, "port": server.port, "security": "none", "sender": SENDER},
            "accounts": {"sign_up": "open"},
        }
        with serving(tmp_path, {"eth/mainnet": [node.url]}, settings) as gateway:
            gateway.books.account("ada@example.com")
            with visitor(gateway.base_url) as mallory:
                answers = [mallory.sign_up(email, PASSWORD) for email in ("new@example.com", "ada@example.com")]
                assert {answer.status_code for answer in answers} == {200}
                statuses = {
                    answer.text.replace(name, "")
                    for answer, name in zip(answers, ("new@example.com", "ada@example.com"), strict=True)
                }
                assert len(statuses) == 1
                assert not mallory.signed_in()
                assert mallory.sign_in("new@example.com", PASSWORD).status_code == 401
                # However many requests: five mails, and no more.
                for _ in range(8):
                    assert mallory.sign_up("new@example.com", PASSWORD).status_code == 200
            link = server.first_to("new@example.com").link
            assert "You already have an account" in server.first_to("ada@example.com").text
            with visitor(gateway.base_url) as person:
                assert person.join(link, PASSWORD).status_code == 303
                assert person.signed_in()
            eventually(lambda: len(server.to("new@example.com")) >= 5, what="the mails, which are sent by and by")
            assert len(server.to("new@example.com")) == 5
            assert "Traceback" not in gateway.program.err.read_text()


# ---- a forgotten password


def test_link_is_mailed_to_whom_has_an_account_and_the_page_does_not_show(post: Post) -> None:
    post.gateway.books.account("alan@example.com")
    switched_off(post, "gone@example.com")
    pages = {email: post.forgot(email) for email in ("nobody@example.com", "gone@example.com", "alan@example.com")}
    statuses = {
        (page.status_code, page.text.replace(email, "EMAIL"), frozenset(page.headers))
        for email, page in pages.items()
    }
    assert len(statuses) == 1
    ((status, text, _),) = statuses
    assert status == 200
    assert "If EMAIL has an account, a link was sent" in text

    mail = post.server.first_to("alan@example.com")
    assert mail.message["Subject"] == "Reset your Tollgate password"
    # Mails leave in the order of the requests: had there been one to the others, it would be here by now.
    assert post.server.to("nobody@example.com") == []
    assert post.server.to("gone@example.com") == []
    with visitor(post.gateway.base_url) as person:
        assert person.get(mail.link).status_code == 200
        assert person.set_password(mail.link, PASSWORD).status_code == 303
        assert person.set_password(mail.link, PASSWORD).status_code == 404
        assert person.sign_in("alan@example.com", PASSWORD).status_code == 303


def switched_off(post: Post, email: str) -> None:
    async def add(records: Repositories) -> None:
        await records.accounts.add(Account("acc_0000000000000000", email, 0.0, active=False))

    post.gateway.books.do(add)


# ---- a domain that is lost


def test_owners_of_a_team_that_loses_a_domain_are_notified(post: Post) -> None:
    books, domain = post.gateway.books, "lost-example.com"
    books.account("owner@example.com", others="owner")
    books.account("second@example.com", others="owner")
    books.account("developer@example.com", others="developer")
    old = Tool(post.folder / "owner", post.gateway.base_url).with_token(books.personal_token("owner@example.com"))
    entry = old("rpc", "whitelist", "add", domain, "--team", "others", "--json").json
    team = post.ada("teams", "show", "--team", "acme", "--json").json
    with nameserver(
        post.folder / "dns", texts={f"_tollgate.{domain}": [f"tollgate-team={team['id']}"]}, port=post.dns_port
    ):
        taken = post.ada("rpc", "whitelist", "add", domain, "--take-over", "--team", "acme")
    assert taken.code == 0, taken.err
    for email in ("owner@example.com", "second@example.com"):
        mail = post.server.first_to(email)
        assert mail.message["Subject"] == f"{domain} left your whitelist"
        assert entry["id"] in mail.text
        assert f"tollgate rpc whitelist add {domain} --take-over" in mail.text
        # Who took it is not their business.
        assert "acme" not in mail.text
        assert "ada" not in mail.text
    assert post.server.to("developer@example.com") == []
    assert post.server.to("ada@example.com") == []


# ---- a mail server that fails


def test_no_request_waits_for_a_mail_server_that_is_silent(post: Post) -> None:
    post.gateway.books.account("slow@example.com")
    post.server.greets.clear()
    try:
        made = post.invite("patient@example.com")
        page = post.forgot("slow@example.com")
        # Both were answered before the server had sent anything.
        assert post.server.to("patient@example.com") == []
    finally:
        post.server.greets.set()
    assert made["mailed"] is True
    assert page.status_code == 200
    assert post.server.first_to("patient@example.com").link == made["link"]
    assert "Reset" in post.server.first_to("slow@example.com").message["Subject"]


def test_without_a_mail_server_the_link_is_shown_and_works_and_the_loss_is_logged(post: Post) -> None:
    before = post.logs.count(LOST)
    post.stop_mail()
    try:
        made = post.invite("unlucky@example.com")
        # Handed to the sender, which is all that can be known in time.
        assert made["mailed"] is True
        eventually(lambda: post.logs.count(LOST) > before, what="the line about the lost mail")
    finally:
        post.start_mail()
    line = next(line for line in reversed(post.logs.splitlines()) if LOST in line)
    assert json.loads(line)["subject"] == "You are invited to join the team acme"
    assert made["link"] not in post.logs
    assert "unlucky@example.com" not in line
    with visitor(post.gateway.base_url) as person:
        assert person.join(made["link"], PASSWORD).status_code == 303
    # Once the server is back, so is mail.
    assert post.invite("lucky@example.com")["link"] == post.server.first_to("lucky@example.com").link
    assert post.server.to("unlucky@example.com") == []


# ---- how the connection is protected, by the operator's own command


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


def operator_invites(
    folder: Path, mail: dict[str, object], **env: str
) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    config = write_settings(folder, {}, {"mail": {"host": LOOPBACK, "sender": SENDER, **mail}})
    ended = subprocess.run(
        [TOLLGATE, "admin", "invite", "ada@example.com", "--json", "--config", str(config)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr, ended.stderr
    return json.loads(ended.stdout), ended


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_mail_goes_through_tls_and_the_login_with_it(
    tmp_path: Path, certificate: Certificate, security: Security
) -> None:
    with mail_server(security=security, tls=certificate.server_context()) as server:
        login = {"username": "tollgate", "password": "mail-secret-1"}
        made, ended = operator_invites(
            tmp_path,
            {"port": server.port, "security": security, **login},
            SSL_CERT_FILE=str(certificate.authority),
        )
    (mail,) = server.mails
    assert mail.encrypted
    assert server.logins == ["tollgate:mail-secret-1"]
    assert mail.link == made["link"]
    assert mail.message["Subject"] == "You are invited to use Tollgate"
    assert made["mailed"] is True
    assert "was mailed to" in ended.stderr


@pytest.mark.parametrize(
    ("offers", "wants"),
    [("starttls", "starttls"), ("none", "starttls"), ("none", "tls")],
    ids=["unknown authority", "no STARTTLS", "no TLS"],
)
def test_without_a_protected_connection_neither_mail_nor_login_leaves_the_machine(
    tmp_path: Path, certificate: Certificate, offers: Security, wants: Security
) -> None:
    with mail_server(security=offers, tls=certificate.server_context()) as server:
        made, ended = operator_invites(
            tmp_path,
            {"port": server.port, "security": wants, "username": "tollgate", "password": "mail-secret-1"},
        )
    assert server.mails == []
    assert server.logins == []
    # The operator has the link all the same, and sees the failure.
    assert made["link"].startswith("http")
    assert LOST in ended.stderr
    assert "mail-secret-1" not in ended.stderr
    assert SECRET.search(ended.stderr) is None


def test_operator_gets_the_link_when_no_mail_server_is_there(tmp_path: Path) -> None:
    made, ended = operator_invites(tmp_path, {"port": free_port(), "security": "none"})
    assert made["link"].startswith("http")
    assert LOST in ended.stderr


def test_operator_has_the_link_before_a_slow_mail_server_sends_a_word(tmp_path: Path) -> None:
    with mail_server() as server:
        server.greets.clear()
        mail = {"host": LOOPBACK, "port": server.port, "security": "none", "sender": SENDER}
        config = write_settings(tmp_path, {}, {"mail": mail})
        argv = [TOLLGATE, "admin", "invite", "ada@example.com", "--config", str(config)]
        with running(
            argv, folder=tmp_path / "output", ready=lambda program: program.lines(), within=60
        ) as program:
            (link,) = program.lines()
            assert server.mails == []
            server.greets.set()
            assert server.first_to("ada@example.com").link == link.strip()
            assert program.popen.wait(20) == 0
