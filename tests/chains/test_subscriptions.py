"""What may be subscribed to, and what is reported of a block: tables for both families."""

import json
from typing import Any

import pytest
from msgspec import Raw

from tollgate.chains import subscriptions_eth as eth
from tollgate.chains import subscriptions_starknet as starknet
from tollgate.chains.catalogue import Catalogue, Kind
from tollgate.chains.heads import Misread, NodeCall
from tollgate.chains.subscriptions import (
    End,
    Head,
    Item,
    Start,
    Subscription,
    Topic,
    Wrong,
    passes,
    places_of,
    slots,
    terms,
)

A, B = "0x" + "aA" * 20, "0x" + "Bb" * 20
T1, T2 = "0x" + "11" * 32, "0x" + "2F" * 32
HEAD = Head(10, "0xaa", "0x99")


def raw(params: Any) -> Any:
    if isinstance(params, dict):
        return {name: Raw(json.dumps(value).encode()) for name, value in params.items()}
    return None if params is None else [Raw(json.dumps(value).encode()) for value in params]


def written(value: object) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize(("family", "words"), [("eth", eth), ("starknet", starknet)])
def test_methods_are_those_of_the_catalogue(family: str, words: Any) -> None:
    catalogue = Catalogue(family)
    assert {name for name in catalogue.methods if catalogue.kind(name) is Kind.SUBSCRIBE} == words.METHODS


# --- eth: what callers send --------------------------------------------------------------------------------


def logs(*keys: set[str], addresses: set[str] = frozenset(), **more: Any) -> Subscription:  # type: ignore[assignment]
    chosen = tuple(frozenset(each) for each in keys)
    return Subscription(Topic.LOGS, frozenset(addresses), chosen, min_keys=len(keys), **more)


@pytest.mark.parametrize(
    ("params", "wanted"),
    [
        (["newHeads"], Subscription(Topic.HEADS)),
        (["newHeads", {}], Subscription(Topic.HEADS)),
        (["newPendingTransactions"], Subscription(Topic.PENDING)),
        (["newPendingTransactions", False], Subscription(Topic.PENDING)),
        (["newPendingTransactions", True], Subscription(Topic.PENDING, full=True)),
        (["logs"], logs()),
        (["logs", None], logs()),
        (["logs", {}], logs()),
        (["logs", {"address": A}], logs(addresses={A.lower()})),
        (["logs", {"address": [A, B]}], logs(addresses={A.lower(), B.lower()})),
        (["logs", {"address": []}], logs()),
        (["logs", {"topics": []}], logs()),
        (["logs", {"topics": [T1]}], logs({T1})),
        (["logs", {"topics": [None, T2]}], logs(set(), {T2.lower()})),
        (["logs", {"topics": [[T1, T2], []]}], logs({T1, T2.lower()}, set())),
        (["logs", {"topics": [[T1, None]]}], logs(set())),
        (["logs", {"fromBlock": "latest", "toBlock": "latest"}], logs()),
        (["logs", {"fromBlock": "0x10", "toBlock": "0x20"}], logs(first=16, last=32)),
        (["logs", {"unknown": 1}], logs()),
    ],
)
def test_eth_subscription(params: list[Any], wanted: Subscription) -> None:
    assert eth.parse("eth_subscribe", raw(params)) == wanted


@pytest.mark.parametrize(
    ("params", "code"),
    [
        (None, -32602),
        ([], -32602),
        ({"name": "newHeads"}, -32602),
        ([1], -32602),
        (["newBlocks"], -32601),
        (["syncing"], -32601),
        (["newPendingTransactions", 1], -32602),
        (["logs", []], -32602),
        (["logs", {"address": "0x12"}], -32602),
        (["logs", {"address": [A, 7]}], -32602),
        (["logs", {"address": [A] * 1_001}], -32602),
        (["logs", {"topics": ["0x12"]}], -32602),
        (["logs", {"topics": [T1] * 5}], -32602),
        (["logs", {"topics": [[T1] * 1_001]}], -32602),
        (["logs", {"fromBlock": "pending"}], -32602),
        (["logs", {"fromBlock": 5}], -32602),
        (["logs", {"blockHash": T1}], -32602),
    ],
)
def test_invalid_eth_subscription_is_refused(params: Any, code: int) -> None:
    with pytest.raises(Wrong) as caught:
        eth.parse("eth_subscribe", raw(params))
    assert caught.value.code == code
    assert len(caught.value.message.split()) > 3


