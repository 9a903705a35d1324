"""The simulated Starknet network, called as a client would call it."""

import re
from inspect import signature
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.demo.chain import BLOCK_SECONDS
from tollgate.demo.params import RpcError
from tollgate.demo.starknet_methods import METHODS, starknet_network
from tollgate.demo.starknet_shapes import ETH, FEE, L1_BEHIND, STRK, selector

GENESIS = 1_800_000_000
HEAD = 5_001
NOW = GENESIS + HEAD * BLOCK_SECONDS + 0.5
NODE = starknet_network("mainnet", GENESIS)
FELT = re.compile(r"0x(0|[1-9a-f][0-9a-f]{0,62})")


def rpc(method: str, *params: object, now: float = NOW, **named: object) -> Any:
    return NODE.answer(f"starknet_{method}", named or list(params), now)


def refused(method: str, *params: object, **named: object) -> int:
    with pytest.raises(RpcError) as caught:
        NODE.answer(f"starknet_{method}", named or list(params), NOW)
    return caught.value.code


def number(height: int) -> dict[str, int]:
    return {"block_number": height}


def test_chain_ids_are_those_of_the_real_networks() -> None:
    assert bytes.fromhex(rpc("chainId")[2:]) == b"SN_MAIN"
    sepolia = starknet_network("sepolia", GENESIS).answer("starknet_chainId", [], NOW)
    assert bytes.fromhex(str(sepolia)[2:]) == b"SN_SEPOLIA"


def test_selectors_are_starknet_s_own() -> None:
    assert hex(selector("balanceOf")) == "0x2e4263afad30923c891518314c3c95dbe830a16874e8abc5777a9a20b54c76e"
    assert hex(selector("Transfer")) == "0x99cd8bde557814842a3121e8ddfd433a539b8c9f14bf31ebf108d12e6196e9"


def test_blocks_advance_with_time() -> None:
    assert rpc("blockNumber") == HEAD
    assert rpc("blockNumber", now=NOW + BLOCK_SECONDS) == HEAD + 1
    assert rpc("blockHashAndNumber")["block_number"] == HEAD
    assert rpc("syncing") is False


def test_params_come_by_position_or_by_name() -> None:
    assert rpc("getBlockWithTxs", "latest") == rpc("getBlockWithTxs", block_id="latest")
    assert refused("getBlockWithTxs", block="latest") == -32602
    assert refused("getBlockWithTxs") == -32602
    assert refused("getBlockWithTxs", "latest", [], 1) == -32602


@given(st.integers(1, HEAD))
def test_a_block_by_number_is_the_same_by_hash_and_links_to_its_parent(height: int) -> None:
    block = rpc("getBlockWithTxHashes", number(height))
    assert rpc("getBlockWithTxHashes", {"block_hash": block["block_hash"]}) == block
    assert block["block_number"] == height
    assert block["parent_hash"] == rpc("getBlockWithTxHashes", number(height - 1))["block_hash"]
    update = rpc("getStateUpdate", number(height))
    assert update["new_root"] == block["new_root"]
    assert update["old_root"] == rpc("getStateUpdate", number(height - 1))["new_root"]


@given(st.integers(0, HEAD))
def test_the_three_views_of_a_block_agree(height: int) -> None:
    hashes = rpc("getBlockWithTxHashes", number(height))
    whole = rpc("getBlockWithTxs", number(height))
    receipts = rpc("getBlockWithReceipts", number(height))
    for name in hashes.keys() - {"transactions"}:
        assert hashes[name] == whole[name] == receipts[name]
    assert [one["transaction_hash"] for one in whole["transactions"]] == hashes["transactions"]
    assert [one["receipt"]["transaction_hash"] for one in receipts["transactions"]] == hashes["transactions"]
    assert hashes["transaction_count"] == len(hashes["transactions"])
    assert rpc("getBlockTransactionCount", number(height)) == hashes["transaction_count"]
    events = [event for one in receipts["transactions"] for event in one["receipt"]["events"]]
    assert hashes["event_count"] == len(events)
    for index, one in enumerate(hashes["transactions"]):
        assert rpc("getTransactionByHash", one) == whole["transactions"][index]
        assert rpc("getTransactionByBlockIdAndIndex", number(height), index) == whole["transactions"][index]
        alone = rpc("getTransactionReceipt", one)
        assert alone["block_hash"] == hashes["block_hash"]
        inside = receipts["transactions"][index]["receipt"]
        assert {name: alone[name] for name in inside} == inside


def felts(value: object) -> list[str]:
    if isinstance(value, dict):
        return [found for member in value.values() for found in felts(member)]
    if isinstance(value, list):
        return [found for member in value for found in felts(member)]
    return [value] if isinstance(value, str) and value.startswith("0x") else []


