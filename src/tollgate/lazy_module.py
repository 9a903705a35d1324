"""A module that is imported when it is first used: for what few installations use and all would pay for."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


class LazyModule:
    """Stands for a module until one of its names is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        module = importlib.import_module(self._name)
        # A name of the module, or a module below it that nobody has imported yet.
        found = getattr(module, attribute, None)
        if found is None or isinstance(found, ModuleType):
            found = LazyModule(f"{self._name}.{attribute}")
        setattr(self, attribute, found)
        return found
