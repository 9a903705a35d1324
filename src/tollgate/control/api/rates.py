"""Rate limits of the control plane, by credential and client address, weighted by cost; slots for long responses.

Kept in the memory of the one control process. Rates are checked before the handler runs, the credential is read or
the store is queried.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tollgate.control.api.access import HttpRequest, client
from tollgate.control.api.operations import COST, OPERATION, SEARCH_COST, Operation
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import Busy, TooManyRequests
from tollgate.core.addresses import limit_key
from tollgate.core.limits import Limit, take

# Callers that are remembered; the least recently used one is evicted.
MAX_CALLERS = 20_000
_MINUTE = 60.0


class Rates:
    """Counts requests."""

    def __init__(self, now: Callable[[], float] = time.monotonic, max_callers: int = MAX_CALLERS) -> None:
        self._now = now
        self._max_callers = max_callers
        self._arrivals: OrderedDict[str, float] = OrderedDict()

    def check(self, request: HttpRequest, plane: ControlPlane) -> None:
        limits = plane.settings.limits
        cost = _cost(request)
        self._take("address", limit_key(client(request).address), limits.api_address_per_minute, cost)
        authorization = request.headers.get("authorization")
        if authorization is not None:
            # Not the secret itself.
            name = hashlib.blake2b(authorization.encode("latin-1", "replace"), digest_size=16).hexdigest()
            self._take("credential", name, limits.api_per_minute, cost)

    def _take(self, kind: str, name: str, per_minute: int, cost: int) -> None:
        key = f"{kind}:{name}"
        # A request that costs more than a small limit must still be possible from time to time.
        taken = take(Limit(per_minute, _MINUTE), self._arrivals.get(key, 0.0), self._now(), min(cost, per_minute))
        if not taken.allowed:
            raise TooManyRequests(
                f"Too many requests for this {kind}: wait, then try again.", taken.retry_after, kind
            )
        self._arrivals[key] = taken.arrival
        self._arrivals.move_to_end(key)
        if len(self._arrivals) > self._max_callers:
            self._arrivals.popitem(last=False)


def _cost(request: HttpRequest) -> int:
    operation = request.route_handler.opt.get(OPERATION)
    if not isinstance(operation, Operation):
        return int(request.route_handler.opt.get(COST, 1))
    searches = any(name in request.query_params for name in operation.searched_by)
    return SEARCH_COST if searches else operation.cost


class Shares:
    """Slots for long responses. An account, and a client address, may take a share of the free ones.

    So no client can take them all.
    """

    def __init__(self, places: int, account_part: int, address_part: int) -> None:
        self._places = places
        self._account_part = account_part
        self._address_part = address_part
        self._accounts: Counter[str] = Counter()
        self._addresses: Counter[str] = Counter()
        self.taken = 0

    @property
    def free(self) -> int:
        return max(self._places - self.taken, 0)

    def check(self, account: str, address: str) -> None:
        """Refuse with `Busy` if the client has used its share, or no slot is free."""
        if not self.free:
            raise Busy("Too many live views or exports are open: try again later.")
        self.check_share(account, address)

    def check_share(self, account: str, address: str) -> None:
        """Refuse with `Busy` if the client has used its share."""
        if self._accounts[account] >= max(self.free // self._account_part, 1) or self._addresses[address] >= max(
            self.free // self._address_part, 1
        ):
            raise Busy("Too many live views or exports are open: close one, then try again.")

    @contextmanager
    def taking(self, account: str, address: str) -> Iterator[None]:
        self.taken += 1
        self._accounts[account] += 1
        self._addresses[address] += 1
        try:
            yield
        finally:
            self.taken -= 1
            self._accounts -= Counter([account])
            self._addresses -= Counter([address])
