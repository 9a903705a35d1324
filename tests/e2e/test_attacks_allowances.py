"""Calls beyond a spending cap, free requests of teams that are made and deleted, connections of one caller.

Each was possible once: raising a cap by 5 micro-dollars eleven times gave a million calls for nothing.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from msgspec.structs import replace
from sqlalchemy import create_engine, text

from parts.postgres import cluster
from parts.processes import eventually
from parts.raw_http import JSON, call, request
from parts.stack import PATH, reason
from parts.tollgate import Gateway, bearer, serving
from parts.upstream import Received, Reply, upstream
from tollgate.store.postgresql import LEDGER_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tollgate.core.models import Team
    from tollgate.store.base import Repositories

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

EACH = 5
"""Micro-dollars for a call."""
BOUND = 1_000
"""Calls that may be under way beyond a cap."""
BATCH = b"[%b]" % b",".join(call("eth_chainId", id=number) for number in range(20))
Settings = dict[str, dict[str, object]]
PAID: Settings = {"billing": {"free_requests": 0}}
PEPPER = "a pepper that all nodes of a test share"
EMAIL = "mallory@example.com"


class Service:
    """One or more nodes that share a store, and the ledger behind them."""

    def __init__(self, gateways: list[Gateway], store: str, folder: Path) -> None:
        self.gateways = gateways
        self.books = gateways[0].books
        self._ledger = create_engine(store or f"sqlite:///{folder / 'node0' / 'data' / 'ledger.db'}")
        self._schema = f"{LEDGER_SCHEMA}." if store else ""

    def use(self, team: Team) -> tuple[int, int, int]:
        """Billable requests of a team, what it was charged, and what they cost before its cap."""
        query = f"SELECT requests, cost, uncapped FROM {self._schema}months WHERE team_id = :team"
        with self._ledger.connect() as connection:
            row = connection.execute(text(query), {"team": team.id}).first()
        return (0, 0, 0) if row is None else (row[0], row[1], row[2])

    def set_cap(self, team: Team, micros: int | None) -> None:
        async def change(records: Repositories) -> None:
            found = await records.teams.get(team.id)
            assert found is not None
            await records.teams.replace(replace(found, spending_cap=micros, capped_until=None))

        self.books.do(change)

    def close(self) -> None:
        self._ledger.dispose()


@contextmanager
def opened(folder: Path, nodes: int, store: str = "", workers: int = 2) -> Iterator[Service]:
    with ExitStack() as stack:
        node = stack.enter_context(upstream())
        shared: Settings = {"store": {"url": store}, "secrets": {"pepper": PEPPER}} if store else {}
        settings: Settings = {**PAID, **shared, "server": {"workers": workers}}
        gateways = [
            stack.enter_context(serving(folder / f"node{number}", {"eth/mainnet": [node.url]}, settings))
            for number in range(nodes)
        ]
        service = Service(gateways, store, folder)
        stack.callback(service.close)
        yield service


@pytest.fixture(params=["sqlite", "postgresql", "two nodes"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    store = (
        "" if request.param == "sqlite" else cluster().url(cluster().make()).render_as_string(hide_password=False)
    )
    with opened(tmp_path, 2 if request.param == "two nodes" else 1, store) as made:
        yield made


class Flood:
    """Batches of calls on several connections, on all nodes, for as long as the test lets it run."""

    def __init__(self, service: Service, token: str, clients: int = 4) -> None:
        self._over = threading.Event()
        self.answered = [0] * clients
        self.refused = threading.Semaphore(0)
        gateways = [service.gateways[number % len(service.gateways)] for number in range(clients)]
        self._threads = [
            threading.Thread(target=self._run, args=(place, gateway, token), daemon=True)
            for place, gateway in enumerate(gateways)
        ]

    def _run(self, place: int, gateway: Gateway, token: str) -> None:
        body = request(PATH, BATCH, {**JSON, **bearer(token)})
        with gateway.connect() as connection:
            while not self._over.is_set():
                connection.send(body)
                answer = connection.read()
                if answer.status == 200:
                    self.answered[place] += sum("result" in each for each in answer.json())
                else:
                    assert reason(answer) in {"spending_cap", "rate_limited"}
                    self.refused.release()
                    self._over.wait(0.02)

    def __enter__(self) -> Flood:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive(), "a client hangs"

    def until_refused(self) -> None:
        """Wait until calls are refused, again and again."""
        for _ in range(20):
            assert self.refused.acquire(timeout=60)


def test_eleven_raises_of_a_cap_by_one_call_forgive_nothing(service: Service) -> None:
    team = service.books.team("raised", spending_cap=EACH)
    token, _ = service.books.token(team)
    with Flood(service, token) as flood:
        for raises in range(1, 12):
            service.set_cap(team, EACH * raises)
            flood.until_refused()
    answered = sum(flood.answered)
    assert answered <= 11 + BOUND, "what was under way beyond the cap"
    eventually(lambda: service.use(team)[::2] == (answered, EACH * answered), what="all answers are counted")
    assert service.use(team)[1] <= EACH * 11
    # A cap that covers one call more than were answered: it is charged all of them.
    whole = EACH * (answered + 1)
    service.set_cap(team, whole)

    def passes() -> bool:
        return any(each.exchange(call("eth_chainId"), token=token).status == 200 for each in service.gateways)

    eventually(passes, what="the call that the cap covers")
    eventually(lambda: service.use(team) == (answered + 1, whole, whole), what="all is charged")


def test_charged_is_the_lower_of_cap_and_price_while_caps_are_toggled_under_load(service: Service) -> None:
    team = service.books.team("toggled", spending_cap=0)
    token, _ = service.books.token(team)
    cap = 0
    with Flood(service, token) as flood:
        for raised in (700, 5, 13, 2_500, 1, 4_000):
            service.set_cap(team, cap)
            flood.until_refused()
            cap += EACH * raised
            service.set_cap(team, cap)
            covered = cap // EACH - 200
            eventually(lambda: sum(flood.answered) >= covered, what="nearly all that the cap covers")  # noqa: B023
        flood.until_refused()
    answered = sum(flood.answered)
    assert answered <= cap // EACH + BOUND
    expected = (answered, min(cap, EACH * answered), EACH * answered)
    eventually(lambda: service.use(team) == expected, what=f"{expected} on the bill")


def test_new_team_gets_no_calls_beyond_its_cap(service: Service) -> None:
    for number in range(3):
        team = service.books.team(f"fresh-{number}", spending_cap=EACH * 200)
        token, _ = service.books.token(team)
        with Flood(service, token) as flood:
            flood.until_refused()
        assert sum(flood.answered) <= 200 + BOUND


# --- Free requests -----------------------------------------------------------------------------------------


def test_thirty_teams_made_and_deleted_have_the_free_requests_of_one(tmp_path: Path) -> None:
    with upstream() as node, ExitStack() as stack:
        settings = {"billing": {"free_requests": 100}, "limits": {"api_per_minute": 100_000}}
        gateway = stack.enter_context(serving(tmp_path, {"eth/mainnet": [node.url]}, settings))
        gateway.books.account(EMAIL)
        headers = bearer(gateway.books.personal_token(EMAIL))
        url = gateway.base_url + "/api/v1/teams"
        api = stack.enter_context(httpx.Client(headers=headers, trust_env=False, timeout=30))
        for number in range(30):
            name = f"team-{number}"
            assert api.post(url, json={"name": name}).status_code == 201
            secret = api.post(f"{url}/{name}/tokens", json={"name": "t"}).json()["secret"]
            for _ in range(5):
                assert gateway.exchange(BATCH, token=secret).status == 200
            gateway.books.do(lambda records: records.teams.remove(name=name))  # noqa: B023
        engine = create_engine(f"sqlite:///{tmp_path / 'data' / 'ledger.db'}")
        stack.callback(engine.dispose)

        def sums() -> Any:
            with engine.connect() as connection:
                return tuple(
                    connection.execute(text("SELECT sum(requests), sum(free), sum(cost) FROM months")).one()
                )

        eventually(lambda: sums() == (3_000, 100, 2_900 * EACH), what="2,900 calls charged")


# --- Connections -------------------------------------------------------------------------------------------


def test_forged_origin_with_slow_calls_delays_no_other_team(tmp_path: Path) -> None:
    """All connections of the upstream were the attacker's: others waited for 20 s, and got 503."""
    hold = threading.Event()

    def slow(_: Received) -> Reply:
        hold.wait(60)
        return Reply()

    with upstream() as node, ExitStack() as stack:
        node.on("eth_getBalance", slow)
        stack.callback(hold.set)
        few: dict[str, object] = {"url": node.url, "connections": 16}
        settings = {"limits": {"domain_address_per_minute": 10_000, "domain_per_minute": 10_000}}
        gateway = stack.enter_context(serving(tmp_path, {"eth/mainnet": [few]}, settings))
        gateway.books.domain(gateway.books.team("victim"), "example.com")
        token, _ = gateway.books.token(gateway.books.team("other"))
        attacker = {**JSON, "Origin": "https://example.com"}
        for number in range(60):
            connection = stack.enter_context(gateway.connect())
            connection.send(request(PATH, call("eth_getBalance", hex(number), "latest"), attacker))
        eventually(lambda: len(node.bodies("eth_getBalance")) >= 4, what="slow calls at the node")
        assert [gateway.exchange(call("eth_chainId"), token=token).status for _ in range(80)] == [200] * 80
        assert len(node.bodies("eth_getBalance")) <= 8, "a domain holds no more than half of what domains may"


def test_time_out_that_a_node_worked_on_is_charged(tmp_path: Path) -> None:
    hold = threading.Event()

    def slow(_: Received) -> Reply:
        hold.wait(60)
        return Reply()

    with upstream() as node, ExitStack() as stack:
        node.on("eth_getBalance", slow)
        stack.callback(hold.set)
        settings: Settings = {**PAID, "limits": {"request_seconds": 1.0}}
        gateway = stack.enter_context(serving(tmp_path / "node0", {"eth/mainnet": [node.url]}, settings))
        service = Service([gateway], "", tmp_path)
        stack.callback(service.close)
        team = service.books.team("slow")
        token, _ = service.books.token(team)
        answer = gateway.exchange(call("eth_getBalance", "0x1", "latest"), token=token)
        assert (answer.status, reason(answer)) == (504, "upstream_timeout")
        eventually(lambda: service.use(team) == (1, EACH, EACH), what="the time-out on the bill")
