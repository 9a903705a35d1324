"""Several nodes on PostgreSQL and Valkey: three gateways, two controls, two collectors; murder and outages.

The clocks of one gateway and one control are 10 s ahead, in all tests.
"""

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

from parts.load import load
from parts.need import need
from parts.postgres import cluster, pooler
from parts.processes import eventually
from parts.raw_http import JSON, RawConnection, call, request
from parts.tollgate import TOLLGATE, Gateway, bearer, linux_only, seconds_until_revoked, serving, write_settings
from parts.tool import admin
from parts.toxiproxy import Proxy, toxiproxy
from parts.upstream import upstream
from parts.valkey import Valkey, valkey
from parts.visitor import GRANT, Visitor, visitor
from tollgate.core.logs import LogFilter
from tollgate.store import engines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tollgate.core.models import Team

# Seven services take a while to start on a busy machine; they are started once for all tests of this file.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400), linux_only]

PEPPER = "a pepper that all nodes of a test share"
PATH = "/x/eth/mainnet"


@dataclass
class Town:
    """The nodes, and a team with a token."""

    folder: Path
    url: str
    server: Valkey
    gateways: list[Gateway]
    control: Gateway
    other_control: Gateway
    collectors: list[Gateway]
    team: Team
    token: str
    stack: ExitStack
    serve: Callable[..., Gateway]
    write: Callable[..., Path]
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
                    found.update(row.request_id for row in part.entries)
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
    ahead = {"LD_PRELOAD": str(need("libfaketime")), "FAKETIME": "+10s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    with ExitStack() as stack:
        node = stack.enter_context(upstream())
        server = stack.enter_context(valkey())
        settings["shared"] = {"url": server.url}
        behind = {"eth/mainnet": [node.url + "/rpc"]}

        def serve(
            folder: str, *roles: str, env: Mapping[str, str] | None = None, **more: dict[str, object]
        ) -> Gateway:
            arguments = [part for role in roles for part in ("--role", role)]
            return stack.enter_context(
                serving(tmp_path / folder, behind, settings | more, arguments=arguments, env=env)
            )

        def write(folder: str, **more: dict[str, object]) -> Path:
            return write_settings(tmp_path / folder, behind, settings | more)

        # Nodes that start together migrate once; two collectors have the spools of two gateways.
        gateways = [serve(each, "gateway", env=ahead if each == "b" else None) for each in ("a", "b", "c")]
        collectors = [serve(each, "collector") for each in ("a", "b")]
        control, other_control = serve("control", "control"), serve("control-2", "control", "prober", env=ahead)
        team = control.books.team()
        token, _ = control.books.token(team)
        yield Town(
            tmp_path, url, server, gateways, control, other_control, collectors, team, token, stack, serve, write
        )
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
            with suppress(OSError, ValueError, AssertionError, EOFError), self._gateway.connect() as connection:
                while not self.stopped.is_set():
                    self._ask(connection)

    @property
    def _gateway(self) -> Gateway:
        return self.town.gateways[self.number % 3]

    def _ask(self, connection: RawConnection) -> None:
        self.sent += 1
        name = f"{self.label}-{self.number}-{self.sent}"
        headers = {**JSON, **bearer(self.town.token), "X-Request-Id": name}
        answer = connection.exchange(PATH, call("eth_chainId"), headers)
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
    """Stop all that writes and collects, then empty what the third gateway has left: it has no collector."""
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
    # By the names that clients gave: all calls of a batch have one.
    assert {name: count for name, count in found.items() if count > 1 and "-" in name} == {}
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
            {role: len(found) for role, found in listed().items()}
            == {"gateway": 3, "collector": 2, "control": 1, "control,prober": 1}
        ),
        what="the list",
    )
    assert {each["state"] for found in listed().values() for each in found} == {"up"}
    # A gateway whose spool is not collected shows that.
    for _ in range(5):
        assert town.gateways[2].exchange(call("eth_chainId"), token=town.token).status == 200
    eventually(lambda: max(each["spool_bytes"] for each in listed()["gateway"]) > 0, what="the lag")


def test_gateway_has_no_control_plane_and_control_no_gateway(town: Town) -> None:
    assert town.gateways[0].exchange(b"", path="/api/v1/service", method="GET").status == 404
    assert town.control.exchange(b"", path="/api/v1/service", method="GET").status == 200
    assert town.control.exchange(call("eth_chainId"), token=town.token).status == 404
    assert "/console" not in town.gateways[0].program.err.read_text(), "none is promised"
    assert "/console" in town.control.program.err.read_text()
    for each in (*town.gateways, town.control, *town.collectors):
        assert each.exchange(b"", path="/readyz", method="GET").status == 200


