"""Invoices: lines whose sum is the amount, for both plans, caps, late requests and changed prices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.api.invoices import LineKind
from tollgate.api.usage import Plan
from tollgate.core.invoices import CENT, Invoice, draw, number
from tollgate.core.pricing import MILLION, Price, capped
from tollgate.core.usage import Period, TeamMonth

MONTH, BEFORE = "2026-11", "2026-10"
TEAM = "team_acme000000000"
EACH = Price()
STARTED = Price(Plan.PER_STARTED_MILLION)

prices = st.builds(
    Price, st.sampled_from(Plan), st.integers(0, 3 * MILLION), st.integers(0, 20 * MILLION)
)  # also prices that no whole micro-dollar divides


def used(*periods: tuple[str, int], price: Price = EACH, cap: int | None = None) -> TeamMonth:
    """A month in which so many billable requests came, as the ledger charges them."""
    counted, found = 0, []
    for month, billable in periods:
        charged = capped(price.total(counted + billable), cap) - capped(price.total(counted), cap)
        found.append(Period(month, billable, billable, charged))
        counted += billable
    return TeamMonth(TEAM, MONTH, tuple(found))


def lines(invoice: Invoice) -> list[tuple[str, int | None, int]]:
    return [(line.kind, line.requests, line.amount) for line in invoice.lines]


@pytest.mark.parametrize(
    ("requests", "price", "free", "billed", "micros", "cents"),
    [
        (0, EACH, 0, 0, 0, 0),
        (1, EACH, 1, 0, 0, 0),
        (MILLION, EACH, MILLION, 0, 0, 0),
        (MILLION + 1, EACH, MILLION, 1, 5, 0),
        (MILLION + 999, EACH, MILLION, 999, 4_995, 0),
        (MILLION + 1_000, EACH, MILLION, 1_000, 5_000, 1),
        (2 * MILLION, EACH, MILLION, MILLION, 5 * MILLION, 500),
        (MILLION, STARTED, MILLION, 0, 0, 0),
        (MILLION + 1, STARTED, MILLION, 1, 5 * MILLION, 500),
        (2 * MILLION, STARTED, MILLION, MILLION, 5 * MILLION, 500),
        (2 * MILLION + 1, STARTED, MILLION, MILLION + 1, 10 * MILLION, 1_000),
    ],
)
def test_free_requests_then_those_that_cost(
    requests: int, price: Price, free: int, billed: int, micros: int, cents: int
) -> None:
    drawn = draw(used((MONTH, requests), price=price), "acme", price)
    found = [line for line in lines(drawn) if line[0] != LineKind.ROUNDING]
    expected = [(LineKind.FREE, free, 0), *([(LineKind.BILLED, billed, micros)] if billed else [])]
    assert found == expected
    assert (drawn.cost, drawn.total_cents, drawn.total) == (micros, cents, cents * CENT)


def test_month_without_any_request_has_a_line_all_the_same() -> None:
    assert lines(draw(TeamMonth(TEAM, MONTH, ()), "acme", EACH))[0] == (LineKind.FREE, 0, 0)


@pytest.mark.parametrize(("price", "unit"), [(EACH, "million"), (STARTED, "started million")])
def test_price_is_written_with_its_unit(price: Price, unit: str) -> None:
    assert draw(used((MONTH, 2 * MILLION)), "acme", price).lines[1].text == f"Requests at $5.00 per {unit}"


def test_rounding_up_and_down_has_its_own_line() -> None:
    rounded = {n: lines(draw(used((MONTH, MILLION + n)), "acme", EACH))[-1] for n in (999, 1_000, 1_999, 2_400)}
    assert rounded == {
        999: (LineKind.ROUNDING, None, -4_995),
        1_000: (LineKind.ROUNDING, None, 5_000),
        1_999: (LineKind.ROUNDING, None, 5),
        2_400: (LineKind.ROUNDING, None, -2_000),
    }


def test_reduction_by_a_cap_has_its_own_line() -> None:
    cap = 2 * MILLION
    drawn = draw(used((MONTH, 2 * MILLION), cap=cap), "acme", EACH, cap)
    assert lines(drawn) == [
        (LineKind.FREE, MILLION, 0),
        (LineKind.BILLED, MILLION, 5 * MILLION),
        (LineKind.CAP, None, -3 * MILLION),
        (LineKind.ROUNDING, None, 0),
    ]
    assert "$2.00" in drawn.lines[2].text
    assert drawn.total_cents == 200


def test_a_price_that_changed_within_the_month_is_reported_as_that() -> None:
    cheap, dear = Price(micros_per_million=MILLION), Price(micros_per_million=9 * MILLION)
    month = used((MONTH, 2 * MILLION), price=EACH)
    for now, difference in ((cheap, 4 * MILLION), (dear, -4 * MILLION)):
        drawn = draw(month, "acme", now)
        assert lines(drawn)[2] == (LineKind.ADJUSTMENT, None, difference)
        assert drawn.total_cents == 500


def test_late_requests_have_lines_of_their_own_and_take_the_free_ones_first() -> None:
    drawn = draw(used((BEFORE, 1_000), (MONTH, MILLION)), "acme", EACH)
    assert [(line.kind, line.requests, line.amount, line.of_month) for line in drawn.lines] == [
        (LineKind.FREE, 1_000, 0, BEFORE),
        (LineKind.FREE, MILLION - 1_000, 0, None),
        (LineKind.BILLED, 1_000, 5_000, None),
        (LineKind.ROUNDING, None, 5_000, None),
    ]
    assert drawn.lines[0].text == "Free requests, late requests of 2026-10"


def test_late_requests_beyond_the_free_ones_cost_too() -> None:
    drawn = draw(used(("2026-09", 2 * MILLION), (BEFORE, 1_000), (MONTH, 1_000)), "acme", EACH)
    assert [(line.kind, line.requests, line.amount, line.of_month) for line in drawn.lines] == [
        (LineKind.FREE, MILLION, 0, "2026-09"),
        (LineKind.BILLED, MILLION, 5 * MILLION, "2026-09"),
        (LineKind.BILLED, 1_000, 5_000, BEFORE),
        (LineKind.BILLED, 1_000, 5_000, None),
        (LineKind.ROUNDING, None, 0, None),
    ]


def test_late_refusals_alone_make_no_line() -> None:
    month = TeamMonth(TEAM, MONTH, (Period(BEFORE, 7, 0, 0), Period(MONTH, 1, 1, 0)))
    drawn = draw(month, "acme", EACH)
    assert [line.of_month for line in drawn.lines] == [None, None]
    assert (drawn.requests, drawn.billable) == (8, 1)


def test_a_draft_becomes_final_with_nothing_else_changed() -> None:
    month = used((MONTH, MILLION + 5))
    draft, final = draw(month, "acme", EACH, 7), draw(month, "acme", EACH, 7, issued_at=9.0)
    assert (draft.is_final, final.is_final) == (False, True)
    assert (draft.number, draft.lines, draft.total) == (final.number, final.lines, final.total)
    assert final.number == number(TEAM, MONTH) == "TG-2026-11-acme000000000"


def test_two_teams_never_share_a_number() -> None:
    assert number("team_abcdefgh00000001", MONTH) != number("team_abcdefgh00000002", MONTH)


counts = st.integers(0, 5 * MILLION)


@given(price=prices, own=counts, late=counts, cap=st.none() | st.integers(0, 30 * MILLION), charged=prices)
def test_sum_of_the_lines_is_the_invoice(
    price: Price, own: int, late: int, cap: int | None, charged: Price
) -> None:
    month = used((BEFORE, late), (MONTH, own), price=charged, cap=cap)
    drawn = draw(month, "acme", price, cap)
    assert sum(line.amount for line in drawn.lines) == drawn.total == drawn.total_cents * CENT
    assert sum(line.requests or 0 for line in drawn.lines) == drawn.billable == own + late
    assert abs(drawn.total - drawn.cost) <= CENT // 2
    assert drawn.cost == month.cost
    if cap is not None:
        assert drawn.cost <= cap


@given(price=prices, own=counts, late=counts)
def test_without_a_cap_or_a_change_lines_explain_all_of_it(price: Price, own: int, late: int) -> None:
    drawn = draw(used((BEFORE, late), (MONTH, own), price=price), "acme", price)
    assert {line.kind for line in drawn.lines} <= {LineKind.FREE, LineKind.BILLED, LineKind.ROUNDING}
    free = sum(line.requests or 0 for line in drawn.lines if line.kind == LineKind.FREE)
    assert free == min(own + late, price.free_requests)
