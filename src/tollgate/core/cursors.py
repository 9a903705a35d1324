"""Opaque cursors of lists: where a page ended, bound to the list it came from.

A cursor is no secret and grants nothing; it is bound so that a mix-up is an error instead of an odd page.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, Literal

import msgspec

MAX_LENGTH = 300
VERSION: Final = 1


class BadCursor(ValueError):
    """Not a cursor of this list."""


class Position(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The last item of a page, by what lists are ordered by."""

    created_at: float
    id: str


class _Cursor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: Literal[1]
    scope: str
    position: Position


def write(scope: str, position: Position) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(_Cursor(VERSION, scope, position))).rstrip(b"=").decode()


def read(scope: str, cursor: str) -> Position:
    """Return the position of a cursor of this list, or raise BadCursor."""
    advice = "Give the `next` of an earlier page of the same list, or none to start."
    if len(cursor) > MAX_LENGTH or not cursor.isascii():
        raise BadCursor(f"The cursor is not valid. {advice}")
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        found = msgspec.json.decode(base64.b64decode(padded, b"-_", validate=True), type=_Cursor)
    except (binascii.Error, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadCursor(f"The cursor is not valid. {advice}") from error
    if found.scope != scope:
        raise BadCursor(f"The cursor belongs to another list. {advice}")
    return found.position
