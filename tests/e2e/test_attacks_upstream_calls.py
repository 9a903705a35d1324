"""One request that costs many upstream calls: it counts as many, against limits and on the bill."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from parts.memory import within_budget
from parts.processes import eventually
from parts.raw_http import JSON, call, request
from parts.stack import PATH
from parts.tollgate import Gateway, bearer, serving
from parts.upstream import Received, Reply, Upstream, upstream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

WIDE = {"fromBlock": "0x0", "toBlock": "0x9"}


def no_logs(received: Received) -> Reply:
    return Reply(json.dumps({"jsonrpc": "2.0", "id": received.json()["id"], "result": []}).encode())


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Upstream]]:
    with upstream() as node:
        node.on("eth_getLogs", no_logs)
        narrow: dict[str, object] = {"url": node.url, "logs_blocks": 1}
        settings = {"families.eth.mainnet": {"cache": False}}
        folder = tmp_path_factory.mktemp("upstream-calls")
        with serving(folder, {"eth/mainnet": [narrow]}, settings) as gateway, within_budget(gateway):
            yield gateway, node


def test_parts_of_wide_logs_count_against_the_limit_as_that_many(both: tuple[Gateway, Upstream]) -> None:
    gateway, node = both
    token, _ = gateway.books.token(gateway.books.team("limited"), requests_per_second=25)
    node.received.clear()
    batch = b"[%b]" % b",".join(call("eth_getLogs", {**WIDE, "x": n}, id=n) for n in range(20))
    answers = gateway.exchange(batch, token=token).json()
    refused = [each for each in answers if "error" in each]
    assert {each["error"]["data"]["reason"] for each in refused} == {"rate_limited"}
    assert len(node.received) <= 25 + 5, "a batch of 20 was 200 upstream calls"


def test_call_that_can_never_pass_is_refused_with_what_to_do(both: tuple[Gateway, Upstream]) -> None:
    gateway, _ = both
    token, _ = gateway.books.token(gateway.books.team("tiny"), requests_per_second=5)
    answer = gateway.exchange(call("eth_getLogs", WIDE), token=token)
    assert answer.status == 429
    assert "ask for less" in answer.json()["error"]["message"]


def test_parts_are_on_the_bill(both: tuple[Gateway, Upstream]) -> None:
    gateway, _ = both
    team = gateway.books.team("billed")
    token, _ = gateway.books.token(team)
    gateway.books.account("ada@example.com", billed="owner")
    assert gateway.exchange(call("eth_getLogs", WIDE), token=token).status == 200
    headers = {"Authorization": f"Bearer {gateway.books.personal_token('ada@example.com')}"}

    def used() -> int:
        with gateway.connect() as connection:
            answer = connection.exchange("/api/v1/teams/billed/logs", b"", headers, method="GET")
        return len(answer.json()["items"])

    eventually(lambda: used() == 10, what="ten calls")


# ---- more than a node can do


def test_calls_beyond_what_a_node_can_do_are_refused_at_once_and_shown_when_to_come_again(tmp_path: Path) -> None:
    gate = threading.Event()
    with upstream() as node, ExitStack() as held:
        narrow: dict[str, object] = {"url": node.url, "connections": 1}
        with serving(tmp_path, {"eth/mainnet": [narrow]}) as gateway:
            token, _ = gateway.books.token(gateway.books.team())
            node.on("eth_call", Reply(gate=gate))
            connections = [held.enter_context(gateway.connect()) for _ in range(1 + 16)]
            for number, connection in enumerate(connections):
                connection.send(request(PATH, call("eth_call", {"to": hex(number)}), {**JSON, **bearer(token)}))
            eventually(
                lambda: gateway.metrics()["tollgate_in_flight"] == len(connections), what="all of them under way"
            )
            for number in range(20):
                answer = gateway.exchange(call("eth_call", {"to": hex(1_000 + number)}), token=token)
                assert (answer.status, answer.json()["error"]["data"]["reason"]) == (503, "overloaded")
                assert int(answer.headers["retry-after"]) >= 1
            gate.set()
            assert {connection.read().status for connection in connections} == {200}
