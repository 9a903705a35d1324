"""From a TOML file and the environment to `Settings`, with where each value came from.

Owns the loading: which file, what wins over what, and one error that lists every problem with its place.
The only module of the settings that opens a file. What is acceptable is decided in `settings/check.py`.

A value comes from the environment, else from the file, else from its default. Relative paths in the file
start at the file's folder, those in the environment at the current one.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from tollgate.errors import StartError
from tollgate.settings.check import check
from tollgate.settings.environment import Assignment, apply, assignments
from tollgate.settings.lines import KeyPath, dotted, locate
from tollgate.settings.model import Settings
from tollgate.settings.providers import expand, provider_of
from tollgate.settings.schema import PREFIX, leaves, root

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DEFAULT_FILE = "tollgate.toml"
CONFIG_VARIABLE = "TOLLGATE_CONFIG"
CREDENTIAL = "settings_"
"""What systemd puts before the names of files in a folder of credentials that is called `settings`."""

_SYNTAX_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


class SettingsError(StartError):
    """Settings that cannot be used: one line for each problem, with its place and what to do."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class Loaded(Struct, frozen=True):
    """Settings, and for each dotted key `default`, `<file>:<line>` or the name of a variable."""

    settings: Settings
    sources: dict[str, str]


class Origin(Struct, frozen=True):
    """Where settings are read from, now and when they are read again."""

    path: Path | None
    environ: dict[str, str]

    def load(self) -> Settings:
        """Read settings that `tollgate config check` would pass, or raise `SettingsError`."""
        settings = load(self.path, self.environ).settings
        require_networks(settings)
        return settings

    def __repr__(self) -> str:
        # Variables may hold secrets.
        return f"Origin({self.path})"


class _Origin(Struct, frozen=True):
    label: str
    line: int


_Origins = dict[KeyPath, _Origin]
_AFTER_THE_FILE = sys.maxsize


def find(explicit: str | None, environ: Mapping[str, str]) -> Path | None:
    """Choose the file: the one that was named, else that of TOLLGATE_CONFIG, else ./tollgate.toml."""
    named = explicit or environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named)
    default = Path(DEFAULT_FILE)
    return default if default.exists() else None


def settings_from(explicit: str | None) -> Settings:
    """The settings of a command: those of the file that was named, or the usual one, and of the environment."""
    return load(find(explicit, os.environ), os.environ).settings


def load(path: Path | None, environ: Mapping[str, str]) -> Loaded:
    """Read and check everything, or raise `SettingsError` with all problems together."""
    found, variable_problems = assignments(_with_credentials(environ))
    try:
        tree, origins = ({}, {}) if path is None else _read(path)
    except SettingsError as error:
        raise SettingsError([*error.problems, *variable_problems]) from None
    for assignment in found:
        if apply(tree, assignment):
            _note(origins, assignment)
        else:
            variable_problems.append(_no_place(assignment))
    for network in _networks(tree).values():
        chain_id = network.get("chain_id")
        if isinstance(chain_id, int) and not isinstance(chain_id, bool) and chain_id > 0:
            network["chain_id"] = hex(chain_id)  # as upstreams report it
    problems = [(_origin(origins, problem.path), problem.text) for problem in check(tree)]
    problems.sort(key=lambda problem: (problem[0].line, problem[0].label))
    lines = [f"{origin.label}: {text}" for origin, text in problems] + variable_problems
    if lines:
        raise SettingsError(lines)
    if path is not None:
        _place_in_folder(tree, origins, path.parent)
    for (family, name), network in _networks(tree).items():
        for upstream in network["upstreams"]:
            _expand_shorthand(upstream, family, name)
    return _loaded(tree, origins)


def data_folder(path: Path | None, environ: Mapping[str, str]) -> Path:
    """Return which data folder is meant, whatever else is wrong: the service may have variables that we lack."""
    for assignment in assignments(_with_credentials(environ))[0]:
        if assignment.path == ("data_dir",) and assignment.value:
            return Path(assignment.value)
    written = None if path is None else _read(path)[0].get("data_dir")
    if path is None or not written or not isinstance(written, str):
        return Path(Settings().data_dir)
    return path.parent / written


