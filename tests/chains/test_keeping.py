"""How an answer may be kept, and which head it shows."""

from typing import Any

import pytest
from msgspec import Raw
from tests.chains.calls import params, result

from tollgate.chains.catalogue import Catalogue, Holds, Keep
from tollgate.chains.keeping import _EMPTY_BYTES

ETH, STARKNET = Catalogue("eth"), Catalogue("starknet")
HASH = "0x" + "ab" * 32
HEAD, FINALIZED = 1_000, 900
NOT, TIP = Keep(Holds.NEVER), Keep(Holds.TIP)


def kept(name: str, given: list[Any], answer: Any, head: int = HEAD, finalized: int = FINALIZED) -> Keep:
    """How an answer is kept, the same whether it is a view or bytes."""
    catalogue = STARKNET if name.startswith("starknet_") else ETH
    scope, raw = catalogue.scope(name, params(given)), result(answer)
    keep = catalogue.keep(scope, raw, head, finalized)
    assert catalogue.keep(scope, bytes(raw), head, finalized) == keep
    return keep


def balance(block: Any, answer: Any = "0x1bc16d674ec80000", **chain: int) -> Keep:
    return kept("eth_getBalance", ["0x11", block], answer, **chain)


# --- By number ----------------------------------------------------------------------------------------------


def test_final_block_is_cached_for_ever() -> None:
    assert balance(hex(FINALIZED)) == Keep(Holds.FOREVER, FINALIZED)
    assert balance("0x0") == Keep(Holds.FOREVER, 0)


def test_block_above_the_final_one_is_cached_until_a_reorganisation() -> None:
    assert balance(hex(FINALIZED + 1)) == Keep(Holds.BLOCK, FINALIZED + 1)
    assert balance(hex(HEAD)) == Keep(Holds.BLOCK, HEAD)


def test_block_above_the_head_is_not_cached() -> None:
    assert balance(hex(HEAD + 1)) == NOT
    assert balance("0x0", head=-1, finalized=-1) == NOT
    assert balance("earliest", head=-1, finalized=-1) == NOT


def test_nothing_is_final_where_finality_is_not_known() -> None:
    assert balance("0x5", finalized=-1) == Keep(Holds.BLOCK, 5)


def test_latest_is_cached_until_the_next_block() -> None:
    assert balance("latest") == balance(None) == balance("finalized") == TIP
    assert kept("eth_getBlockByNumber", ["latest", False], {"number": hex(HEAD)}) == TIP
    assert kept("eth_gasPrice", [], "0x5") == kept("eth_syncing", [], False) == TIP


def test_pending_is_not_cached() -> None:
    assert balance("pending") == NOT
    assert NOT.number == -1, "about no block"
    assert kept("starknet_call", [{}, "pre_confirmed"], ["0x1"]) == NOT


def test_earliest_and_the_chain_id_are_cached_for_ever() -> None:
    assert balance("earliest") == Keep(Holds.FOREVER, 0)
    assert (
        kept("eth_chainId", [], "0x1") == kept("starknet_chainId", [], "0x534e5f4d41494e") == Keep(Holds.FOREVER)
    )


def test_earliest_block_of_a_pruned_node_is_cached_for_the_tip() -> None:
    assert kept("eth_getBlockByNumber", ["earliest", False], {"number": "0x0"}) == Keep(Holds.FOREVER, 0)
    assert kept("eth_getBlockByNumber", ["earliest", False], {"number": "0x1"}) == TIP


def test_call_with_a_state_override_is_cached_like_any_other() -> None:
    assert kept("eth_call", [{}, "0x10", {"0x11": {"balance": "0x0"}}], "0x01") == Keep(Holds.FOREVER, 16)


# --- Nothing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("eth_chainId", []),
        ("eth_blockNumber", []),
        ("eth_getBlockByNumber", ["0x10", False]),
        ("eth_getBlockByHash", [HASH, False]),
        ("eth_getTransactionReceipt", [HASH]),
        ("eth_getTransactionByHash", [HASH]),
        ("debug_traceTransaction", [HASH]),
        ("eth_getLogs", [{"blockHash": HASH}]),
        ("starknet_getTransactionReceipt", [HASH]),
    ],
)
def test_null_is_never_cached(name: str, given: list[Any]) -> None:
    assert kept(name, given, None) == NOT


