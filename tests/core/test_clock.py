"""Whether the clock can be believed."""

from tollgate.core.clock import HOLD_SECONDS, MAX_GAP_SECONDS, Clock

DAY = 86_400.0


def test_a_new_ledger_accepts_any_clock() -> None:
    assert not Clock().is_doubtful(1e9)
    assert Clock().seen(1e9) == Clock(1e9)


def test_a_gap_of_a_weekend_is_believed_and_a_larger_one_is_not() -> None:
    clock = Clock().seen(0.0)
    assert not clock.is_doubtful(MAX_GAP_SECONDS)
    assert clock.seen(MAX_GAP_SECONDS) == Clock(MAX_GAP_SECONDS)
    assert clock.is_doubtful(MAX_GAP_SECONDS + 1)


def test_writing_under_a_clock_that_jumped_does_not_make_it_right() -> None:
    clock = Clock().seen(0.0).seen(40 * DAY)
    for minutes in range(0, 24 * 60, 30):
        clock = clock.seen(40 * DAY + minutes * 60)
        assert clock.is_doubtful(40 * DAY + minutes * 60)
    now = 40 * DAY + HOLD_SECONDS
    assert not clock.is_doubtful(now)
    assert clock.seen(now) == Clock(now)


def test_a_clock_that_is_set_right_again_is_believed_at_once() -> None:
    clock = Clock().seen(0.0).seen(40 * DAY).seen(60.0)
    assert clock == Clock(60.0)
    assert not clock.is_doubtful(61.0)
