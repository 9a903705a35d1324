"""Statements whose tables, columns or bounds are known only when they run. Values are always parameters.

The one place where text becomes SQL: a name is checked, and a piece of SQL must be marked as such.
"""

from __future__ import annotations

import re
from functools import lru_cache

_NAME = re.compile(r"\w+(\.\w+)?", re.ASCII)


class Sql(str):
    """A piece of SQL that is written in this package."""

    __slots__ = ()


@lru_cache(2_048)
def statement(template: str, **parts: str | int | Sql | tuple[str, ...]) -> Sql:
    """Fill `{parts}` into a statement: names of tables and columns, numbers, and pieces of SQL."""
    return Sql(template.format_map({key: _checked(part) for key, part in parts.items()}))


def _checked(part: str | int | Sql | tuple[str, ...]) -> str:
    if isinstance(part, tuple):
        return ", ".join(map(_checked, part))
    if isinstance(part, int | Sql) or _NAME.fullmatch(part):
        return str(part)
    raise ValueError(f"{part!r} is not a name of a table or column")


def slots(names: tuple[str, ...]) -> Sql:
    """Placeholders for the values of some columns."""
    return Sql(", ".join("?" * len(names)))
