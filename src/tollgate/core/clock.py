"""Whether the clock can be believed before something is done that cannot be undone. Pure.

A month is closed and logs are dropped because time has passed. A clock that is set far ahead looks the same. So
the ledger keeps when it was last written. When the clock is far beyond that, either the service was down for days
or the clock is wrong: for a day nothing is closed or dropped, and a warning is logged.
"""

from __future__ import annotations

from msgspec import Struct

# A service that was down over a weekend is believed at once.
MAX_GAP_SECONDS = 3 * 86_400.0
# After a larger gap, the clock is believed when it has run on for so long.
HOLD_SECONDS = 86_400.0


class Clock(Struct, frozen=True):
    """What the ledger knows of time."""

    seen_at: float | None = None
    """When it was last written."""
    doubted_at: float | None = None
    """The clock's time after a gap that was too large."""

    def seen(self, now: float) -> Clock:
        """The clock after something was written."""
        if self.seen_at is not None and now - self.seen_at > MAX_GAP_SECONDS:
            return Clock(now, now)
        return Clock(now, self.doubted_at if self._holds(now) else None)

    def is_doubtful(self, now: float) -> bool:
        """Whether nothing may be closed or dropped."""
        return self._holds(now) or (self.seen_at is not None and now - self.seen_at > MAX_GAP_SECONDS)

    def _holds(self, now: float) -> bool:
        return self.doubted_at is not None and 0 <= now - self.doubted_at < HOLD_SECONDS
