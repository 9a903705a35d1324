"""The route of a call, as its record keeps it."""

from __future__ import annotations

import pytest

from tollgate.api.logs import MAX_ATTEMPTS_KEPT, AttemptVerdict
from tollgate.core.entries import AttemptEntry, pack, read_record
from tollgate.gateway.messages import EndedAttempt, Route


def route(*attempts: EndedAttempt) -> Route:
    taken = Route()
    for each in attempts:
        taken.ended(each)
    return taken


def test_route_without_attempts_keeps_none() -> None:
    assert Route().kept(5.0) == 0


@pytest.mark.parametrize("verdict", [AttemptVerdict.ANSWERED, AttemptVerdict.NODE_ERROR])
def test_only_attempt_whose_verdict_follows_from_the_outcome_is_a_count(verdict: AttemptVerdict) -> None:
    assert route(EndedAttempt("up0", 5.0, 6.0, verdict)).kept(5.0) == 1


def test_only_attempt_that_failed_is_kept_whole() -> None:
    assert route(EndedAttempt("up0", 5.0, 5.25, AttemptVerdict.STATUS, 503)).kept(5.0) == [
        ("up0", 0, 250_000, 4, 503)
    ]


def test_attempts_are_kept_in_the_order_of_their_start_from_the_beginning_of_the_request() -> None:
    won = EndedAttempt("up1", 5.5, 5.75, AttemptVerdict.HEDGE_WON)
    lost = EndedAttempt("up0", 4.75, 5.75, AttemptVerdict.HEDGE_LOST)
    kept = route(won, lost).kept(5.0)
    assert kept == [("up0", 0, 750_000, 3, 0), ("up1", 500_000, 750_000, 2, 0)]
    record = read_record(pack((1.0, b"", 750_000, [], 0, b"", "up1", kept)))
    assert record.attempts == (
        AttemptEntry("up0", 0, 750_000, AttemptVerdict.HEDGE_LOST),
        AttemptEntry("up1", 500_000, 750_000, AttemptVerdict.HEDGE_WON),
    )


def test_of_many_attempts_the_first_seven_and_the_last_are_kept() -> None:
    many = [EndedAttempt(f"up{no}", float(no), no + 1.0, AttemptVerdict.TIMEOUT) for no in range(30)]
    kept = route(*many).kept(0.0)
    assert isinstance(kept, list)
    assert len(kept) == MAX_ATTEMPTS_KEPT
    assert [each[0] for each in kept] == ["up0", "up1", "up2", "up3", "up4", "up5", "up6", "up29"]
