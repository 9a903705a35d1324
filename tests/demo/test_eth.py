"""The simulated Ethereum network, called as a client would call it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.demo.chain import BLOCK_SECONDS
from tollgate.demo.eth_methods import MAX_LOG_BLOCKS, METHODS, eth_network
from tollgate.demo.eth_shapes import FEE, TOKEN
from tollgate.demo.params import RpcError

GENESIS = 1_800_000_000
HEAD = 5_001
NOW = GENESIS + HEAD * BLOCK_SECONDS + 0.5
NODE = eth_network("mainnet", GENESIS)
TOKEN_ADDRESS = "0x" + TOKEN.hex()
UNKNOWN = "0x" + "ab" * 20
NOWHERE = "0x" + "00" * 32


def rpc(method: str, *params: object, now: float = NOW) -> Any:
    return NODE.answer(f"eth_{method}", list(params), now)


def refused(method: str, *params: object) -> RpcError:
    with pytest.raises(RpcError) as caught:
        rpc(method, *params)
    return caught.value


def test_chain_ids_are_those_of_the_real_networks() -> None:
    sepolia = eth_network("sepolia", GENESIS)
    assert rpc("chainId") == "0x1"
    assert sepolia.answer("eth_chainId", [], NOW) == "0xaa36a7"
    assert NODE.answer("net_version", None, NOW) == "1"
    assert sepolia.answer("net_version", [], NOW) == "11155111"


def test_the_client_shows_that_it_is_simulated() -> None:
    assert str(NODE.answer("web3_clientVersion", [], NOW)).startswith("Tollgate-SimulatedChain/")


def test_blocks_advance_with_time() -> None:
    assert rpc("blockNumber") == hex(HEAD)
    assert rpc("blockNumber", now=NOW + BLOCK_SECONDS) == hex(HEAD + 1)
    assert rpc("syncing") is False


@given(st.integers(1, HEAD), st.booleans())
def test_a_block_by_number_is_the_same_by_hash_and_links_to_its_parent(height: int, full: bool) -> None:
    block = rpc("getBlockByNumber", hex(height), full)
    assert rpc("getBlockByHash", block["hash"], full) == block
    assert block["number"] == hex(height)
    assert block["parentHash"] == rpc("getBlockByNumber", hex(height - 1), False)["hash"]


def test_an_old_block_never_changes() -> None:
    assert rpc("getBlockByNumber", "0x64", True) == rpc("getBlockByNumber", "0x64", True, now=NOW + 10**6)


@pytest.mark.parametrize(
    ("tag", "height"),
    [("latest", HEAD), ("safe", HEAD - 32), ("finalized", HEAD - 64), ("earliest", 0)],
)
def test_tags_name_blocks(tag: str, height: int) -> None:
    assert rpc("getBlockByNumber", tag, False) == rpc("getBlockByNumber", hex(height), False)


def test_the_pending_block_is_on_top_of_the_latest_and_has_no_hash() -> None:
    pending = rpc("getBlockByNumber", "pending", True)
    assert pending["number"] == hex(HEAD + 1)
    assert pending["parentHash"] == rpc("getBlockByNumber", "latest", False)["hash"]
    assert (pending["hash"], pending["nonce"], pending["transactions"]) == (None, None, [])
    assert rpc("getBlockTransactionCountByNumber", "pending") == "0x0"
    assert rpc("getTransactionByBlockNumberAndIndex", "pending", "0x0") is None
    assert rpc("getBlockReceipts", "pending") is None


def test_what_does_not_exist_yet_is_null_until_it_does() -> None:
    block = rpc("getBlockByNumber", "latest", False)
    before = NOW - BLOCK_SECONDS
    assert rpc("getBlockByNumber", block["number"], False, now=before) is None
    assert rpc("getBlockByHash", block["hash"], False, now=before) is None
    assert rpc("getTransactionByHash", block["transactions"][0], now=before) is None
    assert rpc("getTransactionReceipt", block["transactions"][0], now=before) is None


@pytest.mark.parametrize("method", ["getTransactionByHash", "getTransactionReceipt", "getBlockReceipts"])
def test_an_unknown_hash_is_null(method: str) -> None:
    assert rpc(method, NOWHERE) is None


@given(st.integers(0, HEAD))
def test_transactions_receipts_and_logs_of_a_block_agree(height: int) -> None:
    block = rpc("getBlockByNumber", hex(height), True)
    hashes = rpc("getBlockByNumber", hex(height), False)["transactions"]
    receipts = rpc("getBlockReceipts", hex(height))
    assert receipts == rpc("getBlockReceipts", block["hash"])
    assert rpc("getBlockTransactionCountByHash", block["hash"]) == hex(len(hashes))
    assert [one["hash"] for one in block["transactions"]] == hashes
    assert [one["transactionHash"] for one in receipts] == hashes
    assert [rpc("getTransactionReceipt", one) for one in hashes] == receipts
    assert [rpc("getTransactionByHash", one) for one in hashes] == block["transactions"]
    for index, transaction in enumerate(block["transactions"]):
        assert rpc("getTransactionByBlockHashAndIndex", block["hash"], hex(index)) == transaction
        assert rpc("getTransactionByBlockNumberAndIndex", hex(height), hex(index)) == transaction
        assert transaction["blockHash"] == block["hash"]
    logs = [log for receipt in receipts for log in receipt["logs"]]
    assert rpc("getLogs", {"blockHash": block["hash"]}) == logs
    assert [log["logIndex"] for log in logs] == [hex(index) for index in range(len(logs))]
    used = receipts[-1]["cumulativeGasUsed"] if receipts else "0x0"
    assert block["gasUsed"] == used


def test_a_block_s_bloom_is_the_union_of_its_receipts() -> None:
    block = rpc("getBlockByNumber", "latest", False)
    union = 0
    for receipt in rpc("getBlockReceipts", "latest"):
        union |= int(receipt["logsBloom"], 16)
    assert int(block["logsBloom"], 16) == union > 0
    assert len(block["logsBloom"]) == 2 + 512


def test_signatures_are_ones_that_clients_accept() -> None:
    for transaction in rpc("getBlockByNumber", "latest", True)["transactions"]:
        assert int(transaction["s"], 16) < 2**255
        assert transaction["v"] == transaction["yParity"]


@given(st.integers(1, HEAD))
def test_nonce_and_balance_follow_the_transactions(height: int) -> None:
    transaction = rpc("getTransactionByBlockNumberAndIndex", hex(height), "0x0")
    sender = transaction["from"]
    assert rpc("getTransactionCount", sender, hex(height - 1)) == transaction["nonce"]
    before = int(rpc("getBalance", sender, hex(height - 1)), 16)
    assert int(rpc("getBalance", sender, hex(height)), 16) == before - FEE


def test_state_is_read_at_a_hash_as_at_its_number() -> None:
    block = rpc("getBlockByNumber", "0x64", True)
    sender = block["transactions"][0]["from"]
    expected = rpc("getTransactionCount", sender, "0x64")
    assert rpc("getTransactionCount", sender, {"blockHash": block["hash"]}) == expected
    assert rpc("getTransactionCount", sender, {"blockNumber": "0x64"}) == expected
    assert rpc("getTransactionCount", sender, "pending") == rpc("getTransactionCount", sender)


def test_an_unknown_address_has_a_little_ether_and_nothing_else() -> None:
    assert rpc("getBalance", UNKNOWN, "latest") == hex(10**18)
    assert rpc("getTransactionCount", UNKNOWN, "latest") == "0x0"
    assert rpc("getCode", UNKNOWN, "latest") == "0x"
    assert rpc("getStorageAt", UNKNOWN, "0x0", "latest") == NOWHERE


def test_state_of_a_block_that_does_not_exist_is_an_error() -> None:
    assert refused("getBalance", UNKNOWN, hex(HEAD + 1)).code == -32000
    assert refused("getBalance", UNKNOWN, {"blockHash": NOWHERE}).code == -32000


def call(data: str, block: str = "latest") -> Any:
    return rpc("call", {"to": TOKEN_ADDRESS, "data": data}, block)


def word(address: str) -> str:
    return address.removeprefix("0x").rjust(64, "0")


def test_the_token_answers_its_constants() -> None:
    name = bytes.fromhex(call("0x06fdde03")[2:])
    assert name[64:83] == b"Tollgate Demo Token"
    assert int(call("0x313ce567"), 16) == 18
    assert int(call("0x18160ddd"), 16) == 160_000 * 10**18
    assert rpc("getCode", TOKEN_ADDRESS, "latest") != "0x"


def test_token_balances_follow_the_logs() -> None:
    block = 0x64
    change: dict[str, int] = {}
    for log in rpc("getLogs", {"fromBlock": hex(block), "toBlock": hex(block)}):
        amount = int(log["data"], 16)
        change[log["topics"][1]] = change.get(log["topics"][1], 0) - amount
        change[log["topics"][2]] = change.get(log["topics"][2], 0) + amount
    for holder, difference in change.items():
        question = "0x70a08231" + holder[2:]
        assert int(call(question, hex(block)), 16) - int(call(question, hex(block - 1)), 16) == difference
    assert int(call("0x70a08231" + word(UNKNOWN)), 16) == 0


@pytest.mark.parametrize("data", ["0x", "0xdeadbeef", "0x70a08231", "0x70a08231ff"])
def test_the_token_reverts_what_it_does_not_know(data: str) -> None:
    with pytest.raises(RpcError) as caught:
        call(data)
    assert (caught.value.code, caught.value.data) == (3, "0x")
    assert refused("estimateGas", {"to": TOKEN_ADDRESS, "data": data}).code == 3


def test_a_call_to_no_contract_returns_nothing() -> None:
    assert rpc("call", {"to": UNKNOWN, "data": "0x06fdde03"}, "latest") == "0x"
    assert rpc("call", {"input": "0x00"}) == "0x"


def test_gas_is_estimated_for_a_plain_transfer_and_for_data() -> None:
    assert rpc("estimateGas", {"to": UNKNOWN, "value": "0x1"}) == hex(21_000)
    assert rpc("estimateGas", {"to": UNKNOWN, "input": "0x0102"}) == hex(21_032)


def test_logs_are_filtered_by_address_and_topics() -> None:
    block = {"fromBlock": "0x64", "toBlock": "0x70"}
    everything = rpc("getLogs", block)
    first = everything[0]["topics"]
    assert rpc("getLogs", {**block, "address": TOKEN_ADDRESS}) == everything
    assert rpc("getLogs", {**block, "address": [UNKNOWN, TOKEN_ADDRESS]}) == everything
    assert rpc("getLogs", {**block, "address": UNKNOWN}) == []
    assert rpc("getLogs", {**block, "topics": [first[0]]}) == everything
    assert rpc("getLogs", {**block, "topics": [None, None, None, None]}) == []
    by_sender = rpc("getLogs", {**block, "topics": [None, first[1]]})
    assert by_sender == [log for log in everything if log["topics"][1] == first[1]]
    assert rpc("getLogs", {**block, "topics": [[first[0], NOWHERE], [NOWHERE, first[1]]]}) == by_sender


def test_logs_are_searched_in_a_bounded_range() -> None:
    assert rpc("getLogs", {"fromBlock": hex(HEAD + 1), "toBlock": hex(HEAD + 9)}) == []
    assert rpc("getLogs", {"fromBlock": hex(HEAD - MAX_LOG_BLOCKS + 1), "toBlock": hex(2**60)})
    assert refused("getLogs", {"fromBlock": hex(HEAD - MAX_LOG_BLOCKS), "toBlock": "latest"}).code == -32602
    assert refused("getLogs", {"fromBlock": "0x2", "toBlock": "0x1"}).code == -32602
    assert refused("getLogs", {"blockHash": NOWHERE}).code == -32000
    assert refused("getLogs", {"blockHash": NOWHERE, "fromBlock": "0x1"}).code == -32602


def test_fee_history_has_one_base_fee_more_than_blocks() -> None:
    history = rpc("feeHistory", "0x4", "latest", [25, 75])
    assert history["oldestBlock"] == hex(HEAD - 3)
    assert [len(history[name]) for name in ("baseFeePerGas", "gasUsedRatio", "reward")] == [5, 4, 4]
    assert rpc("feeHistory", 10, "0x1", [])["oldestBlock"] == "0x0"
    assert "reward" not in rpc("feeHistory", 10, "0x1")


def test_a_sent_transaction_gets_its_keccak_hash() -> None:
    assert rpc("sendRawTransaction", "0x616263") == (
        "0x4e03657aea45a94fc7d47ba826c8d667c0d1e6e33a64a036ec44f58fa12d6c45"
    )
    assert refused("sendRawTransaction", "0x").code == -32602
    assert refused("sendRawTransaction", "0x" + "00" * 200_000).code == -32000


def test_a_sent_transaction_is_pending_and_then_in_the_next_block() -> None:
    node = eth_network("mainnet", GENESIS)

    def on(method: str, *params: object, later: float = 0.0) -> Any:
        return node.answer(f"eth_{method}", list(params), NOW + later)

    name = on("sendRawTransaction", "0x02f8")
    with pytest.raises(RpcError, match="already known") as caught:
        on("sendRawTransaction", "0x02F8", later=9 * BLOCK_SECONDS)
    assert caught.value.code == -32000
    assert on("getTransactionByHash", name)["blockHash"] is None
    assert on("getTransactionReceipt", name) is None
    block = on("getBlockByNumber", "latest", True, later=BLOCK_SECONDS)
    mined = block["transactions"][-1]
    assert (mined["hash"], mined["blockNumber"]) == (name, hex(HEAD + 1))
    assert on("getTransactionByHash", name, later=BLOCK_SECONDS) == mined
    receipt = on("getTransactionReceipt", name, later=BLOCK_SECONDS)
    assert on("getBlockReceipts", "latest", later=BLOCK_SECONDS)[-1] == receipt
    assert on("getLogs", {"blockHash": block["hash"]}, later=BLOCK_SECONDS)[-1:] == receipt["logs"]
    assert receipt["cumulativeGasUsed"] == block["gasUsed"]
    count = on("getBlockTransactionCountByNumber", "latest", later=BLOCK_SECONDS)
    assert count == hex(len(block["transactions"]))
    assert (
        on("getTransactionByBlockNumberAndIndex", "latest", hex(int(count, 16) - 1), later=BLOCK_SECONDS) == mined
    )


def test_unknown_methods_are_refused() -> None:
    assert refused("mine").code == -32601


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("getBalance", []),
        ("getBalance", [UNKNOWN[:-2], "latest"]),
        ("getBalance", [UNKNOWN, "newest"]),
        ("getBalance", [UNKNOWN, "latest", 1]),
        ("getBalance", [UNKNOWN, {}]),
        ("getBlockByNumber", ["latest", "yes"]),
        ("getBlockByNumber", ["0x_1", False]),
        ("getBlockByNumber", ["0x1 ", False]),
        ("getBlockByNumber", [12, False]),
        ("getBlockByHash", ["0x12", False]),
        ("getLogs", [{"topics": [1]}]),
        ("getLogs", ["latest"]),
        ("call", [{"to": "0x 1"}]),
        ("feeHistory", [-1, "latest"]),
        ("feeHistory", [True, "latest"]),
    ],
)
def test_bad_params_are_refused(method: str, params: list[object]) -> None:
    assert refused(method, *params).code == -32602


def test_params_by_name_are_refused_as_geth_does() -> None:
    with pytest.raises(RpcError) as caught:
        NODE.answer("eth_getBalance", {"address": UNKNOWN}, NOW)
    assert caught.value.code == -32602


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
    | st.sampled_from(["latest", "pending", "0x1", NOWHERE, UNKNOWN, TOKEN_ADDRESS, "0x70a08231"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["fromBlock", "toBlock", "address", "topics", "blockHash", "to", "data", "x"]),
        inner,
        max_size=3,
    ),
    max_leaves=6,
)  # fmt: skip


@given(st.sampled_from(sorted(METHODS)), json_values | st.lists(json_values, max_size=4))
def test_any_params_are_answered_or_refused_with_an_rpc_error(method: str, params: object) -> None:
    try:
        NODE.answer(method, params, NOW)
    except RpcError as error:
        assert error.code in {-32602, -32000, 3}  # noqa: PT017 - most calls succeed
