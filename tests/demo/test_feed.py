"""What subscribers of a simulated chain are told, with a clock that is moved by hand."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.demo.chain import BLOCK_SECONDS
from tollgate.demo.chain_params import RpcError, bind
from tollgate.demo.course import Mined, Reorganised
from tollgate.demo.eth import EthNode
from tollgate.demo.eth_shapes import TOKEN
from tollgate.demo.network import SimulatedNetwork
from tollgate.demo.starknet import StarknetNode
from tollgate.demo.starknet_shapes import STRK

GENESIS = 1_800_000_000
HEAD = 5_001
NOW = GENESIS + HEAD * BLOCK_SECONDS + 0.5


class Listener:
    """A network, its clock, and what one subscriber was told."""

    def __init__(self, network: SimulatedNetwork) -> None:
        self.network = network
        self.now = NOW
        self.messages: list[bytes] = []

    def subscribe(self, method: str, *params: object, **named: object) -> str:
        known = self.network.subscribing.methods[method]
        args = bind(known.names, known.required, named or list(params))
        opened: Any = known.answer(self.network.view(self.now), args)
        name, first = self.network.feed.open(opened, self.messages.append, self.now)
        self.messages += first
        return name

    def refused(self, method: str, *params: object, **named: object) -> int:
        with pytest.raises(RpcError) as caught:
            self.subscribe(method, *params, **named)
        return caught.value.code

    def ask(self, method: str, *params: object) -> Any:
        return self.network.answer(method, list(params), self.now)

    def reorg(self, blocks: int, *, longer: bool = False) -> None:
        self.network.do(lambda course, at: Reorganised(at, course.head(at) - blocks + 1, longer), self.now)

    def mine(self, blocks: int) -> None:
        self.network.do(lambda _, at: Mined(at, blocks), self.now)

    def told(self) -> list[tuple[str, Any]]:
        """Give the method and result of each message since the last time."""
        self.network.feed.tick(self.now)
        decoded = [msgspec.json.decode(message) for message in self.messages]
        self.messages.clear()
        return [(one["method"], one["params"]["result"]) for one in decoded]

    def results(self) -> list[Any]:
        return [result for _, result in self.told()]


def eth() -> Listener:
    return Listener(EthNode("mainnet", GENESIS))


def starknet() -> Listener:
    return Listener(StarknetNode("mainnet", GENESIS))


# ---- Ethereum


def test_each_new_head_is_told_once_in_the_shape_of_geth() -> None:
    it = eth()
    name = it.subscribe("eth_subscribe", "newHeads")
    assert it.told() == []
    it.now += 2 * BLOCK_SECONDS
    it.network.feed.tick(it.now)
    first = msgspec.json.decode(it.messages[0])
    assert first.keys() == {"jsonrpc", "method", "params"}
    assert (first["method"], first["params"]["subscription"]) == ("eth_subscription", name)
    heads = it.results()
    assert [head["number"] for head in heads] == [hex(HEAD + 1), hex(HEAD + 2)]
    block = it.ask("eth_getBlockByNumber", "latest", False)
    assert heads[-1] == {key: block[key] for key in heads[-1]}
    assert block.keys() - heads[-1].keys() == {"size", "transactions", "uncles", "withdrawals"}
    assert it.told() == []


def test_logs_are_filtered_and_those_of_lost_blocks_are_removed_first() -> None:
    it = eth()
    sender = it.ask("eth_getBlockByNumber", "latest", True)["transactions"][0]["from"]
    topic = "0x" + sender[2:].rjust(64, "0")
    only = {"address": "0x" + TOKEN.hex(), "topics": [None, topic]}
    it.subscribe("eth_subscribe", "logs", only)
    it.now += 8 * BLOCK_SECONDS
    logs = it.results()
    assert logs
    assert logs == it.ask("eth_getLogs", {**only, "fromBlock": hex(HEAD + 1)})
    assert not any(log["removed"] for log in logs)
    it.reorg(8, longer=True)
    again = it.results()
    gone = [log for log in again if log["removed"]]
    assert gone == again[: len(gone)]
    assert sorted(log["transactionHash"] for log in gone) == sorted(log["transactionHash"] for log in logs)
    assert again[len(gone) :] == it.ask("eth_getLogs", {**only, "fromBlock": hex(HEAD + 1)})


def test_a_submitted_transaction_is_told_when_it_arrives_and_its_log_when_it_is_mined() -> None:
    it = eth()
    it.subscribe("eth_subscribe", "newPendingTransactions")
    whole = Listener(it.network)
    whole.subscribe("eth_subscribe", "newPendingTransactions", True)
    logs = Listener(it.network)
    logs.subscribe("eth_subscribe", "logs")
    names = [it.ask("eth_sendRawTransaction", f"0x0{number}") for number in (1, 2)]
    assert it.results() == names
    assert [(one["hash"], one["blockHash"]) for one in whole.results()] == [(name, None) for name in names]
    it.mine(1)
    assert it.results() == []
    mined = [log["transactionHash"] for log in logs.results()]
    assert mined[-2:] == names
    it.reorg(1)
    assert it.results() == []
    assert [log["transactionHash"] for log in logs.results() if log["removed"]] == mined


def test_a_reorganisation_tells_the_new_heads_of_the_same_heights() -> None:
    it = eth()
    it.subscribe("eth_subscribe", "newHeads")
    it.reorg(3)
    heads = it.results()
    assert [int(head["number"], 16) for head in heads] == [HEAD - 2, HEAD - 1, HEAD]
    assert [head["parentHash"] for head in heads[1:]] == [head["hash"] for head in heads[:-1]]


def test_a_node_that_begins_to_lag_tells_nothing_until_it_is_where_it_was() -> None:
    it = eth()
    it.subscribe("eth_subscribe", "newHeads")
    it.network.lag = 5
    it.now += 5 * BLOCK_SECONDS
    assert it.told() == []
    it.now += BLOCK_SECONDS
    assert [head["number"] for head in it.results()] == [hex(HEAD + 1)]


def test_a_lagging_node_tells_of_a_reorganisation_when_it_comes_to_it() -> None:
    it = eth()
    it.subscribe("eth_subscribe", "newHeads")
    it.network.lag = 5
    it.reorg(2)
    assert it.told() == []
    it.network.lag = 0
    assert [int(head["number"], 16) for head in it.results()] == [HEAD - 1, HEAD]


@pytest.mark.parametrize(
    "params", [(), ("syncing",), (7,), ("logs", {"topics": 1}), ("logs", "x"), ("newHeads", 1, 2)]
)
def test_what_cannot_be_subscribed_to_in_ethereum_is_refused(params: tuple[object, ...]) -> None:
    assert eth().refused("eth_subscribe", *params) == -32602


# ---- Starknet

HEADS, EVENTS = "starknet_subscribeNewHeads", "starknet_subscribeEvents"
STATUS = "starknet_subscribeTransactionStatus"
RECEIPTS, TRANSACTIONS = "starknet_subscribeNewTransactionReceipts", "starknet_subscribeNewTransactions"


def test_heads_begin_with_the_newest_and_are_headers_of_the_specification() -> None:
    it = starknet()
    name = it.subscribe(HEADS)
    first = msgspec.json.decode(it.messages[0])
    assert first["method"] == "starknet_subscriptionNewHeads"
    assert first["params"].keys() == {"subscription_id", "result"}
    assert first["params"]["subscription_id"] == name
    block = it.ask("starknet_getBlockWithTxHashes", "latest")
    assert first["params"]["result"] == {key: block[key] for key in block.keys() - {"status", "transactions"}}
    it.told()
    it.now += BLOCK_SECONDS
    assert [head["block_number"] for head in it.results()] == [HEAD + 1]


def test_heads_begin_where_they_are_asked_to() -> None:
    it = starknet()
    it.subscribe(HEADS, block_id={"block_number": HEAD - 1_023})
    assert [head["block_number"] for head in it.results()] == [*range(HEAD - 1_023, HEAD + 1)]
    block_hash = it.ask("starknet_getBlockWithTxHashes", {"block_number": HEAD - 2})["block_hash"]
    it.subscribe(HEADS, {"block_hash": block_hash})
    assert [head["block_number"] for head in it.results()] == [HEAD - 2, HEAD - 1, HEAD]


def test_where_nothing_can_begin_has_the_specification_s_codes() -> None:
    it = starknet()
    for method in (HEADS, EVENTS):
        assert it.refused(method, block_id={"block_number": HEAD - 1_024}) == 68
        assert it.refused(method, block_id={"block_number": HEAD + 1}) == 24
        assert it.refused(method, block_id={"block_hash": "0x1"}) == 24
        assert it.refused(method, block_id="pre_confirmed") == -32602
        assert it.refused(method, block_id="l1_accepted") == -32602
    assert it.refused(EVENTS, keys=[[]] * 17) == 34
    assert it.refused(EVENTS, finality_status="ACCEPTED_ON_L1") == -32602
    assert it.refused(RECEIPTS, finality_status=["RECEIVED"]) == -32602
    assert it.refused(TRANSACTIONS, finality_status=["ACCEPTED_ON_L1"]) == -32602
    assert it.refused(TRANSACTIONS, sender_address=["0x1"] * 1_025) == 67
    assert it.refused(STATUS) == -32602


def test_events_are_those_of_get_events_with_their_finality() -> None:
    it = starknet()
    block = {"block_number": HEAD}
    keys = it.ask("starknet_getEvents", {"from_block": block, "chunk_size": 1})["events"][0]["keys"]
    only = {"keys": [[], [keys[1]]]}
    it.subscribe(EVENTS, from_address=hex(STRK), block_id=block, **only)
    it.now += 8 * BLOCK_SECONDS
    found = it.told()
    expected = it.ask("starknet_getEvents", {"from_block": block, "chunk_size": 1_000, **only})["events"]
    assert [method for method, _ in found] == ["starknet_subscriptionEvents"] * len(expected)
    assert [result for _, result in found] == [one | {"finality_status": "ACCEPTED_ON_L2"} for one in expected]
    old = starknet()
    old.subscribe(EVENTS, block_id={"block_number": HEAD - 200})
    assert {one["finality_status"] for one in old.results()} == {"ACCEPTED_ON_L1", "ACCEPTED_ON_L2"}


@pytest.mark.parametrize("method", [HEADS, EVENTS, RECEIPTS, TRANSACTIONS, STATUS])
def test_every_subscription_is_told_of_a_reorganisation_first(method: str) -> None:
    it = starknet()
    it.subscribe(method, **({"transaction_hash": "0x1"} if method == STATUS else {}))
    it.told()
    lost = [it.ask("starknet_getBlockWithTxHashes", {"block_number": height}) for height in (HEAD - 2, HEAD)]
    it.reorg(3, longer=True)
    (told, result), *others = it.told()
    assert told == "starknet_subscriptionReorg"
    assert result == {
        "starting_block_hash": lost[0]["block_hash"],
        "starting_block_number": HEAD - 2,
        "ending_block_hash": lost[1]["block_hash"],
        "ending_block_number": HEAD,
    }
    assert method == STATUS or others
    assert "starknet_subscriptionReorg" not in [told for told, _ in others]


def test_the_status_of_a_transaction_is_told_whenever_it_changes() -> None:
    it = starknet()
    sent = {"type": "INVOKE", "nonce": "0x1"}
    name = StarknetNode("mainnet", GENESIS).answer("starknet_addInvokeTransaction", [sent], NOW)
    assert isinstance(name, dict)
    it.subscribe(STATUS, transaction_hash=name["transaction_hash"], block_id="latest")
    assert it.told() == []
    it.ask("starknet_addInvokeTransaction", sent)
    it.mine(1)
    it.mine(1)
    assert it.told() == [
        (
            "starknet_subscriptionTransactionStatus",
            {**name, "status": {"finality_status": "ACCEPTED_ON_L2", "execution_status": "SUCCEEDED"}},
        )
    ]
    it.reorg(2)
    assert [result["status"] for result in it.results()[1:]] == [{"finality_status": "RECEIVED"}]
    it.mine(150)
    assert [result["status"]["finality_status"] for result in it.results()] == ["ACCEPTED_ON_L1"]
    it.subscribe(STATUS, **name)
    assert [result["status"]["finality_status"] for result in it.results()] == ["ACCEPTED_ON_L1"]


def test_a_transaction_that_waits_is_received_for_whoever_asks_then() -> None:
    it = starknet()
    it.subscribe(HEADS)
    name = it.ask("starknet_addInvokeTransaction", {"nonce": "0x1"})
    it.told()
    it.subscribe(STATUS, **name)
    assert [result["status"] for result in it.results()] == [{"finality_status": "RECEIVED"}]


def test_new_transactions_and_receipts_are_told_for_the_senders_and_statuses_asked_for() -> None:
    it = starknet()
    receipts = Listener(it.network)
    everything = Listener(it.network)
    it.subscribe(TRANSACTIONS, finality_status=["RECEIVED", "ACCEPTED_ON_L2"], sender_address=["0x0abc"])
    receipts.subscribe(RECEIPTS, sender_address=["0xabc"])
    everything.subscribe(TRANSACTIONS)
    name = it.ask("starknet_addInvokeTransaction", {"sender_address": "0xabc"})["transaction_hash"]
    it.ask("starknet_addInvokeTransaction", {"sender_address": "0xabd"})
    received = it.told()
    shown = received[0][1]
    assert [method for method, _ in received] == ["starknet_subscriptionNewTransaction"]
    assert (shown["transaction_hash"], shown["finality_status"]) == (name, "RECEIVED")
    it.mine(1)
    accepted = it.results()
    assert accepted == [shown | {"finality_status": "ACCEPTED_ON_L2"}]
    assert receipts.told() == [
        ("starknet_subscriptionNewTransactionReceipts", it.ask("starknet_getTransactionReceipt", name))
    ]
    block = it.ask("starknet_getBlockWithTxs", "latest")["transactions"]
    assert everything.results() == [one | {"finality_status": "ACCEPTED_ON_L2"} for one in block]


def test_statuses_that_never_are_tell_nothing() -> None:
    it = starknet()
    it.subscribe(RECEIPTS, finality_status=["PRE_CONFIRMED"])
    it.subscribe(TRANSACTIONS, finality_status=["PRE_CONFIRMED", "CANDIDATE"])
    it.mine(2)
    assert it.told() == []


# ---- both


@given(st.lists(st.tuples(st.sampled_from(["mine", "reorg", "longer", "lag", "tick"]), st.integers(1, 8))))
def test_heads_told_make_up_the_chain_whatever_happens_and_however_seldom_one_looks(
    story: list[tuple[str, int]],
) -> None:
    """Follow the notifications as a client would: each head fits on one it has, and the last is the newest."""
    it = starknet()
    it.subscribe(HEADS)
    chain: dict[int, Any] = {}

    def follow() -> None:
        for method, result in it.told():
            if method == "starknet_subscriptionReorg":
                first, last = result["starting_block_number"], result["ending_block_number"]
                assert last == max(chain)
                assert chain[last]["block_hash"] == result["ending_block_hash"]
                for height in range(first, last + 1):
                    chain.pop(height, None)
                continue
            height = result["block_number"]
            assert height not in chain
            assert height - 1 not in chain or chain[height - 1]["block_hash"] == result["parent_hash"]
            chain[height] = result

    for action, number in story:
        match action:
            case "mine":
                it.mine(number)
            case "reorg" | "longer":
                it.reorg(number, longer=action == "longer")
            case "lag":
                it.network.lag = number - 1
            case "tick":
                follow()
    it.network.lag = 0
    follow()
    newest = it.ask("starknet_blockNumber")
    assert max(chain) == newest
    for height, head in chain.items():
        assert (
            it.ask("starknet_getBlockWithTxHashes", {"block_number": height})["block_hash"] == head["block_hash"]
        )


def test_a_subscriber_that_left_is_told_nothing() -> None:
    it = eth()
    name = it.subscribe("eth_subscribe", "newHeads")
    assert it.network.feed.close(name)
    assert not it.network.feed.close(name)
    it.mine(1)
    assert it.told() == []
    it.subscribe("eth_subscribe", "newHeads")
    assert it.told() == []
    it.mine(1)
    assert len(it.told()) == 1