def test_filters_may_be_as_large_as_is_documented() -> None:
    logs = {"address": [A] * eth.MAX_ADDRESSES, "topics": [[T1] * eth.MAX_CHOICES] * eth.MAX_TOPICS}
    found = eth.parse("eth_subscribe", raw(["logs", logs]))
    assert isinstance(found, Subscription)
    assert (found.addresses, found.min_keys) == (frozenset({A.lower()}), eth.MAX_TOPICS)
    events = {
        "from_address": ["0x1"] * starknet.MAX_ADDRESSES,
        "keys": [["0x1"] * starknet.MAX_CHOICES, *[[]] * (starknet.MAX_KEYS - 1)],
    }
    found = starknet.parse("starknet_subscribeEvents", raw(events))
    assert isinstance(found, Subscription)
    assert (found.addresses, found.min_keys) == (frozenset({"0x1"}), 1)
    assert starknet.parse("starknet_subscribeNewHeads", raw({"block_id": {"block_number": 0}})) == Subscription(
        Topic.HEADS, start=Start(0)
    )


def test_error_quotes_only_the_start_of_a_bad_value() -> None:
    long = "x" * 200
    for parse, method, params, size in (
        (eth.parse, "eth_subscribe", [long], 64),
        (eth.parse, "eth_subscribe", ["logs", {"address": long}], 80),
        (starknet.parse, "starknet_subscribeNewHeads", {long: 1}, 64),
        (starknet.parse, "starknet_subscribeEvents", {"from_address": long}, 80),
    ):
        with pytest.raises(Wrong) as caught:
            parse(method, raw(params))
        assert caught.value.message.count("x" * size) == 1
        assert "x" * (size + 1) not in caught.value.message


def test_eth_end_of_a_subscription() -> None:
    assert eth.parse("eth_unsubscribe", raw(["0x1"])) == End("0x1")


# --- eth: what nodes send ----------------------------------------------------------------------------------

BLOCK = {
    "number": "0xa",
    "hash": "0xAA",
    "parentHash": "0x99",
    "logsBloom": "0x0010",
    "baseFeePerGas": "0x7",
    "transactions": ["0x1"],
    "uncles": [],
    "withdrawals": [],
    "size": "0x2",
    "totalDifficulty": "0x3",
}


def test_eth_head_is_reported_without_what_is_in_the_body() -> None:
    head = eth.read_block(written(BLOCK))
    assert head is not None
    assert (head.number, head.hash, head.parent, head.has_logs) == (10, "0xaa", "0x99", True)
    assert set(json.loads(head.result)) == {"number", "hash", "parentHash", "logsBloom", "baseFeePerGas"}


@pytest.mark.parametrize(("bloom", "has_logs"), [("0x0000", False), (None, False), ("0x1", True)])
def test_eth_header_shows_whether_there_are_logs(bloom: str | None, has_logs: bool) -> None:
    head = eth.read_block(written(BLOCK | {"logsBloom": bloom}))
    assert head is not None
    assert head.has_logs is has_logs


def test_missing_eth_block_is_none() -> None:
    assert eth.read_block(b"null") is None


@pytest.mark.parametrize("result", [b"[]", b'{"number":"0xa"}', b'{"number":"x","hash":"","parentHash":""}', b"1"])
def test_malformed_eth_block_is_refused(result: bytes) -> None:
    with pytest.raises(Misread):
        eth.read_block(result)


def test_eth_logs_are_reported_as_they_are_written() -> None:
    log = {"address": A, "topics": [T2], "blockHash": "0xAa", "data": "0x", "removed": False, "odd": [1]}
    (item,) = eth.read_logs(written([log]), HEAD)
    assert (item.address, item.keys) == (A.lower(), (T2.lower(),))
    assert json.loads(item.result) == log
    assert json.loads(eth.removed(item.result)) == log | {"removed": True}


@pytest.mark.parametrize(
    "result", [b"{}", b"null", b"[1]", written([{"address": A, "topics": [], "blockHash": "0xbb"}])]
)
def test_eth_logs_of_another_block_and_malformed_ones_are_refused(result: bytes) -> None:
    with pytest.raises(Misread):
        eth.read_logs(result, HEAD)


def test_eth_notification() -> None:
    encoded = json.loads(eth.notification(Topic.HEADS, "0x1", b'{"number":"0xa"}'))
    assert encoded == {
        "jsonrpc": "2.0",
        "method": "eth_subscription",
        "params": {"subscription": "0x1", "result": {"number": "0xa"}},
    }


