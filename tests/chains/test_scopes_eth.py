"""What a call of the `eth` family refers to."""

from typing import Any

import pytest
from tests.chains.calls import params, written

from tollgate.chains.catalogue import Catalogue, Holds, Scope
from tollgate.chains.methods import UNREADABLE
from tollgate.chains.scopes import _KEPT_BYTES, _MAX_KEPT, MAX_NUMBER, _Written

ETH = Catalogue("eth")
ADDRESS = "0x" + "1" * 40
HASH = "0x" + "ab" * 32


def scope(name: str, *given: Any) -> Scope:
    return ETH.scope(name, params(list(given)))


def at(name: str, block: Any) -> Scope:
    """The scope of a state read of this method at a block."""
    method = ETH.method(name)
    assert method is not None
    assert method.block is not None
    return scope(name, *[ADDRESS] * method.block, block)


STATE = ["eth_getBalance", "eth_call", "eth_getStorageAt", "eth_getProof", "trace_call", "trace_block"]


@pytest.mark.parametrize("name", STATE)
@pytest.mark.parametrize("tag", ["latest", "safe", "finalized"])
def test_tags_that_move_hold_for_the_tip(name: str, tag: str) -> None:
    found = at(name, tag)
    assert (found.holds, found.tip, found.number, found.state) == (Holds.TIP, True, None, True)


@pytest.mark.parametrize("name", STATE)
def test_pending_is_never_cached_and_depends_on_the_head(name: str) -> None:
    found = at(name, "pending")
    assert (found.holds, found.tip) == (Holds.NEVER, True)


def test_pending_nonce_is_never_cached() -> None:
    assert scope("eth_getTransactionCount", ADDRESS, "pending").holds is Holds.NEVER
    assert scope("eth_getTransactionCount", ADDRESS, "latest").holds is Holds.TIP


@pytest.mark.parametrize("name", STATE)
def test_earliest_holds_for_ever_and_is_block_zero(name: str) -> None:
    found = at(name, "earliest")
    assert (found.holds, found.tip, found.number, found.oldest) == (Holds.FOREVER, False, 0, 0)


@pytest.mark.parametrize("name", ["eth_getBalance", "eth_call", "eth_estimateGas", "eth_createAccessList"])
@pytest.mark.parametrize("given", [None, [], [ADDRESS], [ADDRESS, None]])
def test_absent_block_argument_is_latest(name: str, given: list[Any] | None) -> None:
    found = ETH.scope(name, None if given is None else params(given))
    assert (found.holds, found.tip, found.state) == (Holds.TIP, True, True)


@pytest.mark.parametrize("name", STATE)
@pytest.mark.parametrize("text", ["0x1bC", "0x1BC", "0x1bc", "0X1bc", "0x01bc"])
def test_number_is_a_quantity_in_any_case(name: str, text: str) -> None:
    assert at(name, text) == Scope(Holds.BLOCK, False, 0x1BC, 0x1BC, state=True)


@pytest.mark.parametrize("block", [444, "0x" + "1bc".zfill(18)])
def test_number_may_be_an_integer_or_have_leading_zeros(block: Any) -> None:
    assert at("eth_getBalance", block).number == 444


def test_greatest_number_is_read() -> None:
    assert at("eth_getBalance", hex(MAX_NUMBER)).number == MAX_NUMBER
    assert at("eth_getBalance", f"0x{MAX_NUMBER + 1:064x}").holds is Holds.HASH


@pytest.mark.parametrize(
    "block",
    [
        "0x",
        "0xzz",
        "0x1_0",
        "444",
        "",
        "newest",
        -1,
        1.5,
        True,
        [],
        ["latest"],
        {},
        {"blockNumber": "0x1", "blockHash": HASH},
        {"blockNumber": True},
        {"blockNumber": "0x1_0"},
        {"blockNumber": "0x" + "f" * 16},
        {"blockHash": 5},
        "0x" + "f" * 16,
        hex(MAX_NUMBER + 1),
        "0x" + "0" * 18 + "1",
        f"0x{MAX_NUMBER:064x}",
        "0x" + "0" * 64,
        "0x" + "f" * 63,
        "0x" + "f" * 100_000,
        1 << 62,
        1 << 80,
    ],
)
def test_unreadable_block_argument_is_not_cached_and_may_depend_on_the_head(block: Any) -> None:
    assert at("eth_getBalance", block) == UNREADABLE == Scope(Holds.NEVER, tip=True)


