"""Whether a known caller is admitted: spending caps, rate limits, load.

Limits are taken in two steps, one request before the body is parsed and the rest of a batch after it, so that
a flood of nonsense is limited too.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tollgate.core.addresses import limit_key
from tollgate.core.limits import Taken
from tollgate.errors import RateLimited, SpendingCap
from tollgate.gateway.access.caller import Caller, Quota, limits_of, quota, rate_headers_of
from tollgate.gateway.messages import Request
from tollgate.store.base import Meters

_BATCH = "A batch of {calls} calls can never pass the limit of {rate}: send smaller batches."
_ONE_CALL = "{calls} calls at the upstreams can never pass the limit of {rate}: ask for less at once."


class Limiter:
    """Counts requests against the limits of their callers."""

    def __init__(
        self,
        meters: Meters,
        address: Callable[[Request], str],
        *,
        monotonic: Callable[[], float],
        time: Callable[[], float],
    ) -> None:
        self._meters = meters
        self.slots = meters.slots
        self.take_all = meters.take_all
        self.left = meters.left
        self.moved = meters.moved
        self._address = address
        self._monotonic = monotonic
        self._time = time

    def admit(self, caller: Caller, request: Request) -> None:
        """Let one request in, or refuse it."""
        if caller.capped_until and caller.capped_until > self._time():
            raise SpendingCap
        if caller.quotas or caller.per_address:
            self._take(caller, request, 1, 1)

    def admit_rest(self, caller: Caller, request: Request, calls: int) -> None:
        """Let in the calls of a batch beyond the first, or refuse all of it."""
        if calls > 1 and (caller.quotas or caller.per_address):
            self._take(caller, request, calls - 1, calls)

    def admit_more(self, caller: Caller, request: Request, calls: int) -> None:
        """Count calls to upstreams that one call needs beyond the first, or refuse them."""
        if calls > 0 and (caller.quotas or caller.per_address):
            self._take(caller, request, calls, calls, _ONE_CALL)

    def _take(self, caller: Caller, request: Request, cost: int, calls: int, what: str = _BATCH) -> None:
        quotas, limits, rate_headers = caller.quotas, caller.limits, caller.rate_headers
        if caller.per_address is not None:
            quotas = self.quotas(caller, request)
            limits, rate_headers = limits_of(quotas), rate_headers_of(quotas, len(quotas))
        now = self._monotonic()
        found = self._meters.take(limits, now, cost)
        if len(found) < len(quotas):
            rate_headers = rate_headers_of(quotas, len(found))
        left: list[float] = []
        for taken, each in zip(found, quotas, strict=False):
            left += (taken.remaining,) if each.limit.seconds <= 1 else (taken.remaining, taken.arrival - now + 1)
        request.rates = rate_headers % tuple(left)
        if not taken.allowed:
            raise limited(quotas[len(found) - 1], taken, calls, what)

    def quotas(self, caller: Caller, request: Request) -> tuple[Quota, ...]:
        if caller.per_address is None:
            return caller.quotas
        assert caller.grant.domain is not None  # noqa: S101 - only domains have it
        key = f"{caller.grant.domain.id}:{limit_key(self._address(request))}"
        return (quota("address", key, caller.per_address), *caller.quotas)


def limited(refusing: Quota, taken: Taken, calls: int, what: str = _BATCH) -> RateLimited:
    """The refusal of `calls` calls by a limit."""
    limit = refusing.limit
    rate = f"{limit.count} requests in {limit.seconds:g} s for this {refusing.name}"
    data: dict[str, object] = {"limit": refusing.name}
    if calls > limit.count:
        message = what.format(calls=calls, rate=rate)
        return RateLimited(message, data=data)
    wait = math.ceil(taken.retry_after) or 1
    data["retry_after"] = wait
    return RateLimited(
        f"Over the limit of {rate}: try again in {wait} s.",
        data=data,
        headers=((b"retry-after", b"%d" % wait),),
    )