# --- starknet: what callers send ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "params", "wanted"),
    [
        ("subscribeNewHeads", None, Subscription(Topic.HEADS)),
        ("subscribeNewHeads", [], Subscription(Topic.HEADS)),
        ("subscribeNewHeads", {"block_id": "latest"}, Subscription(Topic.HEADS)),
        ("subscribeNewHeads", {"block_id": {"block_number": 5}}, Subscription(Topic.HEADS, start=Start(5))),
        ("subscribeNewHeads", [{"block_hash": "0x00Ab"}], Subscription(Topic.HEADS, start=Start(hash="0xab"))),
        ("subscribeEvents", {}, Subscription(Topic.EVENTS)),
        ("subscribeEvents", {"from_address": "0x0A"}, Subscription(Topic.EVENTS, frozenset({"0xa"}))),
        (
            "subscribeEvents",
            {"from_address": ["0x1", "0x2"]},
            Subscription(Topic.EVENTS, frozenset({"0x1", "0x2"})),
        ),
        (
            "subscribeEvents",
            [None, [["0x01"], [], ["0x2", "0x3"], []]],
            Subscription(
                Topic.EVENTS,
                keys=(frozenset({"0x1"}), frozenset(), frozenset({"0x2", "0x3"}), frozenset()),
                min_keys=3,
            ),
        ),
        ("subscribeEvents", {"finality_status": "ACCEPTED_ON_L2"}, Subscription(Topic.EVENTS)),
        ("subscribeTransactionStatus", ["0x0F"], Subscription(Topic.STATUS, hash="0xf")),
        ("subscribeNewTransactionReceipts", None, Subscription(Topic.RECEIPTS)),
        (
            "subscribeNewTransactionReceipts",
            {"finality_status": ["PRE_CONFIRMED", "ACCEPTED_ON_L2"], "sender_address": ["0x1"]},
            Subscription(Topic.RECEIPTS, frozenset({"0x1"})),
        ),
        ("subscribeNewTransactions", {"tags": ["INCLUDE_PROOF_FACTS"]}, Subscription(Topic.TRANSACTIONS)),
        ("unsubscribe", {"subscription_id": "12"}, End("12")),
        ("unsubscribe", [12], End("12")),
    ],
)
def test_starknet_call(method: str, params: Any, wanted: Subscription | End) -> None:
    assert starknet.parse(f"starknet_{method}", raw(params)) == wanted


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("subscribeNewHeads", [{}, 1], -32602),
        ("subscribeNewHeads", {"block": 1}, -32602),
        ("subscribeNewHeads", {"block_id": "pre_confirmed"}, -32602),
        ("subscribeNewHeads", {"block_id": {"block_number": -1}}, -32602),
        ("subscribeNewHeads", {"block_id": {}}, -32602),
        ("subscribeNewHeads", {"block_id": {"block_number": 1, "block_hash": "0x1"}}, -32602),
        ("subscribeNewHeads", {"block_id": {"number": 1}}, -32602),
        ("subscribeEvents", {"from_address": "1"}, -32602),
        ("subscribeEvents", {"keys": ["0x1"]}, -32602),
        ("subscribeEvents", {"keys": [["0x1"]] * 17}, 34),
        ("subscribeEvents", {"keys": [["0x1"] * 1_001]}, 34),
        ("subscribeEvents", {"finality_status": "PRE_CONFIRMED"}, -32602),
        ("subscribeTransactionStatus", None, -32602),
        ("subscribeTransactionStatus", ["0xg"], -32602),
        ("subscribeNewTransactions", {"finality_status": ["RECEIVED"]}, -32602),
        ("subscribeNewTransactions", {"sender_address": ["0x1"] * 1_001}, 67),
        ("unsubscribe", None, -32602),
        ("subscribePendingTransactions", None, -32601),
    ],
)
def test_invalid_starknet_call_is_refused(method: str, params: Any, code: int) -> None:
    with pytest.raises(Wrong) as caught:
        starknet.parse(f"starknet_{method}", raw(params))
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("version", "method", "params", "wanted"),
    [
        ("0.8", "subscribeNewHeads", [], Subscription(Topic.HEADS)),
        ("0.8", "subscribePendingTransactions", [], Subscription(Topic.PENDING)),
        (
            "0.8",
            "subscribePendingTransactions",
            [True, ["0x01"]],
            Subscription(Topic.PENDING, frozenset({"0x1"}), full=True),
        ),
        ("0.8", "unsubscribe", [7], End("7")),
        ("0.8", "unsubscribe", ["7"], End("7")),
        ("0.8", "unsubscribe", [None], -32602),
        ("0.8", "subscribeEvents", {"finality_status": "ACCEPTED_ON_L2"}, -32602),
        ("0.8", "subscribeEvents", [None, None, None, "ACCEPTED_ON_L2"], -32602),
        ("0.8", "subscribeEvents", {"from_address": ["0x1"]}, -32602),
        ("0.8", "subscribePendingTransactions", {"transaction_details": 1}, -32602),
        ("0.8", "subscribeNewTransactions", [], -32601),
        ("0.8", "subscribeNewTransactionReceipts", [], -32601),
        ("0.9", "subscribePendingTransactions", [], -32601),
        ("0.9", "subscribeNewTransactions", [], Subscription(Topic.TRANSACTIONS)),
        ("0.9", "subscribeNewTransactions", {"tags": []}, -32602),
        ("0.9", "subscribeNewTransactions", [[], [], []], -32602),
        ("0.9", "subscribeEvents", {"finality_status": "ACCEPTED_ON_L2"}, Subscription(Topic.EVENTS)),
        ("0.9", "subscribeEvents", {"from_address": "0x1"}, Subscription(Topic.EVENTS, frozenset({"0x1"}))),
        ("0.9", "subscribeEvents", {"from_address": ["0x1"]}, -32602),
        ("0.9", "unsubscribe", [7], -32602),
        ("0.10", "subscribeNewTransactions", {"tags": []}, Subscription(Topic.TRANSACTIONS)),
        ("0.10", "subscribeEvents", {"from_address": ["0x1"]}, Subscription(Topic.EVENTS, frozenset({"0x1"}))),
        ("0.10", "subscribeNewHeads", {"block_id": "pending"}, -32602),
    ],
)
def test_starknet_call_by_a_version(
    version: str, method: str, params: Any, wanted: Subscription | End | int
) -> None:
    if isinstance(wanted, int):
        with pytest.raises(Wrong) as caught:
            starknet.parse_by(version, f"starknet_{method}", raw(params))
        assert caught.value.code == wanted
    else:
        assert starknet.parse_by(version, f"starknet_{method}", raw(params)) == wanted


