"""A node's sign of life: who it is, what it does, and how much of its spool is not in the ledger yet.

For installations of several nodes, which share a database; see `tollgate nodes`.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tollgate import __version__
from tollgate.core.nodes import COLLECTOR, FORGOTTEN_SECONDS, STATES, Node, named
from tollgate.ledger import segments
from tollgate.processes.bootstrap import Bootstrap
from tollgate.shm import metrics
from tollgate.store import engines
from tollgate.store.base import StoreUnavailable
from tollgate.store.ledger import open_ledger

LOOK_SECONDS = 60.0
"""Between two looks at the other nodes, for the metrics."""
_MAX_NODES = 10_000
FILE = "node"
"""In the data folder: the node's name for itself, made once."""


def node_id(data_dir: Path) -> str:
    file = data_dir / FILE
    if not file.exists():
        # Linked when it is written: another process of this node reads it at the same moment.
        fresh = data_dir / f"{FILE}-{os.getpid()}"
        fresh.write_text(secrets.token_hex(8), encoding="ascii")
        with suppress(FileExistsError):
            file.hardlink_to(fresh)
        fresh.unlink()
    return file.read_text(encoding="ascii").strip()


class Heartbeat:
    """Records that this node is alive."""

    def __init__(self, bootstrap: Bootstrap, roles: frozenset[str], writer: metrics.Writer) -> None:
        self._spool = bootstrap.spool_dir
        self._writer = writer
        self._shows_lag = COLLECTOR not in roles
        """Otherwise the collector shows it, every second."""
        self._look_at = 0.0
        self._store = engines.open_store(bootstrap.store_url)
        self._ledger = open_ledger(bootstrap.ledger_url)
        identity = f"{node_id(bootstrap.data_dir)}-{named(roles)}"
        self._node = Node(identity, time.time(), socket.gethostname()[:64], __version__, named(roles), 0.0, 0)

    async def beat(self) -> None:
        """Write it down; where the database is away, at the next beat."""
        with suppress(StoreUnavailable):
            lag = await asyncio.to_thread(self._lag)
            now = time.time()
            values = (self._node.name, self._node.version, self._node.roles, now, lag)
            node = Node(self._node.id, self._node.created_at, *values)
            async with self._store.changing() as records:
                if not await records.nodes.replace(node):
                    await records.nodes.add(node)
                await records.nodes.remove_older("seen_at", now - FORGOTTEN_SECONDS)
                if now >= self._look_at:
                    # Not at each beat: a thousand nodes would read a thousand rows each, all the time.
                    self._look_at = now + LOOK_SECONDS
                    self._show(await records.nodes.page(_MAX_NODES), now)
            if self._shows_lag:
                self._writer.set(self._writer.cell(metrics.LEDGER_LAG), lag)

    def _show(self, nodes: Sequence[Node], now: float) -> None:
        states = Counter(node.state(now) for node in nodes)
        for state in STATES:
            self._writer.set(self._writer.cell(metrics.NODES, state), states[state])

    async def close(self) -> None:
        """Leave the list: a node that is stopped is not missed."""
        with suppress(StoreUnavailable):
            async with self._store.changing() as records:
                await records.nodes.remove(id=self._node.id)
        await self._store.close()
        await asyncio.to_thread(self._ledger.close)

    def _lag(self) -> int:
        try:
            files = segments.find_all(self._spool)
            return segments.backlog(files, self._ledger.marks(set(files.values()))).bytes
        except engines.DATABASE_ERRORS as error:
            raise StoreUnavailable("the ledger cannot be read") from error
