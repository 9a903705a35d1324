"""What teams with a spending cap may still call: worked out from the ledger, granted to the workers of this node.

The ledger's balance covers so many further calls of a team. On one node all of them are granted: calls under way
and those whose records wait in the spool are part of the grant, so a cap is not exceeded however far the collector
is behind. Several nodes that share a ledger lease calls from it: what others have leased is not there for this
one. A node leases half of what is left, and no more than it is likely to use soon.

Free requests that several capped teams of one payer may use are divided among them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from msgspec import Struct

from tollgate.core.models import Team
from tollgate.core.months import month_of
from tollgate.core.pricing import MonthUse, Price
from tollgate.shm.allowances import FIRST_CALLS, Allowances
from tollgate.store.ledger import LedgerStore

LEASE_SECONDS = 60.0
# A node leases what it takes in this many rounds.
_ROUNDS = 10
# Slots of teams without a cap are freed this often.
_SWEEP_SECONDS = 60.0

Left = Callable[[str, MonthUse], int]
"""How many calls the balance of a team covers."""


class Use(Struct):
    """What a team has taken on this node."""

    taken: int
    since: float
    """When it last took a call."""
    recent: int = 0
    """Calls that it took in the last round."""


class Granting:
    """Grants calls to the workers of one node."""

    def __init__(
        self, allowances: Allowances, ledger: LedgerStore, price: Price, node: str, lost_seconds: float
    ) -> None:
        self._allowances = allowances
        self._ledger = ledger
        self._price = price
        self._node = node
        self._lost_seconds = lost_seconds
        """A call that is not recorded so long after it was taken was lost with its worker."""
        self._uses: dict[str, Use] = {}
        self._sweep_at = 0.0

    def recorded(self, calls: Mapping[str, int]) -> None:
        """Count calls that were committed."""
        for team_id, count in calls.items():
            self._allowances.record(team_id, count)

    def tick(self, capped: Mapping[str, tuple[Team, MonthUse]], now: float) -> None:
        """Grant what the balances of all teams with a cap cover."""
        teams = {team_id: team for team_id, (team, _) in capped.items()}
        self._uses = {team_id: self._look_at(team_id, now) for team_id in teams}
        payers = Counter(team.payer or team.id for team in teams.values())
        covered: dict[str, int] = {}

        def left(team_id: str, use: MonthUse) -> int:
            team = teams[team_id]
            covered[team_id] = whole = use.left(team.price_over(self._price), team.cap or 0)
            return whole - self._shared_free(team, use, payers[team.payer or team.id])

        if self._ledger.is_shared:
            leased = self._lease(teams, left, now)
        else:
            leased = {team_id: left(team_id, use) for team_id, (_, use) in capped.items()}
        for team_id, calls in leased.items():
            self._allowances.grant(team_id, calls, short=calls < covered[team_id])
        if now >= self._sweep_at:
            self._sweep_at = now + _SWEEP_SECONDS
            self._allowances.keep(set(teams))

    def _look_at(self, team_id: str, now: float) -> Use:
        taken, unrecorded = self._allowances.unrecorded(team_id)
        before = self._uses.get(team_id)
        if before is None:
            return Use(taken, now)
        if taken != before.taken:
            return Use(taken, now, max(0, taken - before.taken))
        if unrecorded and now - before.since > self._lost_seconds:
            self._allowances.settle(team_id)
        return Use(taken, before.since)

    def _shared_free(self, team: Team, use: MonthUse, teams: int) -> int:
        """Free requests that are left to the other teams of the payer."""
        price = team.price_over(self._price).without(use.others_free)
        free = max(0, price.free_requests - use.requests)
        return free - -(-free // teams)

    def _lease(self, teams: Mapping[str, Team], left: Left, now: float) -> dict[str, int]:
        def share(team_id: str, use: MonthUse, others: int, is_alone: bool) -> int:
            available = max(0, left(team_id, use) - others)
            if is_alone:
                return available
            _, unrecorded = self._allowances.unrecorded(team_id)
            spare = max(0, available - unrecorded)
            likely = max(FIRST_CALLS, _ROUNDS * self._uses[team_id].recent)
            # What is under way will be charged, whatever is left: others must know of it.
            return unrecorded + min(-(-spare // 2), likely)

        payers = {team_id: team.payer for team_id, team in teams.items()}
        return self._ledger.lease_calls(self._node, month_of(now), payers, share, now, now + LEASE_SECONDS)
