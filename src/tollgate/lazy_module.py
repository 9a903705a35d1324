"""The one way to import late: a module that few processes or commands need and all others would pay for.

    if TYPE_CHECKING:
        import httpx
    else:
        httpx = LazyModule("httpx")

Type checkers and import contracts see the import; it runs when a name of the module is first used.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


class LazyModule:
    """Takes the place of a module, and imports it when an attribute is first read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        module = importlib.import_module(self._name)
        try:
            found = getattr(module, attribute)
        except AttributeError:
            found = importlib.import_module(f"{self._name}.{attribute}")
        if isinstance(found, ModuleType):
            # Its submodules need not be imported yet either.
            found = LazyModule(found.__name__)
        setattr(self, attribute, found)
        return found
