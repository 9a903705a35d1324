"""Months of UTC: the periods in which requests are counted and billed."""

from __future__ import annotations

import math
from datetime import UTC, datetime


def month_of(at: float) -> str:
    """The month of a moment, `2026-11`."""
    return _second_of(at).strftime("%Y-%m")


def next_month(at: float) -> float:
    """The moment at which the month of a moment ends."""
    moment = _second_of(at)
    years, month = divmod(moment.month, 12)
    return datetime(moment.year + years, month + 1, 1, tzinfo=UTC).timestamp()


def _second_of(at: float) -> datetime:
    # Floored first: `datetime` rounds to microseconds, which would move a month's last moment into the next one.
    return datetime.fromtimestamp(math.floor(at), UTC)