def test_prober_alone_watches_upstreams_for_its_metrics(town: Town) -> None:
    prober = town.serve("prober", "prober")

    def states() -> list[float]:
        named = prober.metrics().items()
        return [value for key, value in named if key.startswith("tollgate_upstream_state") and 'state="up"' in key]

    eventually(lambda: states() == [1], what="the first probes")
    assert prober.exchange(call("eth_chainId"), token=town.token).status == 404
    prober.program.stop(20)


def test_control_node_with_a_prober_knows_the_state_of_networks(town: Town) -> None:
    account = town.control.books.account("bob@example.com", acme="owner")
    secret = town.control.books.personal_token(account.email)

    def states(node: Gateway) -> set[str]:
        answer = node.exchange(b"", path="/api/v1/networks", token=secret, method="GET")
        assert answer.status == 200, answer
        return {each["state"] for each in answer.json()["items"]}

    eventually(lambda: "unknown" not in states(town.other_control), what="the first probes")
    assert states(town.control) == {"unknown"}, "there is no prober"
    assert any(name.startswith("tollgate_upstream_probes_total") for name in town.other_control.metrics())


def test_revoked_token_stops_on_every_node_within_a_second(town: Town) -> None:
    assert seconds_until_revoked(town.control.books, town.team, *town.gateways) < 1.0


def test_clocks_are_10_seconds_apart(town: Town) -> None:
    secret, _ = town.control.books.token(town.team, expires_at=time.time() + 5)
    assert town.gateways[1].exchange(call("eth_chainId"), token=secret).status == 401, (
        "it has expired by that clock"
    )


def test_device_login_and_session_whose_steps_land_on_nodes_with_different_clocks(town: Town) -> None:
    made = admin(
        town.folder / "control" / "tollgate.toml", "create-account", "ann@example.com", "--team", "people",
        "--password-stdin", typed="correct horse battery",
    )  # fmt: skip
    assert made.code == 0, made.err

    def poll(there: Visitor, code: str) -> dict[str, Any]:
        answer = there.post("/api/v1/oauth/token", grant_type=GRANT, device_code=code, client_id="tollgate-cli")
        return answer.json()  # type: ignore[no-any-return]

    with visitor(town.control.base_url) as here, visitor(town.other_control.base_url) as there:
        started = here.post("/api/v1/oauth/device_authorization", client_id="tollgate-cli").json()
        assert poll(there, started["device_code"])["error"] == "authorization_pending"
        assert poll(here, started["device_code"])["error"] == "authorization_pending", "that was no second ago"
        assert there.sign_in("ann@example.com", "correct horse battery").status_code == 303
        here.http.cookies.update(there.http.cookies)
        approved = here.post("/console/device", user_code=started["user_code"], act="approve")
        assert approved.status_code == 303, approved.text
        secret = poll(there, started["device_code"])["access_token"]
        for each in (here, there):
            assert each.signed_in()
            assert each.http.get("/api/v1/me", headers=bearer(secret)).status_code == 200


def test_reload_reaches_every_service_of_a_node(town: Town) -> None:
    batch = b"[" + b",".join([call("eth_chainId")] * 3) + b"]"
    gateway = town.gateways[0]
    assert gateway.exchange(batch, token=town.token).status == 200
    for folder, services in {"a": 2, "b": 2, "c": 1, "control": 1, "control-2": 1}.items():
        town.write(folder, limits={"batch_calls": 2})
        ended = town.run("reload", name=folder)
        assert ended.returncode == 0, ended.stderr
        assert ended.stderr.count("limits.batch_calls: 100 -> 2") == services
        town.write(folder)
    assert gateway.exchange(batch, token=town.token).status != 200
    gateway.program.send(signal.SIGHUP)
    eventually(lambda: gateway.exchange(batch, token=town.token).status == 200, what="the old settings")
    for folder in ("a", "b", "c"):
        assert town.run("reload", name=folder).returncode == 0


def test_three_nodes_keep_a_limit_together(town: Town) -> None:
    eventually(
        lambda: {each.metrics()["tollgate_shared_nodes"] for each in town.gateways} == {3},
        what="three nodes",
    )
    # A node that other work on the machine keeps from the shared store limits by itself for a while: ignored.
    for _ in range(3):
        lost = _times_lost(town)
        share = _share_of_limit(town, 30)
        if _times_lost(town) == lost:
            break
    assert share <= 1.05


def _times_lost(town: Town) -> float:
    return sum(each.metrics()["tollgate_shared_lost_total"] for each in town.gateways)


