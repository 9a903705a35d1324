"""What became of each request and call, counted. The ledger will take its records from the same place.

Called once for each answer, before it leaves.
"""

from __future__ import annotations

from collections.abc import Callable

from tollgate import metrics
from tollgate.core.jsonrpc import Call
from tollgate.errors import Refusal
from tollgate.gateway.messages import Network, Request

OK = "ok"
NODE_ERROR = "node_error"


class Recorder:
    """Counts for one worker."""

    def __init__(self, writer: metrics.Writer, now: Callable[[], float]) -> None:
        self._writer = writer
        self._now = now
        # Cells by what they count, so that a call costs one look-up. Labels come from the settings and the
        # catalogues, never from callers, so this cannot grow without bound.
        self._calls: dict[tuple[str, str, str], int] = {}
        self._requests: dict[tuple[str, int], int] = {}
        self._seconds: dict[str, list[int]] = {}

    def answered(self, request: Request, status: int) -> None:
        """Count a request that was answered, and how long it took if an upstream was asked."""
        network = request.network
        path = network.path if network is not None else "/"
        cell = self._requests.get((path, status))
        if cell is None:
            cell = self._writer.cell(metrics.REQUESTS, *path.split("/"), str(status))
            self._requests[path, status] = cell
        self._writer.add(cell)
        if request.started and network is not None:
            self._observe(network, self._now() - request.started)

    def refused(self, refusal: Refusal) -> None:
        """Count a request that was refused as a whole."""
        self._writer.add(self._writer.cell(metrics.REFUSALS, refusal.reason))

    def called(self, network: Network, call: Call, outcome: str) -> None:
        """Count what became of one call."""
        key = (network.path, network.catalogue.label(call.method), outcome)
        cell = self._calls.get(key)
        if cell is None:
            cell = self._writer.cell(metrics.CALLS, network.family, network.name, *key[1:])
            self._calls[key] = cell
        self._writer.add(cell)

    def _observe(self, network: Network, seconds: float) -> None:
        cells = self._seconds.get(network.path)
        if cells is None:
            cells = self._writer.histogram(metrics.REQUEST_SECONDS, network.family, network.name)
            self._seconds[network.path] = cells
        self._writer.observe(cells, seconds)
