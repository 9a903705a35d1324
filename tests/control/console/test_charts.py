"""Charts: numbers in, markup out."""

from tollgate.api.usage import Split, TimeRange
from tollgate.control.console import charts
from tollgate.control.services.timelines import UsageStep, UsageTimeline

DAY = 86_400.0
NOON = 1_794_744_000.0  # 2026-11-15T12:00:00Z
START = 1_793_491_200.0  # 2026-11-01


def month(*values: dict[str, int], days: int = 30) -> UsageTimeline:
    steps = [UsageStep(START + DAY * day, values[day] if day < len(values) else {}) for day in range(days)]
    keys = sorted({key for value in values for key in value})
    return UsageTimeline(TimeRange.MONTH, Split.NETWORK, "day", keys, steps)


def test_table_behind_the_chart_has_past_and_current_days_and_their_sums() -> None:
    chart = charts.bars(month({"a": 3, "b": 4}, {"a": 5}), NOON)
    assert chart.legend == [("a", 1), ("b", 2)]
    assert chart.rows[:2] == [("1 Nov", [3, 4], 7), ("2 Nov", [5, 0], 5)]
    assert len(chart.rows) == 15


def test_rest_of_the_month_is_pale_and_the_mean_of_the_days_that_are_over() -> None:
    chart = charts.bars(month(*[{"a": 10}] * 15), NOON)
    assert chart.has_forecast
    assert chart.svg.count('class="bar pale"') == 15
    assert "16 Nov: 10 expected" in chart.svg


def test_keys_beyond_the_colours_are_summed_up() -> None:
    chart = charts.bars(month({f"k{count}": 1 for count in range(9)}), NOON)
    assert [name for name, _ in chart.legend] == ["k0", "k1", "k2", "k3", "k4", "others"]
    assert chart.rows[0][1] == [1, 1, 1, 1, 1, 4]


def test_names_are_escaped_and_nothing_is_styled_inline() -> None:
    chart = charts.bars(month({'"><script>': 1}), NOON)
    assert "<script>" not in chart.svg
    assert "style=" not in chart.svg


def test_chart_without_values_does_not_divide_by_zero() -> None:
    assert "<svg" in charts.bars(month(), NOON).svg
    assert "<polyline" in charts.sparkline([0, 0])
