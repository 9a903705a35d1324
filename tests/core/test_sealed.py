"""Sealed texts open in their own scope alone, reveal nothing, and cannot be changed."""

import re
import string
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tollgate.core.sealed import BrokenSeal, Cipher, Seal

PEPPER = b"p" * 32
SEAL = Seal(PEPPER, "ent_", 8)
CURSOR = Seal(PEPPER, "old_", 44)
CONTENTS = st.binary(min_size=8, max_size=8)
SCOPES = st.text(st.characters(codec="utf-8"), max_size=40)
LETTERS = string.ascii_letters + string.digits + "-_"


@given(SCOPES, CONTENTS)
def test_what_was_sealed_comes_back_in_its_scope(scope: str, content: bytes) -> None:
    text = SEAL.close(scope, content)
    assert SEAL.open(scope, text) == content
    assert re.fullmatch(r"ent_[A-Za-z0-9_-]{32}", text)
    assert len(text) == SEAL.length


@given(SCOPES, st.binary(min_size=44, max_size=44))
def test_longer_contents_come_back_as_well(scope: str, content: bytes) -> None:
    assert CURSOR.open(scope, CURSOR.close(scope, content)) == content


@given(SCOPES, SCOPES, CONTENTS)
def test_text_of_another_scope_is_refused(mine: str, other: str, content: bytes) -> None:
    assume(mine != other)
    with pytest.raises(BrokenSeal):
        SEAL.open(other, SEAL.close(mine, content))


@given(SCOPES, st.binary(max_size=100))
def test_cipher_takes_contents_of_any_length(scope: str, content: bytes) -> None:
    cipher = Cipher(PEPPER, "filter")
    sealed = cipher.close(scope, content)
    assert cipher.open(scope, sealed) == content
    assert len(sealed) == 16 + len(content)


def test_format_version_1_is_pinned() -> None:
    """Entry ids are kept by clients and TOTP secrets by the database: a change here needs a new `VERSION`."""
    assert SEAL.close("team_1", b"12345678") == "ent_qDUPVeQSkZNpb7UAxCoWwVrtdHQULseY"
    assert (
        Cipher(PEPPER, "filter").close("team_1", b"12345678").hex()
        == "01a14248363a1ea93726a865fec6a0704e21406ff25f21e0"
    )


@given(CONTENTS, st.data())
def test_one_letter_changed_breaks_it(content: bytes, data: st.DataObject) -> None:
    text = CURSOR.close("team", (content * 6)[:44])
    place = data.draw(st.integers(0, len(text) - 1))
    letter = data.draw(st.sampled_from(LETTERS).filter(lambda each: each != text[place]))
    with pytest.raises(BrokenSeal):
        CURSOR.open("team", text[:place] + letter + text[place + 1 :])


@given(st.one_of(st.text(max_size=100), st.text(LETTERS, min_size=32, max_size=32).map("ent_".__add__)))
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(BrokenSeal):
        SEAL.open("team", text)


@pytest.mark.parametrize("spoil", ["{}=", " {}", "{}\n", "x{}", "{}AAAA"])
def test_text_with_something_around_it_is_refused(spoil: str) -> None:
    with pytest.raises(BrokenSeal):
        SEAL.open("team", spoil.format(SEAL.close("team", b"12345678")))


def test_the_same_content_is_always_the_same_text() -> None:
    assert SEAL.close("team", b"12345678") == Seal(PEPPER, "ent_", 8).close("team", b"12345678")


def test_another_pepper_or_kind_makes_another_text_and_opens_none() -> None:
    text = SEAL.close("team", b"12345678")
    for other in (Seal(b"q" * 32, "ent_", 8), Seal(PEPPER, "new_", 8), Seal(PEPPER, "ent_", 11)):
        assert other.close("team", b"12345678"[:8].ljust(other.size))[4:] != text[4:]
        with pytest.raises(BrokenSeal):
            other.open("team", other.prefix + text[4:])


def test_texts_of_numbers_in_a_row_have_nothing_in_common() -> None:
    texts = [SEAL.close("team", number.to_bytes(8, "big"))[4:] for number in range(1_000)]
    assert len(set(texts)) == len(texts)
    alike = [sum(mine == other for mine, other in zip(*pair, strict=True)) for pair in pairwise(texts)]
    # Half a letter of 32 is alike by chance; the start that the numbers share never is.
    assert sum(alike) / len(alike) < 1
    assert texts != sorted(texts)


def test_a_content_of_another_size_is_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match="seals 8 bytes, not 3"):
        SEAL.close("team", b"abc")
    with pytest.raises(ValueError, match="whole base64 groups"):
        Seal(PEPPER, "ent_", 9)


def test_repr_shows_no_key() -> None:
    assert repr(SEAL) == "Seal('ent_')"
