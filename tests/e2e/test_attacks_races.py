"""What is good once, used many times at the same moment; what is changed while it is used; cursors of others."""

from __future__ import annotations

import base64
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import httpx
import pytest
from argon2 import PasswordHasher
from msgspec.structs import replace

from parts.processes import eventually
from parts.raw_http import JSON, call
from parts.stack import PATH, Stack, open_stack
from parts.tollgate import bearer
from parts.tool import admin
from parts.visitor import GRANT, Visitor, visitor
from tollgate.core import totp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tollgate.store.base import Repositories

pytestmark = pytest.mark.e2e

EMAIL, PASSWORD = "ada@example.com", "correct horse battery"
AT_ONCE = 5
T = TypeVar("T")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("races")


@pytest.fixture(scope="module")
def stack(folder: Path) -> Iterator[Stack]:
    limits = {"api_per_minute": 100_000, "api_address_per_minute": 100_000}
    with open_stack(folder, {"limits": limits, "billing": {"free_requests": 0}}) as made:
        books = made.gateway.books
        account = books.account(EMAIL, acme="owner")

        async def set_password(records: Repositories) -> None:
            await records.accounts.replace(replace(account, password_hash=PasswordHasher().hash(PASSWORD)))

        books.do(set_password)
        yield made
        assert "Traceback" not in made.gateway.program.err.read_text()


@pytest.fixture
def api(stack: Stack) -> Iterator[httpx.Client]:
    headers = bearer(stack.gateway.books.personal_token(EMAIL))
    url = stack.gateway.base_url + "/api/v1"
    with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=30) as client:
        yield client


@pytest.fixture
def person(stack: Stack) -> Iterator[Visitor]:
    with visitor(stack.gateway.base_url) as made:
        yield made


def at_once(work: Callable[[], T], times: int = AT_ONCE) -> list[T]:
    """Do something many times at the same moment, each in a thread of its own."""
    barrier = threading.Barrier(times)

    def one(_: int) -> T:
        barrier.wait()
        return work()

    with ThreadPoolExecutor(times) as pool:
        return list(pool.map(one, range(times)))


# ---- what is good once


def test_rotations_of_one_token_at_the_same_moment_make_one_successor(stack: Stack, api: httpx.Client) -> None:
    _, token = stack.gateway.books.token(stack.team, name="rotated")
    codes = at_once(lambda: api.post(f"/teams/acme/tokens/{token.id}/rotate", json={}).status_code)
    assert codes.count(201) == 1, codes
    assert set(codes) == {201, 400}
    rows = stack.gateway.books.do(lambda records: records.tokens.page(100, team_id=stack.team.id))
    assert [row.replaces for row in rows].count(token.id) == 1


def test_invitation_that_is_accepted_many_times_at_the_same_moment(stack: Stack, api: httpx.Client) -> None:
    books = stack.gateway.books
    account = books.account("grace@example.com")
    link = api.post("/teams/acme/invitations", json={"email": account.email, "role": "developer"}).json()["link"]
    headers = bearer(books.personal_token(account.email))
    codes = at_once(lambda: api.post("/invitations/accept", json={"link": link}, headers=headers).status_code)
    assert codes.count(200) == 1, codes
    assert books.do(lambda records: records.members.count(account_id=account.id)) == 1


def test_device_code_that_is_redeemed_many_times_at_the_same_moment(stack: Stack, person: Visitor) -> None:
    assert person.sign_in(EMAIL, PASSWORD).status_code == 303
    started = person.post("/api/v1/oauth/device_authorization", client_id="tollgate-cli").json()
    assert person.post("/console/device", user_code=started["user_code"], act="approve").status_code == 303
    form = {"grant_type": GRANT, "device_code": started["device_code"], "client_id": "tollgate-cli"}
    codes = at_once(lambda: person.post("/api/v1/oauth/token", **form).status_code)
    assert codes.count(200) == 1, codes


def test_reset_link_that_is_followed_many_times_at_the_same_moment(
    stack: Stack, folder: Path, person: Visitor
) -> None:
    stack.gateway.books.account("bob@example.com")
    made = admin(folder / "tollgate.toml", "reset-link", "bob@example.com", "--json")
    link = urlsplit(made.json["link"]).path
    numbers = iter(range(AT_ONCE))
    lock = threading.Lock()

    def follow() -> tuple[str, int]:
        with lock:
            password = f"another horse battery {next(numbers)}"
        return password, person.set_password(link, password).status_code

    done = [password for password, status in at_once(follow) if status == 303]
    assert len(done) == 1
    assert person.sign_in("bob@example.com", done[0]).status_code == 303


@pytest.mark.parametrize("kind", ["app", "recovery"])
def test_code_that_is_used_many_times_at_the_same_moment(stack: Stack, kind: str) -> None:
    gateway, email = stack.gateway, f"{kind}@example.com"
    account = gateway.books.account(email)

    async def set_password(records: Repositories) -> None:
        await records.accounts.replace(replace(account, password_hash=PasswordHasher().hash(PASSWORD)))

    gateway.books.do(set_password)
    with ExitStack() as held:
        owner = held.enter_context(visitor(gateway.base_url))
        owner.sign_in(email, PASSWORD)
        headers = bearer(owner.log_tool_in()["access_token"])
        shown = owner.http.post("/api/v1/me/factors/totp", headers=headers).json()["secret"]
        secret = base64.b32decode(shown + "=" * (-len(shown) % 8))
        step = int(time.time()) // totp.STEP_SECONDS
        confirmed = {"code": totp.code_at(secret, step)}
        kept = owner.http.post("/api/v1/me/factors/totp/confirm", json=confirmed, headers=headers)
        code = kept.json()["recovery_codes"][0] if kind == "recovery" else totp.code_at(secret, step + 1)
        browsers = [held.enter_context(visitor(gateway.base_url)) for _ in range(AT_ONCE)]
        tickets = {browser: ticket_of(browser, email) for browser in browsers}
        waiting = iter(browsers)
        lock = threading.Lock()

        def enter() -> int:
            with lock:
                browser = next(waiting)
            form = {"ticket": tickets[browser], "code": code, "next": "/console"}
            return browser.post("/console/sign-in/code", **form).status_code

        codes = at_once(enter)
        assert codes.count(303) == 1, codes
        assert sum(browser.signed_in() for browser in browsers) == 1


