"""What differs between the settings of a running service and new ones.

Owns which settings may change in place, and how a change is described. Pure. The value of a secret is never
shown, only that it has changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct
from msgspec import inspect as mi
from msgspec.structs import replace

from tollgate.settings.lines import KeyPath, dotted
from tollgate.settings.model import NetworkSettings, Section, Settings
from tollgate.settings.schema import SettingNode, leaves, node

_MAX_SHOWN = 60


class SettingsChanges(Struct, frozen=True):
    """What comes of new settings."""

    settings: Settings
    """In force from now on: the new ones where they may change in place, the old ones elsewhere."""
    changed: tuple[str, ...]
    """Lines for people."""
    restart_needed: tuple[str, ...]
    """Keys of settings that are left as they were."""


def compare(running: Settings, wanted: Settings) -> SettingsChanges:
    """Return what changes in place and what does not."""
    settings = replace(
        running,
        families=wanted.families,
        # The shared memory of its slots was made at the start.
        limits=replace(wanted.limits, limit_slots=running.limits.limit_slots),
        cache=wanted.cache,
        health=wanted.health,
        websocket=wanted.websocket,
        logging=replace(running.logging, level=wanted.logging.level),
    )
    return SettingsChanges(
        settings,
        (*_lines((), _without_families(running), _without_families(settings)), *_families(running, settings)),
        tuple(dotted(path) for path, *_ in _differing((), settings, wanted)),
    )


def _without_families(settings: Settings) -> Settings:
    return replace(settings, families={})


def _differing(path: KeyPath, old: Section, new: Section) -> Iterator[tuple[KeyPath, SettingNode, Any, Any]]:
    """Settings whose values differ. Neither side may have a table that the other lacks."""
    place = _tree(type(old))
    values = {key: value for key, _, value in leaves(place, msgspec.to_builtins(old), path)}
    for key, setting, value in leaves(place, msgspec.to_builtins(new), path):
        if values[key] != value:
            yield key, setting, values[key], value


@cache
def _tree(section: type[Section]) -> SettingNode:
    return node(mi.type_info(section))


def _lines(path: KeyPath, old: Section, new: Section) -> Iterator[str]:
    for key, setting, before, after in _differing(path, old, new):
        words = f"{_written(before)} -> {_written(after)}"
        if setting.secret or len(words) > _MAX_SHOWN:
            words = "changed"
        yield f"{dotted(key)}: {words}"


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _families(running: Settings, wanted: Settings) -> Iterator[str]:
    old, new = _networks(running), _networks(wanted)
    for path in [*new, *(path for path in old if path not in new)]:
        if path not in new:
            yield f"{dotted(path)}: removed"
        elif path not in old:
            yield f"{dotted(path)}: added, with {', '.join(each.name for each in new[path].upstreams)}"
        else:
            yield from _network(path, old[path], new[path])


def _networks(settings: Settings) -> dict[KeyPath, NetworkSettings]:
    return {
        ("families", family, name): network
        for family, networks in settings.families.items()
        for name, network in networks.items()
    }


def _network(path: KeyPath, old: NetworkSettings, new: NetworkSettings) -> Iterator[str]:
    yield from _lines(path, replace(old, upstreams=()), replace(new, upstreams=()))
    before = {each.name: each for each in old.upstreams}
    after = {each.name: each for each in new.upstreams}
    moves = [f"+ {name}" for name in after if name not in before] + [
        f"- {name}" for name in before if name not in after
    ]
    if not moves and list(before) != list(after):
        moves = ["another order"]
    if moves:
        yield f"{dotted((*path, 'upstreams'))}: {', '.join(moves)}"
    for name, upstream in after.items():
        if name in before:
            # By name, not by number: it may have moved in the file.
            for line in _lines((), before[name], upstream):
                yield f"{dotted((*path, 'upstreams'))}.{name}.{line}"
