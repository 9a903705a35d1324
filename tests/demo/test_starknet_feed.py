"""Subscriptions to the simulated Starknet chain, in each version of the specification."""

from typing import Any

import msgspec
import pytest

from tollgate.chains.starknet_versions import VERSIONS, missing_members
from tollgate.demo.chain import BLOCK_SECONDS
from tollgate.demo.params import RpcError
from tollgate.demo.starknet_feed import MAX_SUBSCRIPTIONS, StarknetFeed
from tollgate.demo.starknet_methods import starknet_network
from tollgate.demo.starknet_shapes import STRK

GENESIS = 1_800_000_000
HEAD = 5_001
NOW = GENESIS + HEAD * BLOCK_SECONDS + 0.5

every_version = pytest.mark.parametrize("version", VERSIONS)
since_0_9 = pytest.mark.parametrize("version", VERSIONS[1:])


class Socket:
    """One connection to a chain that is called at moments of the test's choice."""

    def __init__(self, version: str) -> None:
        self.network = starknet_network("mainnet", GENESIS, version)
        self.feed = StarknetFeed(self.network)

    def call(self, method: str, *, blocks: int = 0, **params: object) -> Any:
        return self.feed.answer(f"starknet_{method}", params, NOW + blocks * BLOCK_SECONDS)

    def refused(self, method: str, params: object) -> int:
        with pytest.raises(RpcError) as caught:
            self.feed.answer(f"starknet_{method}", params, NOW)
        return caught.value.code

    def messages(self, blocks: int = 0) -> list[Any]:
        sent = self.feed.notifications(NOW + blocks * BLOCK_SECONDS)
        return [msgspec.json.decode(each) for each in sent]

    def results(self, blocks: int = 0) -> list[Any]:
        return [each["params"]["result"] for each in self.messages(blocks)]


@every_version
def test_new_heads_come_one_by_one_with_the_header_of_the_version(version: str) -> None:
    socket = Socket(version)
    made = socket.call("subscribeNewHeads")
    assert socket.messages() == []
    first, second = socket.messages(2)
    assert (first["method"], first["params"]["subscription_id"]) == ("starknet_subscriptionNewHeads", made)
    assert [each["params"]["result"]["block_number"] for each in (first, second)] == [HEAD + 1, HEAD + 2]
    block = socket.call("getBlockWithTxHashes", blocks=2, block_id={"block_number": HEAD + 1})
    assert first["params"]["result"] == {
        name: value for name, value in block.items() if name not in {"status", "transactions"}
    }
    assert not first["params"]["result"].keys() & missing_members(version, "BLOCK_HEADER")
    assert socket.messages(2) == []


@every_version
def test_a_subscription_may_start_in_the_past(version: str) -> None:
    socket = Socket(version)
    by_hash = socket.call("getBlockWithTxHashes", block_id={"block_number": HEAD - 1})["block_hash"]
    socket.call("subscribeNewHeads", block_id={"block_number": HEAD - 1})
    socket.call("subscribeNewHeads", block_id={"block_hash": by_hash})
    assert [each["block_number"] for each in socket.results()] == [HEAD - 1, HEAD] * 2
    assert socket.refused("subscribeNewHeads", {"block_id": {"block_number": HEAD - 1_025}}) == 68
    assert socket.refused("subscribeNewHeads", {"block_id": {"block_number": HEAD + 1}}) == 24


@every_version
@pytest.mark.parametrize("tag", ["pending", "pre_confirmed", "l1_accepted", "newest"])
def test_a_subscription_starts_with_no_tag_but_latest(version: str, tag: str) -> None:
    socket = Socket(version)
    assert socket.refused("subscribeNewHeads", {"block_id": tag}) == -32602
    assert socket.call("subscribeNewHeads", block_id="latest")


