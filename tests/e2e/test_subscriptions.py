"""Libraries that watch a chain through the gateway notice nothing of upstreams that die: no gap, and no double."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from parts.anvils import EMITTER, Chain, chain
from parts.node import watching
from parts.processes import eventually
from parts.pyclients import watching_python
from parts.starknet import StarknetNode, starknet_chain
from parts.tollgate import Gateway, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

MANY = {"server": {"workers": 2}}


def addresses(gateway: Gateway, network: str) -> tuple[str, str, str]:
    """Give the gateway's address for WebSockets, a token, and the address with a token in it."""
    team = gateway.books.team()
    token, _ = gateway.books.token(team)
    in_url, _ = gateway.books.token(team, allow_in_url=True)
    address = f"{gateway.base_url}/x/{network}".replace("http", "ws", 1)
    return address, token, f"{address}/{in_url}"


def has_answered(gateway: Gateway, upstream: str) -> bool:
    """Whether an upstream was called: one that was not can die unnoticed."""
    labels = (f'upstream="{upstream}"', 'outcome="ok"')
    return any(
        value
        for sample, value in gateway.metrics().items()
        if sample.startswith("tollgate_upstream_attempts_total{") and all(label in sample for label in labels)
    )


def values_of(lines: list[dict[str, Any]], kind: str) -> list[Any]:
    return [line[kind] for line in lines if kind in line]


# ---- Ethereum: three anvils, of which two die


@dataclass(frozen=True)
class Story:
    """What happened, and what each library saw of it."""

    chain: Chain
    first: int
    """The first block after the subscriptions were made."""
    first_tick: int
    lines: dict[str, list[dict[str, Any]]]


def everybody_is_there(nodes: Chain, clients: dict[str, Callable[[], list[dict[str, Any]]]]) -> None:
    """Wait until all libraries have got the newest block and the newest log."""

    def there() -> bool:
        every = [lines() for lines in clients.values()]
        return all(
            nodes.height in values_of(lines, "block")
            and nodes.ticks in [log["number"] for log in values_of(lines, "log")]
            for lines in every
        )

    eventually(there, what="the newest block and its logs")


def happen(nodes: Chain, clients: dict[str, Callable[[], list[dict[str, Any]]]]) -> None:
    """Kill the first node while blocks come; then the second, which alone had the newest blocks."""
    first, second, third = nodes.nodes
    nodes.mine(3, ticks=2)
    everybody_is_there(nodes, clients)
    height = nodes.height
    with nodes.growing(0.1, ticks=2):
        eventually(lambda: nodes.height >= height + 5, what="growth")
        nodes.leave(first)
        first.kill()
        eventually(lambda: nodes.height >= height + 15, what="growth")
    everybody_is_there(nodes, clients)
    nodes.leave(third)
    nodes.mine(2, ticks=2)
    everybody_is_there(nodes, clients)
    nodes.join(third)
    nodes.leave(second)
    second.kill()
    nodes.mine(4, ticks=2)
    everybody_is_there(nodes, clients)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("subscriptions")
    with chain(folder, 3) as nodes, ExitStack() as opened:
        nodes.mine(5, ticks=1)
        upstreams = [
            {"url": node.url, "ws_url": node.url.replace("http", "ws"), "priority": priority}
            for priority, node in enumerate(nodes.nodes)
        ]
        gateway = opened.enter_context(serving(folder / "gateway", {"eth/sepolia": upstreams}, MANY))
        address, token, in_url = addresses(gateway, "eth/sepolia")
        calls = {"ethers": (address, "--token", token), "viem": (in_url,)}
        clients = {
            name: opened.enter_context(
                watching(f"{name}_watch.mjs", *arguments, "--address", EMITTER, folder=folder / name)
            )
            for name, arguments in calls.items()
        }
        first, first_tick = nodes.height + 1, nodes.ticks + 1
        happen(nodes, clients)
        assert all(has_answered(gateway, name) for name in ("n0", "n1", "n2"))
        yield Story(nodes, first, first_tick, {name: lines() for name, lines in clients.items()})


@pytest.mark.parametrize("library", ["ethers", "viem"])
def test_connection_outlives_the_upstreams(library: str, story: Story) -> None:
    assert values_of(story.lines[library], "ready") == [True]
    assert values_of(story.lines[library], "broken") == []


@pytest.mark.parametrize("library", ["ethers", "viem"])
def test_every_block_is_reported_once(library: str, story: Story) -> None:
    blocks = values_of(story.lines[library], "block")
    # viem fetches a block for each head, and the answers may overtake each other.
    assert (sorted(blocks) if library == "viem" else blocks) == list(range(story.first, story.chain.height + 1))


def test_every_head_is_the_child_of_the_one_before(story: Story) -> None:
    heads = [(int(head["number"], 16), head["hash"]) for head in values_of(story.lines["viem"], "head")]
    hashes = story.chain.hashes()
    assert heads == [(number, hashes[number]) for number in range(story.first, len(hashes))]


