from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.core.durations import parse, spell

SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0s", 0),
        ("45s", 45),
        ("30m", 1_800),
        ("1h", 3_600),
        ("24h", 86_400),
        ("30d", 2_592_000),
        ("2w", 1_209_600),
        ("1h30m", 5_400),
        ("1d12h30m5s", 131_405),
        ("1h1h", 7_200),
        ("007s", 7),
    ],
)
def test_durations_are_sums_of_their_parts(text: str, seconds: int) -> None:
    assert parse(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "h",
        "1 h",
        " 1h",
        "1h ",
        "1h\n",
        "-1h",
        "+1h",
        "1.5h",
        "1H",
        "1y",
        "h1",
        "1h30",
        "٣h",
        "1000000000s",
    ],
)
def test_anything_else_is_refused_with_the_accepted_form(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a duration: write one or more of <number><s\|m\|h\|d\|w>"):
        parse(text)


def test_a_refusal_quotes_only_the_start_of_a_long_text() -> None:
    with pytest.raises(ValueError) as caught:
        parse("1h" * 5_000)
    assert str(caught.value).startswith(f"'{'1h' * 20}' is not a duration: ")


@given(st.lists(st.tuples(st.integers(0, 999_999_999), st.sampled_from("smhdw")), min_size=1, max_size=20))
def test_every_duration_of_the_form_is_the_sum_of_its_parts(parts: list[tuple[int, str]]) -> None:
    text = "".join(f"{number}{unit}" for number, unit in parts)
    assert parse(text) == sum(number * SECONDS[unit] for number, unit in parts)


@given(st.integers(0, 10**12))
def test_what_is_spelled_reads_back_as_the_same(seconds: int) -> None:
    assert parse(spell(seconds)) == seconds


@given(st.text(max_size=30))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        seconds = parse(text)
    except ValueError:
        return
    assert seconds >= 0
