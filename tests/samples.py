"""Values for the types of the API: a test that sends all of them needs no change when a member is added."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.structs import asdict, fields

from tollgate.api.base import Json, kind_of, members


def sample(kind: type[Struct], /, **given: Any) -> dict[str, Any]:
    """A value for every member, as JSON has it, none of them the default."""
    defaults = {field.name: field.default for field in fields(kind) if field.default is not NODEFAULT}
    return {name: _value(schema, defaults.get(name)) for name, schema in members(kind).items()} | given


def settings(kind: type[Struct], /, **given: Any) -> dict[str, Any]:
    """The same as a row has it."""
    return asdict(msgspec.convert(sample(kind, **given), kind))


def _value(schema: Json, default: object) -> object:
    match kind_of(schema):
        case "boolean":
            return not default
        case _ if "examples" in schema:
            return schema["examples"][0]
        case "date-time":
            return "2026-11-15T06:44:44Z"
        case "integer":
            return 7
        case "array":
            return []
        case _:
            return "x"
