"""Months of UTC: the periods in which requests are counted and billed."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

from tollgate.api.base import MONTH

_MONTH = re.compile(MONTH)


def month_of(at: float) -> str:
    """The month of a moment, `2026-11`."""
    return _second_of(at).strftime("%Y-%m")


def next_month(at: float) -> float:
    """The moment at which the month of a moment ends."""
    moment = _second_of(at)
    years, month = divmod(moment.month, 12)
    return datetime(moment.year + years, month + 1, 1, tzinfo=UTC).timestamp()


def is_month(text: str) -> bool:
    """Whether a text names a month, `2026-11`."""
    return _MONTH.fullmatch(text) is not None


def start_of(month: str) -> float:
    return datetime(int(month[:4]), int(month[5:]), 1, tzinfo=UTC).timestamp()


def end_of(month: str) -> float:
    return next_month(start_of(month))


def previous_month(month: str) -> str:
    return month_of(start_of(month) - 1)


def last_months(month: str, count: int) -> list[str]:
    """A month and those before it, the newest first."""
    months = [month]
    while len(months) < count:
        months.append(previous_month(months[-1]))
    return months


def _second_of(at: float) -> datetime:
    # Floored first: `datetime` rounds to microseconds, which would move a month's last moment into the next one.
    return datetime.fromtimestamp(math.floor(at), UTC)
