"""Answers that leave at the end of a loop iteration, and the memory that large ones count for."""

from __future__ import annotations

import pytest
from tests.gateway.fake_gateway import FakeGateway
from tests.gateway.fakes import run_pending

from tollgate.gateway.http.outbox import Answered, Outgoing
from tollgate.gateway.memory_budget import SMALL


class Caller:
    """A connection that keeps what leaves."""

    def __init__(self, *, broken: bool = False) -> None:
        self.left: list[tuple[bytes, bool]] = []
        self.broken = broken

    def leave(self, answer: Outgoing) -> None:
        if self.broken:
            raise ZeroDivisionError
        self.left.append((answer.data, answer.close))


async def test_one_connection_that_fails_does_not_hold_up_the_answers_of_others(gateway: FakeGateway) -> None:
    broken, good = Caller(broken=True), Caller()
    gateway.context.outbox.put(Answered(broken, b"a"))
    gateway.context.outbox.put(Answered(good, b"b", close=True))
    gateway.context.outbox.put(Answered(good, b"c"))
    assert good.left == [], "at the end of the loop iteration"
    await run_pending()
    assert good.left == [(b"b", True), (b"c", False)]
    gateway.context.outbox.put(Answered(good, b"d"))
    await run_pending()
    assert good.left[-1] == (b"d", False)


@pytest.mark.parametrize(("size", "held"), [(SMALL, 0), (SMALL + 1, SMALL + 1)])
async def test_large_answer_counts_until_the_end_of_the_loop_iteration(
    size: int, held: int, gateway: FakeGateway
) -> None:
    gateway.context.outbox.count_large(bytes(size))
    assert gateway.budget.held == held
    await run_pending()
    assert gateway.budget.held == 0
