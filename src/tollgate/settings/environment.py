"""Settings from environment variables: `TOLLGATE_<SECTION>__<KEY>`.

Owns which variable names which setting and how its text becomes a value. It checks names and syntax only;
whether the value is acceptable is for `settings/check.py`, as for one from the file. The environment is an
argument here, never read, and no message quotes the text of a variable: it may be a secret.
"""

from __future__ import annotations

import re
import tomllib
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec import inspect as mi

from tollgate.settings.lines import KeyPath, dotted
from tollgate.settings.schema import PREFIX, SettingNode, describe, fields, root, sentence_part

if TYPE_CHECKING:
    from collections.abc import Mapping

# Read by the command-line tool, or by `file.find`.
RESERVED = frozenset({"TOLLGATE_TOKEN", "TOLLGATE_URL", "TOLLGATE_TEAM", "TOLLGATE_CONFIG"})

# Kubernetes puts these into every pod beside a Service that is called `tollgate`.
_SERVICE_LINK = re.compile(
    r"TOLLGATE_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


class Assignment(Struct, frozen=True):
    """A value that a variable gives to a place in the tree."""

    path: KeyPath
    value: Any
    variable: str


def assignments(environ: Mapping[str, str]) -> tuple[list[Assignment], list[str]]:
    """Read every variable of ours; parents come before their parts. Also returns what is wrong."""
    found: list[Assignment] = []
    problems: list[str] = []
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in RESERVED or _is_service_link(name, environ[name]):
            continue
        resolved = _resolve(name)
        if resolved is None:
            problems.append(f"{name}: {_unknown(name)}")
            continue
        place, path = resolved
        try:
            found.append(Assignment(path, _parse(place, environ[name]), name))
        except ValueError as error:
            problems.append(f"{name}: `{dotted(path)}` {error}")
    found.sort(key=lambda assignment: [_order(segment) for segment in assignment.path])
    return found, problems


def apply(tree: dict[str, Any], assignment: Assignment) -> bool:
    """Put a value into the tree, making the tables on the way; false when there is no place for it."""
    *parents, last = assignment.path
    container: Any = tree
    missing: list[tuple[Any, str | int, Any]] = []
    for segment, following in zip(parents, assignment.path[1:], strict=True):
        if not _accepts(container, segment):
            return False
        if segment not in (container if isinstance(container, dict) else range(len(container))):
            missing.append((container, segment, [] if isinstance(following, int) else {}))
            container = missing[-1][2]
        else:
            container = container[segment]
    if not isinstance(container, dict):
        return False
    container[last] = assignment.value
    # Only now, so that a variable without a place leaves no empty table behind.
    for parent, segment, made in missing:
        if isinstance(parent, list):
            parent.append(made)
        else:
            parent[segment] = made
    return True


def _accepts(container: Any, segment: str | int) -> bool:
    if isinstance(segment, int):
        return isinstance(container, list) and segment <= len(container)
    return isinstance(container, dict)


def _order(segment: str | int) -> tuple[int, str]:
    return (segment, "") if isinstance(segment, int) else (0, segment)


def _is_service_link(name: str, value: str) -> bool:
    if name == "TOLLGATE_PORT":
        return bool(_SERVICE_ADDRESS.match(value))
    return bool(_SERVICE_LINK.fullmatch(name))


def _resolve(name: str) -> tuple[SettingNode, KeyPath] | None:
    """Find the setting that a variable names, or nothing."""
    place = root()
    path: KeyPath = ()
    if name != name.upper():
        return None
    for part in name.removeprefix(PREFIX).split("__"):
        step = _child(place, part)
        if step is None:
            return None
        place, path = step[0], (*path, step[1])
    return (place, path) if place.is_settable else None


def _child(place: SettingNode, part: str) -> tuple[SettingNode, str | int] | None:
    if isinstance(place.type, mi.StructType):
        inner = fields(place.type).get(part.lower())
        return None if inner is None else (inner, part.lower())
    if place.element is None or not part:
        return None
    if isinstance(place.type, mi.VarTupleType):
        return (place.element, int(part)) if part.isascii() and part.isdigit() and len(part) < 5 else None
    # Shells allow no hyphen in a variable's name, and families and networks have no underscore.
    return place.element, part.lower().replace("_", "-")


def _parse(place: SettingNode, text: str) -> Any:
    if isinstance(place.type, mi.StrType):
        return text
    try:
        document = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        document = {}
    if set(document) != {"value"}:
        state = "is not a TOML value" if text.strip() else "is empty"
        raise ValueError(f"{state}: give {_example(place)}, or unset the variable")
    return document["value"]


def _example(place: SettingNode) -> str:
    match place.type:
        case mi.VarTupleType():
            return '["a", "b"]' if place.is_setting else '[{name = "…", url = "…"}]'
        case mi.DictType():
            return '{Name = "value"}'
        case _:
            return sentence_part(place)


def _unknown(name: str) -> str:
    parts = name.upper().removeprefix(PREFIX).split("__")
    chosen = dict(zip(("<FAMILY>", "<NETWORK>", "", "<N>"), parts[1:], strict=False))
    candidates = []
    for setting in describe():
        candidate = setting.variable.removeprefix(PREFIX)
        for placeholder, part in chosen.items():
            candidate = candidate.replace(placeholder, part) if placeholder else candidate
        candidates.append(candidate)
    # Without the prefix, which would make any two of them look alike.
    written = "__".join(parts)
    near = get_close_matches(written, candidates, n=1)
    near += [candidate for candidate in candidates if candidate.endswith(f"__{written}")]
    if near:
        return f"unknown variable; did you mean `{PREFIX}{near[0]}`?"
    return "unknown variable; `tollgate config show` lists the settings"
