"""The attempts of a request as lanes on one scale."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.core.test_logs import ROW

from tollgate.api.logs import AttemptVerdict
from tollgate.control.console.logs import WIDTH, waterfall
from tollgate.core.entries import AttemptEntry

HEDGED = replace(
    ROW,
    duration_micros=1_318_000,
    attempts=(
        AttemptEntry("own-node", 0, 804_000, AttemptVerdict.STATUS, 503),
        AttemptEntry("provider-a", 806_000, 1_318_000, AttemptVerdict.HEDGE_LOST),
        AttemptEntry("provider-b", 1_106_000, 1_312_000, AttemptVerdict.HEDGE_WON),
    ),
)


def test_lanes_begin_and_end_on_the_scale_of_the_whole_request() -> None:
    drawn = waterfall(HEDGED)
    assert [(lane.x, lane.width) for lane in drawn.lanes] == [(0, 502), (503, 320), (691, 128)]
    assert drawn.ticks == ["0", "400", "800", "1,200", "1,600 ms"]


def test_lane_says_what_became_of_the_attempt() -> None:
    assert [(lane.words, lane.tone, lane.is_hedge, lane.goes_on) for lane in waterfall(HEDGED).lanes] == [
        ("HTTP 503", "bad", False, True),
        ("Another attempt was quicker", "late", False, False),
        ("Answered first", "good", True, False),
    ]


@pytest.mark.parametrize("verdict", AttemptVerdict)
def test_every_verdict_is_shown_in_words(verdict: AttemptVerdict) -> None:
    (lane,) = waterfall(replace(ROW, attempts=(AttemptEntry("n", 0, 900, verdict),))).lanes
    assert lane.words
    assert (lane.x, lane.width, lane.goes_on) == (0, 750, False)


def test_shortest_attempt_is_seen_and_stays_on_the_scale() -> None:
    last = AttemptEntry("n", 4_000_000, 4_000_000, AttemptVerdict.BUSY)
    (lane,) = waterfall(replace(ROW, attempts=(last,))).lanes
    assert lane.width > 0
    assert lane.x + lane.width == WIDTH


def test_short_requests_have_a_scale_of_microseconds() -> None:
    assert waterfall(ROW).ticks == ["0", "300", "600", "900", "1,200 µs"]
    assert waterfall(ROW).lanes == []