def _with_credentials(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The environment, with a variable for each credential that is named by one.

    systemd's `LoadCredential=settings:<folder>` puts `settings_` before the name of each file of the folder.
    """
    folder = environ.get("CREDENTIALS_DIRECTORY")
    if not folder:
        return environ
    brought: dict[str, str] = {}
    try:
        for path in sorted({*Path(folder).glob(f"{PREFIX}*"), *Path(folder).glob(f"{CREDENTIAL}{PREFIX}*")}):
            brought[path.name.removeprefix(CREDENTIAL)] = path.read_text(encoding="utf-8").rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError([f"{folder}: credentials cannot be read: {error}"]) from None
    return {**environ, **brought}


def require_networks(settings: Settings) -> None:
    """Refuse settings that serve nothing."""
    if not settings.families:
        where = "[[families.eth.mainnet.upstreams]]"
        raise SettingsError([f"no networks are set: run `tollgate init`, or add {where} with name and url"])


def _networks(tree: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """The tables of networks in a raw tree, as far as they are tables."""
    families = tree.get("families")
    return {
        (family, name): network
        for family, networks in (families.items() if isinstance(families, dict) else ())
        for name, network in (networks.items() if isinstance(networks, dict) else ())
        if isinstance(network, dict)
    }


def _expand_shorthand(upstream: dict[str, Any], family: str, network: str) -> None:
    if provider_of(upstream["url"]) is not None:
        made = expand(upstream["url"], family, network)
        upstream["url"] = made.url
        if made.ws_url:
            upstream.setdefault("ws_url", made.ws_url)


def _read(path: Path) -> tuple[dict[str, Any], _Origins]:
    text = _text(path)
    try:
        tree = tomllib.loads(text)
        lines = locate(text)
    except RecursionError:
        raise SettingsError([f"{path}: arrays or tables are nested too deeply"]) from None
    except ValueError as error:
        raise SettingsError([_syntax_problem(path, text, str(error))]) from None
    origins: _Origins = {key: _Origin(f"{path}:{line}", line) for key, line in lines.items()}
    return tree, {(): _Origin(str(path), 0), **origins}


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        advice = f"check the path given by --config or {CONFIG_VARIABLE}"
        raise SettingsError([f"{path}: there is no such file: {advice}"]) from None
    except IsADirectoryError:
        raise SettingsError([f"{path}: is a folder: give the path of a TOML file"]) from None
    except OSError as error:
        raise SettingsError([f"{path}: cannot be read: {error.strerror}"]) from None
    try:
        # Some editors begin a file with a byte order mark, which TOML does not know.
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SettingsError([f"{path}:{line}: is not UTF-8: save the file in that encoding"]) from None


def _syntax_problem(path: Path, text: str, message: str) -> str:
    place = _SYNTAX_PLACE.search(message)
    if place is None:
        return f"{path}: is not valid TOML: {message}"
    line = place[1] or len(text.splitlines())
    end = "" if place[1] else ", at the end of the file"
    return f"{path}:{line}: is not valid TOML: {message[: place.start()]}{end}"


def _note(origins: _Origins, assignment: Assignment) -> None:
    path = assignment.path
    for key in [key for key in origins if key[: len(path)] == path]:
        del origins[key]
    origin = _Origin(assignment.variable, _AFTER_THE_FILE)
    origins[path] = origin
    for depth in range(1, len(path)):
        origins.setdefault(path[:depth], origin)


def _origin(origins: _Origins, path: KeyPath) -> _Origin:
    """Find where a value was written, or else the nearest table around it."""
    for depth in range(len(path), -1, -1):
        if path[:depth] in origins:
            return origins[path[:depth]]
    return _Origin("settings", 0)


def _no_place(assignment: Assignment) -> str:
    numbered = any(isinstance(segment, int) for segment in assignment.path)
    advice = "number the upstreams from 0 without a gap" if numbered else "what is around it is no table"
    return f"{assignment.variable}: `{dotted(assignment.path)}` has no place: {advice}"


def _place_in_folder(tree: dict[str, Any], origins: _Origins, folder: Path) -> None:
    located = [(path, value) for path, place, value in leaves(root(), tree) if place.location and value]
    for path, value in located:
        if _origin(origins, path).line == _AFTER_THE_FILE:
            continue
        table: Any = tree
        for segment in path[:-1]:
            table = table[segment]
        table[path[-1]] = str(folder / value)


def _loaded(tree: dict[str, Any], origins: _Origins) -> Loaded:
    written = {path for path, _, _ in leaves(root(), tree)}
    settings = msgspec.convert(tree, Settings)
    sources = {
        dotted(path): _origin(origins, path).label if path in written else "default"
        for path, _, _ in leaves(root(), msgspec.to_builtins(settings))
    }
    return Loaded(settings, sources)
