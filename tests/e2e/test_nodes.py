"""Several nodes on one PostgreSQL: three gateways, one control, two collectors; murder and outages."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from parts.postgres import cluster
from parts.processes import eventually
from parts.tollgate import TOLLGATE, Gateway, bearer, linux_only, serving
from parts.upstream import upstream
from parts.wire import JSON, Wire, call
from tollgate.core.logs import LogFilter
from tollgate.store import engines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tollgate.core.models import Team

# Six services take a while to start on a busy machine; they are started once for all tests of this file.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400), linux_only]

PEPPER = "a pepper that all nodes of a test share"
PATH = "/x/eth/mainnet"


@dataclass
class Town:
    """The nodes, and a team with a token."""

    folder: Path
    url: str
    gateways: list[Gateway]
    control: Gateway
    collectors: list[Gateway]
    team: Team
    token: str
    stack: ExitStack
    serve: Callable[..., Gateway]
    answered: set[str] = field(default_factory=set)
    """The ids of all requests that were answered."""

    def config(self, name: str) -> str:
        return str(self.folder / name / "tollgate.toml")

    def run(self, *arguments: str, name: str = "c") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [TOLLGATE, *arguments, "--config", self.config(name)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def request_ids(self) -> Counter[str]:
        """Of all log rows of the team, read page by page as the control plane does."""

        async def pages() -> Counter[str]:
            book = engines.open_logbook(self.control.books.url)
            try:
                found: Counter[str] = Counter()
                below: int | None = await book.newest(self.team.id) + 1
                while below is not None:
                    part = await book.older(LogFilter(self.team.id), below, 1_000)
                    found.update(row.request_id for row in part.rows)
                    below = part.position
                return found
            finally:
                await book.close()

        return asyncio.run(pages())


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    tmp_path = tmp_path_factory.mktemp("nodes")
    name = cluster().make()
    url = cluster().url(name).render_as_string(hide_password=False)
    settings: dict[str, dict[str, object]] = {
        "store": {"url": url},
        "secrets": {"pepper": PEPPER},
        "ledger": {"segment_seconds": 1.0, "segment_bytes": 65_536},
    }
    with ExitStack() as stack:
        node = stack.enter_context(upstream())

        def serve(folder: str, *roles: str) -> Gateway:
            arguments = [part for role in roles for part in ("--role", role)]
            behind = {"eth/mainnet": [node.url + "/rpc"]}
            return stack.enter_context(serving(tmp_path / folder, behind, settings, arguments=arguments))

        # Nodes that start together migrate once; two collectors have the spools of two gateways.
        gateways = [serve(each, "gateway") for each in ("a", "b", "c")]
        collectors = [serve(each, "collector") for each in ("a", "b")]
        control = serve("control", "control")
        team = control.books.team()
        token, _ = control.books.token(team)
        yield Town(tmp_path, url, gateways, control, collectors, team, token, stack, serve)
    cluster().drop(name)


@dataclass
class Client:
    """A caller that goes on and on at one gateway; each request has an id of its own and is sent once."""

    town: Town
    label: str
    number: int
    stopped: threading.Event
    answered: list[str] = field(default_factory=list)
    refused: Counter[int] = field(default_factory=Counter)
    sent: int = 0

    def run(self) -> None:
        while not self.stopped.is_set():
            # A gateway that was killed cuts its connections.
            with suppress(OSError, ValueError, AssertionError, EOFError), self._gateway.wire() as wire:
                while not self.stopped.is_set():
                    self._ask(wire)

    @property
    def _gateway(self) -> Gateway:
        return self.town.gateways[self.number % 3]

    def _ask(self, wire: Wire) -> None:
        self.sent += 1
        name = f"{self.label}-{self.number}-{self.sent}"
        headers = {**JSON, **bearer(self.town.token), "X-Request-Id": name}
        answer = wire.ask(PATH, call("eth_chainId"), headers)
        if answer.status == 200:
            self.answered.append(name)
        else:
            self.refused[answer.status] += 1


class Load:
    """Clients at all gateways."""

    def __init__(self, town: Town, label: str, clients: int = 6) -> None:
        self._town = town
        self._stopped = threading.Event()
        self.clients = [Client(town, label, number, self._stopped) for number in range(clients)]
        self._threads = [threading.Thread(target=each.run) for each in self.clients]

    def __enter__(self) -> Load:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for each in self._threads:
            each.join(20)
        self._town.answered |= self.answered()

    def answered(self) -> set[str]:
        return {name for client in self.clients for name in client.answered}

    def refused(self) -> Counter[int]:
        return sum((client.refused for client in self.clients), Counter())


def drain(town: Town) -> None:
    """Stop all that writes and collects, then empty what the third gateway has left: nobody collects there."""
    for each in town.gateways:
        each.program.stop(20)
    for each in town.collectors:
        each.program.stop(20)
    for name in ("a", "b", "c"):
        ended = town.run("collect", "--drain", name=name)
        assert ended.returncode == 0, ended.stderr


def check(town: Town) -> None:
    """Each answer that a caller received is in the ledger once, and nothing is there twice."""
    found = town.request_ids()
    assert not town.answered - found.keys()
    assert {name: count for name, count in found.items() if count > 1} == {}
    ended = town.run("doctor", "--json")
    assert json.loads(ended.stdout)["ok"], ended.stdout


def test_nodes_are_listed_with_what_waits_in_their_spools(town: Town) -> None:
    def listed() -> dict[str, list[Any]]:
        ended = town.run("nodes", "--json")
        assert ended.returncode == 0, ended.stderr
        by_role: dict[str, list[Any]] = {}
        for each in json.loads(ended.stdout)["items"]:
            by_role.setdefault(each["roles"], []).append(each)
        return by_role

    eventually(
        lambda: (
            {role: len(found) for role, found in listed().items()} == {"gateway": 3, "collector": 2, "control": 1}
        ),
        within=20,
        what="the list",
    )
    assert {each["state"] for found in listed().values() for each in found} == {"up"}
    # A gateway whose spool nobody collects shows that.
    for _ in range(5):
        assert town.gateways[2].ask(call("eth_chainId"), token=town.token).status == 200
    eventually(lambda: max(each["spool_bytes"] for each in listed()["gateway"]) > 0, within=10, what="the lag")


def test_gateway_has_no_control_plane_and_control_no_gateway(town: Town) -> None:
    assert town.gateways[0].ask(b"", path="/api/v1/service", method="GET").status == 404
    assert town.control.ask(b"", path="/api/v1/service", method="GET").status == 200
    assert town.control.ask(call("eth_chainId"), token=town.token).status == 404
    for each in (*town.gateways, town.control, *town.collectors):
        assert each.ask(b"", path="/readyz", method="GET").status == 200


def test_revoked_token_stops_on_every_node_within_a_second(town: Town) -> None:
    for _ in range(3):
        secret, token = town.control.books.token(town.team)
        for gateway in town.gateways:
            assert gateway.ask(call("eth_chainId"), token=secret).status == 200
        town.control.books.do(lambda records, made=token: records.tokens.remove(id=made.id))  # type: ignore[misc]
        begun = time.monotonic()
        for gateway in town.gateways:
            eventually(
                lambda g=gateway, s=secret: g.ask(call("eth_chainId"), token=s).status == 401,  # type: ignore[misc]
                within=1.0 - (time.monotonic() - begun),
                what="the revocation",
            )


def test_device_login_whose_steps_land_on_different_nodes(town: Town) -> None:
    other = town.serve("control-2", "control")
    account = town.control.books.account("ann@example.com", acme="owner")
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    begun = town.control.ask(b"client_id=tollgate-cli", path="/api/v1/oauth/device_authorization", headers=form)
    assert begun.status == 200, begun
    code = begun.json()["device_code"]

    async def approve(records: Any) -> None:
        (row,) = await records.device_logins.page(9)
        await records.device_logins.replace(replace(row, state="approved", account_id=account.id))

    town.control.books.do(approve)
    body = f"grant_type=urn:ietf:params:oauth:grant-type:device_code&device_code={code}&client_id=tollgate-cli"
    answer = other.ask(body.encode(), path="/api/v1/oauth/token", headers=form)
    assert answer.status == 200, answer
    secret = answer.json()["access_token"]
    assert town.control.ask(b"", path="/api/v1/me", token=secret, method="GET").status == 200
    other.program.stop(20)


def test_known_callers_go_on_while_postgresql_is_away(town: Town) -> None:
    seconds = float(os.environ.get("OUTAGE_SECONDS", "30"))
    with Load(town, "outage", clients=3) as load:
        eventually(lambda: all(client.answered for client in load.clients), within=20, what="the first answers")
        cluster().stop()
        try:
            before = len(load.answered())
            threading.Event().wait(seconds)
            during = len(load.answered()) - before
        finally:
            cluster().start()
        assert during > 100
        assert load.refused() == {}
        # The directory listens again: a revocation is obeyed.
        secret, token = town.control.books.token(town.team)
        for gateway in town.gateways:
            eventually(lambda g=gateway: g.ask(call("eth_chainId"), token=secret).status == 200, within=10)  # type: ignore[misc]
        town.control.books.do(lambda records: records.tokens.remove(id=token.id))
        for gateway in town.gateways:
            eventually(lambda g=gateway: g.ask(call("eth_chainId"), token=secret).status == 401, within=1.5)  # type: ignore[misc]
    assert load.refused() == {}


def test_whoever_is_killed_each_answer_is_in_the_ledger_once(town: Town) -> None:
    chance = random.Random(7)
    with Load(town, "killed") as load:
        eventually(lambda: len(load.answered()) > 100, within=20, what="the first answers")
        end = time.monotonic() + 12
        while time.monotonic() < end:
            victim = chance.choice([*town.gateways, *town.collectors, town.control])
            children = [pid for name, pid in victim.children().items() if name != "tg-metrics"]
            if children:
                with suppress(ProcessLookupError):
                    os.kill(chance.choice(children), signal.SIGKILL)
            threading.Event().wait(0.4)
    drain(town)
    # With those of the outage before.
    check(town)
