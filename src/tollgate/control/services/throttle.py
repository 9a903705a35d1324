"""Failed attempts at what could be guessed, such as a password: how long they make one wait.

They are counted before each try, so that many at once gain nothing, and taken back after a success.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from tollgate.control.problems import TooManyAttempts
from tollgate.control.service_context import ServiceContext
from tollgate.core.people import Failures
from tollgate.store.base import Repositories


class Backoff(Struct, frozen=True):
    """How long someone must wait after failures: a few are free, then waits double; a quiet time forgives all."""

    free: int
    """Failures without a wait."""
    first_wait: float
    longest_wait: float
    forgiven_after: float


# At one account from one address: someone who mistypes is hardly slowed; a guesser gets some 100 attempts a day.
PASSWORD = Backoff(free=4, first_wait=2.0, longest_wait=900.0, forgiven_after=86_400.0)
# Many people may share an address.
ADDRESS = Backoff(free=20, first_wait=2.0, longest_wait=900.0, forgiven_after=3_600.0)
# Mails with a link to one account: enough for a person, no flood. A link that was sent stays good.
LINK = Backoff(free=4, first_wait=600.0, longest_wait=600.0, forgiven_after=3_600.0)
# Mails that one account has sent to others: enough to invite a large team.
MAILS = Backoff(free=99, first_wait=60.0, longest_wait=600.0, forgiven_after=3_600.0)
# Failed sign-ins that are recorded for one account: a guesser must not fill the audit log.
NOTED = Backoff(free=19, first_wait=600.0, longest_wait=600.0, forgiven_after=3_600.0)
# Raises of a team's spending cap: each lets calls in for seconds that may cost nothing, until the cap stops them.
CAP = Backoff(free=9, first_wait=600.0, longest_wait=600.0, forgiven_after=3_600.0)
# A code of 34 bits that lives for minutes: ten guesses, then a quarter of an hour of nothing.
CODE = Backoff(free=9, first_wait=900.0, longest_wait=900.0, forgiven_after=3_600.0)


def wait(failures: Failures | None, backoff: Backoff, now: float) -> float:
    """Seconds until the next attempt is allowed; 0 where it is allowed at once."""
    if failures is None or failures.count <= backoff.free:
        return 0.0
    elapsed = now - failures.created_at
    if _is_over(elapsed, backoff):
        return 0.0
    doublings = min(failures.count - backoff.free - 1, 30)
    return max(0.0, min(backoff.first_wait * 2.0**doublings, backoff.longest_wait) - max(0.0, elapsed))


def _is_over(elapsed: float, backoff: Backoff) -> bool:
    """Whether a failure counts no more. One that is far ahead is from before the clock was set back."""
    return not -backoff.longest_wait <= elapsed < backoff.forgiven_after


def failed(failures: Failures | None, key: str, backoff: Backoff, now: float) -> Failures:
    """Count one more failure; an old one is forgiven."""
    if failures is None or _is_over(now - failures.created_at, backoff):
        return Failures(key, 1, now)
    return Failures(key, failures.count + 1, now)


Guard = tuple[str, Backoff]
Before = Mapping[str, Failures | None]


async def begin(context: ServiceContext, records: Repositories, guards: Sequence[Guard], what: str) -> Before:
    """Refuse who must wait; otherwise count this attempt as failed until it is known better.

    Returns how things stood before, for `take_back`.
    """
    now = context.now()
    known = [(await records.failures.get(key), key, backoff) for key, backoff in guards]
    seconds = max(wait(failures, backoff, now) for failures, _, backoff in known)
    if seconds > 0:
        raise TooManyAttempts(f"Too many {what}: wait {_duration(seconds)}, then try again.", seconds)
    for failures, key, backoff in known:
        counted = failed(failures, key, backoff, now)
        await (records.failures.add(counted) if failures is None else records.failures.replace(counted))
    return {key: failures for failures, key, _ in known}


async def may(context: ServiceContext, records: Repositories, guard: Guard) -> bool:
    """Whether something may be done once more; then it is counted."""
    try:
        await begin(context, records, [guard], "")
    except TooManyAttempts:
        return False
    return True


async def forgive(records: Repositories, keys: Sequence[str]) -> None:
    """Forget all failures of these."""
    await records.failures.remove(id=tuple(keys))


async def take_back(records: Repositories, key: str, before: Before) -> None:
    """Take back the attempt that `begin` counted, and no other."""
    failures, earlier = await records.failures.get(key), before.get(key)
    if failures is None:
        return
    if failures.count <= 1:
        await records.failures.remove(id=key)
    elif earlier is not None and earlier.count == failures.count - 1:
        # Its time goes as well: who succeeds must not make the others of an address wait anew.
        await records.failures.replace(earlier)
    else:
        await records.failures.replace(replace(failures, count=failures.count - 1))


def _duration(seconds: float) -> str:
    if seconds > 90:
        return f"{int(seconds + 59) // 60} minutes"
    return f"{int(seconds + 0.999)} seconds" if seconds > 1 else "a second"