@every_version
def test_events_are_filtered(version: str) -> None:
    socket = Socket(version)
    socket.call("subscribeEvents", from_address="0x1")
    assert socket.results(1) == []
    socket.call("subscribeEvents", blocks=1, from_address=hex(STRK))
    place = {"from_block": {"block_number": HEAD + 2}, "to_block": {"block_number": HEAD + 2}, "chunk_size": 99}
    expected = socket.call("getEvents", blocks=2, filter=place)["events"]
    status = {} if version == "0.8" else {"finality_status": "ACCEPTED_ON_L2"}
    assert socket.results(2) == [event | status for event in expected]


def test_pending_transactions_come_as_hashes_or_whole() -> None:
    socket = Socket("0.8")
    pending = socket.call("getBlockWithTxs", blocks=1, block_id="pending")["transactions"]
    socket.call("subscribePendingTransactions")
    assert socket.messages() == []
    assert socket.results(1) == [each["transaction_hash"] for each in pending]
    socket = Socket("0.8")
    sender = pending[0]["sender_address"]
    socket.call("subscribePendingTransactions", transaction_details=True, sender_address=[sender])
    messages = socket.messages(1)
    assert [each["params"]["result"] for each in messages] == [
        each for each in pending if each["sender_address"] == sender
    ]
    assert {each["method"] for each in messages} == {"starknet_subscriptionPendingTransactions"}


@since_0_9
def test_new_transactions_and_receipts_come_once_they_are_accepted(version: str) -> None:
    socket = Socket(version)
    block = socket.call("getBlockWithReceipts", blocks=1, block_id="latest")
    socket.call("subscribeNewTransactions")
    found = socket.results(1)
    hashes = [each["receipt"]["transaction_hash"] for each in block["transactions"]]
    assert [each["transaction_hash"] for each in found] == hashes
    assert {each["finality_status"] for each in found} == {"ACCEPTED_ON_L2"}
    socket = Socket(version)
    socket.call("subscribeNewTransactionReceipts")
    expected = [socket.call("getTransactionReceipt", blocks=1, transaction_hash=name) for name in hashes]
    assert socket.results(1) == expected


@every_version
def test_a_status_comes_when_it_changes(version: str) -> None:
    socket = Socket(version)
    sent = socket.call("addInvokeTransaction", invoke_transaction={})["transaction_hash"]
    socket.call("subscribeTransactionStatus", transaction_hash=sent)
    assert socket.results() == [{"transaction_hash": sent, "status": {"finality_status": "RECEIVED"}}]
    assert socket.results() == []
    (accepted,) = socket.results(1)
    assert accepted["status"]["finality_status"] == "ACCEPTED_ON_L2"
    assert socket.results(2) == []
    socket.call("subscribeTransactionStatus", transaction_hash="0x1")
    assert socket.results(2) == []


@every_version
def test_a_subscription_ends_when_its_client_ends_it(version: str) -> None:
    socket = Socket(version)
    assert socket.feed.wait_seconds(NOW) is None
    made = socket.call("subscribeNewHeads")
    assert socket.feed.wait_seconds(NOW) == 1.5
    assert socket.call("unsubscribe", subscription_id=made) is True
    assert socket.messages(1) == []
    assert socket.refused("unsubscribe", {"subscription_id": made}) == 66
    assert socket.refused("unsubscribe", {}) == -32602


@every_version
def test_other_calls_are_answered_as_over_http(version: str) -> None:
    socket = Socket(version)
    assert socket.call("specVersion") == socket.network.answer("starknet_specVersion", [], NOW)
    assert socket.refused("getBlockWithTxs", {"block_id": "safe"}) == -32602
    assert socket.refused("mine", []) == -32601
    assert socket.refused("subscribeNewHeads", 7) == -32602


def test_subscriptions_of_a_connection_are_bounded() -> None:
    socket = Socket("0.10")
    for _ in range(MAX_SUBSCRIPTIONS):
        socket.call("subscribeNewHeads")
    assert socket.refused("subscribeNewHeads", []) == -32602
