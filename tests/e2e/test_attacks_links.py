"""Links and codes that are mailed or handed over: held beyond the right to them, planted, or sent without end."""

from __future__ import annotations

import base64
import re
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from argon2 import PasswordHasher
from msgspec.structs import replace

from parts.ports import LOOPBACK
from parts.processes import eventually
from parts.smtp import MailServer, mail_server
from parts.tollgate import Gateway, bearer, serving
from parts.visitor import Visitor, visitor
from tollgate.core import totp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tollgate.store.base import Repositories

pytestmark = pytest.mark.e2e

PASSWORD, OTHER_PASSWORD = "correct horse battery", "staple of another kind"


@pytest.fixture(scope="module")
def server() -> Iterator[MailServer]:
    with mail_server() as made:
        yield made


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, server: MailServer) -> Iterator[Gateway]:
    settings: dict[str, dict[str, object]] = {
        "mail": {"host": LOOPBACK, "port": server.port, "security": "none", "sender": "tollgate@example.com"},
        "accounts": {"sign_up": "invited"},
    }
    folder = tmp_path_factory.mktemp("links")
    with serving(folder, {"eth/mainnet": ["http://127.0.0.1:9"]}, settings) as made:
        made.books.team()
        person(made, "ada@example.com", acme="owner")
        yield made
        assert "Traceback" not in made.program.err.read_text()


def person(gateway: Gateway, email: str, **roles: str) -> None:
    """A user with a password, and a role in each team that is named."""
    account = gateway.books.account(email, **roles)

    async def set_password(records: Repositories) -> None:
        await records.accounts.replace(replace(account, password_hash=PasswordHasher().hash(PASSWORD)))

    gateway.books.do(set_password)


@pytest.fixture
def held() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def api(gateway: Gateway, held: ExitStack, email: str) -> httpx.Client:
    """The management API with a personal token of a user."""
    headers = bearer(gateway.books.personal_token(email))
    client = httpx.Client(base_url=f"{gateway.base_url}/api/v1", headers=headers, trust_env=False, timeout=20)
    return held.enter_context(client)


def entered(gateway: Gateway, held: ExitStack, email: str, password: str = PASSWORD) -> Visitor:
    """A browser in which a user is signed in."""
    made = held.enter_context(visitor(gateway.base_url))
    assert made.sign_in(email, password).status_code == 303
    return made


def invite(client: httpx.Client, email: str, role: str) -> dict[str, Any]:
    made = client.post("/teams/acme/invitations", json={"email": email, "role": role})
    assert made.status_code == 201, made.text
    invited: dict[str, Any] = made.json()
    return invited


def member_id(client: httpx.Client, email: str) -> str:
    members = client.get("/teams/acme/members").json()["items"]
    return next(str(member["id"]) for member in members if member["email"] == email)


# ---- invitations that outlive the right to make them


@pytest.mark.parametrize("how", ["removed under a new address", "account deleted", "no owner any more"])
def test_invitation_ends_with_the_right_of_its_maker_however_that_ends(
    gateway: Gateway, server: MailServer, held: ExitStack, how: str
) -> None:
    mallory, second = f"mallory-{how[0]}@example.com", f"second-{how[0]}@example.com"
    person(gateway, mallory, acme="owner")
    person(gateway, second)
    link = invite(api(gateway, held, mallory), second, "owner")["link"]
    ada = api(gateway, held, "ada@example.com")
    browser = entered(gateway, held, mallory)
    if how == "removed under a new address":
        mallory = "someone-else@example.com"
        browser.post("/console/account", act="email", email=mallory, current=PASSWORD)
        assert browser.post(server.first_to(mallory).link).status_code == 303
        assert ada.delete(f"/teams/acme/members/{member_id(ada, mallory)}").status_code == 204
    elif how == "account deleted":
        assert browser.post("/console/account", act="delete", typed=mallory).status_code == 303
    else:
        path = f"/teams/acme/members/{member_id(ada, mallory)}"
        assert ada.patch(path, json={"role": "admin"}).status_code == 200
    accepted = api(gateway, held, second).post("/invitations/accept", json={"link": link})
    assert accepted.status_code == 404, accepted.text


# ---- accounts that were made with the address of another user


def test_proof_of_an_address_ends_the_access_of_earlier_users_of_the_account(
    gateway: Gateway, server: MailServer, held: ExitStack
) -> None:
    victim = "victim@example.com"
    # Who invites sees the link, and makes the account before the one whom it is for.
    link = invite(api(gateway, held, "ada@example.com"), victim, "viewer")["link"]
    thief = held.enter_context(visitor(gateway.base_url))
    assert thief.join(link, OTHER_PASSWORD).status_code == 303
    switch_codes_on(thief)

    owner = held.enter_context(visitor(gateway.base_url))
    assert owner.post("/console/forgot", email=victim).status_code == 200
    reset = server.first_to(victim, "Reset").link
    assert owner.set_password(reset, PASSWORD).status_code == 303
    assert not thief.signed_in()
    # Neither is a code of the thief's app asked for.
    assert owner.sign_in(victim, PASSWORD).status_code == 303
    assert owner.signed_in()


