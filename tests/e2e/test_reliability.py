"""Reads go on, and stay true, while upstreams die, hang, lag, crawl, break off or turn out to be another chain.

Real nodes, real faults. `make reliability` writes what was measured into docs/reliability.md; no time decides a
test.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import quantiles
from typing import TYPE_CHECKING

import pytest

from parts.anvil import SEPOLIA
from parts.anvils import LARGE_BYTES, chain
from parts.faults import (
    FaultySetup,
    Situation,
    closed_late,
    healthy,
    killed,
    lagging,
    paused,
    setup_of,
    silent,
    spoiled,
    strange,
)
from parts.need import ROOT
from parts.processes import eventually
from parts.raw_http import JSON, RawConnection
from parts.reads import ReadAnswer, Readers, readers, went_back
from parts.tollgate import bearer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"
WRITE = "WRITE_RELIABILITY"
COLUMNS = ("situation", "calls", "errors", "p50", "p99", "slowest", "p99 / bound", "hedged", "answered by")

READERS, PAUSE, BLOCK_EVERY = 8, 0.015, 0.15
WARM_CALLS, CALLS = 300, 800
PATIENCE = 40.0
"""Longer than the gateway's own deadline: a late answer is an answer, and shows in the table."""
HANGS = 10.0
"""Less than the gateway gives an upstream for an answer: a call that waits so long was not retried elsewhere."""
MAX_HEDGES = 0.05

SITUATIONS = {
    "healthy": Situation("a and b are healthy", healthy),
    "killed": Situation("a is killed (SIGKILL)", killed),
    "paused": Situation("a is paused (SIGSTOP), and resumed", paused),
    "lagging": Situation("a lags, and catches up", lagging),
    "wrong-chain": Situation("a is on another chain; b, c healthy", strange, (0, 0, 0), strange=True),
    "latency": Situation("a answers 300 ± 100 ms late", spoiled("latency", latency=300, jitter=100)),
    "resets": Situation("a resets every second connection", spoiled("reset_peer", share=0.5, timeout=0)),
    "torn": Situation("a cuts connections within answers", spoiled("limit_data", bytes=20_000)),
    "slow-close": Situation("a is killed, its connections stay open for 2 s", closed_late),
    "bandwidth": Situation("a sends 100 kB/s", spoiled("bandwidth", rate=100)),
    "silence": Situation("a accepts calls and never answers", silent),
    "backup": Situation("a and b are killed, c is the backup", lambda setup: killed(setup, "ab"), (0, 0, 10)),
}


@contextmanager
def reading(setup: FaultySetup) -> Iterator[Readers]:
    """Let readers read while the chain grows."""
    token, _ = setup.gateway.books.token(setup.gateway.books.team(), show_upstream=True)
    with (
        setup.chain.growing(BLOCK_EVERY, ticks=1),
        readers(
            lambda: RawConnection.open(setup.gateway.port, timeout=PATIENCE),
            "/x/eth/sepolia",
            {**JSON, **bearer(token)},
            count=READERS,
            pause=PAUSE,
        ) as callers,
    ):
        yield callers


# ---- what they were answered


def is_answered(answered: ReadAnswer) -> bool:
    """Whether there was a result: an upstream always had it."""
    return answered.status == 200 and answered.result is not None


def is_true(answered: ReadAnswer, hashes: list[str]) -> bool:
    """Hold a result against the chain itself."""
    result = answered.result
    if answered.method == "eth_getBlockByNumber":
        wanted = answered.params[0]
        return wanted in ("latest", result["number"]) and result["hash"] == hashes[int(result["number"], 16)]
    if answered.method == "eth_getLogs":
        first, last = (int(answered.params[0][end], 16) for end in ("fromBlock", "toBlock"))
        return [int(log["blockNumber"], 16) for log in result] == list(range(first, last + 1))
    if answered.method == "eth_getTransactionReceipt":
        return bool(result["blockHash"] == hashes[int(result["blockNumber"], 16)])
    if answered.method == "eth_getCode":
        return len(result) == 2 + 2 * LARGE_BYTES
    return answered.method != "eth_chainId" or result == hex(SEPOLIA)


def described(answered: list[ReadAnswer]) -> str:
    """Count them by call, answer and upstream, for the message of a failure."""
    count = Counter(
        (
            each.method,
            each.status,
            each.headers.get("x-tollgate-upstream"),
            re.sub("'id': [0-9]+, ", "", str(each.body))[:200],
        )
        for each in answered
    )
    return "\n".join(f"{number} x {what}" for what, number in count.most_common(10))


# ---- the measurement


@dataclass(frozen=True)
class Measured:
    """The outcomes of the calls that were sent after the fault started."""

    answers: list[ReadAnswer]
    wrong: list[ReadAnswer]
    hedges: float

    def percentile(self, share: int) -> float:
        return quantiles([each.seconds for each in self.answers], n=100, method="inclusive")[share - 1]


def answered_by(answered: list[ReadAnswer]) -> dict[str, float]:
    """Give each upstream's share of the answers; several may have had a part in a batch."""
    shares: dict[str, float] = {}
    for each in answered:
        names = each.headers.get("x-tollgate-upstream", "none").split(", ")
        for name in names:
            shares[name] = shares.get(name, 0.0) + 1 / len(names) / len(answered)
    return shares