@pytest.mark.parametrize("empty", [b"null", b" null", b"null".rjust(_EMPTY_BYTES), b"", b" "])
def test_null_with_whitespace_and_an_empty_answer_are_not_cached(empty: bytes) -> None:
    assert ETH.keep(ETH.scope("eth_chainId", None), empty, HEAD, FINALIZED) == NOT


@pytest.mark.parametrize("empty", [b"[]", b"{}", b'""', b'"0x"', b"[ ]", b"{\n}"])
def test_empty_answer_is_cached_for_the_tip_at_most(empty: bytes) -> None:
    calls: list[tuple[str, list[Any]]] = [
        ("eth_getCode", ["0x11", "0x10"]),
        ("eth_getCode", ["0x11", {"blockHash": HASH}]),
        ("eth_getLogs", [{"fromBlock": "0x1", "toBlock": "0x10"}]),
        ("eth_getCode", ["0x11", "earliest"]),
        ("eth_getCode", ["0x11", "latest"]),
    ]
    for name, given in calls:
        assert ETH.keep(ETH.scope(name, params(given)), Raw(empty), HEAD, FINALIZED) == TIP
    for name in ("eth_getTransactionReceipt", "trace_transaction"):
        assert ETH.keep(ETH.scope(name, params([HASH])), Raw(empty), HEAD, FINALIZED) == NOT


@pytest.mark.parametrize("short", [b'"1"', b'"00"', b'" "', b"1", b"[0]"])
def test_short_answer_is_not_an_empty_one(short: bytes) -> None:
    scope = ETH.scope("eth_getCode", params(["0x11", "0x10"]))
    assert ETH.keep(scope, Raw(short), HEAD, FINALIZED) == Keep(Holds.FOREVER, 16)


def test_empty_answer_about_a_block_above_the_head_is_not_cached() -> None:
    assert kept("eth_getLogs", [{"fromBlock": "0x1", "toBlock": hex(HEAD + 1)}], []) == NOT
    assert kept("eth_getLogs", [{"fromBlock": hex(HEAD + 1)}], []) == NOT


# --- By hash ------------------------------------------------------------------------------------------------


def test_state_at_a_hash_is_cached_for_ever() -> None:
    assert balance({"blockHash": HASH}) == Keep(Holds.FOREVER)
    assert balance({"blockHash": HASH, "requireCanonical": True}) == TIP


def test_block_by_hash_is_cached_for_ever_with_its_number() -> None:
    block = {"transactions": [{"blockNumber": "0x1", "number": "0x1"}], "number": hex(HEAD)}
    assert kept("eth_getBlockByHash", [HASH, True], block) == Keep(Holds.FOREVER, HEAD)
    assert kept("eth_getBlockByHash", [HASH, True], {**block, "number": hex(HEAD + 1)}) == NOT


# --- Transactions -------------------------------------------------------------------------------------------


def receipt(number: Any, **rest: Any) -> dict[str, Any]:
    return {"blockHash": HASH, "blockNumber": number, "status": "0x1", **rest}


@pytest.mark.parametrize("name", ["eth_getTransactionReceipt", "eth_getTransactionByHash"])
def test_transaction_is_cached_with_its_block(name: str) -> None:
    assert kept(name, [HASH], receipt(hex(FINALIZED))) == Keep(Holds.FOREVER, FINALIZED)
    assert kept(name, [HASH], receipt(hex(FINALIZED + 1))) == Keep(Holds.BLOCK, FINALIZED + 1)
    assert kept(name, [HASH], receipt(hex(HEAD + 1))) == NOT


@pytest.mark.parametrize("number", [None, "pending", "", -1, True, 1.5, "0x", [], {}, hex(1 << 70)])
def test_transaction_without_a_block_is_not_cached(number: Any) -> None:
    assert kept("eth_getTransactionByHash", [HASH], receipt(number)) == NOT
    assert kept("eth_getTransactionByHash", [HASH], {"hash": HASH}) == NOT


def test_block_number_in_texts_and_deeper_objects_is_not_taken_for_the_transaction_s() -> None:
    lie = '{"blockNumber":"0x1"}'
    answer = {"input": lie, "nested": {"blockNumber": "0x1"}, "logs": [{"blockNumber": "0x1"}]}
    assert kept("eth_getTransactionReceipt", [HASH], answer) == NOT
    assert kept("eth_getTransactionReceipt", [HASH], {**answer, **receipt("0x3e7")}) == Keep(Holds.BLOCK, 999)


