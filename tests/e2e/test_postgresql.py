"""The service on a real PostgreSQL: one node does what it does on SQLite."""

from __future__ import annotations

import json
import random
import subprocess
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.exc import OperationalError
from tests.contract.ledgers import NOON, TEAMS, LedgerHarness, entry

from parts.postgres import cluster
from parts.processes import eventually
from parts.raw_http import call
from parts.stack import Stack, open_stack
from parts.tollgate import TOLLGATE, seconds_until_revoked
from parts.toxiproxy import toxiproxy
from tollgate.store import postgresql, upgrade
from tollgate.store.base import Mark
from tollgate.store.ledger import LedgerBehind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy.engine import URL

pytestmark = pytest.mark.e2e

PEPPER = "a pepper that all nodes of a test share"


@pytest.fixture
def database() -> Iterator[str]:
    name = cluster().make()
    yield cluster().url(name).render_as_string(hide_password=False)
    cluster().drop(name)


@pytest.fixture
def stack(tmp_path: Path, database: str) -> Iterator[Stack]:
    with open_stack(tmp_path, {"store": {"url": database}, "secrets": {"pepper": PEPPER}}) as made:
        yield made


def command(stack: Stack, *arguments: str) -> Any:
    file = stack.gateway.program.argv[stack.gateway.program.argv.index("--config") + 1]
    ended = subprocess.run(
        [TOLLGATE, *arguments, "--config", file], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr + ended.stdout
    return ended.stdout


def test_calls_are_answered_logged_and_counted_and_the_doctor_agrees(stack: Stack, tmp_path: Path) -> None:
    for number in range(20):
        assert stack.exchange(call("eth_chainId", id=number)).status == 200
    person = stack.gateway.books.account("ann@example.com", acme="owner")
    secret = stack.gateway.books.personal_token(person.email)

    def page() -> list[Any]:
        answer = stack.gateway.exchange(b"", path="/api/v1/teams/acme/logs", token=secret, method="GET")
        assert answer.status == 200, answer
        return answer.json()["items"]  # type: ignore[no-any-return]

    eventually(lambda: len(page()) == 20, what="the logs")
    rows = page()
    assert {row["method"] for row in rows} == {"eth_chainId"}
    usage = stack.gateway.exchange(
        b"", path="/api/v1/teams/acme/usage?by=method", token=secret, method="GET"
    ).json()
    assert usage["requests"] == 20
    found = json.loads(command(stack, "doctor", "--json"))
    assert found["ok"], found
    assert not list((tmp_path / "data").glob("*.db"))


def test_revoked_token_stops_within_a_second(stack: Stack) -> None:
    assert seconds_until_revoked(stack.gateway.books, stack.team, stack.gateway) < 1.0


def test_commits_whose_connections_are_cut_anywhere_are_in_the_ledger_once(tmp_path: Path) -> None:
    """As when the server fails over: the last commit may or may not be done. The marks show it."""
    chance = random.Random(11)
    segment = b"\7" * 16
    name = cluster().make()
    url = postgresql.checked(cluster().url(name))
    upgrade.migrate(url, upgrade.LEDGER)
    with toxiproxy(tmp_path / "toxiproxy") as proxies:
        proxy = proxies.before("postgresql", cluster().port)
        ledger = LedgerHarness(_Home(url.set(port=proxy.port)))
        over = threading.Event()

        def cut() -> None:
            while not over.wait(chance.uniform(0.005, 0.08)):
                proxy.cut()

        cutter = threading.Thread(target=cut)
        cutter.start()
        cuts, known = 0, Mark(0)
        try:
            while known.offset < 40:
                following = Mark(known.offset + 1)
                entries = [entry(team, NOON + known.offset) for team in TEAMS for _ in range(100)]
                try:
                    ledger.commit(
                        *entries, marks={segment: following}, known={segment: known} if known.offset else {}
                    )
                    known = following
                except OperationalError:
                    # What a collector does that starts again: it reads how far the ledger is.
                    cuts += 1
                    with suppress(OperationalError):
                        known = ledger.store.marks().get(segment, known)
                except LedgerBehind:
                    with suppress(OperationalError):
                        known = ledger.store.marks()[segment]
        finally:
            over.set()
            cutter.join(30)
            ledger.close()
    direct = LedgerHarness(_Home(url))
    assert cuts
    for team in TEAMS:
        assert [row.seq for row in direct.logs(team)] == list(range(4_000, 0, -1))
    facts = direct.facts()
    assert facts.usage == facts.logs
    direct.close()
    cluster().drop(name)


class _Home:
    def __init__(self, url: URL) -> None:
        self.url = url

    def by_hand(self, statement: str) -> list[Any]:
        raise NotImplementedError

    def close(self) -> None:
        """The test drops it."""