def test_tag_may_be_written_with_escapes_blanks_and_capitals() -> None:
    for text in (b'["0x1", "l\\u0061test"]', b'["0x1" ,  "latest" ]', b'["0x1","LATEST"]'):
        assert ETH.scope("eth_getBalance", written(text)).holds is Holds.TIP
    assert ETH.scope("eth_getBalance", written(b'["0x1","P\\u0045NDING"]')).holds is Holds.NEVER
    assert ETH.scope("eth_getBalance", written(b'["0x1","\\u0030x10"]')).number == 16


def test_named_parameters_are_not_understood_by_eth_nodes() -> None:
    assert ETH.scope("eth_getBalance", params({"block": "0x1"})) == UNREADABLE


# --- EIP-1898 and bare hashes -------------------------------------------------------------------------------


def test_block_by_hash_in_an_object_holds_by_hash() -> None:
    found = at("eth_call", {"blockHash": HASH})
    assert (found.holds, found.tip, found.number, found.state) == (Holds.HASH, True, None, True)
    assert at("eth_call", {"blockHash": HASH, "requireCanonical": False, "blockNumber": None}) == found


def test_hash_that_must_be_canonical_holds_for_the_tip_only() -> None:
    assert at("eth_call", {"blockHash": HASH, "requireCanonical": True}) == Scope(Holds.TIP, True, state=True)


@pytest.mark.parametrize(
    ("number", "holds"),
    [("0x10", Holds.BLOCK), ("latest", Holds.TIP), ("pending", Holds.NEVER), ("earliest", Holds.FOREVER)],
)
def test_block_by_number_or_tag_in_an_object(number: str, holds: Holds) -> None:
    assert at("eth_getBalance", {"blockNumber": number}).holds is holds


def test_bare_hash_is_a_block_where_nodes_accept_one() -> None:
    assert at("eth_getBalance", HASH).holds is Holds.HASH
    assert scope("eth_getBlockReceipts", HASH).holds is Holds.HASH
    assert scope("eth_getBlockByNumber", HASH, False) == UNREADABLE


# --- Methods ------------------------------------------------------------------------------------------------


def test_chain_id_holds_for_ever() -> None:
    for name in ("eth_chainId", "net_version", "web3_sha3"):
        assert (scope(name).holds, scope(name).tip) == (Holds.FOREVER, False)


@pytest.mark.parametrize("name", ["eth_blockNumber", "eth_gasPrice", "eth_syncing", "eth_maxPriorityFeePerGas"])
def test_readings_of_the_tip(name: str) -> None:
    assert (scope(name).holds, scope(name).tip) == (Holds.TIP, True)


def test_block_by_number() -> None:
    assert scope("eth_getBlockByNumber", "latest", False).holds is Holds.TIP
    assert scope("eth_getBlockByNumber", "0x10", True).number == 16
    assert not scope("eth_getBlockByNumber", "0x10", True).state
    assert scope("eth_getBlockByHash", HASH, True).holds is Holds.HASH


def test_state_override_does_not_change_what_a_call_refers_to() -> None:
    assert scope("eth_call", {"to": ADDRESS}, "0x10", {ADDRESS: {"balance": "0x0"}}) == at("eth_call", "0x10")


def test_fee_history_ends_with_its_second_parameter() -> None:
    assert scope("eth_feeHistory", "0x5", "0x64", [25]).number == 100
    assert scope("eth_feeHistory", "0x5", "latest", [25]).holds is Holds.TIP
    assert scope("eth_feeHistory", 5, "pending").holds is Holds.NEVER


@pytest.mark.parametrize("name", ["eth_estimateGas", "eth_simulateV1", "eth_createAccessList", "debug_traceCall"])
def test_simulation_at_latest_holds_for_the_tip(name: str) -> None:
    assert scope(name, {}, "latest").holds is Holds.TIP
    assert scope(name, {}, "0x5").holds is Holds.BLOCK


@pytest.mark.parametrize("name", ["eth_getTransactionReceipt", "eth_getTransactionByHash", "trace_transaction"])
def test_transaction_by_hash_holds_with_its_block_and_requires_an_upstream_at_the_head(name: str) -> None:
    assert (scope(name, HASH).holds, scope(name, HASH).tip) == (Holds.MINED, True)


