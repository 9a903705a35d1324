"""Answers about final blocks on two nodes: what one was called for, the other knows."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from parts.anvil import SEPOLIA, anvil
from parts.processes import eventually
from parts.raw_http import JSON, RawConnection, call
from parts.tollgate import Gateway, bearer, linux_only, serving
from parts.valkey import valkey

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, linux_only]

PEPPER = "a pepper that all nodes have, 32 or more"
TAKEN = 'tollgate_shared_answers_total{family="eth",how="taken",network="sepolia"}'
HITS = 'tollgate_cache_total{family="eth",how="hit",network="sepolia"}'


class Node:
    """A gateway, and a caller on one connection."""

    def __init__(self, gateway: Gateway, connection: RawConnection) -> None:
        self.gateway = gateway
        self._connection = connection
        self._token, _ = gateway.books.token(gateway.books.team(), show_upstream=True)

    def how(self, number: int) -> str:
        """Read a block, and return how the cache answered."""
        body = call("eth_getBlockByNumber", hex(number), False)
        answer = self._connection.exchange("/x/eth/sepolia", body, {**JSON, **bearer(self._token)})
        assert answer.json()["result"]["number"] == hex(number)
        return answer.headers["x-tollgate-cache"]

    def call_twice(self, number: int) -> None:
        # Not kept before the prober has seen that the block is final.
        eventually(lambda: self.how(number) == "hit", what="a hit")


def test_final_answer_is_shared_and_a_lost_valkey_delays_no_call(tmp_path: Path) -> None:
    with ExitStack() as held:
        server = held.enter_context(valkey())
        chain = held.enter_context(anvil(tmp_path / "chain", arguments=("--slots-in-an-epoch", "1")))
        chain.call("anvil_mine", hex(50))
        settings = {
            "shared": {"url": server.url},
            "secrets": {"pepper": PEPPER},
            "families.eth.sepolia": {"chain_id": hex(SEPOLIA)},
        }
        one, other = (
            Node(gateway, held.enter_context(gateway.connect()))
            for gateway in [
                held.enter_context(serving(tmp_path / name, {"eth/sepolia": [chain.url]}, settings))
                for name in ("one", "other")
            ]
        )
        one.call_twice(7)
        eventually(lambda: other.gateway.metrics().get(TAKEN, 0) >= 1, what="the answer")
        assert [other.how(7), other.how(7)] == ["miss", "hit"], "no team is told what others requested"
        eventually(lambda: other.gateway.metrics().get(HITS) == 2, what="a hit when it is first requested")
        assert other.how(50) != "hit", "the head is not final"

        server.signal(signal.SIGSTOP)
        started = time.monotonic()
        one.call_twice(8)
        assert [other.how(number) for number in (8, 9)] == ["miss", "miss"]
        assert time.monotonic() - started < 10.0, "no call waits for it"
        eventually(lambda: "answers are cached by this worker alone" in log_of(one), what="a log line")
        server.signal(signal.SIGCONT)
        eventually(lambda: "answers are shared with other nodes again" in log_of(one), what="a log line")
        other.call_twice(10)
        eventually(lambda: one.gateway.metrics().get(TAKEN, 0) >= 1, what="an answer the other way")
        before = one.gateway.metrics()[HITS]
        one.how(10)
        eventually(lambda: one.gateway.metrics()[HITS] == before + 1, what="a hit")


def log_of(node: Node) -> str:
    return node.gateway.program.err.read_text()
