"""How each family shows where it is."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.chains import heads
from tollgate.chains.catalogue import Catalogue
from tollgate.chains.heads import Block, Misread, NodeCall

ETH_HASH, ETH_PARENT = "0x" + "Ab" * 32, "0x" + "00" * 31 + "cD"
ETH_BLOCK = {"number": "0x3E8", "hash": ETH_HASH, "parentHash": ETH_PARENT, "transactions": ["0x1"], "size": "0x5"}
STARKNET_BLOCK = {
    "status": "ACCEPTED_ON_L2",
    "block_number": 1_000,
    "block_hash": "0x0aBc",
    "parent_hash": "0x00012",
    "transactions": [],
}


def encoded(value: Any) -> bytes:
    return msgspec.json.encode(value)


def test_calls_of_eth() -> None:
    assert heads.CALLS["eth"].head == NodeCall("eth_getBlockByNumber", ["latest", False])
    assert heads.CALLS["eth"].finalized == NodeCall("eth_getBlockByNumber", ["finalized", False])
    assert heads.CALLS["eth"].chain_id == NodeCall("eth_chainId", [])
    assert heads.CALLS["eth"].syncing == NodeCall("eth_syncing", [])
    assert heads.block_call("eth", 1_000) == NodeCall("eth_getBlockByNumber", ["0x3e8", False])


def test_calls_of_starknet() -> None:
    method = "starknet_getBlockWithTxHashes"
    assert heads.CALLS["starknet"].head == NodeCall(method, ["latest"])
    assert heads.CALLS["starknet"].finalized == NodeCall(method, ["l1_accepted"])
    assert heads.CALLS["starknet"].chain_id == NodeCall("starknet_chainId", [])
    assert heads.CALLS["starknet"].syncing == NodeCall("starknet_syncing", [])
    assert heads.block_call("starknet", 1_000) == NodeCall(method, [{"block_number": 1_000}])


@pytest.mark.parametrize("family", sorted(heads.FAMILIES))
def test_everything_that_is_requested_is_a_read_of_the_catalogue(family: str) -> None:
    calls = [
        heads.CALLS[family].head,
        heads.CALLS[family].finalized,
        heads.CALLS[family].chain_id,
        heads.CALLS[family].syncing,
        heads.block_call(family, 5),
    ]
    assert {call.method for call in calls} <= Catalogue(family).reads


def test_family_without_a_catalogue_cannot_be_called() -> None:
    assert "solana" not in heads.FAMILIES
    with pytest.raises(KeyError):
        heads.read_block("solana", b"{}")


def test_block_of_eth() -> None:
    assert heads.read_block("eth", encoded(ETH_BLOCK)) == Block(1_000, ETH_HASH.lower(), ETH_PARENT.lower())
    assert heads.read_number("eth", encoded(ETH_BLOCK)) == 1_000


def test_block_of_starknet_has_hashes_without_leading_zeros() -> None:
    assert heads.read_block("starknet", encoded(STARKNET_BLOCK)) == Block(1_000, "0xabc", "0x12")
    assert heads.read_number("starknet", encoded(STARKNET_BLOCK)) == 1_000


def test_first_block_may_have_a_parent_of_nothing() -> None:
    first = {"block_number": 0, "block_hash": "0x7", "parent_hash": "0x0"}
    assert heads.read_block("starknet", encoded(first)) == Block(0, "0x7", "0x0")


@pytest.mark.parametrize("family", sorted(heads.FAMILIES))
@pytest.mark.parametrize("result", [b"null", b"", b"[]", b'"0x5"', b"{}", b"{", b"5", b"\xff", b"[" * 99_999])
def test_answer_without_a_block_is_misread(family: str, result: bytes) -> None:
    with pytest.raises(Misread):
        heads.read_block(family, result)
    with pytest.raises(Misread):
        heads.read_number(family, result)


@pytest.mark.parametrize(
    "change",
    [{"hash": None}, {"hash": "latest"}, {"hash": "0x"}, {"number": "0xzz"}, {"number": None}, {"parentHash": 5}],
)
def test_block_that_is_still_being_built_is_misread(change: dict[str, Any]) -> None:
    with pytest.raises(Misread):
        heads.read_block("eth", encoded({**ETH_BLOCK, **change}))


@pytest.mark.parametrize("name", ["block_number", "block_hash", "parent_hash"])
def test_pre_confirmed_block_of_starknet_is_misread(name: str) -> None:
    with pytest.raises(Misread):
        heads.read_block("starknet", encoded({key: value for key, value in STARKNET_BLOCK.items() if key != name}))
    for wrong in (None, -1, 1 << 70, "zz", True):
        with pytest.raises(Misread):
            heads.read_block("starknet", encoded({**STARKNET_BLOCK, name: wrong}))


@given(st.sampled_from(sorted(heads.FAMILIES)), st.binary(max_size=60))
def test_any_bytes_are_read_or_misread(family: str, result: bytes) -> None:
    for read in (heads.read_block, heads.read_number, heads.read_chain_id, heads.read_syncing):
        try:
            read(family, result)
        except Misread:
            continue


# --- Chain ids ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["0x1", "0x01", "0X1", "1", " 1 "])
def test_chain_id_has_one_form(text: str) -> None:
    assert heads.chain_id(text) == "0x1"


def test_chain_id_of_starknet_may_be_its_name() -> None:
    assert heads.chain_id("SN_MAIN") == heads.chain_id("0x534e5f4d41494e") == "0x534e5f4d41494e"
    assert heads.chain_id("") == ""


def test_chain_id_without_a_prefix_is_decimal() -> None:
    assert heads.chain_id("10") == "0xa"


def test_chain_id_is_read_in_that_form() -> None:
    assert heads.read_chain_id("eth", b'"0xAA36a7"') == "0xaa36a7"
    assert heads.read_chain_id("starknet", b'"0x534e5f5345504f4c4941"') == "0x534e5f5345504f4c4941"
    for result in (b"null", b"1", b'""', b"{}"):
        with pytest.raises(Misread):
            heads.read_chain_id("eth", result)


# --- Syncing ------------------------------------------------------------------------------------------------


def progress(family: str, current: Any, highest: Any) -> bytes:
    if family == "eth":
        return encoded({"startingBlock": "0x0", "currentBlock": hex(current), "highestBlock": hex(highest)})
    return encoded({"starting_block_num": 0, "current_block_num": current, "highest_block_num": highest})


@pytest.mark.parametrize("family", sorted(heads.FAMILIES))
def test_node_shows_whether_it_is_catching_up(family: str) -> None:
    assert not heads.read_syncing(family, b"false")
    assert heads.read_syncing(family, b"true")
    assert heads.read_syncing(family, progress(family, 500, 1_000))
    assert heads.read_syncing(family, b'{"stages":[]}')


@pytest.mark.parametrize("family", sorted(heads.FAMILIES))
def test_node_that_is_nearly_there_is_not_catching_up(family: str) -> None:
    assert not heads.read_syncing(family, progress(family, 1_000, 1_000))
    assert not heads.read_syncing(family, progress(family, 1_000 - heads._SLACK_BLOCKS, 1_000))
    assert heads.read_syncing(family, progress(family, 999 - heads._SLACK_BLOCKS, 1_000))
    assert not heads.read_syncing(family, progress(family, 1_001, 1_000))


def test_malformed_sync_progress_counts_as_catching_up() -> None:
    assert heads.read_syncing("eth", b'{"currentBlock":"soon","highestBlock":"0x5"}')
    assert heads.read_syncing("eth", b'{"currentBlock":null,"highestBlock":"0x5"}')


@pytest.mark.parametrize("result", [b"null", b"5", b'"no"', b"[]", b""])
def test_malformed_syncing_answer_is_misread(result: bytes) -> None:
    with pytest.raises(Misread):
        heads.read_syncing("eth", result)
