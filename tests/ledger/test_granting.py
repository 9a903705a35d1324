"""What is granted to the workers of a node: what the balance covers, less what other nodes have leased."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tollgate.core.models import Team
from tollgate.core.pricing import MILLION, MonthUse, Price
from tollgate.ledger.granting import Granting
from tollgate.shm.allowances import FIRST_CALLS, Allowances

PRICE = Price(free_requests=10, micros_per_million=MILLION)
LOST = 60.0


class FakeLedger:
    """The leases of calls of a ledger that nodes share, or of none."""

    def __init__(self, *, is_shared: bool = False) -> None:
        self.is_shared = is_shared
        self.uses: dict[str, MonthUse] = {}
        self.leases: dict[tuple[str, str], int] = {}

    def lease_calls(
        self,
        node: str,
        month: str,
        payers: Mapping[str, str],
        share: Callable[[str, MonthUse, int, bool], int],
        now: float,
        until: float,
    ) -> dict[str, int]:
        for team in payers:
            others = [calls for (of, by), calls in self.leases.items() if of == team and by != node]
            self.leases[team, node] = share(team, self.uses.get(team, MonthUse()), sum(others), not others)
        return {team: self.leases[team, node] for team in payers}


class Node:
    """The workers and the collector of one node."""

    def __init__(self, ledger: FakeLedger, folder: Path, name: str = "one") -> None:
        self.ledger = ledger
        self.allowances = Allowances(1_024, 1, folder / f"{name}.lock")
        self.granting = Granting(self.allowances, ledger, PRICE, name, LOST)  # type: ignore[arg-type]
        self.now = 1_000.0

    def tick(self, *teams: Team, seconds: float = 1.0) -> None:
        self.now += seconds
        uses = self.ledger.uses
        self.granting.tick({team.id: (team, uses.get(team.id, MonthUse())) for team in teams}, self.now)

    def call(self, team: Team, most: int = 100_000) -> int:
        """Make calls until they are refused; how many passed."""
        allowance = self.allowances.of(team.id)
        assert allowance is not None
        return next((count for count in range(most) if not allowance.take()), most)

    def commit(self, team: Team, calls: int) -> None:
        """Let the collector record calls, which are charged in full."""
        use = self.ledger.uses.get(team.id, MonthUse())
        requests = use.requests + calls
        total = PRICE.total(requests)
        self.ledger.uses[team.id] = MonthUse(requests, total, total, min(requests, PRICE.free_requests))
        self.granting.recorded({team.id: calls})


ACME = Team("team_1", "acme", spending_cap=50)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(FakeLedger(), tmp_path)


def test_calls_end_exactly_where_the_cap_is_reached(node: Node) -> None:
    node.tick(ACME)
    assert node.call(ACME) == 60, "ten are free, and fifty cost what the cap allows"
    for _ in range(3):
        node.commit(ACME, 20)
        node.tick(ACME)
        assert node.call(ACME) == 0
    allowance = node.allowances.of(ACME.id)
    assert allowance is not None
    assert not allowance.is_short


def test_raised_cap_grants_what_it_covers_beyond(node: Node) -> None:
    node.tick(ACME)
    assert node.call(ACME) == 60
    node.tick(Team("team_1", "acme", spending_cap=55))
    assert node.call(ACME) == 5, "before a single one was recorded"


def test_calls_of_a_killed_worker_are_available_again_after_a_while(node: Node) -> None:
    node.tick(ACME)
    assert node.call(ACME) == 60
    node.commit(ACME, 40)
    node.tick(ACME)
    node.tick(ACME, seconds=LOST)
    assert node.call(ACME) == 0
    node.tick(ACME, seconds=1)
    node.tick(ACME)
    assert node.call(ACME) == 20


def test_capped_teams_of_one_payer_divide_the_free_requests(node: Node) -> None:
    teams = [Team(f"team_{number}", str(number), spending_cap=0, payer="acc_1") for number in range(4)]
    node.tick(*teams)
    assert sum(map(node.call, teams)) == 12, "three for each of four"
    allowance = node.allowances.of("team_0")
    assert allowance is not None
    assert allowance.is_short


def test_team_without_a_cap_loses_its_slot(node: Node) -> None:
    node.tick(ACME)
    node.tick(seconds=100.0)
    assert node.call(ACME) == FIRST_CALLS


def test_two_nodes_together_make_no_more_calls_than_the_cap_covers(tmp_path: Path) -> None:
    ledger = FakeLedger(is_shared=True)
    nodes = [Node(ledger, tmp_path, name) for name in ("one", "two")]
    team = Team("team_1", "acme", spending_cap=20_000)
    made = [0, 0]
    waiting = [0, 0]
    for round_ in range(200):
        for place, node in enumerate(nodes):
            node.tick(team)
            calls = node.call(team, most=700)
            made[place] += calls
            waiting[place] += calls
            # Records of one node come late.
            if place or round_ % 5 == 0:
                node.commit(team, waiting[place])
                waiting[place] = 0
        if sum(made) >= 20_010:
            break
    assert sum(made) == 20_010
    assert min(made) > 1_000, "both had their share"


def test_node_without_calls_leaves_the_balance_to_the_other(tmp_path: Path) -> None:
    ledger = FakeLedger(is_shared=True)
    idle, busy = Node(ledger, tmp_path, "idle"), Node(ledger, tmp_path, "busy")
    team = Team("team_1", "acme", spending_cap=10_000)
    made = 0
    for _ in range(60):
        idle.tick(team)
        busy.tick(team)
        calls = busy.call(team, most=2_000)
        busy.commit(team, calls)
        made += calls
    assert made >= 10_010 - FIRST_CALLS