def switch_codes_on(browser: Visitor) -> bytes:
    """Set up an authenticator app; return its secret."""
    page = browser.get("/console/account/totp").text
    shown = re.search(r"secret=([A-Z2-7]+)", page)
    assert shown is not None, page
    secret = base64.b32decode(shown[1] + "=" * (-len(shown[1]) % 8))
    step = int(time.time()) // totp.STEP_SECONDS
    on = browser.post("/console/account/totp", code=totp.code_at(secret, step))
    assert on.status_code == 200, on.text
    return secret


# ---- a password that is changed between it and the code


def test_code_after_a_password_that_was_changed_meanwhile_is_refused(gateway: Gateway, held: ExitStack) -> None:
    person(gateway, "grace@example.com")
    grace = entered(gateway, held, "grace@example.com")
    secret = switch_codes_on(grace)
    thief = held.enter_context(visitor(gateway.base_url))
    page = thief.sign_in("grace@example.com", PASSWORD)
    ticket = re.search(r'name="ticket" value="([^"]+)"', page.text)
    assert ticket is not None, page.text
    changed = grace.post(
        "/console/account", act="password", current=PASSWORD, new=OTHER_PASSWORD, again=OTHER_PASSWORD
    )
    assert changed.status_code == 303, changed.text
    # The next one, which is good and was not used.
    code = totp.code_at(secret, int(time.time()) // totp.STEP_SECONDS + 1)
    let_in = thief.post("/console/sign-in/code", ticket=ticket[1], code=code, next="/console")
    assert let_in.status_code == 401, let_in.status_code
    assert not thief.signed_in()


# ---- a session that was left open


def test_old_session_adds_no_way_in_that_outlives_it(gateway: Gateway, held: ExitStack) -> None:
    person(gateway, "open@example.com")
    browser = entered(gateway, held, "open@example.com")
    assert browser.post("/console/account/passkeys/options").status_code == 200
    assert browser.get("/console/account/totp").status_code == 200
    tool = bearer(browser.log_tool_in()["access_token"])

    async def age(records: Repositories) -> None:
        account = await records.accounts.find(email="open@example.com")
        assert account is not None
        for login in await records.logins.page(10, account_id=account.id):
            assert login.authenticated_at is not None
            await records.logins.replace(replace(login, authenticated_at=login.authenticated_at - 1_000))
        # As one whom a provider signs in.
        await records.accounts.replace(replace(account, password_hash=""))

    gateway.books.do(age)
    assert browser.signed_in()
    assert browser.post("/console/account/passkeys/options").status_code == 403
    assert browser.get("/console/account/totp").status_code == 403
    taken = {"new": OTHER_PASSWORD, "again": OTHER_PASSWORD, "current": ""}
    assert browser.post("/console/account", act="password", **taken).status_code == 403
    assert (
        browser.post("/console/account", act="email", email="mallory@example.com", current="").status_code == 403
    )
    with httpx.Client(base_url=f"{gateway.base_url}/api/v1", headers=tool, trust_env=False) as client:
        for path in ("/me/factors/totp", "/me/factors/passkeys/options"):
            refused = client.post(path)
            assert (refused.status_code, refused.json()["reason"]) == (403, "log_in_again")
        refused = client.post("/me/tokens", json={"name": "ci"})
        assert (refused.status_code, refused.json()["reason"]) == (403, "log_in_again")
    assert browser.post("/console/account", act="token", token_name="ci", days="30").status_code == 403


def test_old_session_approves_no_device_login_and_one_that_it_approved_earlier_is_as_old(
    gateway: Gateway, held: ExitStack
) -> None:
    person(gateway, "stolen@example.com")
    thief = entered(gateway, held, "stolen@example.com")

    async def age(records: Repositories) -> None:
        account = await records.accounts.find(email="stolen@example.com")
        assert account is not None
        for login in await records.logins.page(10, account_id=account.id):
            await records.logins.replace(replace(login, authenticated_at=(login.authenticated_at or 0.0) - 800))

    # Nearly old: its device login is young, but the authentication behind it is not.
    gateway.books.do(age)
    tool = bearer(thief.log_tool_in()["access_token"])
    gateway.books.do(age)
    with httpx.Client(base_url=f"{gateway.base_url}/api/v1", headers=tool, trust_env=False) as client:
        refused = client.post("/me/factors/passkeys/options")
        assert (refused.status_code, refused.json()["reason"]) == (403, "log_in_again")
        started = client.post("/oauth/device_authorization", data={"client_id": "tollgate-cli"}).json()
    assert thief.post("/console/device", user_code=started["user_code"], act="approve").status_code == 403


# ---- invitations as a means to fill a mailbox


def test_invitations_again_and_again_fill_no_mailbox(
    gateway: Gateway, server: MailServer, held: ExitStack
) -> None:
    ada = api(gateway, held, "ada@example.com")
    mailed = [invite(ada, "flooded@example.com", "viewer")["mailed"] for _ in range(8)]
    assert mailed == [True] * 5 + [False] * 3
    eventually(lambda: len(server.to("flooded@example.com")) == 5, what="the mails, which are sent by and by")
