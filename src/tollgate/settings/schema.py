"""What can be set, in an operator's words: key, type, default, environment variable, help.

Owns the reading of `model.Settings` by introspection, so that checks, `config show` and the reference page
cannot disagree with the definitions. Pure: no file, no environment, and no rule about a particular setting.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import TYPE_CHECKING, Any

from msgspec import NODEFAULT, Struct
from msgspec import inspect as mi

from tollgate.settings.lines import KeyPath, dotted
from tollgate.settings.model import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PREFIX = "TOLLGATE_"
# The levels of `families` whose names the operator chooses.
_CHOSEN = ("<family>", "<network>")


class SettingNode(Struct, frozen=True):
    """One place in the tree of settings: a table, an array of tables, or a setting."""

    type: mi.Type
    help: str = ""
    secret: bool = False
    location: bool = False
    form: str = ""

    @property
    def is_setting(self) -> bool:
        """Whether it holds a value rather than other settings."""
        return not isinstance(self.type, mi.StructType) and self.element is None

    @property
    def is_settable(self) -> bool:
        """Whether one variable can give it whole."""
        return self.is_setting or isinstance(self.type, mi.VarTupleType)

    @property
    def element(self) -> SettingNode | None:
        """What each entry is, in a table of chosen names or an array of tables."""
        if isinstance(self.type, mi.DictType):
            inner = node(self.type.value_type)
        elif isinstance(self.type, mi.VarTupleType):
            inner = node(self.type.item_type)
        else:
            return None
        return inner if isinstance(inner.type, (mi.StructType, mi.DictType)) else None


class Setting(Struct, frozen=True):
    """An entry of the reference: what may be set and how."""

    key: str
    kind: str
    default: Any
    required: bool
    variable: str
    help: str
    secret: bool


def node(kind: mi.Type) -> SettingNode:
    """Take a type out of its annotations."""
    if not isinstance(kind, mi.Metadata):
        return SettingNode(kind)
    extra = kind.extra or {}
    return SettingNode(
        kind.type,
        help=(kind.extra_json_schema or {}).get("description", ""),
        secret=bool(extra.get("secret")),
        location=bool(extra.get("location")),
        form=extra.get("form", ""),
    )


@cache
def root() -> SettingNode:
    return node(mi.type_info(Settings))


def fields(table: mi.StructType) -> dict[str, SettingNode]:
    """Return what a table with fixed keys may hold."""
    return {field.encode_name: node(field.type) for field in table.fields}


def variable(path: KeyPath) -> str:
    return PREFIX + "__".join(str(segment).upper().replace("-", "_") for segment in path)


@cache
def describe() -> tuple[Setting, ...]:
    """List everything that can be set, in the order of the definitions."""
    return tuple(_settings(root(), ()))


def help_of(table: str) -> str:
    """Return what a table is for, by its key as `describe` writes it."""
    return _tables().get(table, "")


@cache
def _tables() -> dict[str, str]:
    return {_key(path): inspect.getdoc(kind.cls) or "" for path, kind in _structs(root(), ())}


def _structs(place: SettingNode, path: KeyPath) -> Iterator[tuple[KeyPath, mi.StructType]]:
    if isinstance(place.type, mi.StructType):
        yield path, place.type
        for name, inner in fields(place.type).items():
            yield from _structs(inner, (*path, name))
    elif (element := place.element) is not None:
        yield from _structs(element, (*path, _chosen(place, path)))


def _chosen(place: SettingNode, path: KeyPath) -> str:
    return "<n>" if isinstance(place.type, mi.VarTupleType) else _CHOSEN[len(path) - 1]


def _key(path: KeyPath) -> str:
    return dotted(path).replace(".<n>", "[<n>]")


def _settings(place: SettingNode, path: KeyPath) -> Iterator[Setting]:
    if isinstance(place.type, mi.StructType):
        for field in place.type.fields:
            inner = node(field.type)
            if inner.is_settable:
                yield _setting(field, inner, (*path, field.encode_name))
        for name, inner in fields(place.type).items():
            yield from _settings(inner, (*path, name))
    elif (element := place.element) is not None:
        yield from _settings(element, (*path, _chosen(place, path)))


def _setting(field: mi.Field, place: SettingNode, path: KeyPath) -> Setting:
    default = field.default
    if default is NODEFAULT:
        default = None if field.default_factory is NODEFAULT else field.default_factory()
    return Setting(
        key=_key(path),
        kind=in_words(place),
        default=default,
        required=field.required,
        variable=variable(path),
        help=place.help,
        secret=place.secret,
    )


def leaves(place: SettingNode, value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, SettingNode, Any]]:
    """Walk a valid tree of values down to the settings it holds."""
    element = place.element
    if isinstance(place.type, mi.StructType):
        for name, inner in fields(place.type).items():
            if name in value:
                yield from leaves(inner, value[name], (*path, name))
    elif element is None:
        yield path, place, value
    else:
        entries: Iterable[tuple[str | int, Any]]
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        for segment, inner_value in entries:
            yield from leaves(element, inner_value, (*path, segment))


def in_words(place: SettingNode) -> str:
    """Return what a setting must be: `integer from 0 to 65535`."""
    match place.type:
        case mi.IntType() as kind:
            return "integer" + _bounds(kind)
        case mi.FloatType() as kind:
            return "number" + _bounds(kind)
        case mi.BoolType():
            return "`true` or `false`"
        case mi.StrType() as kind:
            return place.form or ("non-empty " if kind.min_length else "") + (
                "path" if place.location else "string"
            )
        case mi.VarTupleType():
            return "list of strings" if place.is_setting else "array of tables"
        case mi.DictType():
            return "table of strings" if place.is_setting else "table"
        case _:
            return "table"


def sentence_part(place: SettingNode) -> str:
    """Return what a setting must be, so that it fits after "must be"."""
    words = in_words(place)
    if words.startswith(("`", "a ", "1")):
        return words
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _bounds(kind: mi.IntType | mi.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f" from {_number(kind.ge)} to {_number(kind.le)}"
    limits = (("above", kind.gt), ("at least", kind.ge), ("below", kind.lt), ("at most", kind.le))
    words = " and ".join(f"{word} {_number(limit)}" for word, limit in limits if limit is not None)
    return f" {words}" if words else ""


def _number(number: float) -> str:
    # Grouped as TOML allows, so that it can be copied; ports and the like stay as they are usually written.
    return f"{number:_}" if isinstance(number, int) and number > 99_999 else f"{number:g}"