@given(st.integers(0, HEAD))
def test_every_felt_is_written_as_the_specification_requires(height: int) -> None:
    shown = [rpc("getBlockWithReceipts", number(height)), rpc("getStateUpdate", number(height))]
    for value in felts(shown):
        assert FELT.fullmatch(value)
        assert int(value, 16) < 2**251


def test_the_length_of_a_state_diff_is_what_the_header_specifies() -> None:
    for height in range(10):
        diff = rpc("getStateUpdate", number(height))["state_diff"]
        entries = sum(len(one["storage_entries"]) for one in diff["storage_diffs"])
        assert rpc("getBlockWithTxHashes", number(height))["state_diff_length"] == entries + len(diff["nonces"])


def test_the_pre_confirmed_block_is_on_top_and_has_no_hash() -> None:
    block = rpc("getBlockWithTxs", "pre_confirmed")
    assert block["block_number"] == HEAD + 1
    assert not {"block_hash", "parent_hash", "new_root", "status"} & block.keys()
    assert rpc("getBlockTransactionCount", "pre_confirmed") == len(block["transactions"])
    first = block["transactions"][0]
    assert rpc("getTransactionStatus", first["transaction_hash"])["finality_status"] == "PRE_CONFIRMED"
    receipt = rpc("getTransactionReceipt", first["transaction_hash"])
    assert (receipt["block_number"], "block_hash" in receipt) == (HEAD + 1, False)
    sender = first["sender_address"]
    assert rpc("getNonce", "latest", sender) == first["nonce"]
    assert rpc("getNonce", "pre_confirmed", sender) == hex(int(first["nonce"], 16) + 1)
    later = rpc("getBlockWithTxs", number(HEAD + 1), now=NOW + BLOCK_SECONDS)
    assert later["transactions"] == block["transactions"]
    update = rpc("getStateUpdate", "pre_confirmed")
    assert update.keys() == {"old_root", "state_diff"}
    assert update["old_root"] == rpc("getStateUpdate", "latest")["new_root"]


def test_old_blocks_are_accepted_on_l1() -> None:
    assert rpc("getBlockWithTxHashes", "l1_accepted")["block_number"] == HEAD - L1_BEHIND
    assert rpc("getBlockWithTxHashes", "l1_accepted")["status"] == "ACCEPTED_ON_L1"
    assert rpc("getBlockWithTxHashes", number(HEAD - L1_BEHIND + 1))["status"] == "ACCEPTED_ON_L2"
    old = rpc("getBlockWithTxHashes", "l1_accepted")["transactions"][0]
    assert rpc("getTransactionStatus", old)["finality_status"] == "ACCEPTED_ON_L1"
    assert rpc("getTransactionReceipt", old)["finality_status"] == "ACCEPTED_ON_L1"


def test_what_does_not_exist_has_the_specification_s_codes() -> None:
    assert refused("getBlockWithTxs", number(HEAD + 1)) == 24
    assert refused("getBlockWithTxs", {"block_hash": "0x1"}) == 24
    assert refused("getTransactionByHash", "0x1") == 29
    assert refused("getTransactionReceipt", "0x1") == 29
    assert refused("getTransactionStatus", "0x1") == 29
    assert refused("getTransactionByBlockIdAndIndex", "latest", 99) == 27
    assert refused("getTransactionByBlockIdAndIndex", "pre_confirmed", 99) == 27
    assert refused("getNonce", "latest", "0x1") == 20
    assert refused("getClassHashAt", "latest", "0x1") == 20
    assert refused("getClassAt", "latest", "0x1") == 20
    assert refused("getStorageAt", "0x1", "0x0", "latest") == 20
    assert refused("getClass", "latest", "0x1") == 28
    assert refused("mine") == -32601


def test_a_transaction_of_a_block_to_come_is_unknown_until_then() -> None:
    newest = rpc("getBlockWithTxHashes", "latest")["transactions"][0]
    with pytest.raises(RpcError) as caught:
        rpc("getTransactionByHash", newest, now=NOW - 2 * BLOCK_SECONDS)
    assert caught.value.code == 29


def balance_of(token: int, holder: str, height: int) -> int:
    request = {
        "contract_address": hex(token),
        "entry_point_selector": hex(selector("balanceOf")),
        "calldata": [holder],
    }
    low, high = rpc("call", request, number(height))
    return int(low, 16) + (int(high, 16) << 128)