@pytest.mark.parametrize("name", ["debug_traceTransaction", "trace_replayTransaction"])
def test_trace_without_a_block_in_it_holds_for_the_tip_at_most(name: str) -> None:
    assert scope(name, HASH, {}).holds is Holds.TIP


# --- Ranges -------------------------------------------------------------------------------------------------


def logs(**given: Any) -> Scope:
    return scope("eth_getLogs", {"address": ADDRESS, "topics": [None, [HASH]], **given})


def test_range_of_numbers_names_both_ends() -> None:
    assert logs(fromBlock="0x10", toBlock="0x20") == Scope(Holds.RANGE, False, 0x20, 0x10)
    assert logs(fromBlock="earliest", toBlock="0x20") == Scope(Holds.RANGE, False, 0x20, 0)
    assert logs(fromBlock="0x10", toBlock="0x10") == Scope(Holds.RANGE, False, 0x10, 0x10)


@pytest.mark.parametrize("stop", ["latest", "safe", "finalized", None])
def test_range_up_to_a_tag_holds_for_the_tip(stop: str | None) -> None:
    assert logs(fromBlock="0x10", toBlock=stop) == Scope(Holds.TIP, True, 0x10, 0x10)
    assert logs(fromBlock="0x10") == Scope(Holds.TIP, True, 0x10, 0x10)


def test_range_from_a_tag_holds_for_the_tip() -> None:
    assert logs(fromBlock="latest", toBlock="0x10").holds is Holds.TIP
    assert logs(toBlock="0x10").holds is Holds.TIP
    assert logs().holds is Holds.TIP


def test_range_that_includes_pending_is_never_cached() -> None:
    assert logs(fromBlock="0x10", toBlock="pending") == Scope(Holds.NEVER, True, 0x10, 0x10)
    assert logs(fromBlock="pending").holds is Holds.NEVER


def test_inverted_range_is_never_cached() -> None:
    assert logs(fromBlock="0x20", toBlock="0x10") == Scope(Holds.NEVER, False, 0x20, 0x10)


def test_logs_of_a_block_by_hash_hold_by_hash() -> None:
    assert logs(blockHash=HASH).holds is Holds.HASH
    assert logs(blockHash=HASH, fromBlock="0x1") == UNREADABLE


@pytest.mark.parametrize(
    "given", [[], ["latest"], [{"fromBlock": {}}], [{"fromBlock": [1]}], [{"toBlock": "0x1_0"}], [None]]
)
def test_filter_that_cannot_be_read(given: list[Any]) -> None:
    assert ETH.scope("eth_getLogs", params(given)) == UNREADABLE


def test_traces_of_a_range_need_state() -> None:
    assert scope("trace_filter", {"fromBlock": "0x1", "toBlock": "0x5"}) == Scope(
        Holds.RANGE, False, 5, 1, state=True
    )


def test_unknown_method_is_not_cached_and_may_depend_on_the_head() -> None:
    assert ETH.scope("foo_bar", params(["latest"])) == UNREADABLE
    assert Catalogue("solana").scope("getSlot", None) == UNREADABLE


def test_write_does_not_depend_on_the_head() -> None:
    assert ETH.scope("eth_sendRawTransaction", params(["0x02"])) == Scope(Holds.NEVER)


def test_blocks_and_tags_are_read_alike_however_many_were_read_before() -> None:
    for number in [*range(300), 5, 299, *range(300)]:
        assert at("eth_call", hex(number)).number == number
        assert at("eth_call", "latest").holds is Holds.TIP
        assert at("eth_call", "pending").holds is Holds.NEVER
        assert at("eth_call", f"0x{number:x}_0") is UNREADABLE
        assert at("eth_call", {"blockNumber": hex(number)}).number == number


def test_cache_of_parsed_arguments_is_bounded() -> None:
    kept = _Written({b"tag": UNREADABLE}, lambda text: Scope(Holds.BLOCK, number=len(text)))
    for number in range(1_000):
        assert kept[b"x" * (number % 300)].number == number % 300
        assert len(kept) <= _MAX_KEPT
    assert max(len(text) for text in kept) <= _KEPT_BYTES
    kept.clear()
    assert [kept[b"x" * size].number for size in (_KEPT_BYTES, _KEPT_BYTES + 1)] == [_KEPT_BYTES, _KEPT_BYTES + 1]
    assert list(map(len, kept)) == [_KEPT_BYTES]
    for number in range(_MAX_KEPT):
        assert kept[b"%d" % number].number
    assert kept[b"tag"] is UNREADABLE
