"""What a batch of records becomes: log rows, usage, costs. Pure: counts before come in, increments go out.

Each call gets its billing month (its own, or the open one if that is closed) and its cost in the order of commit;
so usage, invoices and logs agree by billing month to the single request.

Written for speed where it reads worse: what entries have in common is worked out once for each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct, field

from tollgate.core.entries import BILLABLE, LONGEST_METHOD, LONGEST_TEXT, Entry
from tollgate.core.pricing import Price, cost

__all__ = ["BILLABLE", "MonthKey", "Posting", "Terms", "UsageKey", "post"]

UsageKey = tuple[str, str, int, str, str, str, str]
"""team, month, hour, source, network, method, outcome"""
MonthKey = tuple[str, str]
"""team or token, month"""

_SECONDS_OF_HOUR = 3_600
_UNAUTHORIZED = 401


class Terms(Struct, frozen=True):
    """What a team pays, and at most."""

    price: Price
    cap: int | None = None


class Posting(Struct):
    """What is to be written."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    """Log rows, in the order of `LOG_COLUMNS`."""
    usage: dict[UsageKey, list[int]] = field(default_factory=dict)
    """Requests and cost to add."""
    months: dict[MonthKey, list[int]] = field(default_factory=dict)
    """Billable requests and cost to add, by team."""
    tokens: dict[MonthKey, int] = field(default_factory=dict)
    """Billable requests to add, by token or domain."""
    last_used: dict[str, float] = field(default_factory=dict)


def post(
    entries: Iterable[Entry],
    first_seq: int,
    before: Mapping[MonthKey, int],
    *,
    terms: Callable[[str], Terms],
    month_for: Callable[[float], str],
    label: Callable[[str, str], str],
) -> Posting:
    """Post entries. `before` holds the billable requests of each team and month that were posted earlier.

    `month_for` must give one month for all moments of an hour.
    """
    posting = Posting()
    lines = _Lines(posting, before, terms, month_for, label)
    add_row = posting.rows.append
    last_used = posting.last_used
    seq = first_seq
    for entry in entries:
        at, team_id, source_id, network = entry.at, entry.team_id, entry.source_id, entry.network
        hour = int(at // _SECONDS_OF_HOUR)
        # A token that is refused itself, because it has expired, is not used.
        if at > last_used.get(source_id, 0.0) and entry.status != _UNAUTHORIZED:
            last_used[source_id] = at
        calls, count = entry.calls, entry.stands_for
        head = (
            at,
            _text(entry.request_id),
            team_id,
            source_id,
            entry.source_name,
            entry.address,
            _text(entry.agent),
            _text(entry.origin),
            network,
        )
        usual = (entry.duration_micros, entry.upstream, entry.attempts, entry.cache)
        request_bytes = entry.request_bytes // (len(calls) or 1)
        for call in calls:
            key = (team_id, hour, source_id, network, call.method, call.outcome)
            line = lines.get(key) or lines.opened(key)
            price = line.add(count)
            middle = (
                usual
                if call.upstream is None
                else (entry.duration_micros, call.upstream, call.attempts, call.cache)
            )
            add_row(
                (
                    seq,
                    *head,
                    line.method,
                    entry.status,
                    call.outcome,
                    call.code,
                    request_bytes,
                    call.response_bytes,
                    *middle,
                    line.billable,
                    price,
                    line.month,
                    count,
                )
            )
            seq += 1
    lines.sum_up()
    return posting


class _Account:
    """What a team has used and owes in a month, as the batch goes on."""

    __slots__ = ("_free", "_requests", "_terms", "total")

    def __init__(self, terms: Terms, posted: int, total: list[int]) -> None:
        self._terms = terms
        self._free = terms.price.free_requests
        self._requests = posted
        self.total = total

    def charge(self, count: int) -> int:
        """Count so many billable requests; what they cost."""
        before = self._requests
        self._requests = after = before + count
        self.total[0] += count
        if after <= self._free:
            return 0
        charged = cost(self._terms.price, before, count, self._terms.cap)
        self.total[1] += charged
        return charged


class _Line:
    """A line of usage, for one method as it was called."""

    __slots__ = ("_account", "_counted", "billable", "method", "month")

    def __init__(self, method: str, month: str, counted: list[int], account: _Account | None) -> None:
        self.method = method
        """As a log shows it."""
        self.month = month
        self.billable = account is not None
        self._counted = counted
        self._account = account

    def add(self, count: int) -> int:
        """Count requests; what they cost."""
        counted = self._counted
        counted[0] += count
        if self._account is None:
            return 0
        charged = self._account.charge(count)
        counted[1] += charged
        return charged


_LineKey = tuple[str, int, str, str, str, str]
"""team, hour, source, network, method as it was called, outcome"""


class _Lines(dict[_LineKey, _Line]):
    """The lines of a batch, opened as they come."""

    def __init__(
        self,
        posting: Posting,
        before: Mapping[MonthKey, int],
        terms: Callable[[str], Terms],
        month_for: Callable[[float], str],
        label: Callable[[str, str], str],
    ) -> None:
        super().__init__()
        self._posting = posting
        self._before = before
        self._terms = terms
        self._month_for = month_for
        self._label = label
        self._accounts: dict[MonthKey, _Account] = {}

    def opened(self, key: _LineKey) -> _Line:
        team_id, hour, source_id, network, method, outcome = key
        month = self._month_for(float(hour * _SECONDS_OF_HOUR))
        usage_key = (team_id, month, hour, source_id, network, self._label(network, method), outcome)
        counted = self._posting.usage.setdefault(usage_key, [0, 0])
        account = self._account((team_id, month)) if outcome in BILLABLE else None
        line = self[key] = _Line(_cut(method), month, counted, account)
        return line

    def sum_up(self) -> None:
        """What follows from the usage of the batch: the requests of each token and domain."""
        tokens = self._posting.tokens
        for (_, month, _, source_id, _, _, outcome), (requests, _) in self._posting.usage.items():
            if outcome in BILLABLE:
                tokens[source_id, month] = tokens.get((source_id, month), 0) + requests

    def _account(self, key: MonthKey) -> _Account:
        account = self._accounts.get(key)
        if account is None:
            total = self._posting.months.setdefault(key, [0, 0])
            account = _Account(self._terms(key[0]), self._before.get(key, 0), total)
            self._accounts[key] = account
        return account


def _cut(method: str) -> str:
    if method.isascii():
        return method[:LONGEST_METHOD]
    return method.encode()[:LONGEST_METHOD].decode("utf-8", "ignore")


def _text(sent: bytes) -> str:
    return sent.decode("utf-8", "replace")[:LONGEST_TEXT] if sent else ""