def test_traces_of_a_transaction_are_cached_with_the_block_they_name() -> None:
    traces = [{"action": {"value": "0x0"}, "blockNumber": 950, "type": "call"}] * 3
    assert kept("trace_transaction", [HASH], traces) == Keep(Holds.BLOCK, 950)
    assert kept("trace_transaction", [HASH], traces[:1]) == Keep(Holds.BLOCK, 950)
    assert kept("trace_get", [HASH, ["0x0"]], traces[0]) == Keep(Holds.BLOCK, 950)
    assert kept("debug_traceTransaction", [HASH], {"gas": 21_000, "structLogs": []}) == TIP


@pytest.mark.parametrize("answer", ["0x1", 5, True, [5], [[]], "null"])
def test_malformed_transaction_is_not_cached(answer: Any) -> None:
    assert kept("eth_getTransactionReceipt", [HASH], answer) == NOT


# --- Ranges -------------------------------------------------------------------------------------------------


def test_range_is_cached_with_its_upper_end() -> None:
    found = [{"blockNumber": "0x2"}]
    wide = {"fromBlock": "0x1", "toBlock": hex(FINALIZED)}
    assert kept("eth_getLogs", [wide], found) == Keep(Holds.FOREVER, FINALIZED)
    assert kept("eth_getLogs", [{**wide, "toBlock": hex(HEAD)}], found) == Keep(Holds.BLOCK, HEAD)
    assert kept("eth_getLogs", [{**wide, "toBlock": "latest"}], found) == TIP
    assert kept("eth_getLogs", [{**wide, "toBlock": hex(HEAD + 1)}], found) == NOT
    assert kept("eth_getLogs", [{"fromBlock": "0x9", "toBlock": "0x1"}], found) == NOT
    assert kept("eth_getLogs", [{"blockHash": HASH}], found) == Keep(Holds.FOREVER)


@pytest.mark.parametrize("none", [{"events": []}, {"events": [], "continuation_token": None}])
def test_page_without_events_is_cached_for_the_tip_at_most(none: dict[str, Any]) -> None:
    wanted = {"from_block": {"block_number": 1}, "to_block": {"block_number": 5}, "chunk_size": 10}
    assert kept("starknet_getEvents", [wanted], none) == TIP
    assert kept("starknet_getEvents", [wanted], {"events": [{"block_number": 2}]}) == Keep(Holds.FOREVER, 5)


# --- Finality of Starknet -----------------------------------------------------------------------------------


def block(number: int, status: str) -> dict[str, Any]:
    return {"status": status, "block_hash": "0x5", "block_number": number, "transactions": ["0x1"] * 9}


@pytest.mark.parametrize("block_id", [{"block_number": 800}, {"block_hash": "0x5"}])
def test_block_of_starknet_is_cached_for_ever_once_its_status_is_final(block_id: dict[str, Any]) -> None:
    for name in ("starknet_getBlockWithTxHashes", "starknet_getBlockWithTxs", "starknet_getBlockWithReceipts"):
        assert kept(name, [block_id], block(800, "ACCEPTED_ON_L1")) == Keep(Holds.FOREVER, 800)
        assert kept(name, [block_id], block(800, "ACCEPTED_ON_L2")) == TIP
        assert kept(name, [block_id], block(800, "PRE_CONFIRMED")) == NOT


def test_block_of_starknet_not_known_to_be_final_is_cached_until_a_reorganisation() -> None:
    found = kept("starknet_getBlockWithTxs", [{"block_number": 950}], block(950, "ACCEPTED_ON_L1"))
    assert found == Keep(Holds.BLOCK, 950)


def test_state_of_starknet_has_no_status() -> None:
    assert kept("starknet_getNonce", [{"block_number": 950}, "0x1"], "0x5") == Keep(Holds.BLOCK, 950)
    assert kept("starknet_getNonce", [{"block_hash": "0x5"}, "0x1"], "0x5") == Keep(Holds.FOREVER)


