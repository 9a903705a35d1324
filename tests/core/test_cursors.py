"""Cursors: they lead back to their position, in their own list alone, and anything else is refused."""

import base64
import re
from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tollgate.core import cursors, secrets
from tollgate.core.cursors import BadCursor, Position

SCOPES = st.text(max_size=40)
PLACES = st.builds(Position, st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=32))
HERE = Position(1_794_700_800.123456, "tok_0123456789abcdef")


def written(text: bytes) -> str:
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


@given(SCOPES, PLACES)
def test_cursor_leads_back_to_its_place_exactly(scope: str, place: Position) -> None:
    cursor = cursors.write(scope, place)
    assume(len(cursor) <= cursors.MAX_LENGTH)
    assert cursors.read(scope, cursor) == place


@given(st.floats(0, 1e11), st.sampled_from(["team", "tok", "dom", "mem", "inv", "acc", "log", "aud"]))
def test_cursor_of_any_list_of_ours_is_short_enough_and_needs_no_escaping(created_at: float, kind: str) -> None:
    scope = f"/api/v1/teams/{secrets.new_id('team')}/invitations newest first"
    place = Position(created_at, secrets.new_id(kind))
    cursor = cursors.write(scope, place)
    assert re.fullmatch(r"[A-Za-z0-9_-]+", cursor)
    assert cursors.read(scope, cursor) == place


@given(SCOPES, SCOPES)
def test_cursor_of_another_list_is_refused(mine: str, other: str) -> None:
    cursor = cursors.write(mine, HERE)
    if mine == other:
        assert cursors.read(other, cursor) == HERE
    else:
        with pytest.raises(BadCursor, match=r"another list.*`next`"):
            cursors.read(other, cursor)


@given(st.text(max_size=400))
def test_any_text_is_refused_with_advice(text: str) -> None:
    with pytest.raises(BadCursor, match="earlier page of the same list, or none to start"):
        cursors.read("tokens", text)


@given(st.binary(max_size=100))
def test_any_bytes_in_the_right_letters_are_refused(inside: bytes) -> None:
    with pytest.raises(BadCursor):
        cursors.read("tokens", written(inside))


@pytest.mark.parametrize(
    "inside",
    [
        b"",
        b"null",
        b"{}",
        b"[]",
        b'[1,"tokens"]',
        b'[1,"tokens",[1.5]]',
        b'[1,"tokens",[1.5,"a",2]]',
        b'[1,"tokens",[1.5,"a"],2]',
        b'[1,"tokens",["1.5","a"]]',
        b'[1,"tokens",[null,"a"]]',
        b'[1,"tokens",[true,"a"]]',
        b'[1,"tokens",[NaN,"a"]]',
        b'[1,"tokens",[1e999,"a"]]',
        b'[1,"tokens",[1.5,7]]',
        b'[1,"tokens",[1.5,"\xff"]]',
        b'[1,"tokens",[1.5,"\\ud800"]]',
        b'[1,"tokens",[1.5,"a"]] [1,"tokens",[1.5,"a"]]',
        b'{"version":1,"scope":"tokens","position":[1.5,"a"]}',
        b'[0,"tokens",[1.5,"a"]]',
        b'[2,"tokens",[1.5,"a"]]',
        b'["tokens",[1.5,"a"]]',
        b"[" * 200,
    ],
)
def test_what_is_not_made_like_a_cursor_is_refused(inside: bytes) -> None:
    with pytest.raises(BadCursor):
        cursors.read("tokens", written(inside))


def test_format_of_version_1_is_pinned() -> None:
    assert cursors.VERSION == 1
    assert cursors.write("tokens", Position(1.5, "a")) == written(b'[1,"tokens",[1.5,"a"]]')
    assert cursors.read("tokens", written(b'[1,"tokens",[1.5,"a"]]')) == Position(1.5, "a")


def between(cursor: str) -> str:
    return f"{cursor[:4]}!!!!{cursor[4:]}"


@pytest.mark.parametrize(
    "spoil", [lambda c: c[:-1], lambda c: c[1:], lambda c: " " + c, lambda c: c + "\n", between]
)
def test_damaged_cursor_is_refused(spoil: Callable[[str], str]) -> None:
    with pytest.raises(BadCursor):
        cursors.read("tokens", spoil(cursors.write("tokens", HERE)))


def test_long_cursor_is_refused_before_it_is_looked_into() -> None:
    longest, longer = (written(b'[1,"tokens",[1.5,"a"]]'.ljust(size)) for size in (225, 226))
    assert len(longest) == cursors.MAX_LENGTH
    assert cursors.read("tokens", longest) == Position(1.5, "a")
    with pytest.raises(BadCursor):
        cursors.read("tokens", longer)