@given(st.integers(1, HEAD))
def test_nonce_and_balances_follow_the_transactions(height: int) -> None:
    block = rpc("getBlockWithReceipts", number(height))
    first = block["transactions"][0]["transaction"]
    assert rpc("getNonce", number(height - 1), first["sender_address"]) == first["nonce"]
    change: dict[str, int] = {}
    for one in block["transactions"]:
        for event in one["receipt"]["events"]:
            _, sender, recipient = event["keys"]
            amount = int(event["data"][0], 16)
            change[sender] = change.get(sender, 0) - amount
            change[recipient] = change.get(recipient, 0) + amount
    for holder, difference in change.items():
        assert balance_of(STRK, holder, height) - balance_of(STRK, holder, height - 1) == difference
        assert balance_of(ETH, holder, height) == balance_of(ETH, holder, height - 1)


@given(st.integers(1, HEAD))
def test_storage_holds_what_the_state_update_wrote(height: int) -> None:
    diff = rpc("getStateUpdate", number(height))["state_diff"]["storage_diffs"][0]
    for entry in diff["storage_entries"]:
        question = {"contract_address": diff["address"], "key": entry["key"], "block_id": number(height)}
        assert rpc("getStorageAt", **question) == entry["value"]
        flagged = rpc("getStorageAt", **question, response_flags=["INCLUDE_LAST_UPDATE_BLOCK"])
        assert flagged == {"value": entry["value"], "last_update_block": height}


def test_calls_answer_or_show_what_is_missing() -> None:
    def call(contract: int, function: str, *calldata: str) -> dict[str, object]:
        return {
            "contract_address": hex(contract),
            "entry_point_selector": hex(selector(function)),
            "calldata": list(calldata),
        }

    assert rpc("call", call(STRK, "symbol"), "latest") == ["0x" + b"STRK".hex()]
    assert rpc("call", call(ETH, "symbol"), "latest") == ["0x" + b"ETH".hex()]
    assert rpc("call", call(STRK, "decimals"), "latest") == ["0x12"]
    assert refused("call", call(STRK, "mint"), "latest") == 21
    assert refused("call", call(STRK, "balanceOf"), "latest") == 40
    assert refused("call", call(1, "symbol"), "latest") == 20
    assert refused("call", call(STRK, "symbol"), number(HEAD + 1)) == 24
    assert refused("call", {}, "latest") == -32602


def test_a_class_has_the_interface_that_calls_answer() -> None:
    class_hash = rpc("getClassHashAt", "latest", hex(STRK))
    shown = rpc("getClass", "latest", class_hash)
    assert shown == rpc("getClassAt", "latest", hex(STRK))
    interface = msgspec.json.decode(shown["abi"])[-1]
    functions = [item["name"] for item in interface["items"]]
    points = {point["selector"] for point in shown["entry_points_by_type"]["EXTERNAL"]}
    assert points == {hex(selector(name)) for name in functions}
    assert "balanceOf" in functions


def all_events(**wanted: object) -> list[dict[str, Any]]:
    found, token = [], None
    while True:
        question = wanted | ({"continuation_token": token} if token else {})
        page = rpc("getEvents", question)
        assert len(page["events"]) <= int(str(wanted["chunk_size"]))
        found += page["events"]
        token = page.get("continuation_token")
        if token is None:
            return found


@given(st.integers(0, HEAD - 3), st.integers(1, 9))
def test_pages_of_events_add_up_to_the_receipts(first: int, size: int) -> None:
    expected = []
    for height in range(first, first + 3):
        for one in rpc("getBlockWithReceipts", number(height))["transactions"]:
            expected += one["receipt"]["events"]
    found = all_events(from_block=number(first), to_block=number(first + 2), chunk_size=size)
    assert [{name: one[name] for name in ("from_address", "keys", "data")} for one in found] == expected
    slots = [(one["block_number"], one["transaction_index"], one["event_index"]) for one in found]
    assert slots == sorted(set(slots))


def test_events_are_filtered_by_address_and_keys() -> None:
    block = {"from_block": number(100), "to_block": number(102), "chunk_size": 100}
    everything = all_events(**block)
    keys = everything[0]["keys"]
    assert all_events(**block, address=hex(STRK)) == everything
    assert all_events(**block, address=[hex(STRK), "0x1"]) == everything
    assert all_events(**block, address="0x1") == []
    by_sender = all_events(**block, keys=[[keys[0]], [keys[1], "0x1"]])
    assert by_sender == [one for one in everything if one["keys"][1] == keys[1]]
    assert all_events(**block, keys=[[], [], []]) == everything
    assert all_events(**block, keys=[[], [], [], []]) == []


def test_a_search_that_finds_nothing_comes_to_an_end_in_bounded_steps() -> None:
    page = rpc("getEvents", {"address": "0x1", "chunk_size": 10})
    assert page == {"events": [], "continuation_token": "500-0"}
    assert all_events(address="0x1", chunk_size=10) == []


