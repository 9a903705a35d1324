"""Failed attempts: counted before each try, so that many at once gain nothing, and taken back after a success."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from tollgate.control.problems import TooManyAttempts
from tollgate.control.service_context import ServiceContext
from tollgate.core.patience import Patience, failed, wait
from tollgate.core.people import Failures
from tollgate.store.base import Repositories

Guard = tuple[str, Patience]
Before = Mapping[str, Failures | None]


async def begin(context: ServiceContext, records: Repositories, guards: Sequence[Guard], what: str) -> Before:
    """Refuse who must wait; otherwise count this attempt as failed until it is known better.

    Returns how things stood before, for `take_back`.
    """
    now = context.now()
    known = [(await records.failures.get(key), key, patience) for key, patience in guards]
    seconds = max(wait(failures, patience, now) for failures, _, patience in known)
    if seconds > 0:
        raise TooManyAttempts(f"Too many {what}: wait {_duration(seconds)}, then try again.", seconds)
    for failures, key, patience in known:
        counted = failed(failures, key, patience, now)
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
