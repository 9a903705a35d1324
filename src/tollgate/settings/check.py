"""Every problem of a tree of settings, found in one pass.

Owns what follows from the definitions: unknown keys, missing keys, types and bounds. What a particular
setting must satisfy beyond that is a rule in `settings/rules.py`. Pure: takes a tree and gives problems; a
problem never quotes the value of a secret.
"""

from __future__ import annotations

import re
from datetime import date, time
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec import inspect as mi

from tollgate.settings.lines import KeyPath, dotted
from tollgate.settings.rules import rules_for
from tollgate.settings.schema import SettingNode, describe, fields, in_words, root, sentence_part

if TYPE_CHECKING:
    from collections.abc import Iterator

# In the order of the checks: a bool is an int to Python.
_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "a boolean"),
    (int, "an integer"),
    (float, "a number"),
    (str, "a string"),
    (list, "a list"),
    (dict, "a table"),
    ((date, time), "a date or time"),
)
_MAX_QUOTED = 60
_NUMBER = re.compile(r"[+-]?[0-9][0-9_]*(\.[0-9]+)?")
# Lone surrogates are bytes of a variable that are not UTF-8.
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


class SettingProblem(Struct, frozen=True):
    """Something wrong with the value at a path, and what to do about it."""

    path: KeyPath
    text: str


def check(tree: dict[str, Any]) -> list[SettingProblem]:
    """Find everything that is wrong with a tree of raw values."""
    return list(_check(root(), tree, ()))


def _check(place: SettingNode, value: Any, path: KeyPath) -> Iterator[SettingProblem]:
    problems = list(_check_shape(place, value, path))
    yield from problems
    # A rule may trust the type of what it is given; that of the parts, it checks itself.
    if not any(problem.path == path for problem in problems):
        for part, text in rules_for(path, value):
            yield SettingProblem((*path, *part), text)


def _check_shape(place: SettingNode, value: Any, path: KeyPath) -> Iterator[SettingProblem]:
    element = place.element
    if isinstance(place.type, mi.StructType):
        if isinstance(value, dict):
            yield from _check_table(place.type, value, path)
        else:
            yield _wrong_type(place, value, path)
    elif element is None:
        yield from _check_value(place, value, path)
    elif isinstance(place.type, mi.DictType) and isinstance(value, dict):
        for name, inner in value.items():
            yield from _check(element, inner, (*path, name))
    elif isinstance(place.type, mi.VarTupleType) and isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _check(element, inner, (*path, index))
    else:
        yield _wrong_type(place, value, path)


def _check_table(table: mi.StructType, value: dict[str, Any], path: KeyPath) -> Iterator[SettingProblem]:
    known = fields(table)
    for name, inner in value.items():
        if name in known:
            yield from _check(known[name], inner, (*path, name))
        else:
            yield SettingProblem((*path, name), _unknown((*path, name), list(known)))
    for field in table.fields:
        # A network without upstreams has a rule with better words.
        if field.required and field.encode_name not in value and known[field.encode_name].is_setting:
            name = field.encode_name
            yield SettingProblem(path, f"`{dotted(path)}` has no `{name}`: add {name}, {in_words(known[name])}")


def _unknown(path: KeyPath, siblings: list[str]) -> str:
    name = str(path[-1])
    message = f"unknown key `{dotted(path)}`"
    near = get_close_matches(name.lower(), siblings, n=1)
    if near:
        return f"{message}; did you mean `{dotted((*path[:-1], near[0]))}`?"
    elsewhere = [each.key for each in describe() if each.key.rpartition(".")[2] == name]
    if elsewhere:
        return f"{message}; did you mean `{elsewhere[0]}`?"
    return f"{message}; known here: {', '.join(siblings)}"


def _check_value(place: SettingNode, value: Any, path: KeyPath) -> Iterator[SettingProblem]:
    match place.type:
        case mi.VarTupleType() if isinstance(value, list):
            yield from _check_strings(place, list(enumerate(value)), path)
        case mi.DictType() if isinstance(value, dict):
            yield from _check_strings(place, list(value.items()), path)
        case mi.BoolType() if isinstance(value, bool):
            return
        case mi.IntType() | mi.FloatType() if _is_number(place.type, value):
            if not _within(place.type, value):
                yield _out_of_bounds(place, value, path)
        case mi.StrType(pattern=pattern, min_length=shortest) if isinstance(value, str):
            if _CONTROL.search(value):
                yield SettingProblem(
                    path, f"`{dotted(path)}` has a line break or another control character: remove it"
                )
            elif len(value) < (shortest or 0) or (pattern and not re.search(pattern, value)):
                yield _out_of_bounds(place, value, path)
        case _:
            yield _wrong_type(place, value, path)


def _check_strings(place: SettingNode, entries: list[tuple[Any, Any]], path: KeyPath) -> Iterator[SettingProblem]:
    # By position, because the key of a header that is written wrongly may hold its value.
    for position, (segment, value) in enumerate(entries, start=1):
        if not isinstance(value, str):
            message = f"`{dotted(path)}` must be a {in_words(place)}: entry {position} is {kind_of(value)}"
            yield SettingProblem((*path, segment), message)


def _is_number(kind: mi.IntType | mi.FloatType, value: Any) -> bool:
    accepted = int if isinstance(kind, mi.IntType) else (int, float)
    return isinstance(value, accepted) and not isinstance(value, bool)


def _within(kind: mi.IntType | mi.FloatType, value: float) -> bool:
    """Compare so that a not-a-number lies outside of every bound."""
    return (
        (kind.gt is None or value > kind.gt)
        and (kind.ge is None or value >= kind.ge)
        and (kind.lt is None or value < kind.lt)
        and (kind.le is None or value <= kind.le)
    )


def _wrong_type(place: SettingNode, value: Any, path: KeyPath) -> SettingProblem:
    advice = ""
    if isinstance(value, str) and isinstance(place.type, (mi.IntType, mi.FloatType)):
        advice = (
            "; write it without quotes" if _NUMBER.fullmatch(value) else "; write a plain number, without a unit"
        )
    elif value in ("true", "false") and isinstance(place.type, mi.BoolType):
        advice = "; write it without quotes"
    elif isinstance(place.type, mi.VarTupleType):
        advice = "; write it in square brackets" if place.is_setting else f"; write [[{dotted(path)}]]"
    return SettingProblem(path, f"`{dotted(path)}` must be {sentence_part(place)}, not {kind_of(value)}{advice}")


def _out_of_bounds(place: SettingNode, value: Any, path: KeyPath) -> SettingProblem:
    message = f"`{dotted(path)}` must be {sentence_part(place)}"
    if place.secret or value == "" or (isinstance(value, int) and value.bit_length() > _MAX_QUOTED):
        return SettingProblem(path, message)
    quoted = repr(value)
    return SettingProblem(path, message if len(quoted) > _MAX_QUOTED else f"{message}, not {quoted}")


def kind_of(value: Any) -> str:
    """Name the type of a TOML value."""
    return next((words for kind, words in _KINDS if isinstance(value, kind)), type(value).__name__)