class Page:
    """The rows of the table, as they are measured."""

    def __init__(self) -> None:
        self.rows: dict[str, Measured] = {}

    def text(self) -> str:
        # A call that hangs is retried elsewhere after the p95, and then takes what a call takes.
        healthy = self.rows["healthy"]
        bound = healthy.percentile(95) + healthy.percentile(99)
        lines = [COLUMNS, ("---", *["--:"] * (len(COLUMNS) - 2), "---")]
        for name, measured in self.rows.items():
            p50, p99 = measured.percentile(50), measured.percentile(99)
            count = len(measured.answers)
            lines.append(
                (
                    SITUATIONS[name].words,
                    f"{count}",
                    f"{len([each for each in measured.answers if each in measured.wrong])}",
                    f"{p50 * 1000:.1f} ms",
                    f"{p99 * 1000:.1f} ms",
                    f"{max(each.seconds for each in measured.answers) * 1000:.0f} ms",
                    f"{p99 / bound:.2f}",
                    f"{measured.hedges / count:.1%}",
                    ", ".join(
                        f"{who} {share:.0%}" for who, share in sorted(answered_by(measured.answers).items())
                    ),
                )
            )
        return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)

    def write(self) -> None:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}{self.text()}{END}{rest.partition(END)[2]}")


@pytest.fixture(scope="module")
def page() -> Page:
    return Page()


# ---- the tests


def test_nodes_of_one_chain_have_the_same_blocks(tmp_path: Path) -> None:
    """Otherwise they would be forks of each other, and all that follows would show something else."""
    with chain(tmp_path, 2) as nodes:
        nodes.mine(2, ticks=1)
        nodes.leave(nodes.nodes[1])
        nodes.mine(3, ticks=2)
        nodes.join(nodes.nodes[1])
        nodes.mine(ticks=1)
        hashes = nodes.hashes()
        for node in nodes.nodes:
            blocks = [node.call("eth_getBlockByNumber", hex(number), False) for number in range(len(hashes))]
            assert [block["hash"] for block in blocks] == hashes
    assert len(set(hashes)) == 7


@pytest.mark.parametrize("name", SITUATIONS)
def test_reads_are_answered_and_true(name: str, page: Page, tmp_path: Path) -> None:
    situation = SITUATIONS[name]
    with setup_of(situation, tmp_path) as setup:
        with reading(setup) as callers:
            eventually(lambda: len(callers) >= WARM_CALLS, within=60, what="the warm-up")
            started, count, hedges = time.monotonic(), len(callers), setup.hedges()
            with situation.fault(setup):
                eventually(lambda: len(callers) >= count + CALLS, within=60, what="enough calls")
                ended, hedges = time.monotonic(), setup.hedges() - hedges
        hashes, all_hedges = setup.chain.hashes(), setup.hedges()
    answered = callers.answers
    wrong = [each for each in answered if not is_answered(each) or not is_true(each, hashes)]
    page.rows[name] = Measured([each for each in answered if started <= each.started_at < ended], wrong, hedges)
    assert not wrong, described(wrong)
    assert not went_back(answered)
    assert all_hedges <= MAX_HEDGES * len(answered)
    slowest = max(answered, key=lambda each: each.seconds)
    assert slowest.seconds < HANGS, f"waited for an upstream that stayed silent: {slowest}"
    assert ("a" in answered_by(answered[:count])) is not situation.strange, (
        "a fault of an upstream that was not called shows nothing"
    )


def test_upstream_with_other_blocks_than_the_rest_is_not_called(tmp_path: Path) -> None:
    """It sends nothing wrong by itself: only the others show that it is alone with its chain."""
    with setup_of(Situation("a is alone with its blocks", healthy, (0, 0, 0)), tmp_path) as setup:
        alone = setup.node("a")
        setup.chain.leave(alone)
        alone.call("anvil_setBlockTimestampInterval", 7)
        for _ in range(4):
            alone.call("evm_mine")
            setup.chain.mine(ticks=1)
        setup.becomes("a", "forked")
        with reading(setup) as callers:
            eventually(lambda: len(callers) >= WARM_CALLS, within=60, what="enough calls")
        hashes = setup.chain.hashes()
    assert not [each for each in callers.answers if not is_answered(each) or not is_true(each, hashes)]
    assert answered_by(callers.answers).keys() == {"b", "c"}


def test_page_has_a_row_for_each_situation(page: Page) -> None:
    if os.environ.get(WRITE):
        assert page.rows.keys() == SITUATIONS.keys(), "what is not measured cannot be written"
        page.write()
    table = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    assert table, "make reliability"
    rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()]
    assert tuple(rows[0]) == COLUMNS, "make reliability"
    assert [row[0] for row in rows[2:]] == [each.words for each in SITUATIONS.values()], "make reliability"
    assert {len(row) for row in rows} == {len(COLUMNS)}
    assert {row[2] for row in rows[2:]} == {"0"}, "errors are nothing to write down: mend them"
    slow = [row[0] for row in rows[2:] if float(row[COLUMNS.index("p99 / bound")]) > 1]
    assert not slow, "the slowest hundredth took longer than a hedge should let it: measure on a quiet machine"
