"""Rate limits of the control plane, by credential and client address, weighted by cost; slots for long responses.

Kept in the memory of the one control process. Rates are checked before the handler runs, the credential is read or
the store is queried.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tollgate.control.api.access import HttpRequest, client
from tollgate.control.api.operations import COST, OPERATION, Operation
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import Busy, TooManyRequests
from tollgate.core.address_shares import AddressShares
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
        per_address = Limit(limits.api_address_per_minute, _MINUTE)
        around = AddressShares.limits(client(request).address, per_address)
        self._take("address", [(each.prefix, each.limit) for each in around], cost)
        authorization = request.headers.get("authorization")
        if authorization is not None:
            # Not the secret itself.
            name = hashlib.blake2b(authorization.encode("latin-1", "replace"), digest_size=16).hexdigest()
            self._take("credential", [(name, Limit(limits.api_per_minute, _MINUTE))], cost)

    def _take(self, kind: str, limits: Sequence[tuple[str, Limit]], cost: int) -> None:
        """Take a request out of all these limits, or refuse it: then nothing is taken."""
        arrivals = {}
        for name, limit in limits:
            key = f"{kind}:{name}"
            # A request that costs more than a small limit must still be possible from time to time.
            taken = take(limit, self._arrivals.get(key, 0.0), self._now(), min(cost, limit.count))
            if not taken.allowed:
                raise TooManyRequests(
                    f"Too many requests for this {kind}: wait, then try again.", taken.retry_after, kind
                )
            arrivals[key] = taken.arrival
        for key, arrival in arrivals.items():
            self._arrivals[key] = arrival
            self._arrivals.move_to_end(key)
        while len(self._arrivals) > self._max_callers:
            self._arrivals.popitem(last=False)


def _cost(request: HttpRequest) -> int:
    options = request.route_handler.opt
    operation = options.get(OPERATION, options.get(COST, 1))
    if not isinstance(operation, Operation):
        return int(operation)
    searches = any(name in request.query_params for name in operation.searched_by)
    return operation.search_cost if searches else operation.cost


class Shares:
    """Slots for long responses. An account, and a client address, may take a share of the free ones.

    So no client can take them all.
    """

    def __init__(self, places: int, account_part: int, address_part: int) -> None:
        self._places = places
        self._account_part = account_part
        self._address_part = address_part
        self._accounts: Counter[str] = Counter()
        self._addresses = AddressShares(places, 1, 1)

    @property
    def taken(self) -> int:
        return self._addresses.taken

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
        self._addresses.share = max(self.free // self._address_part, 1)
        of_account = max(self.free // self._account_part, 1)
        if self._accounts[account] >= of_account or not self._addresses.is_within_share(address):
            raise Busy("Too many live views or exports are open: close one, then try again.")

    @contextmanager
    def taking(self, account: str, address: str) -> Iterator[None]:
        self._accounts[account] += 1
        self._addresses.take(address)
        try:
            yield
        finally:
            self._accounts -= Counter([account])
            self._addresses.give_back(address)
