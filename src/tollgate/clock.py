"""Time as an argument: what the service asks a clock for, and the clock of the machine.

Rules never read a clock; they take `now`. Code that must read one takes a `Clock`, so that tests can turn
the hands.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two hands: one for differences, one for dates."""

    def monotonic(self) -> float:
        """Seconds that never go back, the same for all processes of the machine."""
        ...

    def time(self) -> float:
        """Seconds since 1970 in UTC."""
        ...


class SystemClock:
    """The machine's clock."""

    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)
