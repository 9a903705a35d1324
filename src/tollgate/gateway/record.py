"""What became of each request and call, counted. The ledger will take its records from the same place.

Called once for each answer, before it leaves.
"""

from __future__ import annotations

from collections.abc import Callable

from tollgate import metrics
from tollgate.errors import Refusal
from tollgate.gateway.messages import Network, Request

OK = "ok"
NODE_ERROR = "node_error"


class _Tally:
    """The cells of one network. Labels come from the settings and the catalogues, so they cannot grow."""

    def __init__(self, writer: metrics.Writer, family: str, name: str) -> None:
        self.seconds = writer.histogram(metrics.REQUEST_SECONDS, family, name) if family else []
        self.requests: dict[int, int] = {}
        self.calls: dict[tuple[str, str], int] = {}


class Recorder:
    """Counts for one worker."""

    def __init__(self, writer: metrics.Writer, now: Callable[[], float]) -> None:
        self._writer = writer
        self._cells = writer.cells
        self._now = now
        self._tallies: dict[str, _Tally] = {}

    def answered(self, request: Request, status: int) -> None:
        """Count a request that was answered, and how long it took if an upstream was asked."""
        network = request.network
        path = network.path if network is not None else ""
        tally = self._tallies.get(path) or self._tally(path)
        cell = tally.requests.get(status)
        if cell is None:
            family, name = (network.family, network.name) if network is not None else ("", "")
            cell = tally.requests[status] = self._writer.cell(metrics.REQUESTS, family, name, str(status))
        self._cells[cell] += 1
        if request.started:
            self._writer.observe(tally.seconds, self._now() - request.started)

    def refused(self, refusal: Refusal) -> None:
        """Count a request that was refused as a whole."""
        self._writer.add(self._writer.cell(metrics.REFUSALS, refusal.reason))

    def called(self, network: Network, method: str, outcome: str, count: int = 1) -> None:
        """Count what became of calls."""
        calls = (self._tallies.get(network.path) or self._tally(network.path)).calls
        cell = calls.get((method, outcome))
        if cell is None:
            label = network.catalogue.label(method)
            cell = self._writer.cell(metrics.CALLS, network.family, network.name, label, outcome)
            if label == method:
                calls[method, outcome] = cell
        self._cells[cell] += count

    def _tally(self, path: str) -> _Tally:
        family, _, name = path.partition("/")
        tally = self._tallies[path] = _Tally(self._writer, family, name)
        return tally
