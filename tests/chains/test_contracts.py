"""Tokens for some contracts: what a call reads, however it is written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from tollgate.chains import contracts
from tollgate.chains.catalogue import KNOWN, Catalogue
from tollgate.chains.contracts import normal
from tollgate.chains.methods import Block, Contract, Effect, Follows
from tollgate.core.shapes import Params

MINE, OTHER = "0x" + "0a" * 20, "0x" + "0b" * 20
ALLOWED = frozenset({normal(MINE)})


def refusal_of(method: str, params: Params, allowed: frozenset[str] = ALLOWED) -> str | None:
    return contracts.refusal_of(KNOWN.get(method), params, allowed)


def allowed(method: str, params: Any) -> bool:
    """Whether a call with these parameters (or JSON as it is) passes."""
    raw: Any
    if isinstance(params, dict):
        raw = {name: Raw(json.dumps(each).encode()) for name, each in params.items()}
    else:
        raw = [Raw(each if isinstance(each, bytes) else json.dumps(each).encode()) for each in params or ()]
    return refusal_of(method, raw) is None


PLACES: list[tuple[str, Any, Any]] = [
    ("eth_getCode", [MINE, "latest"], [OTHER, "latest"]),
    ("eth_getStorageAt", [MINE, "0x0"], [OTHER, "0x0"]),
    ("eth_getProof", [MINE, []], [OTHER, []]),
    ("eth_createAccessList", [{"to": MINE}], [{"to": OTHER}]),
    ("eth_fillTransaction", [{"to": MINE}], [{"to": OTHER}]),
    ("eth_newFilter", [{"address": MINE}], [{"address": OTHER}]),
    ("starknet_getStorageAt", [MINE, "0x0", "latest"], [OTHER, "0x0", "latest"]),
    ("starknet_getStorageAt", {"contract_address": MINE}, {"contract_address": OTHER}),
    ("starknet_getClassAt", ["latest", MINE], ["latest", OTHER]),
    ("starknet_getClassHashAt", ["latest", MINE], [MINE, OTHER]),
    ("starknet_subscribeEvents", [MINE], [OTHER]),
    ("starknet_getEvents", [{"address": MINE}], [{"address": OTHER}]),
]


@pytest.mark.parametrize(("method", "mine", "others"), PLACES)
def test_contract_is_found_where_each_method_names_it(method: str, mine: Any, others: Any) -> None:
    assert allowed(method, mine)
    assert not allowed(method, others)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("eth_call", [{"to": MINE, "data": "0x"}, "latest"]),
        ("eth_call", [{"to": MINE.upper().replace("0X", "0x")}]),
        ("eth_estimateGas", [{"to": MINE}]),
        ("eth_getLogs", [{"address": MINE}]),
        ("eth_getLogs", [{"address": [MINE, MINE]}]),
        ("eth_subscribe", ["logs", {"address": MINE}]),
        ("eth_subscribe", ["newHeads"]),
        ("starknet_call", [{"contract_address": MINE}, "latest"]),
        ("starknet_call", {"request": {"contract_address": "0x" + "0" * 24 + MINE[2:]}, "block_id": "latest"}),
        ("starknet_getEvents", {"filter": {"address": MINE}}),
        ("starknet_subscribeEvents", {"from_address": MINE}),
        ("eth_getStorageAt", [MINE, "0x0", "latest"]),
        ("eth_blockNumber", []),
        ("eth_getBlockByNumber", ["latest", False]),
        ("eth_getBlockByNumber", ["latest"]),
        ("eth_getBalance", [MINE, "latest"]),
        ("starknet_getNonce", {"block_id": "latest", "contract_address": MINE}),
    ],
)
def test_allowed(method: str, params: Any) -> None:
    assert allowed(method, params)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("eth_call", [{"to": OTHER}]),
        ("ETH_CALL", [{"to": OTHER}]),
        ("eth_call", [{"data": "0x"}]),
        ("eth_call", [{}]),
        ("eth_call", []),
        ("eth_call", None),
        ("eth_call", {"to": MINE}),
        ("eth_call", [{"to": None}]),
        ("eth_call", [{"to": 5}]),
        ("eth_call", [{"to": "x"}]),
        ("eth_call", [b'{"to":"%b","to":"%b"}' % (MINE.encode(), OTHER.encode())]),
        ("eth_call", [b'{"to":"%b","to":"%b"}' % (OTHER.encode(), MINE.encode())]),
        ("eth_call", [b'{"to":"%b","TO":"%b"}' % (MINE.encode(), OTHER.encode())]),
        ("eth_call", [b'{"to":"%b","t\\u006f":"%b"}' % (MINE.encode(), OTHER.encode())]),
        ("eth_call", [{"TO": OTHER}]),
        ("eth_call", [{"To": MINE}]),
        ("eth_call", [{"to": MINE}, "latest", {MINE: {"code": "0x6000"}}]),
        ("eth_getLogs", [{}]),
        ("eth_getLogs", [{"address": []}]),
        ("eth_getLogs", [{"address": [MINE, OTHER]}]),
        ("eth_getLogs", [{"blockHash": "0x1"}]),
        ("eth_newFilter", [{}]),
        ("eth_subscribe", ["logs"]),
        ("eth_subscribe", ["logs", {"address": OTHER}]),
        ("starknet_call", {"request": {"contract_address": OTHER}}),
        ("starknet_call", {"request": {}}),
        ("starknet_getEvents", [{"chunk_size": 5}]),
        ("starknet_subscribeEvents", {}),
        ("eth_getStorageAt", [OTHER, "0x0"]),
        ("eth_simulateV1", [{}]),
        ("eth_callMany", [{}]),
        ("debug_traceCall", [{"to": MINE}]),
        ("trace_call", [{"to": MINE}]),
        ("starknet_simulateTransactions", {}),
        ("eth_call", [b"[" * 5_000 + b"]" * 5_000]),
        ("eth_getBlockByNumber", ["latest", True]),
        ("eth_getBlockByNumber", ["latest", 1]),
        ("eth_getBlockByHash", ["0x1", "true"]),
        ("eth_getBlockByHash", ["0x1", False, True]),
        ("eth_getBlockByNumber", {"full": False}),
        ("eth_subscribe", ["newPendingTransactions"]),
        ("eth_subscribe", ["newPendingTransactions", {"address": MINE}]),
        ("eth_subscribe", ["transactionReceipts", {"address": MINE}]),
        ("eth_getBalance", [OTHER, "latest"]),
        ("eth_getTransactionCount", [OTHER]),
        ("starknet_getNonce", ["latest", OTHER]),
        ("starknet_getNonce", [MINE, OTHER]),
        ("starknet_getStorageAt", {"contract_address": MINE, "Contract_Address": OTHER}),
    ],
)
def test_refused(method: str, params: Any) -> None:
    assert not allowed(method, params)


@pytest.mark.parametrize(
    "written",
    [b'"\\u006cogs"', b' "logs" ', b'"l\\u006Fgs"', b'"LOGS"', b'["logs"]', b"null", b'"newHeads2"', b'"logs',
     b"[" * 9_000],
)  # fmt: skip
def test_subscription_is_judged_by_what_it_shows_not_by_how_it_is_written(written: bytes) -> None:
    other = Raw(json.dumps({"address": OTHER}).encode())
    assert refusal_of("eth_subscribe", [Raw(written), other], ALLOWED) is not None


def test_subscription_by_name_is_refused() -> None:
    assert refusal_of("eth_subscribe", {"kind": Raw(b'"logs"')}, ALLOWED) is not None
    assert refusal_of("eth_subscribe", [Raw(b'"new\\u0048eads"')], ALLOWED) is None


def test_method_that_reads_storage_of_any_contract_is_refused() -> None:
    assert not allowed("eth_getStorageValues", [{MINE: ["0x0"]}, "latest"])


# What a token for some contracts may call at all. Everything else reads what others do, sends, or steers.
OPEN = {
    "eth": """
        eth_accounts eth_baseFee eth_blobBaseFee eth_blockNumber eth_capabilities eth_chainId eth_coinbase
        eth_config eth_feeHistory eth_gasPrice eth_hashrate eth_maxPriorityFeePerGas eth_mining
        eth_protocolVersion eth_syncing net_listening net_peerCount net_version txpool_status web3_clientVersion
        web3_sha3
        eth_getBlockTransactionCountByHash eth_getBlockTransactionCountByNumber eth_getHeaderByHash
        eth_getHeaderByNumber eth_getUncleByBlockHashAndIndex eth_getUncleByBlockNumberAndIndex
        eth_getUncleCountByBlockHash eth_getUncleCountByBlockNumber debug_getRawHeader
        clique_getSigner clique_getSigners clique_getSignersAtHash clique_getSnapshot clique_getSnapshotAtHash
        clique_status ibft_getPendingVotes ibft_getSignerMetrics ibft_getValidatorsByBlockHash
        ibft_getValidatorsByBlockNumber istanbul_getSignersFromBlock istanbul_getSignersFromBlockByHash
        istanbul_getSnapshot istanbul_getSnapshotAtHash istanbul_getValidators istanbul_getValidatorsAtHash
        istanbul_nodeAddress qbft_getPendingVotes qbft_getRequestTimeoutSeconds qbft_getSignerMetrics
        qbft_getValidatorsByBlockHash qbft_getValidatorsByBlockNumber
        eth_newBlockFilter eth_getFilterChanges eth_getFilterLogs eth_uninstallFilter eth_unsubscribe
    """,
    "starknet": """
        starknet_blockHashAndNumber starknet_blockNumber starknet_chainId starknet_getBlockTransactionCount
        starknet_getBlockWithTxHashes starknet_specVersion starknet_subscribeNewHeads starknet_syncing
        starknet_unsubscribe
    """,
}
BY_ARGUMENT = {
    "eth": """
        eth_call eth_createAccessList eth_estimateGas eth_fillTransaction eth_getBalance eth_getCode eth_getLogs
        eth_getProof eth_getStorageAt eth_getTransactionCount eth_newFilter
        eth_getBlockByHash eth_getBlockByNumber eth_subscribe
    """,
    "starknet": """
        starknet_call starknet_getClassAt starknet_getClassHashAt starknet_getEvents starknet_getNonce
        starknet_getStorageAt starknet_subscribeEvents
    """,
}


@pytest.mark.parametrize("family", OPEN)
def test_token_may_call_what_reads_the_chain_its_contracts_or_its_own_filters(family: str) -> None:
    opened, by_argument = set(OPEN[family].split()), set(BY_ARGUMENT[family].split())
    several: list[Params] = [[], None, {}, [Raw(json.dumps(MINE).encode())] * 3]
    for name in Catalogue(family).methods:
        does = KNOWN[name].does
        assert (name in by_argument) == isinstance(does, Contract | Block | Follows)
        assert (name in opened) == (does in (Effect.CHAIN, Effect.OWN))
        if name not in by_argument:
            for params in several:
                assert (refusal_of(name, params) is None) == (name in opened), name


OTHERS = """
    eth_getBlockReceipts eth_getTransactionReceipt eth_getTransactionByHash debug_getRawReceipts
    eth_getBlockAccessList debug_getRawBlockAccessList debug_traceTransaction trace_block trace_transaction
    starknet_getStateUpdate starknet_getBlockWithReceipts starknet_getTransactionReceipt
    starknet_traceTransaction starknet_traceBlockTransactions eth_sendRawTransaction
    starknet_addInvokeTransaction starknet_addDeclareTransaction starknet_addDeployAccountTransaction
    """


@pytest.mark.parametrize("method", OTHERS.split())
def test_what_others_do_is_out_of_reach_and_nothing_is_sent(method: str) -> None:
    refusal = refusal_of(method, [Raw(json.dumps(MINE).encode())])
    assert refusal is not None
    assert "This token may read some contracts only" in refusal


written = st.sampled_from(
    [
        b"null",
        b"false",
        b"{}",
        b'"logs"',
        b'{"to":"0xb"}',
        b'{"address":[]}',
        b"[",
        b"\xff",
        b'"0xb"',
        b'{"to":{}}',
    ]
) | st.binary(max_size=12)
given_params = (
    st.none() | st.lists(written) | st.dictionaries(st.sampled_from(["filter", "request", "x"]), written)
)


@given(st.sampled_from(sorted(KNOWN)), given_params)
def test_no_parameters_raise_or_let_a_call_through_that_names_no_allowed_contract(
    name: str, given: list[bytes] | dict[str, bytes] | None
) -> None:
    params: Params = None
    if isinstance(given, dict):
        params = {member: Raw(text) for member, text in given.items()}
    elif given is not None:
        params = [Raw(text) for text in given]
    refusal = refusal_of(name, params)
    assert refusal is not None or not isinstance(KNOWN[name].does, Contract)


@given(st.text(max_size=24), st.lists(st.sampled_from([b"null", b"{}", json.dumps(MINE).encode()])))
def test_method_that_is_in_no_catalogue_is_refused(name: str, written: list[bytes]) -> None:
    if name not in KNOWN:
        assert refusal_of(name, [Raw(each) for each in written]) is not None


@pytest.mark.parametrize(
    ("address", "compared"), [("0x1Ab", "0x1ab"), ("0x001ab", "0x1ab"), ("0x2ab", "0x2ab"), ("0x00", "0x0")]
)
def test_address_is_compared_by_its_number(address: str, compared: str) -> None:
    assert normal(address) == compared


@pytest.mark.parametrize(("count", "end"), [(5, "0x5."), (6, "0x5, …."), (7, "0x5, ….")])
def test_refusal_names_the_first_five_contracts(count: int, end: str) -> None:
    refusal = refusal_of(
        "eth_getCode", [Raw(b'"0xff"')], frozenset(f"0x{number}" for number in range(1, count + 1))
    )
    assert refusal == f"This token may read these contracts only: 0x1, 0x2, 0x3, 0x4, {end}"
