"""Kinds of methods, and which family has which.

Pure tables. What is not in a catalogue is treated with care: it may be a write, so it is never repeated once
its bytes have left. A family without a catalogue still proxies; all its methods are unknown.
"""

from __future__ import annotations

from enum import Enum

from tollgate.chains.eth import ETH_METHODS
from tollgate.chains.starknet import STARKNET_METHODS


class Kind(Enum):
    """What a method does to the chain, and so how it may be repeated."""

    READ = "read"
    WRITE = "write"
    FILTER = "filter"
    """Lives on one node."""
    SUBSCRIBE = "subscribe"
    """Needs a WebSocket."""
    UNKNOWN = "unknown"


def _index(table: dict[str, tuple[str, ...]]) -> dict[str, Kind]:
    return {method: Kind(kind) for kind, methods in table.items() for method in methods}


_FAMILIES: dict[str, dict[str, Kind]] = {"eth": _index(ETH_METHODS), "starknet": _index(STARKNET_METHODS)}

OTHER = "other"


class Catalogue:
    """The methods of one family."""

    def __init__(self, family: str) -> None:
        self._kinds = _FAMILIES.get(family, {})

    def kind(self, method: str) -> Kind:
        """What this method does, as far as is known."""
        return self._kinds.get(method, Kind.UNKNOWN)

    def repeatable(self, method: str) -> bool:
        """Whether asking a second node cannot do harm."""
        return self._kinds.get(method) is Kind.READ

    def label(self, method: str) -> str:
        """The method's name in metrics: callers cannot invent new ones."""
        return method if method in self._kinds else OTHER

    @property
    def reads(self) -> frozenset[str]:
        """Every method that is a plain read."""
        return frozenset(method for method, kind in self._kinds.items() if kind is Kind.READ)

    @property
    def methods(self) -> frozenset[str]:
        """Every method of the catalogue."""
        return frozenset(self._kinds)
