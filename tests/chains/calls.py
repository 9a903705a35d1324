"""Calls as the intake hands them on, for the tests of this folder."""

from typing import Any

import msgspec
from msgspec import Raw

from tollgate.core.shapes import Params


def params(value: list[Any] | dict[str, Any]) -> Params:
    """Parameters, each one the bytes of its JSON."""
    return written(msgspec.json.encode(value))


def written(text: bytes) -> Params:
    """Parameters from their JSON as a caller may have written it."""
    return msgspec.json.decode(text, type=list[Raw] | dict[str, Raw])


def result(value: Any) -> Raw:
    """A result as it is read from a node's answer."""
    return Raw(msgspec.json.encode(value))
