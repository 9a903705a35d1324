"""Whether a known caller is admitted: spending caps, rate limits, load.

Limits are taken in two steps, one request before the body is parsed and the rest of a batch after it, so that
a flood of nonsense is limited too. Calls of a team with a spending cap are taken out of its allowance last, when
nothing else refuses them; those that are not charged in the end are given back.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tollgate.core.limits import Taken
from tollgate.errors import RateLimited, SpendingCap
from tollgate.gateway.access.caller import Caller, Quota, address_quotas, limits_of, rate_headers_of
from tollgate.gateway.messages import Request
from tollgate.shm.allowances import Allowance, Allowances
from tollgate.store.base import Meters

_BATCH = "A batch of {calls} calls can never pass the limit of {rate}: send smaller batches."
_SHARED_OUT = "What is left of this team's spending cap is being shared out: try again in 1 s."
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
        allowances: Allowances | None = None,
    ) -> None:
        self._meters = meters
        self._allowances = allowances
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

    def allowance(self, caller: Caller) -> Allowance | None:
        """The calls that a caller's team may still make; None: it has no cap."""
        if caller.cap is None or self._allowances is None:
            return None
        return self._allowances.of(caller.team_id)

    def take_calls(self, caller: Caller, calls: int) -> None:
        """Take calls out of the allowance of the caller's team, or refuse them."""
        allowance = self.allowance(caller)
        if allowance is None or allowance.take(calls):
            return
        if not allowance.is_short:
            raise SpendingCap
        data = {"limit": "spending_cap", "retry_after": 1}
        raise RateLimited(_SHARED_OUT, data=data, headers=((b"retry-after", b"1"),))

    def give_back(self, caller: Caller, calls: int) -> None:
        """Give back calls that are not charged."""
        allowance = self.allowance(caller) if calls else None
        if allowance is not None:
            allowance.give_back(calls)

    def _take(self, caller: Caller, request: Request, cost: int, calls: int, what: str = _BATCH) -> None:
        quotas, limits, rate_headers = caller.quotas, caller.limits, caller.rate_headers
        now = self._monotonic()
        if caller.per_address is not None:
            quotas = within_shares(self._meters, self.quotas(caller, request), caller.quotas[0], now, cost)
            limits, rate_headers = limits_of(quotas), rate_headers_of(quotas, len(quotas))
        found = self._meters.take(limits, now, cost)
        if len(found) < len(quotas):
            rate_headers = rate_headers_of(quotas, len(found))
        left: list[float] = []
        for taken, each in zip(found, quotas, strict=False):
            if each.shown:
                left += (
                    (taken.remaining,) if each.limit.seconds <= 1 else (taken.remaining, taken.arrival - now + 1)
                )
        request.rates = rate_headers % tuple(left)
        if not taken.allowed:
            raise limited(quotas[len(found) - 1], taken, calls, what)

    def quotas(self, caller: Caller, request: Request) -> tuple[Quota, ...]:
        if caller.per_address is None:
            return caller.quotas
        assert caller.grant.domain is not None  # noqa: S101 - only domains have it
        whole = caller.quotas[0].limit
        own = address_quotas(caller.grant.domain.id, self._address(request), caller.per_address, whole)
        return (*own, *caller.quotas)


def within_shares(
    meters: Meters, quotas: tuple[Quota, ...], whole: Quota, now: float, cost: int = 1
) -> tuple[Quota, ...]:
    """Refuse a client whose prefix has used its share, before anything is taken; returns the quotas that count.

    So one that uses a new address for each call takes nothing from others, not even slots of the table. A quota
    that is used up and refuses only under pressure does not count while there is none.
    """
    counted = []
    for each in quotas:
        if not each.shown:
            taken = meters.peek(each.key, each.limit, now, cost)
            if not taken.allowed:
                if each.under_pressure and not _is_pressed(meters, whole, now):
                    continue
                raise limited(each, taken, cost)
        counted.append(each)
    return tuple(counted)


def _is_pressed(meters: Meters, whole: Quota, now: float) -> bool:
    return meters.peek(whole.key, whole.limit, now).remaining < whole.limit.count // 2


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
