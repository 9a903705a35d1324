"""What a call costs a gateway node on PostgreSQL and Valkey, beside one with its own store; one node, and two.

All run at once, each with one worker, all workers on one core; in turn each is put under load for a short round.
Two nodes are loaded at the same time. Rounds are compared with their neighbours, so that drifts cancel out.
"""

from __future__ import annotations

import contextlib
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench import gateway, nginx, processes, valkey
from bench.load import load, look
from bench.plan import FEW_TOKENS, SINGLE, Case
from bench.rounds import WARM_UP_SECONDS, middle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.load import Subject
    from bench.plan import Plan
    from bench.processes import Cores
    from bench.valkey import Slowdown

PEPPER = "ab" * 32
CASE = Case(SINGLE, 32)
ENGINES = """
[store]
url = "{store}"

[shared]
url = "{shared}"

[secrets]
pepper = "{pepper}"
"""


@dataclass(frozen=True, slots=True)
class Compared:
    """What a call costs one way and another, in µs of CPU in the workers."""

    name: str
    before_us: float
    after_us: float
    change: float
    margin: float
    problems: tuple[str, ...]


def compare(
    store: str, cores: Cores, plan: Plan, progress: Callable[[str], None]
) -> tuple[list[Compared], list[Slowdown]]:
    """Compare a node with its own store to one on engines, and two workers of one of those to two of them.

    And what callers of such a node notice when Valkey is lost.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tollgate-bench-")))
        stub = stack.enter_context(nginx.stub(folder, cores.load))
        shared = stack.enter_context(valkey.serve(folder, cores.load))
        served = gateway.Gateway(gateway.find_tollgate(None), folder, cores, stub.port)
        on_engines = replace(served, more=ENGINES.format(store=store, shared=shared.url, pepper=PEPPER))
        progress("four nodes are started")
        alone = stack.enter_context(served.serve(FEW_TOKENS))
        first = stack.enter_context(replace(on_engines, folder=folder / "first").serve(FEW_TOKENS))
        second = stack.enter_context(
            replace(on_engines, folder=folder / "second", token=first.token).serve(FEW_TOKENS)
        )
        # On the same core as the two nodes: what a second process on it costs is no matter of nodes.
        workers = stack.enter_context(
            replace(on_engines, folder=folder / "workers", token=first.token).serve(FEW_TOKENS, 2, one_core=True)
        )
        groups = ((alone,), (first,), (workers,), (first, second))
        costs: list[list[float]] = [[] for _ in groups]
        problems: list[list[str]] = [[] for _ in groups]
        for number in range(1 + plan.token_rounds()):
            progress(f"round {number} of {plan.token_rounds()}" if number else "warm-up")
            for place, group in enumerate(groups):
                cost, wrong = _round(group, WARM_UP_SECONDS)
                if number:
                    costs[place].append(cost)
                    problems[place] += wrong
        slowdowns = valkey.inject_faults(first, shared, max(1, plan.rounds // 2), progress)
    compared = [
        _compared(
            "PostgreSQL and Valkey, more than SQLite and shared memory",
            costs[0],
            costs[1],
            problems[0] + problems[1],
        ),
        _compared("two nodes, more than two workers of one", costs[2], costs[3], problems[2] + problems[3]),
    ]
    return compared, slowdowns


def _round(group: Sequence[Subject], seconds: int) -> tuple[float, list[str]]:
    """Load some nodes at once; return the CPU of a call in their workers."""
    sizes = [look(subject, CASE.body).size for subject in group]
    workers = [pid for subject in group for pid in subject.workers]
    meter = processes.Meter(workers, set())
    with ThreadPoolExecutor(len(group)) as threads:
        runs = [
            threads.submit(load, subject, CASE.body, CASE.connections // len(group), seconds, size)
            for subject, size in zip(group, sizes, strict=True)
        ]
        seen = [run.result() for run in runs]
    requests = sum(each.requests for each in seen)
    return meter.read().ran * 1e6 / max(requests, 1), [problem for each in seen for problem in each.problems]


def _compared(name: str, before: list[float], after: list[float], problems: list[str]) -> Compared:
    change, margin = middle([new / old - 1 for old, new in zip(before, after, strict=True)])
    return Compared(name, middle(before)[0], middle(after)[0], change, margin, tuple(problems))
