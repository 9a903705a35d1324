"""Options and lines of output, generated from the types of the API.

A boolean is a flag; a number may be `none`, a time `never`; a list is a repeated option, or `any`. The type is
loaded only for the help or the run of its command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tollgate.cli.options import NUMBER_OR_NONE, Expiry, Null
from tollgate.lazy_module import LazyModule

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from msgspec import Struct

    from tollgate.api import base
    from tollgate.cli import show
else:
    base = LazyModule("tollgate.api.base")  # not for help of other commands

ANY = "any"
"""Removes a restriction to some networks, methods and the like."""


class Spelling(NamedTuple):
    """Name, metavar and help of an option that differ from its member's."""

    option: str
    metavar: str
    help: str


class SettingsCommand(click.Command):
    """A command with an option for each member of a type of the API."""

    def __init__(
        self,
        *args: Any,
        settings: Callable[[], type[Struct]],
        but: Collection[str] = (),
        spelled: Mapping[str, Spelling] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._settings = settings
        self._but = but
        self._spelled = spelled or {}
        self._made: list[click.Parameter] = []

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if not self._made:
            self._made = [
                _option(name, schema, self._spelled.get(name))
                for name, schema in base.members(self._settings()).items()
                if name not in self._but
            ]
        return [*self._made, *super().get_params(ctx)]


def chosen(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that were given, as members of the API."""
    given = {name: value for name, value in settings.items() if value is not None and value != ()}
    for name, value in given.items():
        if isinstance(value, Null):
            given[name] = None
        elif isinstance(value, tuple) and ANY in value:
            if len(value) > 1:
                raise click.UsageError(f"{ANY!r} means all {name}: give it alone.")
            given[name] = ()
    return given


def lines(value: Struct, *, but: Collection[str] = ()) -> Iterator[tuple[str, show.Cell]]:
    for name, schema in base.members(type(value)).items():
        if name in but:
            continue
        cell = getattr(value, name)
        if isinstance(cell, tuple):
            cell = list(cell) or ANY
        elif cell is None:
            cell = "no limit" if base.kind_of(schema) == "integer" else "never" if name.endswith("_at") else None
        yield name.removesuffix("_at").replace("_", " "), cell


def _option(name: str, schema: base.Json, spelled: Spelling | None) -> click.Option:
    plain = f"--{name.replace('_', '-')}"
    sentence = str(schema.get("description", "")).partition(". ")[0].removesuffix(".")
    option, metavar, words = spelled or Spelling(plain, "", f"{sentence}.")
    match base.kind_of(schema):
        case _ if "enum" in schema:
            default = schema.get("default")
            return click.Option(
                [option, name], type=click.Choice(schema["enum"]), default=default, show_default=True, help=words
            )
        case "boolean":
            return click.Option([f"{option}/--no-{option[2:]}", name], default=None, help=words)
        case "integer":
            return click.Option([option, name], type=NUMBER_OR_NONE, metavar=metavar or "N", help=words)
        case "date-time":
            return click.Option([option, name], type=Expiry(), metavar=metavar or "WHEN", help=words)
        case "array":
            return click.Option([option, name], multiple=True, metavar=metavar, help=words)
        case _:
            return click.Option([option, name], metavar=metavar or name.upper(), help=words)