def test_an_event_filter_s_bounds_have_the_specification_s_codes() -> None:
    assert refused("getEvents", {"chunk_size": 1025}) == 31
    assert refused("getEvents", {"chunk_size": 0}) == -32602
    assert refused("getEvents", {}) == -32602
    assert refused("getEvents", {"chunk_size": 1, "keys": [[]] * 17}) == 34
    for token in ("x", "99999-0", "-1-0", 7, "1-1-1"):
        assert refused("getEvents", {"chunk_size": 1, "continuation_token": token}) == 33
    null_ends = {"chunk_size": 1, "from_block": number(HEAD), "to_block": None}
    assert len(rpc("getEvents", null_ends)["events"]) == 1


def test_sent_transactions_are_accepted_with_a_hash() -> None:
    sent = rpc("addInvokeTransaction", invoke_transaction={"type": "INVOKE", "nonce": "0x1"})
    assert refused("addInvokeTransaction", {"nonce": "0x1", "type": "INVOKE"}) == 59
    assert FELT.fullmatch(sent["transaction_hash"])
    assert "class_hash" in rpc("addDeclareTransaction", {})
    assert "contract_address" in rpc("addDeployAccountTransaction", {})
    assert refused("addInvokeTransaction", "0x1") == -32602


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("Invoke", {"sender_address": "0x0123", "calldata": ["0x1", "0x02"], "nonce": "0x3"}),
        ("Invoke", {"sender_address": 7, "calldata": "0x1", "signature": ["no felt"]}),
        ("Declare", {"contract_class": {"abi": "[]"}, "compiled_class_hash": "0x5"}),
        ("DeployAccount", {"class_hash": "0x6", "constructor_calldata": ["0x7"]}),
    ],
)
def test_a_sent_transaction_is_received_and_then_in_the_next_block(kind: str, given: dict[str, Any]) -> None:
    node = starknet_network("mainnet", GENESIS)

    def on(method: str, *params: object, later: float = 0.0) -> Any:
        return node.answer(f"starknet_{method}", list(params), NOW + later)

    name = on(f"add{kind}Transaction", given)["transaction_hash"]
    assert on("getTransactionStatus", name) == {"finality_status": "RECEIVED"}
    with pytest.raises(RpcError):
        on("getTransactionReceipt", name)
    block = on("getBlockWithReceipts", "latest", later=BLOCK_SECONDS)
    mined = block["transactions"][-1]
    assert mined["receipt"]["transaction_hash"] == name
    assert block["transaction_count"] == len(block["transactions"])
    events = [event for one in block["transactions"] for event in one["receipt"]["events"]]
    assert block["event_count"] == len(events)
    found = on(
        "getEvents",
        {"from_block": number(HEAD + 1), "to_block": number(HEAD + 1), "chunk_size": 100},
        later=BLOCK_SECONDS,
    )
    assert [event["transaction_hash"] for event in found["events"]].count(name) == 1
    assert len(found["events"]) == len(events)
    shown = on("getTransactionByHash", name, later=BLOCK_SECONDS)
    assert shown == {**mined["transaction"], "transaction_hash": name}
    assert (
        on("getTransactionByBlockIdAndIndex", "latest", block["transaction_count"] - 1, later=BLOCK_SECONDS)
        == shown
    )
    assert on("getTransactionStatus", name, later=BLOCK_SECONDS)["finality_status"] == "ACCEPTED_ON_L2"
    assert on("getTransactionReceipt", name, later=BLOCK_SECONDS)["block_number"] == HEAD + 1
    assert all(FELT.fullmatch(value) for value in felts([shown, mined]))


def test_a_fee_is_estimated_for_each_transaction() -> None:
    estimates = rpc("estimateFee", [{}, {}], [], "latest")
    assert [one["overall_fee"] for one in estimates] == [hex(FEE)] * 2
    message = {"from_address": "0x1", "to_address": hex(STRK), "entry_point_selector": "0x1", "payload": []}
    assert rpc("estimateMessageFee", message, "latest")["unit"] == "WEI"


@pytest.mark.parametrize(
    "block_id",
    [
        "pending",
        "newest",
        7,
        {},
        number(-1),
        {"block_number": "0x1"},
        {"block_hash": "1"},
        {"block_hash": "0x" + "f" * 64},
        {"block_number": 1, "block_hash": "0x1"},
    ],
)
def test_bad_block_ids_are_refused(block_id: object) -> None:
    assert refused("getBlockWithTxs", block_id) == -32602


NAMES = sorted(
    {name.removeprefix("_") for method in METHODS.values() for name in signature(method).parameters}
    | {"chunk_size", "keys"}
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
    | st.sampled_from(["latest", "pre_confirmed", "0x1", hex(STRK)]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from([*NAMES, "block_number", "block_hash", "calldata", "continuation_token", "address"]),
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
        assert error.code in {-32602, 59, 69} or 20 <= error.code <= 42  # noqa: PT017 - most calls succeed
