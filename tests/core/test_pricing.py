"""What requests cost: the edges of the free million, both plans, caps, and sums that no split changes."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.api.usage import Plan
from tollgate.core.pricing import (
    MILLION,
    UNLIMITED,
    MonthUse,
    Price,
    alerts_passed,
    capped,
    cents,
    charge,
    cost,
    dollars,
    lower_cap,
    micros_of,
)

EACH = Price()
STARTED = Price(Plan.PER_STARTED_MILLION)
DOLLAR = 1_000_000

counts = st.integers(0, 5 * MILLION) | st.integers(MILLION - 3, MILLION + 3) | st.integers(0, 10**12)
prices = st.builds(
    Price,
    st.sampled_from(Plan),
    st.sampled_from([0, 1, 7, MILLION]),
    st.sampled_from([0, 1, 333_333, 5 * MILLION]),
)
caps = st.none() | st.integers(0, 30 * DOLLAR) | st.just(0)


# --- The price list ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requests", "each", "started"),
    [
        (0, 0, 0),
        (1, 0, 0),
        (999_999, 0, 0),
        (1_000_000, 0, 0),
        (1_000_001, 5, 5 * DOLLAR),
        (1_000_002, 10, 5 * DOLLAR),
        (1_500_000, 2_500_000, 5 * DOLLAR),
        (2_000_000, 5 * DOLLAR, 5 * DOLLAR),
        (2_000_001, 5 * DOLLAR + 5, 10 * DOLLAR),
        (3_000_000, 10 * DOLLAR, 10 * DOLLAR),
        (1_000_000_000, 4_995 * DOLLAR, 4_995 * DOLLAR),
    ],
)
def test_month_costs(requests: int, each: int, started: int) -> None:
    assert EACH.total(requests) == each
    assert STARTED.total(requests) == started


def test_request_beyond_the_free_million_costs_five_micros_or_starts_a_million() -> None:
    assert [cost(EACH, before, 1) for before in (0, 999_999, 1_000_000, 1_000_001)] == [0, 0, 5, 5]
    assert [cost(STARTED, before, 1) for before in (999_999, 1_000_000, 1_000_001, 2_000_000)] == [
        0,
        5 * DOLLAR,
        0,
        5 * DOLLAR,
    ]


def test_part_of_a_micro_is_charged_when_it_is_whole() -> None:
    price = Price(free_requests=0, micros_per_million=333_333)
    assert [cost(price, before, 1) for before in range(7)] == [0, 0, 0, 1, 0, 0, 1]
    assert price.total(MILLION) == 333_333


# --- Sums --------------------------------------------------------------------------------------------------


@given(prices, counts, st.lists(st.integers(0, 3_000_000), max_size=20), caps)
def test_parts_cost_together_what_the_whole_costs(
    price: Price, before: int, parts: list[int], cap: int | None
) -> None:
    at, charged = before, capped(price.total(before), cap)
    for part in parts:
        at += part
        charged += charge(price.total(at), charged, cap)
    assert cost(price, before, sum(parts)) == price.total(at) - price.total(before)
    assert charged == capped(price.total(at), cap)


@given(prices, st.integers(0, 60), st.data())
def test_single_requests_cost_together_what_any_split_costs(price: Price, count: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(max(0, price.free_requests - 30), price.free_requests + 30))
    cuts = sorted(data.draw(st.lists(st.integers(0, count), max_size=8)))
    batches = [end - begin for begin, end in pairwise([0, *cuts, count])]
    singly = sum(cost(price, start + number, 1) for number in range(count))
    at, split = start, 0
    for batch in batches:
        split += cost(price, at, batch)
        at += batch
    assert singly == split == price.total(start + count) - price.total(start)


@given(prices, counts, counts)
def test_cost_is_never_negative_and_more_requests_never_cost_less(price: Price, before: int, count: int) -> None:
    assert cost(price, before, count) >= 0
    assert cost(price, before, count + 1) >= cost(price, before, count)
    assert cost(price, before, 0) == 0


# --- Caps --------------------------------------------------------------------------------------------------


@given(prices, st.integers(0, 30 * DOLLAR), st.lists(st.integers(0, 3_000_000), max_size=20))
def test_cap_is_never_exceeded(price: Price, cap: int, parts: list[int]) -> None:
    at = charged = 0
    for part in parts:
        at += part
        charged += charge(price.total(at), charged, cap)
        assert charged <= cap
    assert charged == min(price.total(at), cap)


@given(
    prices, st.lists(st.tuples(st.integers(0, 3_000_000), st.none() | st.integers(0, 20 * DOLLAR)), max_size=20)
)
def test_cap_that_changes_is_never_exceeded_by_what_is_charged_under_it(
    price: Price, parts: list[tuple[int, int | None]]
) -> None:
    at = charged = 0
    for part, cap in parts:
        at += part
        more = charge(price.total(at), charged, cap)
        charged += more
        assert charged <= price.total(at)
        assert not more or cap is None or charged <= cap


def test_raised_cap_charges_what_lay_beyond_the_lower_one() -> None:
    assert charge(15, 0, cap=10) == 10
    assert charge(16, 10, cap=12) == 2
    assert charge(17, 12, cap=None) == 5
    assert charge(18, 17, cap=3) == 0, "what was charged is not given back"


@given(prices, counts, st.integers(0, 30 * DOLLAR))
def test_affordable_requests_are_those_that_cost_no_more(price: Price, before: int, micros: int) -> None:
    count = price.affordable(before, micros)
    assert cost(price, before, count) <= micros or count == UNLIMITED
    assert count == UNLIMITED or cost(price, before, count + 1) > micros
    assert price.affordable(before, -1) == 0


def test_free_requests_that_other_teams_of_the_payer_had_are_not_there() -> None:
    assert MonthUse(400_000, free=400_000, others_free=500_000).left(EACH, 0) == 100_000
    assert MonthUse(400_000, free=400_000, others_free=600_000).left(EACH, 50) == 10
    assert MonthUse(others_free=2_000_000).reaches(EACH, 0)


@pytest.mark.parametrize(
    ("price", "requests", "cap", "reached"),
    [
        (EACH, 0, None, False),
        (EACH, 10**12, None, False),
        (EACH, 999_999, 0, False),
        (EACH, 1_000_000, 0, True),
        (EACH, 1_000_000, 5, False),
        (EACH, 1_000_001, 5, True),
        (EACH, 1_000_000, 4, True),
        (STARTED, 999_999, 5 * DOLLAR - 1, False),
        (STARTED, 1_000_000, 5 * DOLLAR - 1, True),
        (STARTED, 1_000_000, 5 * DOLLAR, False),
        (STARTED, 1_999_999, 5 * DOLLAR, False),
        (STARTED, 2_000_000, 5 * DOLLAR, True),
    ],
)
def test_calls_stop_when_the_next_would_cost_more_than_the_cap(
    price: Price, requests: int, cap: int | None, reached: bool
) -> None:
    total = price.total(requests)
    assert MonthUse(requests, capped(total, cap), total).reaches(price, cap) is reached


def test_million_beyond_the_cap_is_not_consumed() -> None:
    assert MonthUse(1_500_000, 5 * DOLLAR - 1, 5 * DOLLAR).reaches(STARTED, 5 * DOLLAR - 1)
    assert not MonthUse(1_500_000, 5 * DOLLAR, 5 * DOLLAR).reaches(STARTED, 5 * DOLLAR)


@pytest.mark.parametrize(
    ("one", "other", "lower"), [(None, None, None), (1, None, 1), (None, 0, 0), (3, 2, 2), (2, 3, 2)]
)
def test_cap_that_is_reached_first_is_the_lower_one(one: int | None, other: int | None, lower: int | None) -> None:
    assert lower_cap(one, other) == lower


@given(prices, counts, st.integers(0, 30 * DOLLAR))
def test_calls_that_are_let_through_are_charged_in_full(price: Price, requests: int, cap: int) -> None:
    use = MonthUse(requests, capped(price.total(requests), cap), price.total(requests))
    if not use.reaches(price, cap):
        assert charge(price.total(requests + 1), use.cost, cap) == cost(price, requests, 1)


# --- Amounts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("micros", "rounded"),
    [(0, 0), (4_999, 0), (5_000, 1), (14_999, 1), (15_000, 2), (5 * DOLLAR, 500), (5 * DOLLAR + 5, 500)],
)
def test_cents_are_rounded_half_up(micros: int, rounded: int) -> None:
    assert cents(micros) == rounded


@given(st.integers(0, 10**15))
def test_rounding_moves_an_amount_by_half_a_cent_at_most(micros: int) -> None:
    assert -5_000 < cents(micros) * 10_000 - micros <= 5_000


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (0, "$0.00"),
        (5, "$0.000005"),
        (2_500_000, "$2.50"),
        (5 * DOLLAR, "$5.00"),
        (5 * DOLLAR + 5, "$5.000005"),
        (1_234_567 * DOLLAR, "$1,234,567.00"),
        (-2_500_000, "-$2.50"),
    ],
)
def test_dollars_show_every_digit_there_is(micros: int, text: str) -> None:
    assert dollars(micros) == text


@pytest.mark.parametrize(
    ("spent", "cap", "passed"),
    [
        (0, 100, ()),
        (49, 100, ()),
        (50, 100, (50,)),
        (79, 100, (50,)),
        (80, 100, (50, 80)),
        (99, 100, (50, 80)),
        (100, 100, (50, 80, 100)),
        (120, 100, (50, 80, 100)),
        (1, 3, ()),
        (2, 3, (50,)),
        (5, None, ()),
        (5, 0, ()),
    ],
)
def test_alerts_that_an_amount_has_passed(spent: int, cap: int | None, passed: tuple[int, ...]) -> None:
    assert alerts_passed(spent, cap) == passed


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("25", 25_000_000),
        ("$0.5", 500_000),
        ("1.000001", 1_000_001),
        ("", None),
        ("-1", None),
        ("1.0000001", None),
    ],
)
def test_amounts_are_read_to_the_millionth(text: str, micros: int | None) -> None:
    assert micros_of(text) == micros
