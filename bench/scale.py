"""What must stay small: the cost of a call over many tokens, the memory of a worker with many callers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench import processes
from bench.crowd import hold
from bench.load import look
from bench.plan import FEW_TOKENS, MANY_TOKENS, OPEN_CONNECTIONS, SINGLE, Case
from bench.rounds import WARM_UP_SECONDS, Row, alternate, middle, one_round

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.gateway import Gateway
    from bench.plan import Plan

CASE = Case(SINGLE, 32)
WARM_UP = Case(SINGLE, 256)


@dataclass(frozen=True, slots=True)
class Growth:
    """Cost of a call by tokens in the store.

    `change` is the median over the pairs of rounds of many / few - 1; `margin` two standard errors of it.
    """

    few: Row
    many: Row
    change: float
    margin: float


@dataclass(frozen=True, slots=True)
class Weight:
    """Memory of one worker, in bytes, with all connections open."""

    tokens: int
    connections: int
    open_files: int
    rss: int
    pss: int
    peak: int
    problems: tuple[str, ...]


def growth(gateway: Gateway, plan: Plan, progress: Callable[[str], None]) -> Growth:
    """Measure a server over few tokens and one over many in turn; compare each pair of rounds."""
    progress(f"a store of {MANY_TOKENS:,} tokens")
    with gateway.serve(FEW_TOKENS) as few, gateway.serve(MANY_TOKENS) as many:
        ((with_few, with_many),) = alternate([few, many], [CASE], 1, plan.token_rounds(), progress)
    pairs = zip(with_few.rounds, with_many.rounds, strict=True)
    change, margin = middle([b.cpu_us / a.cpu_us - 1 for a, b in pairs])
    return Growth(with_few, with_many, change, margin)


def weight(gateway: Gateway, progress: Callable[[str], None]) -> Weight:
    """Weigh a worker that has been under load and then holds many connections."""
    progress(f"{OPEN_CONNECTIONS:,} open connections, {MANY_TOKENS:,} tokens")
    processes.allow_open_files(OPEN_CONNECTIONS + 500)
    with gateway.serve(MANY_TOKENS) as subject:
        warm = one_round(subject, WARM_UP, WARM_UP_SECONDS, look(subject, SINGLE).size)
        found, files = hold(
            subject,
            SINGLE,
            OPEN_CONNECTIONS,
            lambda: (processes.memory(subject.workers[0]), processes.open_files(subject.workers[0])),
        )
    return Weight(MANY_TOKENS, OPEN_CONNECTIONS, files, found.rss, found.pss, found.peak, warm.problems)
