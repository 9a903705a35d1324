"""What a call of the `starknet` family refers to."""

from typing import Any

import pytest
from tests.chains.calls import params

from tollgate.chains.catalogue import Catalogue, Holds, Scope
from tollgate.chains.methods import UNREADABLE
from tollgate.chains.starknet import STARKNET_METHODS

STARKNET = Catalogue("starknet")
FELT = "0x" + "1" * 62
PLACES = {
    "starknet_getBlockWithTxHashes": 0,
    "starknet_getBlockWithTxs": 0,
    "starknet_getBlockWithReceipts": 0,
    "starknet_getStateUpdate": 0,
    "starknet_getStorageAt": 2,
    "starknet_getTransactionByBlockIdAndIndex": 0,
    "starknet_getClass": 0,
    "starknet_getClassHashAt": 0,
    "starknet_getClassAt": 0,
    "starknet_getBlockTransactionCount": 0,
    "starknet_call": 1,
    "starknet_estimateFee": 2,
    "starknet_estimateMessageFee": 1,
    "starknet_getNonce": 0,
    "starknet_getStorageProof": 0,
    "starknet_simulateTransactions": 0,
    "starknet_traceBlockTransactions": 0,
}
"""Where the specification puts `block_id`."""


def both(name: str, block: Any) -> Scope:
    """The scope of a call at a block, the same whether its parameters have names or positions."""
    placed = STARKNET.scope(name, params([*[FELT] * PLACES[name], block, FELT, FELT]))
    named = STARKNET.scope(name, params({"contract_address": FELT, "block_id": block, "index": 1}))
    assert placed == named
    return placed


def test_every_method_with_a_block_argument_is_placed() -> None:
    assert {method.name for method in STARKNET_METHODS if method.member == "block_id"} == set(PLACES)


@pytest.mark.parametrize("name", PLACES)
def test_block_argument_by_position_and_by_name(name: str) -> None:
    assert both(name, "latest").holds is Holds.TIP
    assert both(name, "l1_accepted").holds is Holds.TIP
    assert both(name, "pre_confirmed").holds is Holds.NEVER
    assert both(name, "pending").holds is Holds.NEVER
    assert both(name, {"block_hash": FELT}).holds is Holds.HASH
    found = both(name, {"block_number": 123_456})
    assert (found.holds, found.tip, found.number, found.oldest) == (Holds.BLOCK, False, 123_456, 123_456)


@pytest.mark.parametrize("name", PLACES)
def test_absent_block_argument_is_latest(name: str) -> None:
    for given in (None, params([]), params([FELT] * PLACES[name]), params({}), params({"contract_address": FELT})):
        found = STARKNET.scope(name, given)
        assert (found.holds, found.tip) == (Holds.TIP, True)
    assert both(name, None).holds is Holds.TIP


@pytest.mark.parametrize(
    "block",
    [
        "newest",
        "",
        5,
        -1,
        True,
        [],
        {},
        {"block_number": "0x5"},
        {"block_number": -1},
        {"block_number": 1 << 70},
        {"block_number": 1.5},
        {"block_number": 1, "block_hash": FELT},
        {"block_hash": 1},
        {"number": 1},
    ],
)
def test_block_that_cannot_be_read(block: Any) -> None:
    assert both("starknet_call", block) == UNREADABLE


def test_state_is_needed_by_calls_and_not_by_blocks() -> None:
    assert both("starknet_call", {"block_number": 5}).state
    assert both("starknet_getStorageAt", "latest").state
    assert not both("starknet_getBlockWithTxs", {"block_number": 5}).state


@pytest.mark.parametrize(
    "name", ["starknet_estimateFee", "starknet_simulateTransactions", "starknet_estimateMessageFee"]
)
def test_simulation_at_latest_holds_for_the_tip(name: str) -> None:
    assert both(name, "latest").holds is Holds.TIP


def test_methods_without_a_block() -> None:
    assert STARKNET.scope("starknet_chainId", None) == Scope(Holds.FOREVER)
    assert STARKNET.scope("starknet_blockNumber", params([])).holds is Holds.TIP
    assert STARKNET.scope("starknet_syncing", None).holds is Holds.TIP
    assert STARKNET.scope("starknet_getTransactionReceipt", params([FELT])).holds is Holds.MINED
    assert STARKNET.scope("starknet_getTransactionByHash", params([FELT])).holds is Holds.TIP
    status = STARKNET.scope("starknet_getTransactionStatus", params([FELT]))
    assert (status.holds, status.tip) == (Holds.NEVER, True)


# --- Events -------------------------------------------------------------------------------------------------


def events(**given: Any) -> Scope:
    """The scope of a search for events, the same by name and by position."""
    wanted = {"address": FELT, "keys": [[FELT]], "chunk_size": 100, **given}
    placed = STARKNET.scope("starknet_getEvents", params([wanted]))
    assert placed == STARKNET.scope("starknet_getEvents", params({"filter": wanted}))
    return placed


def test_range_of_numbers_names_both_ends() -> None:
    found = events(from_block={"block_number": 10}, to_block={"block_number": 20})
    assert found == Scope(Holds.RANGE, False, 20, 10)
    assert found == events(
        from_block={"block_number": 10}, to_block={"block_number": 20}, continuation_token="12-5"
    )


def test_range_without_a_beginning_begins_with_the_first_block() -> None:
    assert events(to_block={"block_number": 20}) == Scope(Holds.RANGE, False, 20, 0)


@pytest.mark.parametrize("stop", [None, "latest", "l1_accepted"])
def test_range_up_to_a_tag_holds_for_the_tip(stop: str | None) -> None:
    assert events(from_block={"block_number": 10}, to_block=stop) == Scope(Holds.TIP, True, 10, 10)
    assert events().holds is Holds.TIP


def test_range_that_includes_unconfirmed_blocks_is_never_cached() -> None:
    assert events(from_block={"block_number": 1}, to_block="pre_confirmed").holds is Holds.NEVER
    assert events(from_block="pending", to_block={"block_number": 1}).holds is Holds.NEVER


def test_inverted_range_is_never_cached() -> None:
    assert events(from_block={"block_number": 9}, to_block={"block_number": 5}) == Scope(Holds.NEVER, False, 9, 5)


def test_range_that_ends_with_a_hash_holds_by_hash() -> None:
    found = events(from_block={"block_number": 10}, to_block={"block_hash": FELT})
    assert (found.holds, found.tip, found.number, found.oldest) == (Holds.HASH, True, None, 10)
    assert events(from_block={"block_hash": FELT}, to_block={"block_hash": FELT}).holds is Holds.HASH


def test_range_that_begins_with_a_hash_holds_with_its_end() -> None:
    found = events(from_block={"block_hash": FELT}, to_block={"block_number": 20})
    assert (found.holds, found.tip, found.number) == (Holds.RANGE, True, 20)
    assert events(from_block={"block_hash": FELT}, to_block="latest").holds is Holds.TIP
    assert events(from_block="latest", to_block={"block_hash": FELT}).holds is Holds.TIP


@pytest.mark.parametrize("given", [[], [5], ["latest"], [{"to_block": 5}], [{"from_block": "soon"}]])
def test_filter_that_cannot_be_read(given: list[Any]) -> None:
    assert STARKNET.scope("starknet_getEvents", params(given)) == UNREADABLE
