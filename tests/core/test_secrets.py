"""Tokens: how they look, that a typo is seen, and what the store knows of them."""

import math
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.core import secrets

BASE62 = string.digits + string.ascii_letters
TOKEN = secrets.new_token()
PEPPER = b"p" * 32


def test_token_is_tg_32_random_characters_and_6_of_checksum() -> None:
    assert re.fullmatch(r"tg_[0-9A-Za-z]{32}[0-9A-Za-z]{6}", TOKEN)
    assert secrets.well_formed(TOKEN)


def test_random_part_has_190_bits_over_the_whole_alphabet() -> None:
    assert int(secrets.RANDOM_LENGTH * math.log2(len(BASE62))) == 190
    seen = {letter for _ in range(200) for letter in secrets.new_token()[3:35]}
    assert seen == set(BASE62)


def test_tokens_do_not_repeat() -> None:
    assert len({secrets.new_token() for _ in range(1_000)}) == 1_000


def test_known_token_stays_well_formed() -> None:
    # Written down once: a change of the checksum would refuse every token that is out there.
    known = "tg_" + "0" * 32
    assert secrets.well_formed(known + "3hOmhk")


@given(st.integers(0, len(TOKEN) - 1), st.characters())
def test_any_single_typo_is_refused(position: int, letter: str) -> None:
    mistyped = TOKEN[:position] + letter + TOKEN[position + 1 :]
    assert secrets.well_formed(mistyped) == (mistyped == TOKEN)


@given(st.integers(3, len(TOKEN) - 2))
def test_two_swapped_neighbours_are_refused(position: int) -> None:
    swapped = TOKEN[:position] + TOKEN[position + 1] + TOKEN[position] + TOKEN[position + 2 :]
    assert secrets.well_formed(swapped) == (swapped == TOKEN)


@given(st.text())
def test_any_text_is_judged_without_failing(text: str) -> None:
    assert not secrets.well_formed(text)
    assert not secrets.well_formed("tg_" + text)


@pytest.mark.parametrize(
    "text", ["", "tg_", TOKEN[:-1], TOKEN + "0", " " + TOKEN, TOKEN + "\n", TOKEN.upper(), "TG_" + TOKEN[3:]]
)
def test_what_is_not_a_whole_token_is_refused(text: str) -> None:
    assert not secrets.well_formed(text)


def test_digest_depends_on_token_and_pepper_and_does_not_show_the_token() -> None:
    token = TOKEN.encode()
    digest = secrets.digest(token, PEPPER)
    assert len(digest) == 32
    assert digest == secrets.digest(token, PEPPER)
    assert digest != secrets.digest(token, b"q" * 32)
    assert digest != secrets.digest(secrets.new_token().encode(), PEPPER)
    assert token not in digest


def test_shown_prefix_tells_tokens_apart_and_gives_little_away() -> None:
    assert TOKEN.startswith(secrets.shown_prefix(TOKEN))
    assert len(secrets.shown_prefix(TOKEN)) == 8


@pytest.mark.parametrize("kind", ["tok", "dom", "team"])
def test_id_has_its_kind_and_does_not_repeat(kind: str) -> None:
    ids = {secrets.new_id(kind) for _ in range(1_000)}
    assert len(ids) == 1_000
    assert all(re.fullmatch(kind + r"_[0-9A-Za-z]{16}", each) for each in ids)
    assert all(len(each) <= 32 for each in ids)
