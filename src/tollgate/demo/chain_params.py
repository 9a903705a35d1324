"""What a caller sent, turned into values: parameters by position or name, quantities, byte strings.

Owns the refusal of parameters (`RpcError` with -32602) and the method table's types; knows no chain and no
method. Any JSON value may come in; nothing but `RpcError` may come out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tollgate.demo.chain import Sent
    from tollgate.demo.chain_view import View

METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602

Shape = dict[str, object]


class RpcError(Exception):
    """A JSON-RPC error object, on its way to the caller."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


Args = Mapping[str, object]
"""Parameters by name; one that was left out is absent, and so is one given as null."""


class Method(NamedTuple):
    """How a method is answered: its parameters in order, how many are required, and the function."""

    names: tuple[str, ...]
    required: int
    answer: Callable[[View, Args], object]


class Sending(NamedTuple):
    """What a method that submits a transaction answers: the network takes it in, then gives the result."""

    sent: Sent
    result: object
    known: RpcError
    """The error where it was submitted before."""


def invalid(message: str) -> RpcError:
    """Make the error for a parameter that cannot be used."""
    return RpcError(INVALID_PARAMS, f"Invalid params: {message}")


def unknown_method(method: str) -> RpcError:
    """Make the error for a method that there is not."""
    return RpcError(METHOD_NOT_FOUND, f"The method {method[:64]} does not exist on this simulated chain")


def answer(
    methods: Mapping[str, Method], view: View, method: str, params: object, *, by_name: bool = True
) -> object:
    """Answer one call from a method table, or raise `RpcError`."""
    known = methods.get(method)
    if known is None:
        raise unknown_method(method)
    return known.answer(view, bind(known.names, known.required, params, by_name=by_name))


def bind(names: tuple[str, ...], required: int, params: object, *, by_name: bool = True) -> Args:
    """Return parameters by name, as many as there are and as few as there must be."""
    if params is None:
        given: dict[str, object] = {}
    elif isinstance(params, Sequence) and not isinstance(params, str | bytes):
        if len(params) > len(names):
            raise invalid(f"too many, at most {len(names)}")
        given = dict(zip(names, params, strict=False))
    elif isinstance(params, Mapping) and by_name:
        given = dict(params)
        unknown = given.keys() - set(names)
        if unknown:
            raise invalid(f"unknown name {min(unknown)[:64]!r}")
    else:
        raise invalid("not an array")
    given = {name: value for name, value in given.items() if value is not None}
    for name in names[:required]:
        if name not in given:
            raise invalid(f"{name} is missing")
    return given


def quantity(value: object, what: str, bits: int = 256) -> int:
    """Read a number written as `0x…`, of at most `bits` bits."""
    if not isinstance(value, str) or not value.startswith(("0x", "0X")) or not 3 <= len(value) <= 66:
        raise invalid(f"{what} is not a hex number")
    digits = value[2:]
    # int() would also take signs, spaces, underscores and non-ASCII digits.
    if not (digits.isascii() and digits.isalnum()):
        raise invalid(f"{what} is not a hex number")
    try:
        number = int(digits, 16)
    except ValueError:
        raise invalid(f"{what} is not a hex number") from None
    if number >> bits:
        raise invalid(f"{what} has more than {bits} bits")
    return number


def octets(value: object, what: str, size: int | None = None) -> bytes:
    """Read bytes written as `0x…`, of exactly `size` if that is given."""
    if not isinstance(value, str) or not value.startswith(("0x", "0X")) or not value.isascii():
        raise invalid(f"{what} is not a hex string")
    digits = value[2:]
    # fromhex() skips white space.
    if any(letter.isspace() for letter in digits):
        raise invalid(f"{what} is not a hex string")
    try:
        found = bytes.fromhex(digits)
    except ValueError:
        raise invalid(f"{what} is not a hex string of whole bytes") from None
    if size is not None and len(found) != size:
        raise invalid(f"{what} has {len(found)} bytes, not {size}")
    return found


def integer(value: object, what: str, most: int = 2**63) -> int:
    """Read a JSON number that is a natural number up to `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise invalid(f"{what} is not a number from 0 to {most}")
    return value


def mapping(value: object, what: str) -> Mapping[str, object]:
    """Read a JSON object; members that are null count as absent."""
    if not isinstance(value, Mapping):
        raise invalid(f"{what} is not an object")
    return {name: member for name, member in value.items() if member is not None}


def array(value: object, what: str, most: int) -> Sequence[object]:
    """Read a JSON array of at most `most` members."""
    if not isinstance(value, list) or len(value) > most:
        raise invalid(f"{what} is not an array of at most {most}")
    return value
