"""Backoff for failed attempts at guessable secrets such as passwords.

An attempt is counted before the check, so that parallel attempts gain nothing, and taken back after a success.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from tollgate.control.problems import TooManyAttempts
from tollgate.control.service_context import ClientInfo, ServiceContext
from tollgate.core.address_shares import prefixes
from tollgate.core.people import Failures
from tollgate.store.base import Repositories


class Backoff(Struct, frozen=True):
    """The wait after failures: a few are free, then it doubles; failures are forgotten after a quiet period."""

    free: int
    """Failures without a wait."""
    first_wait: float
    max_wait: float
    forgiven_after: float


# For one account from one address: typing errors cost little; an attacker gets about 100 attempts a day.
PASSWORD = Backoff(free=4, first_wait=2.0, max_wait=900.0, forgiven_after=86_400.0)
# Many people may share an address.
ADDRESS = Backoff(free=20, first_wait=2.0, max_wait=900.0, forgiven_after=3_600.0)
# Mails with a link to one account: enough for a person, no flood. Links that were sent stay valid.
LINK = Backoff(free=4, first_wait=600.0, max_wait=600.0, forgiven_after=3_600.0)
# Mails that one account has sent to others: enough to invite a large team.
MAILS = Backoff(free=99, first_wait=60.0, max_wait=600.0, forgiven_after=3_600.0)
# Failed sign-ins recorded for one account: an attacker must not fill the audit log.
NOTED = Backoff(free=19, first_wait=600.0, max_wait=600.0, forgiven_after=3_600.0)
# Raises of a team's spending cap: each accepts calls for seconds that may go unbilled, until the cap stops them.
CAP = Backoff(free=9, first_wait=600.0, max_wait=600.0, forgiven_after=3_600.0)
# A code has 34 bits and is valid for minutes. Ten wrong codes lock code entry for 15 minutes.
CODE = Backoff(free=9, first_wait=900.0, max_wait=900.0, forgiven_after=3_600.0)


def wait(failures: Failures | None, backoff: Backoff, now: float) -> float:
    if failures is None or failures.count <= backoff.free:
        return 0.0
    elapsed = now - failures.created_at
    if _is_over(elapsed, backoff):
        return 0.0
    doublings = min(failures.count - backoff.free - 1, 30)
    return max(0.0, min(backoff.first_wait * 2.0**doublings, backoff.max_wait) - max(0.0, elapsed))


def _is_over(elapsed: float, backoff: Backoff) -> bool:
    """Whether a failure has expired. One that is far in the future is from before the clock was set back."""
    return not -backoff.max_wait <= elapsed < backoff.forgiven_after


def failed(failures: Failures | None, key: str, backoff: Backoff, now: float) -> Failures:
    """Count one more failure; expired ones are dropped."""
    if failures is None or _is_over(now - failures.created_at, backoff):
        return Failures(key, 1, now)
    return Failures(key, failures.count + 1, now)


Guard = tuple[str, Backoff]
Before = Mapping[str, Failures | None]


def guards_from(
    context: ServiceContext, kind: str, client: ClientInfo, backoff: Backoff, scope: str = ""
) -> list[Guard]:
    """The guards of a client's address and of the prefixes around it, which have more failures without a wait."""
    return [
        (context.key(kind, f"{scope} {each.name}".strip()), replace(backoff, free=int(backoff.free * each.shares)))
        for each in prefixes(client.address)
        if each.shares < math.inf
    ]


async def begin(context: ServiceContext, records: Repositories, guards: Sequence[Guard], what: str) -> Before:
    """Refuse during a wait; otherwise count this attempt as failed, for now.

    Returns the previous counts, for `take_back`.
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
    """Whether an action is allowed; if so, count it."""
    try:
        await begin(context, records, [guard], "")
    except TooManyAttempts:
        return False
    return True


async def forgive(records: Repositories, keys: Sequence[str]) -> None:
    """Reset the failures of these keys."""
    await records.failures.remove(id=tuple(keys))


async def take_back_all(records: Repositories, guards: Sequence[Guard], before: Before) -> None:
    """Uncount the attempt that `begin` counted for these guards."""
    for key, _ in guards:
        await take_back(records, key, before)


async def take_back(records: Repositories, key: str, before: Before) -> None:
    """Uncount the attempt that `begin` counted, and no other."""
    failures, earlier = await records.failures.get(key), before.get(key)
    if failures is None:
        return
    if failures.count <= 1:
        await records.failures.remove(id=key)
    elif earlier is not None and earlier.count == failures.count - 1:
        # Its time is restored too: a success must not restart the wait of others behind the same address.
        await records.failures.replace(earlier)
    else:
        await records.failures.replace(replace(failures, count=failures.count - 1))


def _duration(seconds: float) -> str:
    if seconds > 90:
        return f"{int(seconds + 59) // 60} minutes"
    return f"{int(seconds + 0.999)} seconds" if seconds > 1 else "a second"