# --- starknet: what nodes send -----------------------------------------------------------------------------

STARKNET_BLOCK = {"block_number": 10, "block_hash": "0x0AA", "parent_hash": "0x99", "timestamp": 1}


def test_starknet_head_is_a_header() -> None:
    head = starknet.read_block(written(STARKNET_BLOCK | {"transactions": ["0x1"], "status": "ACCEPTED_ON_L2"}))
    assert head is not None
    assert (head.number, head.hash, head.parent) == (10, "0xaa", "0x99")
    assert json.loads(head.result) == STARKNET_BLOCK


def test_starknet_events_of_a_page() -> None:
    event = {"from_address": "0x0A", "keys": ["0x01"], "data": ["0x2"], "block_hash": "0x00aa"}
    items, token = starknet.read_events(written({"events": [event], "continuation_token": "t"}), HEAD)
    assert token == "t"
    (item,) = items
    assert (item.address, item.keys) == ("0xa", ("0x1",))
    assert json.loads(item.result) == event | {"finality_status": "ACCEPTED_ON_L2"}
    assert starknet.read_events(written({"events": []}), HEAD) == ([], None)


def test_starknet_transactions_and_receipts_of_a_block() -> None:
    entries = [
        {"transaction": {"type": "INVOKE", "sender_address": "0x0b"}, "receipt": {"transaction_hash": "0x5"}},
        {"transaction": {"type": "L1_HANDLER", "contract_address": "0xc"}, "receipt": {"transaction_hash": "0x6"}},
        {"transaction": {"type": "DEPLOY_ACCOUNT"}, "receipt": {"transaction_hash": "0x7"}},
    ]
    block = written(STARKNET_BLOCK | {"transactions": entries})
    transactions, receipts = starknet.read_transactions(block, HEAD)
    assert [each.address for each in transactions] == [each.address for each in receipts] == ["0xb", "0xc", "0x0"]
    assert json.loads(transactions[0].result) == {
        "type": "INVOKE",
        "sender_address": "0x0b",
        "transaction_hash": "0x5",
        "finality_status": "ACCEPTED_ON_L2",
    }
    assert json.loads(receipts[0].result) == {"transaction_hash": "0x5", "block_hash": "0xaa", "block_number": 10}


@pytest.mark.parametrize(
    ("read", "result"),
    [
        (starknet.read_block, b"null"),
        (lambda body: starknet.read_events(body, HEAD), b"[]"),
        (
            lambda body: starknet.read_events(body, HEAD),
            written({"events": [{"from_address": "0x1", "keys": [], "block_hash": "0xbb"}]}),
        ),
        (lambda body: starknet.read_transactions(body, HEAD), written({"block_hash": "0xbb", "transactions": []})),
        (lambda body: starknet.read_transactions(body, HEAD), b"{}"),
        (starknet.read_status, b"{}"),
        (starknet.read_number, b'"0x1"'),
    ],
)
def test_malformed_starknet_answers_and_other_blocks_are_refused(read: Any, result: bytes) -> None:
    with pytest.raises(Misread):
        read(result)


