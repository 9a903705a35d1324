"""The catalogue of a family: what its methods do, which blocks a call refers to, how its answer may be kept.

Pure, without a clock. What is not in a catalogue is treated with care: it may be a write, so it is never repeated
once its bytes have left, and never kept. A family without a catalogue still proxies; all its methods are unknown.
"""

from __future__ import annotations

from msgspec import Raw

from tollgate.chains import keeping
from tollgate.chains.eth import ETH_METHODS
from tollgate.chains.methods import UNREADABLE, Holds, Keep, Kind, Look, Method, Scope
from tollgate.chains.scopes import Reader, readers
from tollgate.chains.starknet import STARKNET_METHODS
from tollgate.core.shapes import Params

__all__ = ["OTHER", "Catalogue", "Holds", "Keep", "Kind", "Look", "Method", "Scope"]

_FAMILIES: dict[str, dict[str, Method]] = {
    "eth": {method.name: method for method in ETH_METHODS},
    "starknet": {method.name: method for method in STARKNET_METHODS},
}
_READERS: dict[str, dict[str, Reader]] = {
    family: readers(family, methods.values()) for family, methods in _FAMILIES.items()
}

OTHER = "other"


class Catalogue:
    """The methods of one family."""

    def __init__(self, family: str) -> None:
        self._methods = _FAMILIES.get(family, {})
        self._readers = _READERS.get(family, {})
        self.cached = frozenset(name for name, method in self._methods.items() if method.holds is not Holds.NEVER)
        """Methods whose answers may ever be kept."""

    def method(self, name: str) -> Method | None:
        return self._methods.get(name)

    def kind(self, name: str) -> Kind:
        """What this method does, as far as is known."""
        method = self._methods.get(name)
        return Kind.UNKNOWN if method is None else method.kind

    def repeatable(self, name: str) -> bool:
        """Whether the call may safely be repeated at a second node."""
        return self.kind(name) is Kind.READ

    def label(self, name: str) -> str:
        """The method's name in metrics: callers cannot invent new ones."""
        return name if name in self._methods else OTHER

    @property
    def reads(self) -> frozenset[str]:
        """Every method that is a plain read."""
        return frozenset(name for name, method in self._methods.items() if method.kind is Kind.READ)

    @property
    def methods(self) -> frozenset[str]:
        return frozenset(self._methods)

    def readers(self, names: frozenset[str]) -> dict[str, Reader]:
        """What reads the scope of calls of these methods, where there is such a thing."""
        return {name: read for name, read in self._readers.items() if name in names}

    def scope(self, name: str, params: Params) -> Scope:
        """Which blocks a call refers to. Never raises: what it cannot read is `UNREADABLE`."""
        read = self._readers.get(name)
        return UNREADABLE if read is None else read(params)

    def keep(self, scope: Scope, result: Raw | bytes, head: int, finalized: int) -> Keep:
        """How the answer to a call may be kept, where the chain's head and its newest final block are known."""
        return keeping.keep(scope, bytes(result), head, finalized)

    def revealed(self, name: str, scope: Scope, result: Raw | bytes) -> int | None:
        """The number of its node's newest block, where this is an answer about `latest` that shows it."""
        return keeping.revealed(scope, result) if name in self._methods else None
