"""Unknown clients against users: lock-outs, waiting logins, floods of the management API."""

from __future__ import annotations

import itertools
import json
import os
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING
from urllib.parse import quote

import httpx
import pytest
from argon2 import PasswordHasher
from msgspec.structs import replace

from parts.memory import within_budget
from parts.processes import eventually
from parts.raw_http import call, request
from parts.stack import PATH, Stack, open_stack
from parts.tollgate import Gateway, bearer, linux_only, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tollgate.store.base import Repositories

pytestmark = pytest.mark.e2e

EMAIL, PASSWORD = "ada@example.com", "correct horse battery"
SETTINGS: dict[str, dict[str, object]] = {
    # The attacker comes from many addresses.
    "server": {"trusted_proxies": ["127.0.0.0/8"]},
    "limits": {"api_per_minute": 60, "api_address_per_minute": 90},
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("people")
    with serving(folder, {"eth/mainnet": ["http://127.0.0.1:9"]}, SETTINGS) as served, within_budget(served):
        served.books.team()
        accounts = [served.books.account(email, acme="owner") for email in (EMAIL, "bob@example.com")]

        async def set_password(records: Repositories) -> None:
            for account in accounts:
                await records.accounts.replace(replace(account, password_hash=PasswordHasher().hash(PASSWORD)))

        served.books.do(set_password)
        yield served


@pytest.fixture
def http(gateway: Gateway) -> Iterator[httpx.Client]:
    headers = {"Sec-Fetch-Site": "same-origin"}
    with httpx.Client(base_url=gateway.base_url, headers=headers, trust_env=False, timeout=20) as client:
        yield client


def sign_in(http: httpx.Client, password: str, address: str) -> int:
    form = {"email": EMAIL, "password": password, "next": "/console"}
    return http.post("/console/sign-in", data=form, headers={"X-Forwarded-For": address}).status_code


def test_wrong_passwords_from_changing_addresses_lock_no_user_out(http: httpx.Client) -> None:
    for place in range(30):
        assert sign_in(http, "not the password", f"198.51.100.{place}") == 401
    assert sign_in(http, PASSWORD, "203.0.113.1") == 303
    opened = http.post("/console/forgot", data={"email": EMAIL}, headers={"X-Forwarded-For": "203.0.113.1"})
    assert opened.status_code == 200
    # Who guesses from one address has to wait there.
    statuses = [sign_in(http, "not the password", "198.51.100.200") for _ in range(8)]
    assert statuses[-1] == 429
    assert sign_in(http, PASSWORD, "203.0.113.2") == 303


def test_guesses_from_all_addresses_of_a_network_leave_room_for_others(
    gateway: Gateway, http: httpx.Client
) -> None:
    form = b"email=nobody%40example.com&password=not+the+password"
    headers = {"Sec-Fetch-Site": "same-origin", "Content-Type": "application/x-www-form-urlencoded"}
    with ExitStack() as held:
        for number in range(90):
            guess = held.enter_context(gateway.connect())
            address = {"X-Forwarded-For": f"2001:db8:1:{number:x}::1"}
            guess.send(request("/console/sign-in", form, {**headers, **address}))
        pages = [http.get("/console/sign-in", headers={"X-Forwarded-For": f"203.0.113.{n}"}) for n in range(5)]
        assert [page.status_code for page in pages] == [200] * 5


@linux_only
def test_signed_in_user_is_served_while_unknown_clients_of_many_networks_hold_all_other_connections(
    gateway: Gateway,
) -> None:
    def asked(secret: str, network: int) -> bytes:
        headers = {**bearer(secret), "X-Forwarded-For": f"198.18.{network}.1"}
        return request("/api/v1/me", b"", headers, method="GET")

    mine, control = gateway.books.personal_token(EMAIL), gateway.children()["tg-control"]
    with ExitStack() as held:
        known = held.enter_context(gateway.connect())
        known.send(asked(mine, 200))
        answer = known.read()
        assert (answer.status, [name for name in answer.headers if name.startswith("x-tollgate")]) == (200, [])
        os.kill(control, signal.SIGSTOP)
        held.callback(os.kill, control, signal.SIGCONT)
        unknown_clients = [held.enter_context(gateway.connect()) for _ in range(80)]
        for network, client in enumerate(unknown_clients):
            client.send(asked("tg_guess", network))
        refused = held.enter_context(gateway.connect())
        refused.send(asked("tg_guess", 201))
        assert refused.read().status == 503, "all connections for unknown clients are taken"
        known.send(asked(mine, 202))
        # A client without a connection is refused at once, and this one waits with the others.
        late = held.enter_context(gateway.connect())
        late.send(asked("tg_guess", 203))
        assert late.read().status == 503
        os.kill(control, signal.SIGCONT)
        assert known.read().status == 200


def test_waiting_logins_of_one_address_are_few_and_others_still_come_in(http: httpx.Client) -> None:
    def start(address: str) -> int:
        form = {"client_id": "tollgate-cli"}
        path = "/api/v1/oauth/device_authorization"
        return http.post(path, data=form, headers={"X-Forwarded-For": address}).status_code

    assert [start("198.51.100.77") for _ in range(25)].count(200) == 20
    assert start("203.0.113.7") == 200


def test_flood_of_the_api_is_refused_by_credential_and_by_address(gateway: Gateway, http: httpx.Client) -> None:
    def me(secret: str, address: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {secret}", "X-Forwarded-For": address}
        return http.get("/api/v1/me", headers=headers)

    secret = gateway.books.personal_token(EMAIL)
    statuses = [me(secret, "198.51.100.88") for _ in range(80)]
    refused = [answer for answer in statuses if answer.status_code == 429]
    assert 10 <= len(refused) <= 20
    assert refused[0].json()["limit"] == "credential"
    assert int(refused[0].headers["retry-after"]) >= 1
    # Others at the same address still have their share, then that is over.
    guesses = [me(f"tgp_{n}", "198.51.100.88").status_code for n in range(40)]
    assert guesses[0] == 401
    assert guesses[-1] == 429
    assert me(gateway.books.personal_token(EMAIL), "203.0.113.8").status_code == 200


# ---- forged headers of a browser


@pytest.mark.parametrize(
    "credential", ["[" * 8_000, '{"a":' * 2_000, '{"rawId":"AA","response":[]}', '{"rawId":7}', "\x00", ""]
)
def test_passkeys_of_any_kind_are_refused_and_put_no_traceback_into_the_log(
    gateway: Gateway, http: httpx.Client, credential: str
) -> None:
    ticket = http.post("/console/sign-in/options").json()["ticket"]
    # Not encoded, so that more of it fits.
    form = f"ticket={quote(ticket)}&next=//evil.example/&credential={credential}"
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = http.post("/console/sign-in/passkey", content=form, headers=headers)
    assert answer.status_code == 401
    assert "evil.example" not in answer.text
    assert "Traceback" not in gateway.program.err.read_text()


@pytest.mark.parametrize(
    ("headers", "address"),
    [
        ([("X-Forwarded-For", "8.8.8.8"), ("X-Forwarded-For", "192.0.2.1")], "192.0.2.1"),
        ([("X-Forwarded-For", "8.8.8.8, 192.0.2.2"), ("X-Forwarded-For", "127.0.0.9")], "192.0.2.2"),
        ([("X-Forwarded-For", "8.8.8.8, [2001:db8::7]:443")], "2001:db8::7"),
        ([("X-Forwarded-For", "2001:db8::8%" + "z" * 3_000)], "2001:db8::8"),
        ([("X-Forwarded-For", "8.8.8.8, unknown")], "127.0.0.1"),
        ([("X-Forwarded-For", "8.8.8.8, 010.0.0.1")], "127.0.0.1"),
        ([("X-Forwarded-For", "192.0.2.3" + ", 127.0.0.1" * 2_000)], "192.0.2.3"),
        ([("X_Forwarded_For", "8.8.8.8"), ("X-Real-IP", "8.8.8.8"), ("Forwarded", "for=8.8.8.8")], "127.0.0.1"),
        ([("X-Tollgate-Client", "8.8.8.8"), ("Connection", "x-tollgate-client")], "127.0.0.1"),
    ],
)
def test_clients_cannot_choose_their_address_behind_a_trusted_proxy(
    gateway: Gateway, http: httpx.Client, headers: list[tuple[str, str]], address: str
) -> None:
    answer = http.post("/api/v1/oauth/device_authorization", data={"client_id": "tollgate-cli"}, headers=headers)
    assert answer.status_code == 200
    newest = gateway.books.do(lambda records: records.device_logins.page(1, newest_first=True))
    assert newest[0].address == address


def entered(gateway: Gateway, held: ExitStack, email: str) -> httpx.Client:
    headers, limits = {"Sec-Fetch-Site": "same-origin"}, httpx.Limits(max_connections=None)
    client = httpx.Client(base_url=gateway.base_url, headers=headers, trust_env=False, limits=limits, timeout=20)
    held.enter_context(client)
    form = {"email": email, "password": PASSWORD, "next": "/console"}
    signed = client.post("/console/sign-in", data=form, headers={"X-Forwarded-For": "203.0.113.3"})
    assert signed.status_code == 303
    return client


def tails(client: httpx.Client, held: ExitStack, count: int, network: str = "203.0.113") -> list[int]:
    """Open live tails and keep them, each from an address of its own."""
    path, statuses = "/console/teams/acme/logs/tail", []
    for number in range(count):
        opened = client.stream("GET", path, headers={"X-Forwarded-For": f"{network}.{10 + number}"})
        statuses.append(held.enter_context(opened).status_code)
    return statuses


def test_live_tails_of_one_person_are_few_and_others_still_get_one(gateway: Gateway) -> None:
    with ExitStack() as held:
        assert tails(entered(gateway, held, EMAIL), held, 22) == [200] * 20 + [503] * 2
        assert tails(entered(gateway, held, "bob@example.com"), held, 1) == [200]


def test_live_tails_and_exports_that_are_dropped_free_their_places_and_leave_nothing_in_the_log(
    gateway: Gateway,
) -> None:
    with ExitStack() as held:
        ada = entered(gateway, held, EMAIL)
        secret = gateway.books.personal_token(EMAIL)
        cookies = "; ".join(f"{name}={value}" for name, value in ada.cookies.items())
        streams = {
            "/console/teams/acme/logs/tail": {"Cookie": cookies},
            "/api/v1/teams/acme/logs/export/csv": {"Authorization": f"Bearer {secret}"},
        }
        held.enter_context(within_budget(gateway, processes="tg-control"))
        for number in range(200):
            for path, credential in streams.items():
                headers = {**credential, "X-Forwarded-For": f"198.18.{number}.1"}
                with gateway.connect() as connection:
                    connection.send(request(path, headers=headers, method="GET"))
                    if number % 2:
                        # Within the answer, not before it.
                        connection.socket.recv(1)
        kept: list[int] = []
        eventually(lambda: len(_keep_one_more(ada, held, kept)) == 20, what="room for as many tails as ever")
    output = gateway.program.err.read_text()
    assert all(isinstance(json.loads(line), dict) for line in output.splitlines())
    assert "Traceback" not in output


def test_unread_exports_are_few_and_other_requests_are_served(tmp_path: Path) -> None:
    # Each counts as many requests: here their slots are the bound, not the rate.
    wide: dict[str, object] = {"api_per_minute": 1_000, "api_address_per_minute": 1_000}
    with open_stack(tmp_path, {**SETTINGS, "limits": wide}) as stack, ExitStack() as held:
        books = stack.gateway.books
        for email in (EMAIL, "bob@example.com"):
            books.account(email, acme="owner")
        fill_logs(stack)

        def export(secret: str, number: int) -> int:
            connection = held.enter_context(stack.gateway.connect())
            headers = {**bearer(secret), "X-Forwarded-For": f"198.51.100.{number}"}
            connection.send(request("/api/v1/teams/acme/logs/export/jsonl", headers=headers, method="GET"))
            return int(connection.socket.recv(12).split()[1])

        secret = books.personal_token(EMAIL)
        assert [export(secret, number) for number in range(6)] == [200] * 4 + [503] * 2
        assert export(books.personal_token("bob@example.com"), 100) == 200


def fill_logs(stack: Stack) -> None:
    """Make more logs than the buffers of a connection take."""
    many = b"[%b]" % b",".join([call("eth_chainId")] * 100)
    with stack.gateway.connect() as connection:
        for _ in range(70):
            assert connection.exchange(PATH, many, {**stack.headers, "User-Agent": "u" * 256}).status == 200
    headers = bearer(stack.gateway.books.personal_token(EMAIL))
    address = f"{stack.gateway.base_url}/api/v1/teams/acme/usage"

    def counted() -> bool:
        used = httpx.get(address, headers=headers, trust_env=False).json()
        return bool(used["requests"] >= 7_000)

    eventually(counted, what="the commit of all calls")


def _keep_one_more(client: httpx.Client, held: ExitStack, kept: list[int]) -> list[int]:
    """Open one more live tail, and keep it if there is a place: one that is dropped has its own for a tick."""
    with ExitStack() as opened:
        if tails(client, opened, 1, f"198.19.{next(_networks)}") == [200]:
            held.push(opened.pop_all())
            kept.append(200)
    return kept


_networks = itertools.count()
