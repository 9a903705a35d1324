"""Tokens, other secrets and codes: their form, that a typo is detected, and what the store keeps of them."""

import hmac
import math
import re
import string

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from tollgate.core import secrets

BASE62 = string.digits + string.ascii_letters
TOKEN = secrets.new_token()
PEPPER = b"p" * 32
PREFIXES = ["tg_", "tga_", "tgr_", "tgp_", "tgs_", "tgd_", "tgi_", "tgl_"]
SECRETS = {prefix: secrets.new_token(prefix) for prefix in PREFIXES}
CODE_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
codes = st.text(CODE_LETTERS, min_size=8, max_size=8)


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


def test_shown_prefix_distinguishes_tokens_and_gives_little_away() -> None:
    assert TOKEN.startswith(secrets.shown_prefix(TOKEN))
    assert len(secrets.shown_prefix(TOKEN)) == 8


@pytest.mark.parametrize("kind", ["tok", "dom", "team"])
def test_id_has_its_kind_and_does_not_repeat(kind: str) -> None:
    ids = {secrets.new_id(kind) for _ in range(1_000)}
    assert len(ids) == 1_000
    assert all(re.fullmatch(kind + r"_[0-9A-Za-z]{16}", each) for each in ids)
    assert all(len(each) <= 32 for each in ids)


# --- Prefixes ----------------------------------------------------------------------------------------------


def test_prefixes_are_those_of_the_contract_and_no_two_alike() -> None:
    assert [
        secrets.PREFIX,
        secrets.ACCESS,
        secrets.REFRESH,
        secrets.PERSONAL,
        secrets.SESSION,
        secrets.DEVICE,
        secrets.INVITATION,
        secrets.RESET,
    ] == PREFIXES
    assert len(set(PREFIXES)) == 8


@pytest.mark.parametrize("prefix", PREFIXES)
def test_secret_of_one_kind_is_taken_for_no_other(prefix: str) -> None:
    for _ in range(50):
        secret = secrets.new_token(prefix)
        assert re.fullmatch(prefix + r"[0-9A-Za-z]{38}", secret)
        assert [other for other in PREFIXES if secrets.well_formed(secret, other)] == [prefix]
        assert secrets.shown_prefix(secret).startswith(prefix)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_secret_with_another_prefix_put_before_it_is_refused(prefix: str) -> None:
    bare = secrets.new_token(prefix).removeprefix(prefix)
    for other in PREFIXES:
        assert secrets.well_formed(other + bare, other) is (other == prefix)


@pytest.mark.parametrize("prefix", PREFIXES)
@given(position=st.integers(0, 41), letter=st.characters())
def test_any_single_typo_in_any_kind_is_refused(prefix: str, position: int, letter: str) -> None:
    secret = SECRETS[prefix]
    position %= len(secret)
    mistyped = secret[:position] + letter + secret[position + 1 :]
    assert secrets.well_formed(mistyped, prefix) == (mistyped == secret)


@pytest.mark.parametrize("prefix", PREFIXES)
@given(text=st.text())
def test_any_text_behind_any_prefix_is_judged_without_failing(prefix: str, text: str) -> None:
    assert not secrets.well_formed(text, prefix)
    assert not secrets.well_formed(prefix + text, prefix)


# --- Codes -------------------------------------------------------------------------------------------------


def test_code_is_two_groups_of_four_consonants_and_has_34_bits() -> None:
    made = {secrets.new_code() for _ in range(1_000)}
    assert len(made) == 1_000
    assert all(re.fullmatch(r"[BCDFGHJKLMNPQRSTVWXZ]{4}-[BCDFGHJKLMNPQRSTVWXZ]{4}", code) for code in made)
    assert {letter for code in made for letter in code} == set(CODE_LETTERS + "-")
    assert int(secrets.CODE_LENGTH * math.log2(len(secrets.CODE_LETTERS))) == 34
    assert not set(secrets.CODE_LETTERS) & set("AEIOUY0123456789")


def test_new_code_is_read_as_it_was_made() -> None:
    code = secrets.new_code()
    assert secrets.plain_code(code) == code.replace("-", "")


@given(
    codes,
    st.lists(st.tuples(st.integers(0, 8), st.text(" -\t\r\n\u00a0\u2011\u2013\u2014._'\"\u200b", max_size=4))),
)
def test_code_is_read_in_any_case_and_with_whatever_comes_along_when_pasted(
    code: str, between: list[tuple[int, str]]
) -> None:
    typed = code
    for position, more in between:
        typed = typed[:position] + more + typed[position:]
    assert secrets.plain_code(typed) == code
    assert secrets.plain_code(typed.lower()) == code


@pytest.mark.parametrize(
    "typed",
    [
        "",
        " ",
        "-",
        "BCDF",
        "BCDF-GHJ",
        "BCDF-GHJKL",
        "BCDF-GHJA",
        "BCDF-GHJ1",
        "BCDF-GHJÉ",
        "\u0412CDF-GHJK",
        "8CDF-GHJK",
    ],
)
def test_what_cannot_be_a_code_is_refused(typed: str) -> None:
    assert secrets.plain_code(typed) is None


@given(st.text())
def test_any_text_is_read_as_a_code_or_as_none(typed: str) -> None:
    code = secrets.plain_code(typed)
    assert code is None or (len(code) == 8 and set(code) <= set(CODE_LETTERS))


@pytest.mark.parametrize("purpose", ["tokens", "tickets"])
def test_key_of_a_purpose_is_derived_as_rfc_5869_has_it(purpose: str) -> None:
    derivation = HKDF(SHA256(), 32, salt=None, info=f"tollgate {purpose}".encode())
    assert secrets.derive(b"p" * 32, purpose) == derivation.derive(b"p" * 32)


def test_digest_of_one_purpose_is_none_of_another_nor_one_under_the_pepper_itself() -> None:
    pepper = b"p" * 32
    made = {secrets.digest(b"x", pepper, purpose) for purpose in ("tokens", "tickets", "links")}
    assert len({*made, hmac.digest(pepper, b"x", "sha256")}) == 4
