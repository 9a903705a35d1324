"""Traces and simulations of the simulated Starknet chain, called as a client would call them."""

from typing import Any

import pytest

from tollgate.chains.starknet_versions import VERSIONS, next_tag
from tollgate.demo.chain import BLOCK_SECONDS
from tollgate.demo.params import RpcError
from tollgate.demo.starknet_methods import starknet_network
from tollgate.demo.starknet_shapes import STRK

GENESIS = 1_800_000_000
HEAD = 5_001
NOW = GENESIS + HEAD * BLOCK_SECONDS + 0.5
NODES = {version: starknet_network("mainnet", GENESIS, version) for version in VERSIONS}

every_version = pytest.mark.parametrize("version", VERSIONS)


def rpc(version: str, method: str, *params: object, blocks: int = 0) -> Any:
    return NODES[version].answer(f"starknet_{method}", list(params), NOW + blocks * BLOCK_SECONDS)


def refused(version: str, method: str, *params: object) -> int:
    with pytest.raises(RpcError) as caught:
        rpc(version, method, *params)
    return caught.value.code


@every_version
def test_traces_of_a_block_are_those_of_its_transactions(version: str) -> None:
    block = rpc(version, "getBlockWithTxs", "latest")
    traces = rpc(version, "traceBlockTransactions", "latest")
    assert [each["transaction_hash"] for each in traces] == [
        each["transaction_hash"] for each in block["transactions"]
    ]
    for each, transaction in zip(traces, block["transactions"], strict=True):
        assert each["trace_root"] == rpc(version, "traceTransaction", each["transaction_hash"])
        execution = each["trace_root"]["execute_invocation"]
        assert execution["contract_address"] == transaction["sender_address"]
        assert execution["calldata"] == transaction["calldata"]
        (call,) = execution["calls"]
        assert (call["contract_address"], call["caller_address"]) == (hex(STRK), transaction["sender_address"])


def test_the_block_that_is_being_made_is_traced_in_0_8_alone() -> None:
    pending = rpc("0.8", "getBlockWithTxHashes", "pending")["transactions"]
    assert [each["transaction_hash"] for each in rpc("0.8", "traceBlockTransactions", "pending")] == pending
    assert refused("0.9", "traceBlockTransactions", "pre_confirmed") == -32602
    assert refused("0.10", "traceBlockTransactions", "pre_confirmed") == -32602


@every_version
@pytest.mark.parametrize(
    ("kind", "member"),
    [("Invoke", "execute_invocation"), ("Declare", None), ("DeployAccount", "constructor_invocation")],
)
def test_submitted_transactions_are_traced_once_they_are_in_a_block(
    version: str, kind: str, member: str | None
) -> None:
    sent = rpc(version, f"add{kind}Transaction", {"nonce": "0x7"})["transaction_hash"]
    assert refused(version, "traceTransaction", sent) == 29
    trace = rpc(version, "traceTransaction", sent, blocks=1)
    assert {name for name in trace if name.endswith("_invocation")} == ({member} if member else set())


@every_version
def test_a_simulation_has_a_trace_and_a_fee_for_each_transaction_and_changes_nothing(version: str) -> None:
    transactions = [{"nonce": "0x9"}, {"type": "DECLARE"}, {"type": "DEPLOY_ACCOUNT"}]
    simulated = rpc(version, "simulateTransactions", next_tag(version), transactions, ["SKIP_FEE_CHARGE"])
    kinds = [each["transaction_trace"]["type"] for each in simulated]
    assert kinds == ["INVOKE", "DECLARE", "DEPLOY_ACCOUNT"]
    assert {each["fee_estimation"]["unit"] for each in simulated} == {"FRI"}
    assert rpc(version, "addInvokeTransaction", transactions[0])["transaction_hash"]


@every_version
def test_a_simulation_s_bounds(version: str) -> None:
    assert refused(version, "simulateTransactions", "latest", [{}] * 101, []) == -32602
    assert refused(version, "simulateTransactions", "latest", [{"type": "L1_HANDLER"}], []) == -32602
    assert refused(version, "simulateTransactions", "latest", [{"type": []}], []) == -32602
    assert refused(version, "simulateTransactions", "latest", [7], []) == -32602
    assert refused(version, "simulateTransactions", "latest", [], ["SKIP_ALL"]) == -32602
    assert refused(version, "simulateTransactions", {"block_number": HEAD + 1}, [], []) == 24
    assert rpc(version, "simulateTransactions", "latest", [], []) == []


def test_initial_reads_are_the_nonces_before_the_block() -> None:
    block = rpc("0.10", "getBlockWithTxs", "latest")["transactions"]
    found = rpc("0.10", "traceBlockTransactions", "latest", ["RETURN_INITIAL_READS"])
    assert found["traces"] == rpc("0.10", "traceBlockTransactions", "latest")
    nonces = {each["contract_address"]: each["nonce"] for each in found["initial_reads"]["nonces"]}
    assert nonces == {each["sender_address"]: each["nonce"] for each in block}
    simulated = rpc("0.10", "simulateTransactions", "latest", [{}], ["RETURN_INITIAL_READS"])
    assert len(simulated["simulated_transactions"]) == 1
    assert simulated["initial_reads"]["nonces"] == []
    empty = rpc("0.10", "traceBlockTransactions", {"block_number": 0}, ["RETURN_INITIAL_READS"])
    assert empty["traces"] == empty["initial_reads"]["nonces"] == []


@every_version
def test_there_are_no_storage_proofs(version: str) -> None:
    assert refused(version, "getStorageProof", "latest") == 42
    assert refused(version, "getStorageProof", next_tag(version)) == -32602
    assert refused(version, "getStorageProof", {"block_number": HEAD + 1}) == 24