@pytest.mark.parametrize(
    ("topic", "method"),
    [
        (Topic.HEADS, "starknet_subscriptionNewHeads"),
        (Topic.EVENTS, "starknet_subscriptionEvents"),
        (Topic.STATUS, "starknet_subscriptionTransactionStatus"),
        (Topic.RECEIPTS, "starknet_subscriptionNewTransactionReceipts"),
        (Topic.TRANSACTIONS, "starknet_subscriptionNewTransaction"),
        (Topic.PENDING, "starknet_subscriptionPendingTransactions"),
    ],
)
def test_starknet_notifications(topic: Topic, method: str) -> None:
    encoded = json.loads(starknet.notification(topic, "5", b"{}"))
    assert encoded == {"jsonrpc": "2.0", "method": method, "params": {"subscription_id": "5", "result": {}}}


def test_starknet_reorganisation() -> None:
    encoded = json.loads(starknet.reorganisation("5", Head(3, "0x3", ""), Head(4, "0x4", "")))
    assert encoded["method"] == "starknet_subscriptionReorg"
    assert encoded["params"]["result"] == {
        "starting_block_hash": "0x3",
        "starting_block_number": 3,
        "ending_block_hash": "0x4",
        "ending_block_number": 4,
    }


# --- Filters -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("addresses", "keys", "least", "item", "wanted"),
    [
        ((), (), 0, ("a", ()), True),
        (("a",), (), 0, ("a", ("1",)), True),
        (("a",), (), 0, ("b", ("1",)), False),
        ((), (("1",),), 1, ("a", ("1", "2")), True),
        ((), (("1",),), 1, ("a", ("2", "1")), False),
        ((), (("1",),), 1, ("a", ()), False),
        ((), (("1", "2"), (), ("3",)), 3, ("a", ("2", "9", "3")), True),
        ((), (("1", "2"), (), ("3",)), 3, ("a", ("2", "9")), False),
        # eth counts places that may hold anything; Starknet does not.
        ((), ((), ()), 2, ("a", ("1",)), False),
        ((), ((), ()), 0, ("a", ("1",)), True),
    ],
)
def test_filter(
    addresses: tuple[str, ...],
    keys: tuple[tuple[str, ...], ...],
    least: int,
    item: tuple[str, tuple[str, ...]],
    wanted: bool,
) -> None:
    chosen = tuple(frozenset(each) for each in keys)
    subscription = Subscription(Topic.LOGS, frozenset(addresses), chosen, min_keys=least)
    found = Item(*item, b"")
    assert passes(subscription, found) is wanted
    if wanted:
        # It is indexed in exactly one of its positions.
        assert len(set(slots(subscription)) & set(places_of(found, range(-1, 4)))) == 1


def test_filter_is_indexed_by_its_most_selective_term() -> None:
    def places(addresses: str, *keys: str) -> set[tuple[str | None, int, str | None]]:
        chosen = tuple(frozenset(each) for each in keys)
        return set(slots(Subscription(Topic.LOGS, frozenset(addresses), chosen, min_keys=len(keys))))

    assert places("") == {(None, -1, None)}
    assert places("ab") == {("a", -1, None), ("b", -1, None)}
    assert places("ab", "1", "23", "") == {(a, 1, key) for a in "ab" for key in "23"}
    assert places("", "1", "23") == {(None, 1, "2"), (None, 1, "3")}
    assert places("abcdefghij", "1234567") == {(None, 0, key) for key in "1234567"}, "too many pairs"


def test_terms_are_the_stored_part_of_a_filter() -> None:
    chosen: tuple[frozenset[str], ...] = (frozenset("12"), frozenset(), frozenset("345"))
    assert terms(Subscription(Topic.LOGS, frozenset("ab"), chosen)) == 8
    assert terms(Subscription(Topic.HEADS)) == 1


def test_calls_for_a_block_and_a_page_of_its_events() -> None:
    assert eth.block_call(10) == NodeCall("eth_getBlockByNumber", ["0xa", False])
    assert eth.read_number(b'"0x10"') == 16
    block = {"block_hash": HEAD.hash}
    first = {"from_block": block, "to_block": block, "chunk_size": starknet._PAGE}
    assert starknet.events_call(HEAD, None).params == {"filter": first}
    assert starknet.events_call(HEAD, "t").params == {"filter": first | {"continuation_token": "t"}}