def ticket_of(browser: Visitor, email: str) -> str:
    """The step between a right password and its code."""
    return browser.sign_in(email, PASSWORD).text.split('name="ticket" value="')[1].split('"')[0]


# ---- what is changed while it is used


def test_token_that_is_deleted_within_its_overlap_is_refused_and_its_successor_is_not(
    stack: Stack, api: httpx.Client
) -> None:
    secret, old = stack.gateway.books.token(stack.team, name="overlapping")
    made = api.post(f"/teams/acme/tokens/{old.id}/rotate", json={"overlap_seconds": 3_600}).json()
    successor = made["secret"]
    over = threading.Event()

    def use() -> list[int]:
        codes = []
        with stack.gateway.connect() as connection:
            while not over.is_set():
                codes.append(connection.exchange(PATH, call("eth_chainId"), {**JSON, **bearer(successor)}).status)
        return codes

    with ThreadPoolExecutor(4) as pool:
        users = [pool.submit(use) for _ in range(4)]
        assert stack.gateway.exchange(call("eth_chainId"), token=secret).status == 200
        deleted = at_once(lambda: api.delete(f"/teams/acme/tokens/{old.id}").status_code)
        eventually(
            lambda: stack.gateway.exchange(call("eth_chainId"), token=secret).status == 401, what="the refusal"
        )
        over.set()
        assert {code for user in users for code in user.result()} == {200}
    assert deleted.count(204) == 1, deleted


def test_every_call_is_billed_while_the_spending_cap_is_set_and_removed(stack: Stack) -> None:
    gateway = stack.gateway
    team = gateway.books.team("toggled")
    secret, _ = gateway.books.token(team)
    gateway.books.account("eve@example.com", toggled="owner")
    headers = bearer(gateway.books.personal_token("eve@example.com"))
    url, answered = gateway.base_url + "/api/v1/teams/toggled", 0

    def change(cap: int | None) -> int:
        body = {"spending_cap_micros": cap}
        return httpx.patch(url + "/billing", json=body, headers=headers, trust_env=False).status_code

    with gateway.connect() as connection:
        for turn in range(40):
            if turn % 2 == 0:
                change(0 if turn % 4 == 0 else None)
            for _ in range(25):
                answered += (
                    connection.exchange(PATH, call("eth_chainId"), {**JSON, **bearer(secret)}).status == 200
                )
    assert answered

    def billed() -> tuple[int, int]:
        usage = httpx.get(url + "/usage", headers=headers, trust_env=False).json()
        return usage["billable_requests"], usage["cost_micros"]

    # Five dollars a million.
    eventually(lambda: billed() == (answered, 5 * answered), what="every answer on the bill")


# ---- cursors


@pytest.fixture(scope="module")
def cursors(stack: Stack) -> dict[str, str]:
    """A cursor of each list of a team."""
    gateway = stack.gateway
    for number in range(3):
        gateway.books.token(stack.team, name=f"listed {number}")
        stack.exchange(call("eth_chainId"))
    headers, url = bearer(gateway.books.personal_token(EMAIL)), gateway.base_url + "/api/v1"

    def following(path: str) -> str:
        page = httpx.get(url + path, params={"limit": "1"}, headers=headers, trust_env=False).json()
        return str(page.get("next") or "")

    paths = ("/teams/acme/tokens", "/teams/acme/logs", "/teams/acme/audit", "/me/logins")
    return {path: eventually(lambda path=path: following(path), what=path) for path in paths}  # type: ignore[misc]


def test_cursors_of_one_list_are_none_in_another(stack: Stack, cursors: dict[str, str]) -> None:
    books, url = stack.gateway.books, stack.gateway.base_url + "/api/v1"
    team = books.team("others")
    books.token(team)
    books.account("mallory@example.com", others="owner")
    headers = bearer(books.personal_token("mallory@example.com"))
    with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=30) as client:
        for path, own in cursors.items():
            for cursor in cursors.values():
                answer = client.get(path.replace("acme", "others"), params={"after": cursor})
                assert answer.status_code == 400, (path, answer.text)
            assert client.get(path, params={"after": own}).status_code in (400, 403)


def test_cursors_that_are_changed_bit_by_bit_are_refused_or_lead_to_a_page(
    api: httpx.Client, cursors: dict[str, str]
) -> None:
    for path, cursor in cursors.items():
        changed = [
            cursor[:place] + chr(ord(cursor[place]) ^ (1 << bit)) + cursor[place + 1 :]
            for place in range(len(cursor))
            for bit in (0, 5)
        ]
        codes = {each: api.get(path, params={"after": each}).status_code for each in changed}
        assert set(codes.values()) <= {200, 400}, {each: code for each, code in codes.items() if code >= 500}