@pytest.mark.parametrize(
    ("status", "number", "rest", "keep"),
    [
        ("ACCEPTED_ON_L1", 0, {"block_hash": "0x5"}, Keep(Holds.FOREVER, 0)),
        ("ACCEPTED_ON_L1", FINALIZED, {"block_hash": "0x5"}, Keep(Holds.FOREVER, FINALIZED)),
        ("ACCEPTED_ON_L1", FINALIZED + 1, {"block_hash": "0x5"}, Keep(Holds.BLOCK, FINALIZED + 1)),
        ("ACCEPTED_ON_L1", 950, {"block_hash": "0x5"}, Keep(Holds.BLOCK, 950)),
        ("ACCEPTED_ON_L2", 950, {"block_hash": "0x5"}, TIP),
        ("ACCEPTED_ON_L2", 800, {"block_hash": "0x5"}, TIP),
        ("ACCEPTED_ON_L1", HEAD + 1, {"block_hash": "0x5"}, NOT),
        ("PRE_CONFIRMED", HEAD + 1, {}, NOT),
        ("PRE_CONFIRMED", 950, {}, NOT),
        ("ACCEPTED_ON_L2", 950, {}, NOT),
        ("ACCEPTED_ON_L2", None, {"block_hash": "0x5"}, NOT),
    ],
)
def test_receipt_of_starknet_is_cached_with_its_finality(
    status: str, number: int | None, rest: dict[str, Any], keep: Keep
) -> None:
    answer = {"finality_status": status, "execution_status": "SUCCEEDED", "block_number": number, **rest}
    assert kept("starknet_getTransactionReceipt", ["0x1"], answer) == keep


# --- What an answer shows -----------------------------------------------------------------------------------


def shown(name: str, given: list[Any], answer: Any) -> int | None:
    catalogue = STARKNET if name.startswith("starknet_") else ETH
    return catalogue.revealed(name, catalogue.scope(name, params(given)), result(answer))


@pytest.mark.parametrize(
    ("name", "given", "answer"),
    [
        ("eth_blockNumber", [], "0x3e8"),
        ("eth_getBlockByNumber", ["latest", True], {"transactions": [{"number": "0x1"}], "number": "0x3e8"}),
        ("eth_getBlockByNumber", [], {"number": "0x3e8"}),
        ("starknet_blockNumber", [], 1_000),
        ("starknet_blockHashAndNumber", [], {"block_hash": "0x5", "block_number": 1_000}),
        ("starknet_getBlockWithTxs", ["latest"], block(1_000, "ACCEPTED_ON_L2")),
        ("starknet_getBlockWithTxHashes", ["latest"], block(1_000, "ACCEPTED_ON_L2")),
        ("starknet_getBlockWithReceipts", ["latest"], block(1_000, "ACCEPTED_ON_L2")),
    ],
)
def test_answer_about_latest_shows_the_head(name: str, given: list[Any], answer: Any) -> None:
    assert shown(name, given, answer) == 1_000


@pytest.mark.parametrize(
    ("name", "given", "answer"),
    [
        ("eth_getBlockByNumber", ["pending", False], {"number": "0x3e8"}),
        ("eth_getBlockByNumber", ["finalized", False], {"number": "0x3e8"}),
        ("eth_getBlockByNumber", ["safe", False], {"number": "0x3e8"}),
        ("eth_getBlockByNumber", ["0x3e8", False], {"number": "0x3e8"}),
        ("eth_getBlockByNumber", ["latest", False], None),
        ("eth_getBlockByHash", [HASH, False], {"number": "0x3e8"}),
        ("eth_getTransactionReceipt", [HASH], receipt("0x3e8")),
        ("eth_getBalance", ["0x1", "latest"], "0x3e8"),
        ("eth_blockNumber", [], "1000"),
        ("eth_blockNumber", [], {"number": "0x3e8"}),
        ("eth_blockNumber", [], hex(1 << 70)),
        ("starknet_blockNumber", [], -1),
        ("starknet_blockNumber", [], 1.5),
        ("starknet_getBlockWithTxs", ["pre_confirmed"], {"block_number": 1_000}),
        ("starknet_getBlockWithTxs", ["latest"], {"block_number": 1_000}),
        ("starknet_getBlockWithTxs", ["l1_accepted"], block(1_000, "ACCEPTED_ON_L1")),
        ("foo_bar", [], "0x3e8"),
    ],
)
def test_other_answers_do_not_show_the_head(name: str, given: list[Any], answer: Any) -> None:
    assert shown(name, given, answer) is None
