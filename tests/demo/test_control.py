"""The methods by which a test makes a simulated node lag, fail and crawl, and its chain reorganise."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.demo.chain import BLOCK_SECONDS
from tollgate.demo.chain_params import RpcError
from tollgate.demo.control import METHODS, Faults, HttpFault, Visit
from tollgate.demo.course import DEEPEST_REORG, MAX_FORKS
from tollgate.demo.eth import EthNode
from tollgate.demo.eth_shapes import TOKEN
from tollgate.demo.network import SimulatedNetwork
from tollgate.demo.starknet import StarknetNode
from tollgate.demo.starknet_shapes import LAST_BLOCK, STRK

GENESIS = 1_800_000_000
HEAD = 5_001
NOW = GENESIS + HEAD * BLOCK_SECONDS + 0.5


class Desk:
    """A network with control, and a clock that is moved by hand."""

    def __init__(self, network: SimulatedNetwork) -> None:
        self.network = network
        self.faults = Faults()
        self.now = NOW

    def ask(self, method: str, *params: object, **named: object) -> Any:
        return Visit(self.network, self.faults).answer(method, named or list(params), self.now)

    def refused(self, method: str, *params: object, **named: object) -> int:
        with pytest.raises(RpcError) as caught:
            self.ask(method, *params, **named)
        return caught.value.code


def eth() -> Desk:
    return Desk(EthNode("mainnet", GENESIS))


def starknet() -> Desk:
    return Desk(StarknetNode("mainnet", GENESIS))


deeds = st.one_of(
    st.tuples(st.just("demo_mine"), st.fixed_dictionaries({"blocks": st.integers(0, 9)})),
    st.tuples(
        st.just("demo_reorg"),
        st.fixed_dictionaries(
            {"blocks": st.integers(1, 9), "longer": st.booleans()}, optional={"branch": st.text(max_size=2)}
        ),
    ),
    st.tuples(st.sampled_from(["demo_pause", "demo_resume"]), st.just({})),
    st.tuples(st.just("demo_lag"), st.fixed_dictionaries({"blocks": st.integers(0, 9)})),
    st.tuples(st.just("send"), st.just({})),
    st.tuples(st.just("wait"), st.fixed_dictionaries({"seconds": st.floats(0, 9)})),
)


def do(context: Desk, story: list[tuple[str, dict[str, Any]]]) -> None:
    for number, (method, params) in enumerate(story):
        if method == "wait":
            context.now += params["seconds"]
        elif method == "send" and isinstance(context.network, EthNode):
            context.ask("eth_sendRawTransaction", f"0x{number + 1:02x}")
        elif method == "send":
            context.ask("starknet_addInvokeTransaction", {"nonce": hex(number)})
        else:
            context.ask(method, **params)


@given(st.lists(deeds, max_size=10))
def test_ethereum_blocks_fit_together_whatever_is_done(story: list[tuple[str, dict[str, Any]]]) -> None:
    context = eth()
    do(context, story)
    head = int(context.ask("eth_blockNumber"), 16)
    above = None
    for height in range(head, head - 25, -1):
        block = context.ask("eth_getBlockByNumber", hex(height), False)
        assert above is None or above == block["hash"]
        assert context.ask("eth_getBlockByHash", block["hash"], False) == block
        receipts = context.ask("eth_getBlockReceipts", block["hash"])
        assert [one["transactionHash"] for one in receipts] == block["transactions"]
        logs = [log for one in receipts for log in one["logs"]]
        assert context.ask("eth_getLogs", {"fromBlock": hex(height), "toBlock": hex(height)}) == logs != []
        above = block["parentHash"]


@given(st.lists(deeds, max_size=10))
def test_starknet_blocks_fit_together_whatever_is_done(story: list[tuple[str, dict[str, Any]]]) -> None:
    context = starknet()
    do(context, story)
    head = context.ask("starknet_blockNumber")
    above = None
    for height in range(head, head - 25, -1):
        block = context.ask("starknet_getBlockWithReceipts", {"block_number": height})
        assert above is None or above == block["block_hash"]
        assert context.ask("starknet_getBlockWithReceipts", {"block_hash": block["block_hash"]}) == block
        events = [event for one in block["transactions"] for event in one["receipt"]["events"]]
        only = {"from_block": {"block_number": height}, "to_block": {"block_number": height}}
        found = context.ask("starknet_getEvents", {**only, "chunk_size": 1_000})["events"]
        assert [{name: one[name] for name in ("from_address", "keys", "data")} for one in found] == events != []
        above = block["parent_hash"]


def test_a_reorganisation_of_ethereum_changes_blocks_transactions_and_state() -> None:
    context = eth()
    token = "0x" + TOKEN.hex()
    before = context.ask("eth_getBlockByNumber", "latest", False)
    stored = context.ask("eth_getStorageAt", token, "0x0", "latest")
    context.ask("demo_reorg", 1)
    after = context.ask("eth_getBlockByNumber", "latest", False)
    assert (before["number"], before["parentHash"]) == (after["number"], after["parentHash"])
    assert before["hash"] != after["hash"]
    assert not set(before["transactions"]) & set(after["transactions"])
    assert context.ask("eth_getBlockByHash", before["hash"], False) is None
    assert context.ask("eth_getTransactionReceipt", before["transactions"][0]) is None
    assert context.ask("eth_getStorageAt", token, "0x0", "latest") != stored


def test_a_reorganisation_of_starknet_changes_blocks_transactions_and_state() -> None:
    context = starknet()
    question = (hex(STRK), hex(LAST_BLOCK), "latest")
    before = context.ask("starknet_getBlockWithTxHashes", "latest")
    stored = context.ask("starknet_getStorageAt", *question)
    context.ask("demo_reorg", 1)
    after = context.ask("starknet_getBlockWithTxHashes", "latest")
    assert (before["block_number"], before["parent_hash"]) == (after["block_number"], after["parent_hash"])
    assert before["block_hash"] != after["block_hash"]
    assert not set(before["transactions"]) & set(after["transactions"])
    assert context.refused("starknet_getBlockWithTxs", {"block_hash": before["block_hash"]}) == 24
    assert context.refused("starknet_getTransactionReceipt", before["transactions"][0]) == 29
    assert context.ask("starknet_getStorageAt", *question) == after["block_hash"] != stored


def test_a_lagging_node_stays_behind_and_says_nothing_of_it_unless_told() -> None:
    context = eth()
    assert context.ask("demo_lag", 7)["shown"] == HEAD - 7
    assert context.ask("eth_blockNumber") == hex(HEAD - 7)
    assert context.ask("eth_getBlockByNumber", hex(HEAD), False) is None
    assert context.refused("eth_getBalance", "0x" + "ab" * 20, hex(HEAD)) == -32000
    assert context.ask("eth_syncing") is False
    assert context.ask("demo_lag", blocks=7, syncing=True)["syncing"] is True
    assert context.ask("eth_syncing")["highestBlock"] == hex(HEAD)
    assert context.ask("demo_lag", 0)["shown"] == HEAD


def test_a_held_node_stays_at_its_block_while_the_chain_goes_on() -> None:
    context = starknet()
    assert context.ask("demo_hold")["held"] == HEAD
    context.now += 10 * BLOCK_SECONDS
    assert context.ask("starknet_blockNumber") == HEAD
    assert context.ask("demo_state")["head"] == HEAD + 10
    assert context.ask("demo_release")["shown"] == HEAD + 10
    assert context.ask("demo_hold", HEAD - 3)["shown"] == HEAD - 3


def test_a_paused_chain_grows_by_mining_alone() -> None:
    context = eth()
    assert context.ask("demo_pause")["running"] is False
    context.now += 100
    assert context.ask("demo_mine", 3)["head"] == HEAD + 3
    assert context.ask("demo_resume")["running"] is True
    context.now += BLOCK_SECONDS
    assert context.ask("eth_blockNumber") == hex(HEAD + 4)


def test_a_reorganisation_may_be_longer_and_may_be_named_by_its_first_height() -> None:
    context, other = eth(), eth()
    assert context.ask("demo_reorg", blocks=2, longer=True)["head"] == HEAD + 1
    assert context.ask("demo_state")["forks"] == [HEAD - 1]
    other.now += BLOCK_SECONDS
    context.ask("demo_reorg", height=HEAD - 4, branch="b")
    state = other.ask("demo_reorg", height=HEAD - 4, branch="b")
    assert state["hash"] == context.ask("demo_state")["hash"]


def test_a_reorganisation_has_bounds() -> None:
    context = eth()
    assert context.refused("demo_reorg", DEEPEST_REORG + 1) == -32602
    assert context.refused("demo_reorg", height=HEAD - DEEPEST_REORG) == -32602
    assert context.refused("demo_reorg", height=0) == -32602
    assert context.refused("demo_reorg", branch=7) == -32602
    for _ in range(MAX_FORKS):
        context.ask("demo_reorg", 1)
        context.ask("demo_mine", 1)
    assert context.refused("demo_reorg", 1) == -32000


def test_an_error_on_command_answers_as_many_calls_as_were_asked_for() -> None:
    context = eth()
    context.ask(
        "demo_fail", calls=2, error={"code": -32005, "message": "daily request count exceeded", "data": {"a": 1}}
    )
    assert context.ask("demo_state")["failing"] == 2
    for _ in range(2):
        with pytest.raises(RpcError, match="daily") as caught:
            context.ask("eth_chainId")
        assert (caught.value.code, caught.value.data) == (-32005, {"a": 1})
    assert context.ask("eth_chainId") == "0x1"


def test_a_fault_may_be_for_some_methods_alone() -> None:
    context = eth()
    context.ask("demo_fail", calls=1, status=503, methods=["eth_getLogs"])
    assert context.ask("eth_chainId") == "0x1"
    with pytest.raises(HttpFault) as caught:
        context.ask("eth_getLogs", {})
    assert (caught.value.status, caught.value.retry_after) == (503, None)
    assert context.ask("eth_getLogs", {})
    context.ask("demo_fail", 5)
    assert context.refused("eth_chainId") == -32603
    context.ask("demo_fail", 0)
    assert context.ask("eth_chainId") == "0x1"


def test_an_answer_is_kept_back_as_long_as_asked_for() -> None:
    context = eth()
    assert context.ask("demo_delay", 250, ["eth_call", "eth_chainId"])["delay"] == 250
    visit = Visit(context.network, context.faults)
    visit.answer("eth_blockNumber", [], NOW)
    assert visit.wait == 0
    visit.answer("eth_chainId", [], NOW)
    assert visit.wait == 0.25
    context.ask("demo_delay", 0)
    assert Visit(context.network, context.faults).wait == 0


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("demo_mine", {"blocks": -1}),
        ("demo_mine", {"blocks": 10**6}),
        ("demo_mine", {"n": 1}),
        ("demo_lag", {"blocks": "1"}),
        ("demo_lag", {"syncing": 1}),
        ("demo_delay", {}),
        ("demo_delay", {"milliseconds": 10**9}),
        ("demo_fail", {"status": 200}),
        ("demo_fail", {"status": 600}),
        ("demo_fail", {"error": {"code": "1"}}),
        ("demo_fail", {"methods": "eth_call"}),
        ("demo_hold", {"height": -1}),
    ],
)
def test_bad_params_are_refused(method: str, params: dict[str, object]) -> None:
    assert eth().refused(method, **params) == -32602


def test_an_unknown_method_of_control_is_unknown() -> None:
    assert eth().refused("demo_explode") == -32601


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["blocks", "height", "longer", "branch", "calls", "status", "error", "code"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


@given(st.sampled_from(METHODS), json_values | st.lists(json_values, max_size=4))
def test_any_params_are_answered_or_refused_with_an_rpc_error(method: str, params: object) -> None:
    context = eth()
    try:
        Visit(context.network, context.faults).answer(method, params, NOW)
    except RpcError as error:
        assert error.code in {-32602, -32000}  # noqa: PT017 - most calls succeed
