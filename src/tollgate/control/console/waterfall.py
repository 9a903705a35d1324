"""The attempts of a request as lanes on one scale, as the opened row of the log explorer draws them. Pure."""

from __future__ import annotations

from msgspec import Struct

from tollgate.api.logs import AttemptVerdict
from tollgate.control.console.charts import ceiling
from tollgate.core.entries import AttemptEntry
from tollgate.core.logs import LogRow

WIDTH = 1000
"""Of a lane, in units of its drawing."""
# A bar is never narrower: the shortest attempt is seen.
_LEAST_WIDTH = 6
_QUARTERS = 4
_MILLI = 1_000

_TONES = {
    AttemptVerdict.ANSWERED: "good",
    AttemptVerdict.HEDGE_WON: "good",
    AttemptVerdict.HEDGE_LOST: "late",
    AttemptVerdict.CANCELLED: "late",
}
_WORDS = {
    AttemptVerdict.OTHER: "No answer",
    AttemptVerdict.ANSWERED: "Answered",
    AttemptVerdict.HEDGE_WON: "Answered first",
    AttemptVerdict.HEDGE_LOST: "Another attempt was quicker",
    AttemptVerdict.STATUS: "HTTP status",
    AttemptVerdict.NODE_ERROR: "Error of the node",
    AttemptVerdict.TIMEOUT: "Timeout",
    AttemptVerdict.QUOTA: "Quota used up",
    AttemptVerdict.OUT_OF_STEP: "Answer out of step with the chain",
    AttemptVerdict.CONNECTION: "Connection failed",
    AttemptVerdict.INVALID: "No JSON-RPC response",
    AttemptVerdict.TOO_LARGE: "Response too large",
    AttemptVerdict.BUSY: "Connections in use, not sent",
    AttemptVerdict.CANCELLED: "Cancelled",
}


class Lane(Struct, frozen=True):
    """One attempt."""

    attempt: AttemptEntry
    x: int
    width: int
    tone: str
    """`good`, `bad`, or `late` for what was not waited for."""
    words: str
    is_hedge: bool
    goes_on: bool
    """Whether it failed and another attempt followed."""


class Waterfall(Struct, frozen=True):
    """All attempts of a request."""

    lanes: list[Lane]
    ticks: list[str]
    """Of the scale, from the beginning of the request on."""


def waterfall(row: LogRow) -> Waterfall:
    """The attempts of a row; no lanes where it called no upstream."""
    top = ceiling(max([row.duration_micros, *(each.end_micros for each in row.attempts)]))
    last_start = max((each.start_micros for each in row.attempts), default=0)
    return Waterfall([_lane(each, top, last_start) for each in row.attempts], _ticks(top))


def _lane(attempt: AttemptEntry, top: int, last_start: int) -> Lane:
    x = min(WIDTH * attempt.start_micros // top, WIDTH - _LEAST_WIDTH)
    width = WIDTH * (attempt.end_micros - attempt.start_micros) // top
    tone = _TONES.get(attempt.verdict, "bad")
    return Lane(
        attempt,
        x,
        min(max(width, _LEAST_WIDTH), WIDTH - x),
        tone,
        f"HTTP {attempt.status}" if attempt.status else _WORDS[attempt.verdict],
        attempt.verdict is AttemptVerdict.HEDGE_WON,
        tone == "bad" and last_start >= attempt.end_micros,
    )


def _ticks(top: int) -> list[str]:
    unit, name = (_MILLI, "ms") if top >= _QUARTERS * _MILLI else (1, "µs")
    ticks = [f"{top * quarter / _QUARTERS / unit:,g}" for quarter in range(_QUARTERS + 1)]
    return [*ticks[:-1], f"{ticks[-1]} {name}"]