def _share_of_limit(town: Town, rate: int) -> float:
    """How many times what a limit of so many calls a second allows were answered by all nodes together."""
    secret, _ = town.control.books.token(town.team, requests_per_second=rate)
    for each in town.gateways:
        assert each.exchange(call("eth_chainId"), token=secret).status == 200
    connections = [each.connect() for each in town.gateways]
    with load(connections, request(PATH, call("eth_chainId"), {**JSON, **bearer(secret)})) as callers:
        eventually(lambda: sum(each.status == 200 for each in callers.since(0.0)) > 5 * rate, within=60)
    outcomes = callers.since(0.0)
    assert {each.status for each in outcomes} == {200, 429}
    seconds = max(each.ended for each in outcomes) - min(each.started for each in outcomes)
    return sum(each.status == 200 for each in outcomes) / (rate * seconds + rate)


@pytest.mark.parametrize("how", ["refused", "silent"])
def test_node_that_is_cut_off_from_both_engines(town: Town, tmp_path: Path, how: str) -> None:
    def exchange(token: str) -> int:
        return gateway.exchange(call("eth_chainId"), token=token).status

    def cut(proxy: Proxy) -> None:
        proxy.enable(False) if how == "refused" else proxy.spoil("timeout", timeout=0)

    def heal(proxy: Proxy) -> None:
        proxy.enable(True) if how == "refused" else proxy.mend("timeout")

    # Before the gateway starts: a change that it learns of while it knows the token makes it look that up again.
    secret, token = town.control.books.token(town.team)
    with toxiproxy(tmp_path / "toxiproxy") as proxies:
        engines = [proxies.before("postgresql", cluster().port), proxies.before("valkey", town.server.port)]
        gateway = town.serve(
            f"cut-{how}",
            "gateway",
            store={"url": town.url.replace(f":{cluster().port}/", f":{engines[0].port}/")},
            shared={"url": town.server.url.replace(f":{town.server.port}/", f":{engines[1].port}/")},
            directory={"stale_seconds": 10.0},
        )
        assert (exchange(secret), exchange(town.token)) == (200, 200)
        for proxy in engines:
            cut(proxy)
        eventually(lambda: gateway.metrics()["tollgate_shared_up"] == 0, what="Valkey is lost")
        town.control.books.do(lambda records: records.tokens.remove(id=token.id))
        assert {exchange(secret) for _ in range(20)} == {200}, "known callers are still served"
        for proxy in engines:
            heal(proxy)
        eventually(lambda: exchange(secret) == 401, what="the revocation")
        assert exchange(town.token) == 200
        eventually(lambda: gateway.metrics()["tollgate_shared_up"] == 1, what="Valkey is back")
        for proxy in engines:
            cut(proxy)
        eventually(lambda: exchange(town.token) == 503, within=60, what="the bound")
        for proxy in engines:
            heal(proxy)
        eventually(lambda: exchange(town.token) == 200, what="the return")
        gateway.program.stop(20)


def test_gateway_behind_pgbouncer_obeys_revocations_by_polling(town: Town) -> None:
    url = town.url.replace(f":{cluster().port}/", f":{pooler()}/")
    gateway = town.serve("pooled", "gateway", store={"url": url})
    eventually(lambda: "PostgreSQL is behind a pooler" in gateway.program.err.read_text(), what="polling")
    assert seconds_until_revoked(town.control.books, town.team, gateway) < 1.0
    gateway.program.stop(20)


def test_known_callers_go_on_while_postgresql_is_away(town: Town) -> None:
    seconds = float(os.environ.get("OUTAGE_SECONDS", "30"))
    with Load(town, "outage", clients=3) as load:
        eventually(lambda: all(client.answered for client in load.clients), what="the first answers")
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
            eventually(lambda g=gateway: g.exchange(call("eth_chainId"), token=secret).status == 200)  # type: ignore[misc]
        town.control.books.do(lambda records: records.tokens.remove(id=token.id))
        for gateway in town.gateways:
            eventually(lambda g=gateway: g.exchange(call("eth_chainId"), token=secret).status == 401)  # type: ignore[misc]
    assert load.refused() == {}


def test_each_answer_is_in_the_ledger_once_whichever_process_is_killed(town: Town) -> None:
    chance = random.Random(7)
    with Load(town, "killed") as load:
        eventually(lambda: len(load.answered()) > 100, what="the first answers")
        end = time.monotonic() + 12
        while time.monotonic() < end:
            victim = chance.choice([*town.gateways, *town.collectors, town.control, town.other_control])
            children = [pid for name, pid in victim.children().items() if name != "tg-metrics"]
            if children:
                with suppress(ProcessLookupError):
                    os.kill(chance.choice(children), signal.SIGKILL)
            threading.Event().wait(0.4)
    drain(town)
    # With those of the outage before.
    check(town)
