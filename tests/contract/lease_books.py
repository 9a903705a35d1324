"""The lease books that pass the contract: a plain one in memory, which shows what the rules are, and Valkey's."""

import atexit
import functools
from collections.abc import Callable, Sequence

from parts.valkey import Valkey
from tollgate.core.leases import Lease, LeaseReply, LeaseReport, leased, targets
from tollgate.store.base import LeaseBook
from tollgate.store.valkey import ValkeyLeaseBook, prefix

NEAR = 0.002


class _Limit:
    def __init__(self, window: float, count: float) -> None:
        self.window = window
        self.count = count
        self.free = 0.0
        self.held: dict[str, float] = {}
        self.want: dict[str, float] = {}


class MemoryLeaseBook:
    """Leases in a dictionary. Nodes live until they leave."""

    def __init__(self, limits: int = 256) -> None:
        self._nodes: list[str] = []
        self._limits: dict[str, _Limit] = {}
        self._most = limits

    async def exchange(self, node: str, reports: Sequence[LeaseReport]) -> LeaseReply:
        known = node in self._nodes
        if not known:
            self._nodes = sorted([*self._nodes, node])
        for report in reports:
            self._take_in(node, report)
        all_leases = [self._lease(node, mark) for mark in list(self._limits)]
        return LeaseReply(len(self._nodes), known, tuple(lease for lease in all_leases if lease is not None))

    def _take_in(self, node: str, report: LeaseReport) -> None:
        limit = self._limits.get(report.mark)
        if limit is None:
            if report.want == 0 or len(self._limits) >= self._most:
                return
            limit = self._limits[report.mark] = _Limit(report.window, report.count)
            each = leased(len(self._nodes), report.count) / len(self._nodes)
            limit.held = dict.fromkeys(self._nodes, each)
        limit.want[node] = report.want
        held = limit.held.get(node, 0.0)
        if report.lowered is not None and report.lowered < held:
            limit.free += min(report.freed, limit.window * (held - report.lowered))
            limit.held[node] = report.lowered

    def _lease(self, node: str, mark: str) -> Lease | None:
        limit = self._limits[mark]
        pool = leased(len(self._nodes), limit.count)
        held = [limit.held.get(each, 0.0) for each in self._nodes]
        wants = [limit.want.get(each, 0.0) for each in self._nodes]
        if not any(wants) and all(abs(each - pool / len(held)) < 5 * NEAR for each in held):
            del self._limits[mark]
            return None
        mine = limit.held.get(node, 0.0)
        share, tokens = targets(wants, pool)[self._nodes.index(node)], 0.0
        if share > mine - NEAR:
            room = pool - sum(held)
            grown, share = min(share - mine, room), mine
            if grown > NEAR:
                share = mine + grown
                tokens = max(0.0, min(limit.free, limit.window * room, limit.window * grown))
                limit.held[node] = share
                limit.free -= tokens
        return Lease(mark, limit.window, limit.count, share, tokens)

    async def leave(self, node: str) -> None:
        self._nodes.remove(node)
        for limit in self._limits.values():
            limit.held.pop(node, None)
            limit.want.pop(node, None)

    async def close(self) -> None:
        """Nothing to release."""


@functools.cache
def server() -> Valkey:
    """One for all tests of a session; each empties it."""
    made = Valkey()
    atexit.register(made.close)
    return made


def in_valkey() -> ValkeyLeaseBook:
    server().command("FLUSHALL")
    # A busy machine is no outage.
    return ValkeyLeaseBook(server().url, prefix(b"test"), seconds=10)


BOOKS: dict[str, Callable[[], LeaseBook]] = {"memory": MemoryLeaseBook, "valkey": in_valkey}
