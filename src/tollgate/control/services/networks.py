"""The networks that are served: their addresses, and their state as the prober last reported it.

Teams do not see which upstreams serve a network; operators do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from tollgate.api.operator import ShownNetwork
from tollgate.api.service import Network
from tollgate.chains.catalogue import Catalogue, steers
from tollgate.control.service_context import ServiceContext
from tollgate.core.upstreams import FILE, STALE_SECONDS, Shown

UP, SLOW, DOWN, UNKNOWN = "up", "degraded", "down", "unknown"
# A network is degraded if more of the last minute's calls than this failed.
MAX_ERROR_RATE = 0.05
# More than 256 upstreams with 96 steps of history each.
MAX_BYTES = 4_194_304

Report = TypeVar("Report")


class TeamNetworks:
    """The networks that are served."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    async def list(self) -> Sequence[Network]:
        shown = await self.status()
        known = {each.network: each for each in shown.networks} if shown else {}
        return [self._view(path, known.get(path)) for path in self._context.settings.networks]

    async def status(self) -> Shown | None:
        """The prober's last report, unless it is too old."""
        shown = await read_report(self._context, FILE, Shown)
        return shown if shown is not None and self._context.now() - shown.at <= STALE_SECONDS else None

    def _view(self, path: str, known: ShownNetwork | None) -> Network:
        url = f"{self._context.base_url}/x/{path}"
        socket = "ws" + url.removeprefix("http")
        if known is None:
            return Network(path, url, socket, UNKNOWN)
        return Network(path, url, socket, state_of(known), known.chain_id, known.head, known.finalized)


def state_of(network: ShownNetwork) -> str:
    """Whether calls to a network are answered, from the states of its upstreams."""
    usable = [each for each in network.upstreams if each.state in ("up", "unknown") and each.breaker != "open"]
    if not usable:
        return DOWN
    if all(each.error_rate is not None and each.error_rate > MAX_ERROR_RATE for each in usable):
        return SLOW
    return UP if any(each.state == "up" for each in usable) else UNKNOWN


def methods_of(family: str) -> list[str]:
    """The methods of a family that a token may call."""
    return sorted(name for name in Catalogue(family).methods if not steers(name))


async def read_report(context: ServiceContext, name: str, kind: type[Report]) -> Report | None:
    """What the prober wrote into a file of the data folder; None if it cannot be read."""

    def read() -> Report | None:
        try:
            with (Path(context.settings.data_dir) / name).open("rb") as file:
                return msgspec.json.decode(file.read(MAX_BYTES), type=kind)
        except (OSError, msgspec.DecodeError):
            return None

    return await asyncio.to_thread(read)
