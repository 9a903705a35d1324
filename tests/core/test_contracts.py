"""Tokens for some contracts: what a call reads, however it is written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from tollgate.core.contracts import normal, refusal_of

MINE, OTHER = "0x" + "0a" * 20, "0x" + "0b" * 20
ALLOWED = frozenset({normal(MINE)})


def allowed(method: str, params: Any) -> bool:
    """Whether a call with these parameters (or JSON as it is) passes."""
    raw: Any
    if isinstance(params, dict):
        raw = {name: Raw(json.dumps(each).encode()) for name, each in params.items()}
    else:
        raw = [Raw(each if isinstance(each, bytes) else json.dumps(each).encode()) for each in params or ()]
    return refusal_of(method, raw, ALLOWED) is None


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
        ("eth_sendRawTransaction", ["0x00"]),
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


def test_method_that_is_in_no_catalogue_is_refused() -> None:
    assert refusal_of("erigon_getLogs", [Raw(b"{}")], ALLOWED, known=False) is not None
    assert refusal_of("eth_blockNumber", [], ALLOWED, known=True) is None
    assert refusal_of("eth_call", [Raw(b'{"to":"%b"}' % MINE.encode())], ALLOWED, known=False) is None


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
