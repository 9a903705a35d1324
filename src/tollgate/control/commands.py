"""Commands of the API, held against their definitions. Every refusal names the member and what it accepts.

`decoded` reads a body by its types. Bounds are the services' to check, by `checked`, whichever way a command came:
pages and programs make theirs in Python, where nothing is checked.
"""

from __future__ import annotations

import difflib
import math
import re
from typing import TypeVar

import msgspec
from msgspec import Struct, ValidationError

from tollgate.api.base import Json, members
from tollgate.control.problems import InvalidInput

Command = TypeVar("Command", bound=Struct)

LONGEST_SHOWN = 60
# msgspec's message about an invalid value: what is wrong, and where.
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_AT = re.compile(r".* - at `\$\.(\w+).*`", re.DOTALL)


def decoded(sent: bytes, kind: type[Command]) -> Command:
    """A command from the body of a request."""
    try:
        return msgspec.json.decode(sent, type=kind)
    except ValidationError as error:
        raise _refusal(str(error), kind) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidInput("The body is not valid JSON in UTF-8: send one JSON object.") from None


def checked(command: Command) -> Command:
    """A command, held against every type and bound that its definition has."""
    kind = type(command)
    try:
        command = msgspec.convert(msgspec.to_builtins(command), kind)
    except ValidationError as error:
        raise _refusal(str(error), kind) from None
    return _within_bounds(command)


def from_query(given: dict[str, str], kind: type[Command]) -> Command:
    """The parameters of a query, held against every type and bound; those that are not known are ignored."""
    try:
        return _within_bounds(msgspec.convert(given, kind, strict=False))
    except ValidationError as error:
        raise _refusal(str(error), kind) from None


def _within_bounds(command: Command) -> Command:
    for name, schema in members(type(command)).items():
        if not _fits(getattr(command, name), schema):
            raise _wrong(name, schema)
    return command


def _fits(value: object, schema: Json) -> bool:
    match value:
        case str():
            length = schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", math.inf)
            known = value in schema.get("enum", [value])
            # Patterns are anchored. `search` would accept a line feed at the end.
            return bool(length and known and ("pattern" not in schema or re.fullmatch(schema["pattern"], value)))
        case tuple() | list():
            return bool(len(value) <= schema.get("maxItems", math.inf))
        case int() if not isinstance(value, bool):
            return bool(schema.get("minimum", -math.inf) <= value <= schema.get("maximum", math.inf))
        case _:
            return True


def _refusal(message: str, kind: type[Struct]) -> InvalidInput:
    if found := _UNKNOWN.fullmatch(message):
        name = found[1][:LONGEST_SHOWN]
        near = difflib.get_close_matches(name, kind.__struct_fields__, n=1)
        hint = f" Did you mean `{near[0]}`?" if near else ""
        known = ", ".join(f"`{field}`" for field in kind.__struct_fields__) or "none"
        return InvalidInput(f"The member {name!r} is not known here.{hint} Known: {known}.", field=name)
    if found := _MISSING.fullmatch(message):
        return InvalidInput(f"`{found[1]}` is missing.", field=found[1])
    if found := _AT.fullmatch(message):
        return _wrong(found[1], members(kind)[found[1]])
    return InvalidInput("The body must be a JSON object.")


def _wrong(name: str, schema: Json) -> InvalidInput:
    return InvalidInput(f"`{name}` is {words(schema)}.", field=name)


def words(schema: Json) -> str:
    """What a schema accepts, in words."""
    if "anyOf" in schema:
        bounds = {name: value for name, value in schema.items() if name != "anyOf"}
        return ", or ".join(words({**bounds, **each}) for each in schema["anyOf"])
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    if "pattern" in schema and "description" in schema:
        return str(schema["description"]).partition(". ")[0].removesuffix(".")
    match schema.get("type"):
        case "boolean":
            return "true or false"
        case "null":
            return "null"
        case "integer":
            return "a whole number" + _between(schema, "minimum", "maximum", " from {} to {}")
        case "array":
            return "a list" + _between(schema, "minItems", "maxItems", " of {} to {}")
        case "string" if schema.get("format") == "date-time":
            return "a time with its offset, such as 2026-11-15T06:44:44Z"
        case "string":
            return "a text" + _between(schema, "minLength", "maxLength", " of {} to {} characters")
        case _:
            return "a JSON object"


def _between(schema: Json, least: str, most: str, form: str) -> str:
    return form.format(schema.get(least, 0), schema[most]) if most in schema else ""
