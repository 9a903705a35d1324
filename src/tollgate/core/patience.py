"""How long someone must wait after failing at something that could be guessed: a password, a code.

Pure arithmetic. A few free failures, then waits that double; all is forgiven after a quiet time.
"""

from __future__ import annotations

from msgspec import Struct

from tollgate.core.people import Failures


class Patience(Struct, frozen=True):
    """A rule for failures."""

    free: int
    """Failures without a wait."""
    first_wait: float
    longest_wait: float
    forgiven_after: float


# At one account from one address: someone who mistypes is hardly slowed; a guesser gets some 100 attempts a day.
PASSWORD = Patience(free=4, first_wait=2.0, longest_wait=900.0, forgiven_after=86_400.0)
# Many people may share an address.
ADDRESS = Patience(free=20, first_wait=2.0, longest_wait=900.0, forgiven_after=3_600.0)
# Mails with a link to one account: enough for a person, no flood. A link that was sent stays good.
LINK = Patience(free=4, first_wait=600.0, longest_wait=600.0, forgiven_after=3_600.0)
# Failed sign-ins that are recorded for one account: a guesser must not fill the audit log.
NOTED = Patience(free=19, first_wait=600.0, longest_wait=600.0, forgiven_after=3_600.0)
# Raises of a team's spending cap: each lets calls in for seconds that may cost nothing, until the cap stops them.
CAP = Patience(free=9, first_wait=600.0, longest_wait=600.0, forgiven_after=3_600.0)
# A code of 34 bits that lives for minutes: ten guesses, then a quarter of an hour of nothing.
CODE = Patience(free=9, first_wait=900.0, longest_wait=900.0, forgiven_after=3_600.0)


def wait(failures: Failures | None, patience: Patience, now: float) -> float:
    """Seconds until the next attempt is allowed; 0 where it is allowed at once."""
    if failures is None or failures.count <= patience.free:
        return 0.0
    # A clock that was set back must not make the wait longer than the longest.
    elapsed = max(0.0, now - failures.created_at)
    if elapsed >= patience.forgiven_after:
        return 0.0
    doublings = min(failures.count - patience.free - 1, 30)
    return max(0.0, min(patience.first_wait * 2.0**doublings, patience.longest_wait) - elapsed)


def failed(failures: Failures | None, key: str, patience: Patience, now: float) -> Failures:
    """Count one more failure; an old one is forgiven."""
    if failures is None or now - failures.created_at >= patience.forgiven_after:
        return Failures(key, 1, now)
    return Failures(key, failures.count + 1, now)
