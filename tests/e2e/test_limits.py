"""Rate limits that several workers keep together: all of it for one caller, hardly more for many."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from parts.filled import batch
from parts.load import load
from parts.processes import eventually
from parts.raw_http import JSON, Answer, RawConnection, call, request
from parts.stack import PATH, Stack, open_stack, reason
from parts.tollgate import bearer, linux_only
from tollgate.core import secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.e2e, linux_only]

RATE = 50
SECONDS = 4.0
BODY = call("eth_chainId")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = {"server": {"workers": 2}, "limits": {"misses_per_second_per_address": 5}}
    with open_stack(tmp_path_factory.mktemp("limits"), settings) as it:
        yield it


def page(stack: Stack, name: str, **fields: Any) -> dict[str, str]:
    """Whitelist a domain with its own limits, and give the headers of a page on it."""
    stack.gateway.books.domain(stack.team, name, **fields)
    return {**JSON, "Origin": f"https://{name}"}


def hammer(stack: Stack, connections: list[RawConnection]) -> tuple[int, float]:
    """Send as fast as can be for a while; give how many passed, and in how many seconds."""
    secret, _ = stack.gateway.books.token(stack.team, requests_per_second=RATE)
    started = time.monotonic()
    with load(connections, request(PATH, BODY, {**JSON, **bearer(secret)})) as callers:
        eventually(lambda: time.monotonic() - started >= SECONDS, within=SECONDS + 5, what="the time")
    outcomes = callers.since(0.0)
    assert {outcome.status for outcome in outcomes} == {200, 429}
    seconds = max(outcome.ended for outcome in outcomes) - started
    return sum(outcome.status == 200 for outcome in outcomes), seconds


def used(stack: Stack, connections: Callable[[], list[RawConnection]]) -> float:
    """The part of a limit that callers could use, of three tries: other work may hold them up."""
    parts: list[float] = []
    while len(parts) < 3 and (not parts or parts[-1] < 0.9):
        passed, seconds = hammer(stack, connections())
        assert passed <= 1.1 * (RATE * seconds + RATE)
        parts.append(passed / (RATE * seconds))
    return max(parts)


def test_all_workers_together_stay_within_110_percent(stack: Stack) -> None:
    def both() -> list[RawConnection]:
        held = spread.enter_context(stack.gateway.spread(2))
        assert len(held) == 2
        return [connection for each in held.values() for connection in each]

    with ExitStack() as spread:
        assert used(stack, both) >= 0.9


def test_one_connection_may_use_90_percent(stack: Stack) -> None:
    assert used(stack, lambda: [stack.gateway.connect()]) >= 0.9


def test_slow_limit_is_shared_by_the_request(stack: Stack) -> None:
    headers = page(stack, "shared.com", address_per_minute=20)
    with stack.gateway.spread(1) as held:
        connections = [each[0] for each in held.values()]
        passed = sum(connections[number % 2].exchange(PATH, BODY, headers).status == 200 for number in range(40))
    assert 20 <= passed <= 22


def test_replaced_worker_gives_no_fresh_allowance(stack: Stack) -> None:
    headers = page(stack, "killed.com", address_per_minute=6)
    with stack.gateway.spread(1) as held:
        for connection in [each[0] for each in held.values()] * 6:
            connection.exchange(PATH, BODY, headers)
    for pid in held:
        os.kill(pid, signal.SIGKILL)
    eventually(
        lambda: len(stack.gateway.workers()) == 2 and not set(stack.gateway.workers().values()) & set(held),
        what="both replaced",
    )
    statuses = [exchange_anew(stack, headers).status for _ in range(12)]
    assert statuses.count(200) <= 2, "one may have come back in the meantime: one each ten seconds"
    assert statuses.count(429) >= 10


def exchange_anew(stack: Stack, headers: dict[str, str]) -> Answer:
    with stack.gateway.connect() as connection:
        return connection.exchange(PATH, BODY, headers)


def test_batch_costs_as_many_as_it_has_calls(stack: Stack) -> None:
    headers = page(stack, "batch.com", address_per_minute=10)
    with stack.gateway.connect() as connection:
        first = connection.exchange(PATH, batch(6), headers)
        assert first.status == 200
        assert '"address";r=4;' in first.headers["ratelimit"]
        second = connection.exchange(PATH, batch(6), headers)
        assert (second.status, reason(second)) == (429, "rate_limited")
        assert 1 <= int(second.headers["retry-after"]) <= 60
        never = connection.exchange(PATH, batch(11), headers)
        assert "retry-after" not in never.headers
        assert "11" in never.json()["error"]["message"]


def test_answer_shows_what_is_left(stack: Stack) -> None:
    secret, _ = stack.gateway.books.token(stack.team, requests_per_second=1000)
    answer = stack.gateway.exchange(BODY, token=secret)
    assert answer.headers["ratelimit-policy"] == '"token";q=1000;w=1'
    assert answer.headers["ratelimit"].startswith('"token";r=9')
    assert "ratelimit" not in stack.exchange(BODY).headers, "no limit, no header"


def test_limits_are_per_address(stack: Stack) -> None:
    headers = page(stack, "addresses.com", address_per_minute=2)
    for source in ("127.0.0.11", "127.0.0.12"):
        with stack.gateway.connect(source=source) as connection:
            assert [connection.exchange(PATH, BODY, headers).status for _ in range(3)] == [200, 200, 429]


def test_flood_of_unknown_tokens_is_limited_and_harms_no_other_caller(stack: Stack) -> None:
    with stack.gateway.connect(source="127.0.0.21") as connection:
        assert connection.exchange(PATH, BODY, stack.headers).status == 200
        statuses = [connection.exchange(PATH, BODY, {**JSON, **bearer(secrets.new_token())}) for _ in range(40)]
        assert {answer.status for answer in statuses} == {401, 429}
        limited = next(answer for answer in statuses if answer.status == 429)
        assert limited.json()["error"]["data"]["limit"] == "address"
        assert int(limited.headers["retry-after"]) >= 1
        assert connection.exchange(PATH, BODY, stack.headers).status == 200, "a token that is known already"
    with stack.gateway.connect(source="127.0.0.22") as connection:
        assert connection.exchange(PATH, BODY, {**JSON, **bearer(secrets.new_token())}).status == 401


def test_flood_of_mistyped_tokens_never_queries_the_store(stack: Stack) -> None:
    def lookups() -> float:
        return sum(
            value
            for sample, value in stack.gateway.metrics().items()
            if sample.startswith("tollgate_directory_lookups_total")
        )

    before = lookups()
    with stack.gateway.connect() as connection:
        for number in range(30):
            assert connection.exchange(PATH, BODY, {**JSON, **bearer(f"tg_{number:038}")}).status == 401
    assert lookups() == before
