"""Commands and queries of the API, checked against their definitions. A refusal names every wrong member.

`decoded` reads a body and `from_query` a query, by their types. Services check bounds, by `checked` or `accepted`,
because pages and programs make commands in Python, where msgspec checks nothing.
"""

from __future__ import annotations

import difflib
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Struct, ValidationError
from msgspec.structs import FieldInfo, fields

from tollgate.api.base import Json, members, without_null
from tollgate.control.problems import FieldError, InvalidInput
from tollgate.control.service_context import given_in

Command = TypeVar("Command", bound=Struct)
Rule = Callable[[Any], object]
"""Returns a member as it is stored, or raises `InvalidInput`."""

MAX_NAME_SHOWN = 60
MAX_ERRORS = 20


def decoded(sent: bytes, kind: type[Command]) -> Command:
    try:
        try:
            return msgspec.json.decode(sent, type=kind)
        except ValidationError:
            given = msgspec.json.decode(sent)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidInput("The body is not valid JSON in UTF-8: send one JSON object.") from None
    errors = _errors(given, kind) if isinstance(given, dict) else []
    if not errors:
        raise InvalidInput("The body must be a JSON object that has each member once.")
    raise _refusal(errors, kind)


def from_query(given: Mapping[str, object], kind: type[Command]) -> Command:
    """Read the parameters of a query, which are all text, and check their bounds. Unknown ones are ignored."""
    if errors := _errors(given, kind, strict=False):
        raise _refusal(errors, kind)
    return msgspec.convert(given, kind, strict=False)


def checked(command: Command) -> Command:
    """Check a command against every type and bound of its definition."""
    given, kind = msgspec.to_builtins(command), type(command)
    if errors := _errors(given, kind):
        raise _refusal(errors, kind)
    return msgspec.convert(given, kind)


def accepted(command: Struct, rules: Mapping[str, Rule]) -> dict[str, Any]:
    """Check a command and return what it sets, each member as its rule returns it.

    Rules check what a definition cannot state. Their refusals are reported with all others.
    """
    kind = type(command)
    errors = _errors(msgspec.to_builtins(command), kind)
    wrong, ruled = {error.field for error in errors}, {}
    for name, rule in rules.items():
        value = getattr(command, name, None)
        if value is None or value is UNSET or name in wrong:
            continue
        try:
            ruled[name] = rule(value)
        except InvalidInput as refusal:
            errors.append(FieldError(name, refusal.detail))
    if errors:
        raise _refusal(errors, kind)
    return given_in(command) | ruled


def from_form(given: Mapping[str, Any], kind: type[Command], unreadable: Sequence[FieldError]) -> Command:
    """Build a command from a form's fields. Unreadable fields are refused together with all wrong ones."""
    if not unreadable:
        return kind(**given)
    wrong = {error.field for error in unreadable}
    others = [error for error in _errors(given, kind) if error.field not in wrong]
    raise _refusal([*unreadable, *others], kind)


def _errors(given: Mapping[str, object], kind: type[Struct], *, strict: bool = True) -> list[FieldError]:
    """Find every member that is unknown, wrong or missing."""
    schemas, known = members(kind), _fields(kind)
    errors = []
    for name, value in given.items():
        if name not in known:
            if kind.__struct_config__.forbid_unknown_fields:
                errors.append(_unknown(name, known))
        elif not _is_valid(value, known[name].type, schemas[name], strict=strict):
            schema = schemas[name] if strict else without_null(schemas[name])
            errors.append(FieldError(name, f"`{name}` is {words(schema)}."))
    missing = (name for name, field in known.items() if field.required and name not in given)
    return errors + [FieldError(name, f"`{name}` is missing.") for name in missing]


@functools.cache
def _fields(kind: type[Struct]) -> dict[str, FieldInfo]:
    return {field.encode_name: field for field in fields(kind)}


def _unknown(name: str, known: Mapping[str, object]) -> FieldError:
    name = name[:MAX_NAME_SHOWN]
    near = difflib.get_close_matches(name, known, n=1)
    return FieldError(name, f"{name!r} is not known here." + (f" Did you mean `{near[0]}`?" if near else ""))


def _refusal(errors: list[FieldError], kind: type[Struct]) -> InvalidInput:
    known = _fields(kind)
    detail = " ".join(error.detail for error in errors[:MAX_ERRORS])
    if len(errors) > MAX_ERRORS:
        detail += f" {len(errors) - MAX_ERRORS} further members are wrong."
    if any(error.field not in known for error in errors):
        detail += f" Known: {', '.join(f'`{name}`' for name in known) or 'none'}."
    return InvalidInput(detail, field=errors[0].field, errors=errors[:MAX_ERRORS])


def _is_valid(value: object, kind: Any, schema: Json, *, strict: bool) -> bool:
    try:
        converted = msgspec.convert(value, kind, strict=strict)
    except ValidationError:
        return False
    if not strict and (
        converted is None or (isinstance(converted, int) and str(value) != msgspec.json.encode(converted).decode())
    ):
        return False  # msgspec also accepts "null" for None, "1" for true and "1.0" for 1
    return _fits(converted, schema)


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


def words(schema: Json) -> str:
    if "anyOf" in schema:
        bounds = {name: value for name, value in schema.items() if name != "anyOf"}
        return ", or ".join(words({**bounds, **each}) for each in schema["anyOf"])
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    if "pattern" in schema and "description" in schema:
        form = str(schema["description"]).partition(". ")[0].removesuffix(".")
        return form[0].lower() + form[1:]
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


def _between(schema: Json, lower: str, upper: str, form: str) -> str:
    return form.format(schema.get(lower, 0), schema[upper]) if upper in schema else ""
