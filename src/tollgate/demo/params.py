"""What a caller sent, turned into values: parameters by position or name, quantities, byte strings.

Knows no chain and no method. Any JSON value may come in; nothing but `RpcError` may come out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from inspect import Parameter, signature

INVALID_PARAMS = -32602
_HEX = re.compile(r"0[xX][0-9a-fA-F]*")

Shape = dict[str, object]
"""A JSON object."""


class RpcError(Exception):
    """A JSON-RPC error object, on its way to the caller."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


def invalid(message: str) -> RpcError:
    """Return the error for a parameter that cannot be used."""
    return RpcError(INVALID_PARAMS, f"Invalid params: {message}")


@lru_cache(maxsize=256)
def _parameters(function: Callable[..., object]) -> dict[str, Parameter]:
    """Return a method's parameters by the names that callers use: without the `_` of those that are ignored."""
    found = list(signature(function).parameters.values())[1:]
    return {each.name.removeprefix("_"): each for each in found}


def bind(
    function: Callable[..., object], params: object, *, by_name: bool, missing: frozenset[str] = frozenset()
) -> dict[str, object]:
    """Return a call's parameters as arguments for `function`, which has one argument before them.

    Those in `missing` are unknown. A parameter given as null counts as left out.
    """
    known = {name: each for name, each in _parameters(function).items() if name not in missing}
    if params is None:
        given: dict[str, object] = {}
    elif isinstance(params, list):
        if len(params) > len(known):
            raise invalid(f"too many, at most {len(known)}")
        given = dict(zip(known, params, strict=False))
    elif isinstance(params, Mapping) and by_name:
        given = dict(params)
        if unknown := given.keys() - known.keys():
            raise invalid(f"unknown name {min(unknown)[:64]!r}")
    else:
        raise invalid("not an array")
    for name, parameter in known.items():
        if parameter.default is Parameter.empty and given.get(name) is None:
            raise invalid(f"{name} is missing")
    return {known[name].name: value for name, value in given.items() if value is not None}


def quantity(value: object, what: str, bits: int = 256) -> int:
    """Read a number written as `0x…`, of at most `bits` bits."""
    if not isinstance(value, str) or not _HEX.fullmatch(value) or not 3 <= len(value) <= 66:
        raise invalid(f"{what} is not a hex number")
    number = int(value, 16)
    if number >> bits:
        raise invalid(f"{what} has more than {bits} bits")
    return number


def octets(value: object, what: str, size: int | None = None) -> bytes:
    """Read bytes written as `0x…`, of exactly `size` if that is given."""
    if not isinstance(value, str) or not _HEX.fullmatch(value) or len(value) % 2:
        raise invalid(f"{what} is not a hex string of whole bytes")
    found = bytes.fromhex(value[2:])
    if size is not None and len(found) != size:
        raise invalid(f"{what} has {len(found)} bytes, not {size}")
    return found


def integer(value: object, what: str) -> int:
    """Read a JSON number that is a natural number."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 2**63:
        raise invalid(f"{what} is not a natural number")
    return value


def mapping(value: object, what: str) -> Mapping[str, object]:
    """Read a JSON object; members that are null count as absent."""
    if not isinstance(value, Mapping):
        raise invalid(f"{what} is not an object")
    return {name: member for name, member in value.items() if member is not None}


def array(value: object, what: str, max_members: int) -> Sequence[object]:
    """Read a JSON array of at most `max_members`."""
    if not isinstance(value, list) or len(value) > max_members:
        raise invalid(f"{what} is not an array of at most {max_members}")
    return value