@pytest.mark.parametrize("library", ["ethers", "viem"])
def test_every_log_is_reported_once_and_in_order(library: str, story: Story) -> None:
    logs = values_of(story.lines[library], "log")
    assert [log["number"] for log in logs] == list(range(story.first_tick, story.chain.ticks + 1))
    hashes = story.chain.hashes()
    assert [log for log in logs if log["removed"] or log["hash"] != hashes[log["block"]]] == []


# ---- Starknet: two simulated nodes, of which one dies


STARKNET = "starknet/sepolia"


def event_of(event: dict[str, Any]) -> tuple[Any, ...]:
    """What identifies an event, and its place."""
    return (event["block_number"], event["transaction_hash"], event["from_address"], event["keys"], event["data"])


def events_of(node: StarknetNode, first: int, last: int) -> list[tuple[Any, ...]]:
    """Fetch from a node all events of some blocks."""
    found: list[tuple[Any, ...]] = []
    params: dict[str, Any] = {
        "from_block": {"block_number": first},
        "to_block": {"block_number": last},
        "chunk_size": 100,
    }
    while True:
        chunk = node.call("starknet_getEvents", params)
        found += [event_of(event) for event in chunk["events"]]
        if "continuation_token" not in chunk:
            return found
        params["continuation_token"] = chunk["continuation_token"]


def test_starknet_heads_and_events_go_on_when_the_upstream_dies(tmp_path: Path) -> None:
    with starknet_chain(2) as nodes, ExitStack() as opened:
        first, second = nodes.nodes
        upstreams = [{"url": node.url, "priority": priority} for priority, node in enumerate(nodes.nodes)]
        gateway = opened.enter_context(serving(tmp_path / "gateway", {STARKNET: upstreams}, MANY))
        address, token, _ = addresses(gateway, STARKNET)
        lines = opened.enter_context(
            watching("starknetjs_watch.mjs", address, "--token", token, folder=tmp_path / "client")
        )
        before = nodes.height

        def has_newest() -> bool:
            events = events_of(nodes.following[0], nodes.height, nodes.height)
            return nodes.height in [head["block_number"] for head in values_of(lines(), "head")] and (
                events[-1] in [event_of(event) for event in values_of(lines(), "event")]
            )

        nodes.mine(3)
        eventually(has_newest, what="the first blocks")
        nodes.leave(second)
        nodes.mine(2)
        eventually(has_newest, what="the blocks that one node has")
        assert has_answered(gateway, "n0")
        nodes.leave(first)
        first.kill()
        nodes.join(second)
        nodes.mine(5)
        eventually(has_newest, what="the blocks of the other node")
        assert values_of(lines(), "broken") == []
        heads = [
            (head["block_number"], head["block_hash"], head["parent_hash"]) for head in values_of(lines(), "head")
        ]
        # A subscription begins with the newest block that is there already.
        blocks = [
            second.call("starknet_getBlockWithTxHashes", {"block_number": n})
            for n in range(before, nodes.height + 1)
        ]
        assert heads == [(block["block_number"], block["block_hash"], block["parent_hash"]) for block in blocks]
        events = [event_of(event) for event in values_of(lines(), "event")]
        assert events, "or nothing is shown"
        assert events == events_of(second, before, nodes.height)


def test_starknet_py_is_reported_of_blocks_transactions_and_a_reorganisation(tmp_path: Path) -> None:
    with starknet_chain() as nodes, ExitStack() as opened:
        node, before = nodes.nodes[0], nodes.height
        gateway = opened.enter_context(serving(tmp_path / "gateway", {STARKNET: [node.url]}, MANY))
        _, _, in_url = addresses(gateway, STARKNET)
        sent = node.call("starknet_addInvokeTransaction", {"nonce": "0x1"})["transaction_hash"]
        lines = opened.enter_context(
            watching_python("starknet", "starknet_watch.py", in_url, sent, folder=tmp_path / "client")
        )

        def waits_for(number: int, what: str) -> None:
            wanted = int(node.call("starknet_getBlockWithTxHashes", {"block_number": number})["block_hash"], 16)
            eventually(lambda: wanted in [head[1] for head in values_of(lines(), "head")], what=what)

        nodes.mine(2)
        waits_for(before + 2, "two blocks")
        # Each kind of notification comes at its own time.
        numbers = set(range(before, before + 3))
        eventually(lambda: set(values_of(lines(), "event")) == numbers, what="the events of these blocks")
        eventually(lambda: "ACCEPTED_ON_L2" in values_of(lines(), "status"), what="the transaction's status")
        for kind in ("receipt", "transaction"):
            eventually(lambda: int(sent, 16) in values_of(lines(), kind), what=f"the {kind}")  # noqa: B023
        first = values_of(lines(), "head")
        assert [head[0] for head in first] == [before, before + 1, before + 2]
        assert all(new[2] == old[1] for old, new in pairwise(first))
        nodes.reorganise(1)
        nodes.mine()
        waits_for(before + 3, "the block after the reorganisation")
        # Once for each subscription.
        assert {tuple(each) for each in values_of(lines(), "reorg")} == {(before + 2, first[-1][1])}
        replaced, newest = values_of(lines(), "head")[-2:]
        assert [replaced[0], replaced[2]] == [before + 2, first[-2][1]]
        assert newest[2] == replaced[1] != first[-1][1]
