"""Changes of grants reach every worker within one second, under load (spec.md, section 2)."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest

from parts.load import load
from parts.processes import eventually
from parts.raw_http import JSON, call, request
from parts.stack import PATH, Stack, open_stack
from parts.tollgate import bearer, linux_only

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from parts.load import Load
    from tollgate.core.models import Domain

pytestmark = [pytest.mark.e2e, linux_only]

BOUND = 1.0
ENOUGH = 60
"""Requests to look at after the bound, from all workers together."""
BODY = call("eth_chainId")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    # Every request costs something, so that a cap of nothing is reached by the first.
    settings = {"server": {"workers": 2}, "billing": {"free_requests": 0}}
    with open_stack(tmp_path_factory.mktemp("revocation"), settings) as it:
        yield it


@contextmanager
def busy(stack: Stack, headers: dict[str, str]) -> Iterator[tuple[Load, int]]:
    """Keep both workers busy; give the callers and how many they are."""
    with stack.gateway.spread(3) as held:
        assert len(held) == 2
        connections = [connection for each in held.values() for connection in each]
        with load(connections, request(PATH, BODY, {**JSON, **headers})) as callers:
            yield callers, len(connections)


def before_and_after(
    stack: Stack, headers: dict[str, str], change: Callable[[], object], before: int, after: int
) -> None:
    """Check that all workers answer `before` until the change, and `after` one second later at most."""
    with busy(stack, headers) as (callers, connections):
        eventually(lambda: answered(callers, 0.0, connections), what="load on all connections")
        assert {outcome.status for outcome in callers.since(0.0)} == {before}
        change()
        late = time.monotonic() + BOUND
        eventually(lambda: answered(callers, late, connections), what="load after the bound")
        # Where other work holds up the machine, it holds up answers too.
        late += max(outcome.ended - outcome.started for outcome in callers.since(0.0))
        eventually(lambda: answered(callers, late, connections), what="load after the bound")
        assert {outcome.status for outcome in callers.since(late)} == {after}


def answered(callers: Load, since: float, count: int) -> bool:
    """Whether every connection has had answers, and there were enough of them."""
    outcomes = callers.since(since)
    return len(outcomes) >= ENOUGH and len({outcome.caller for outcome in outcomes}) == count


def test_deleted_token(stack: Stack) -> None:
    books = stack.gateway.books
    secret, token = books.token(stack.team)
    before_and_after(
        stack, bearer(secret), lambda: books.do(lambda records: records.tokens.remove(id=token.id)), 200, 401
    )


def test_disabled_token_and_its_return(stack: Stack) -> None:
    books = stack.gateway.books
    secret, token = books.token(stack.team)
    off = msgspec.structs.replace(token, active=False)
    before_and_after(
        stack, bearer(secret), lambda: books.do(lambda records: records.tokens.replace(off)), 200, 401
    )
    before_and_after(
        stack, bearer(secret), lambda: books.do(lambda records: records.tokens.replace(token)), 401, 200
    )


def test_token_that_is_made_to_expire(stack: Stack) -> None:
    books = stack.gateway.books
    secret, token = books.token(stack.team)
    over = msgspec.structs.replace(token, expires_at=time.time() - 1)
    before_and_after(
        stack, bearer(secret), lambda: books.do(lambda records: records.tokens.replace(over)), 200, 401
    )


def test_token_expires_by_itself(stack: Stack) -> None:
    at = time.time() + 2.5
    secret, _ = stack.gateway.books.token(stack.team, expires_at=at)
    with busy(stack, bearer(secret)) as (callers, connections):
        end = time.monotonic() + at - time.time()
        eventually(lambda: answered(callers, end + 0.05, connections), what="load after the end")
        early = {outcome.status for outcome in callers.since(0.0) if outcome.ended < end - 0.05}
        assert early == {200}
        assert {outcome.status for outcome in callers.since(end + 0.05)} == {401}


def test_new_token_works_at_once_on_all_workers(stack: Stack) -> None:
    with stack.gateway.spread(2) as held:
        for connection in (connection for each in held.values() for connection in each):
            secret, _ = stack.gateway.books.token(stack.team)
            assert connection.exchange(PATH, BODY, {**JSON, **bearer(secret)}).status == 200


def test_capped_team(stack: Stack) -> None:
    books = stack.gateway.books
    team = books.team("spender")
    secret, _ = books.token(team)
    capped = msgspec.structs.replace(team, spending_cap=0, capped_until=time.time() + 3600)
    before_and_after(
        stack, bearer(secret), lambda: books.do(lambda records: records.teams.replace(capped)), 200, 402
    )


def test_new_domain_after_a_refused_attempt_and_its_end(stack: Stack) -> None:
    books = stack.gateway.books
    page = {"Origin": "https://app.late.com"}
    entries: list[Domain] = []

    def add() -> None:
        plenty = {"address_per_minute": 10_000_000, "domain_per_minute": 10_000_000}
        entries.append(books.domain(stack.team, "late.com", **plenty))

    before_and_after(stack, page, add, 403, 200)
    before_and_after(
        stack, page, lambda: books.do(lambda records: records.domains.remove(id=entries[0].id)), 200, 403
    )
