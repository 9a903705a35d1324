"""Counts the outcomes of requests and calls. Records for the ledger are `journal.py`'s.

Called once for each answer, before it leaves.
"""

from __future__ import annotations

from tollgate.errors import Refusal
from tollgate.gateway.messages import Request, ServedNetwork
from tollgate.shm import metrics

OK = "ok"
NODE_ERROR = "node_error"


class Counters:
    """Counts for one worker."""

    def __init__(self, writer: metrics.Writer) -> None:
        self._writer = writer
        self._cells = writer.cells
        # Cells by what they count. Labels come from the settings and the catalogues, so these cannot grow.
        self._requests: dict[tuple[str, int], int] = {}
        self._calls: dict[tuple[str, str, str], int] = {}
        self._cached: dict[tuple[str, str], int] = {}
        self._resolved: dict[tuple[str, str, str, str], tuple[int, int]] = {}

    def answered(self, request: Request, status: int) -> None:
        """Count a request that was answered."""
        self.requested(request.network.path if request.network is not None else "/", status)

    def requested(self, path: str, status: int) -> None:
        """Count a request to this network that was answered so."""
        key = (path, status)
        cell = self._requests.get(key)
        if cell is None:
            cell = self._requests[key] = self._writer.cell(metrics.REQUESTS, *key[0].split("/"), str(status))
        self._cells[cell] += 1

    def refused(self, refusal: Refusal) -> None:
        """Count a request that was refused as a whole."""
        self._writer.add(self._writer.cell(metrics.REFUSALS, refusal.reason))

    def cached(self, network: ServedNetwork, how: str, count: int = 1) -> None:
        """Count how the cache answered calls."""
        cell = self._cached.get((network.path, how))
        if cell is None:
            cell = self._cached[network.path, how] = self._writer.cell(
                metrics.CACHE, network.family, network.name, how
            )
        self._cells[cell] += count

    def resolved(self, network: ServedNetwork, method: str, outcome: str, how: str) -> None:
        """Count what became of one call, and how the cache answered it."""
        cells = self._resolved.get((network.path, method, outcome, how))
        if cells is None:
            self.called(network, method, outcome)
            self.cached(network, how)
            called = self._calls.get((network.path, method, outcome))
            if called is not None:
                self._resolved[network.path, method, outcome, how] = (called, self._cached[network.path, how])
            return
        called, cached = cells
        self._cells[called] += 1
        self._cells[cached] += 1

    def called(self, network: ServedNetwork, method: str, outcome: str, count: int = 1) -> None:
        """Count what became of calls."""
        cell = self._calls.get((network.path, method, outcome))
        if cell is None:
            label = network.catalogue.label(method)
            cell = self._writer.cell(metrics.CALLS, network.family, network.name, label, outcome)
            if label == method:
                self._calls[network.path, method, outcome] = cell
        self._cells[cell] += count
