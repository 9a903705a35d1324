"""The simulated Starknet chain in each version of the specification: every difference of the table, one by one."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.chains import starknet_versions as versions
from tollgate.chains.starknet_versions import DIFFERENCES, SAME_IN_ALL, VERSIONS, Difference, Kind
from tollgate.demo.chain import BLOCK_SECONDS
from tollgate.demo.node import SimulatedNode
from tollgate.demo.params import RpcError
from tollgate.demo.starknet_feed import StarknetFeed
from tollgate.demo.starknet_methods import METHODS
from tollgate.demo.starknet_shapes import STRK, selector

GENESIS = 1_800_000_000
HEAD = 5_001
NOW = GENESIS + HEAD * BLOCK_SECONDS + 0.5
INVALID_PARAMS = -32602
METHOD_NOT_FOUND = -32601

Json = dict[str, Any]


class Client:
    """Calls one simulated node by one version."""

    def __init__(self, version: str, node: SimulatedNode | None = None) -> None:
        self.version = version
        self.tag = versions.next_tag(version)
        found = node or SimulatedNode(lambda: NOW, GENESIS)
        self._feed = StarknetFeed(found.networks[f"/starknet/mainnet{versions.path(version)}"])

    def __call__(self, method: str, *, later: float = 0.0, **params: Any) -> Any:
        return self._feed.answer(f"starknet_{method}", params, NOW + later)

    def watch(self, method: str, **params: Any) -> list[Json]:
        """Subscribe, and return the notifications of the next block; none where the version has no such method."""
        if self.error(method, **params)[0] == METHOD_NOT_FOUND:
            return []
        return [msgspec.json.decode(each) for each in self._feed.notifications(NOW + BLOCK_SECONDS)]

    def error(self, method: str, **params: Any) -> tuple[int, str]:
        """Code and message of the error of a call; zero and nothing where it succeeds."""
        try:
            self(method, **params)
        except RpcError as error:
            return error.code, error.message
        return 0, ""

    def takes(self, method: str, **params: Any) -> bool:
        """Whether the parameters are valid."""
        code, message = self.error(method, **params)
        assert code in {0, INVALID_PARAMS}, message
        return not code

    @property
    def next_transaction(self) -> str:
        """The hash of a transaction in the block that is being made."""
        return str(self("getBlockWithTxHashes", block_id=self.tag)["transactions"][0])

    @property
    def settled_transaction(self) -> str:
        return str(self("getBlockWithTxHashes", block_id="latest")["transactions"][0])

    def proven_transaction(self) -> Json:
        """Submit a transaction with proof facts, and return how it is shown once it is in a block."""
        sent = self("addInvokeTransaction", invoke_transaction={"proof_facts": ["0x1"]})["transaction_hash"]
        missing = versions.missing_parameters(self.version, "starknet_getTransactionByHash")
        flags = {} if missing else {"response_flags": ["INCLUDE_PROOF_FACTS"]}
        found: Json = self("getTransactionByHash", later=BLOCK_SECONDS, transaction_hash=sent, **flags)
        return found


CALL = {"contract_address": hex(STRK), "entry_point_selector": hex(selector("symbol")), "calldata": []}
STORED: Json = {"contract_address": hex(STRK), "key": hex(selector("last_block"))}
MESSAGE = {"from_address": "0x1", "to_address": hex(STRK), "entry_point_selector": "0x1", "payload": []}

# Parameters of each method, where it has some: `client` is the version that is called, `block` a block id.
ARGUMENTS: dict[str, Callable[[Client, object], Json]] = {
    "getBlockWithTxHashes": lambda _, block: {"block_id": block},
    "getBlockWithTxs": lambda _, block: {"block_id": block},
    "getBlockWithReceipts": lambda _, block: {"block_id": block},
    "getBlockTransactionCount": lambda _, block: {"block_id": block},
    "getStateUpdate": lambda _, block: {"block_id": block},
    "getStorageAt": lambda _, block: {**STORED, "block_id": block},
    "getTransactionStatus": lambda client, _: {"transaction_hash": client.next_transaction},
    "getMessagesStatus": lambda client, _: {"transaction_hash": client.next_transaction},
    "getTransactionByHash": lambda client, _: {"transaction_hash": client.settled_transaction},
    "getTransactionByBlockIdAndIndex": lambda _, block: {"block_id": block, "index": 0},
    "getTransactionReceipt": lambda client, _: {"transaction_hash": client.next_transaction},
    "getClass": lambda client, block: {
        "block_id": block,
        "class_hash": client("getClassHashAt", block_id=block, contract_address=hex(STRK)),
    },
    "getClassHashAt": lambda _, block: {"block_id": block, "contract_address": hex(STRK)},
    "getClassAt": lambda _, block: {"block_id": block, "contract_address": hex(STRK)},
    "getNonce": lambda _, block: {"block_id": block, "contract_address": hex(STRK)},
    "call": lambda _, block: {"request": CALL, "block_id": block},
    "estimateFee": lambda _, block: {"request": [{}], "simulation_flags": [], "block_id": block},
    "estimateMessageFee": lambda _, block: {"message": MESSAGE, "block_id": block},
    "getEvents": lambda _, block: {"filter": {"from_block": block, "to_block": "latest", "chunk_size": 9}},
    "traceTransaction": lambda client, _: {"transaction_hash": client.settled_transaction},
    "traceBlockTransactions": lambda client, block: {"block_id": "latest" if block == client.tag else block},
    "simulateTransactions": lambda _, block: {
        "block_id": block,
        "transactions": [{}, {"type": "DECLARE"}, {"type": "DEPLOY_ACCOUNT"}],
        "simulation_flags": ["SKIP_VALIDATE"],
    },
    "getStorageProof": lambda client, block: {"block_id": "latest" if block == client.tag else block},
    "addInvokeTransaction": lambda _, __: {"invoke_transaction": {"nonce": "0x1"}},
    "addDeclareTransaction": lambda _, __: {"declare_transaction": {}},
    "addDeployAccountTransaction": lambda _, __: {"deploy_account_transaction": {}},
}

# An object of each schema, as the chain shows it to a client.
SAMPLES: dict[str, Callable[[Client], Json]] = {
    versions.BLOCK_HEADER: lambda client: client("getBlockWithTxHashes", block_id="latest"),
    versions.NEXT_HEADER: lambda client: client("getBlockWithTxs", block_id=client.tag),
    versions.NEXT_UPDATE: lambda client: client("getStateUpdate", block_id=client.tag),
    versions.NEXT_RECEIPT: lambda client: client(
        "getTransactionReceipt", transaction_hash=client.next_transaction
    ),
    versions.STATE_DIFF: lambda client: client("getStateUpdate", block_id="latest")["state_diff"],
    versions.EMITTED_EVENT: lambda client: client("getEvents", filter={"chunk_size": 1})["events"][0],
    versions.INVOKE: lambda client: client.proven_transaction(),
    versions.MESSAGE_STATUS: lambda client: client("getMessagesStatus", transaction_hash=client.next_transaction)[
        0
    ],
    versions.SENT_EVENT: lambda client: client.watch("subscribeEvents")[0]["params"]["result"],
}
READS: Json = {"transactions": [{}], "simulation_flags": ["RETURN_INITIAL_READS"], "block_id": "latest"}
RESULTS: dict[str, Json] = {
    "starknet_getStorageAt": {**STORED, "block_id": "latest", "response_flags": ["INCLUDE_LAST_UPDATE_BLOCK"]},
    "starknet_traceBlockTransactions": {"block_id": "latest", "trace_flags": ["RETURN_INITIAL_READS"]},
    "starknet_simulateTransactions": READS,
}
STATUSES: dict[str, Callable[[Client], Json]] = {
    versions.FINALITY_STATUS: SAMPLES[versions.NEXT_RECEIPT],
    versions.TXN_STATUS: lambda client: client("getTransactionStatus", transaction_hash=client.next_transaction),
}
ERRORS: dict[tuple[str, int], Callable[[Client], tuple[int, str]]] = {
    ("read", 21): lambda client: client.error(
        "call", request=CALL | {"entry_point_selector": "0x1"}, block_id="latest"
    ),
    ("starknet_estimateMessageFee", 20): lambda client: client.error(
        "estimateMessageFee", message=MESSAGE | {"to_address": "0x1"}, block_id="latest"
    ),
    ("write", 69): lambda client: client.error("addInvokeTransaction", invoke_transaction={"proof": "?"}),
}
# What this chain cannot show, with the versions that have it: it rejects nothing, has no handlers of messages from
# L1, and a block that is being made has no status.
NOT_SHOWN: dict[tuple[Kind, str, str], str] = {
    (Kind.VALUE, versions.BLOCK_STATUS, "PENDING"): "0.8",
    (Kind.VALUE, versions.BLOCK_STATUS, "REJECTED"): "0.8",
    (Kind.VALUE, versions.BLOCK_STATUS, "PRE_CONFIRMED"): "0.9 0.10",
    (Kind.VALUE, versions.TXN_STATUS, "REJECTED"): "0.8",
    (Kind.VALUE, versions.TXN_STATUS, "CANDIDATE"): "0.9 0.10",
    (Kind.VALUE, versions.MESSAGE_STATUS, "RECEIVED"): "0.8",
    (Kind.VALUE, versions.MESSAGE_STATUS, "REJECTED"): "0.8",
    (Kind.VALUE, versions.FEE_ESTIMATE, "WEI"): "0.8",
    (Kind.VALUE, versions.MESSAGE_FEE_ESTIMATE, "FRI"): "0.8",
    (Kind.MEMBER, "L1_HANDLER_TXN_TRACE", "revert_reason"): "0.9 0.10",
    (Kind.MEMBER, "INVALID_TRANSACTION_NONCE", "data"): "0.9 0.10",
    (Kind.ERROR, "starknet_estimateFee", "Contract not found"): "0.10",
    (Kind.ERROR, "write", "Contract class size it too large"): "0.8",
    (Kind.ERROR, "write", "Contract class size is too large"): "0.9 0.10",
    (Kind.ERROR, "write", "Sender address in not an account contract"): "0.8",
    (Kind.ERROR, "write", "Sender address is not an account contract"): "0.9 0.10",
    (Kind.ERROR, "write", "Replacement transaction is underpriced"): "0.9 0.10",
    (Kind.ERROR, "write", "Transaction fee below minimum"): "0.9 0.10",
}


def has_method(client: Client, _: str, name: str) -> bool:
    missing = METHOD_NOT_FOUND, f"Version {client.version} has no {name}."
    return client.error(name.removeprefix("starknet_")) != missing


def has_notification(client: Client, method: str, name: str) -> bool:
    return name in {each["method"] for each in client.watch(method.removeprefix("starknet_"))}


def has_parameter(client: Client, method: str, name: str) -> bool:
    short = method.removeprefix("starknet_")
    if not has_method(client, "", method):
        return False
    given = ARGUMENTS[short](client, "latest") if short in ARGUMENTS else {}
    return client.takes(short, **given, **{name: []})


def refuses_tag(client: Client, method: str, tag: str) -> bool:
    code, _ = client.error(method.removeprefix("starknet_"), block_id=tag)
    return tag in versions.tags(client.version) and code == INVALID_PARAMS


def takes_list(client: Client, method: str, name: str) -> bool:
    listed = {name: [hex(STRK)]}
    in_filter = {"filter": {"chunk_size": 1, **listed}}
    return client.takes(
        method.removeprefix("starknet_"), **in_filter if method == "starknet_getEvents" else listed
    )


def takes_value(client: Client, schema: str, value: str) -> bool:
    if schema == "SIMULATION_FLAG":
        return client.takes("simulateTransactions", **READS)
    return value in STATUSES[schema](client).values()


def has_result(client: Client, method: str, name: str) -> bool:
    short = method.removeprefix("starknet_")
    return client.takes(short, **RESULTS[method]) and name in client(short, **RESULTS[method])


# Whether the chain has by a client's version what a difference of this kind is about.
SHOWN: dict[Kind, Callable[[Client, str, str], bool]] = {
    Kind.TAG: lambda client, _, tag: client.takes("getBlockWithTxs", block_id=tag),
    Kind.METHOD: has_method,
    Kind.NOTIFICATION: has_notification,
    Kind.PARAMETER: has_parameter,
    Kind.REFUSED_TAG: refuses_tag,
    Kind.LIST: takes_list,
    Kind.INTEGER: lambda client, method, name: client.takes(
        method.removeprefix("starknet_"), **{name: int(client("subscribeNewHeads"))}
    ),
    Kind.INPUT: lambda client, _, name: (
        client.error("addInvokeTransaction", invoke_transaction={name: "not base64"})[0] == 69
    ),
    Kind.MEMBER: lambda client, schema, name: name in SAMPLES[schema](client),
    Kind.VALUE: takes_value,
    Kind.RESULT: has_result,
}


def is_shown(difference: Difference, client: Client) -> bool:
    of, name, code = difference.of, difference.name, difference.code
    if difference.kind is Kind.ERROR:
        return ERRORS[of, code](client) == (code, name)
    return SHOWN[difference.kind](client, of, name)


def title(difference: Difference) -> str:
    return f"{difference.kind.value}-{difference.of}-{difference.name}".replace(" ", "_")


@pytest.mark.parametrize(
    "difference",
    [
        each
        for each in DIFFERENCES
        if each.kind is not Kind.REQUIRED and (each.kind, each.of, each.name) not in NOT_SHOWN
    ],
    ids=title,
)
def test_the_versions_that_have_it_show_it_and_no_other(difference: Difference) -> None:
    shown = tuple(version for version in VERSIONS if is_shown(difference, Client(version)))
    assert shown == difference.versions


@pytest.mark.parametrize("difference", [each for each in DIFFERENCES if each.kind is Kind.REQUIRED], ids=title)
def test_what_a_version_requires_is_there(difference: Difference) -> None:
    for version in difference.versions:
        assert difference.name in SAMPLES[difference.of](Client(version))


@pytest.mark.parametrize(("place", "expected"), NOT_SHOWN.items(), ids=lambda given: str(given).replace(" ", "_"))
def test_what_the_chain_cannot_show_is_in_the_table(place: tuple[Kind, str, str], expected: str) -> None:
    (difference,) = [each for each in DIFFERENCES if (each.kind, each.of, each.name) == place]
    assert difference.versions == tuple(expected.split())
    assert [version for version in VERSIONS if versions.has(version, *place)] == expected.split()


@pytest.mark.parametrize("version", VERSIONS)
def test_no_answer_has_a_status_that_the_chain_cannot_show(version: str) -> None:
    found = values([answer for _, answer in every_answer(Client(version))])
    assert not found & {"PENDING", "REJECTED", "CANDIDATE"}
    assert ("PRE_CONFIRMED" in found) is (version != versions.V0_8)


def every_answer(client: Client) -> Iterator[tuple[str, Any]]:
    """Yield the answer of every method at every tag of the version, at a number, and at the oldest block."""
    blocks: list[object] = [*sorted(versions.tags(client.version)), {"block_number": 77}, {"block_number": 1}]
    for name in METHODS:
        method = name.removeprefix("starknet_")
        arguments = ARGUMENTS.get(method)
        for count, block in enumerate(blocks):
            given = arguments(client, block) if arguments else {}
            if method.startswith("add"):
                given = {key: {**value, "nonce": hex(count)} for key, value in given.items()}
            if method == "getStorageProof":
                assert client.error(method, **given)[0] == 42
            else:
                yield method, client(method, **given)


def objects(value: object) -> Iterator[Json]:
    if isinstance(value, dict):
        yield value
    members = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    for member in members:
        yield from objects(member)


def values(value: object) -> set[object]:
    return {member for each in objects(value) for member in each.values() if isinstance(member, str)}


# Members that other schemas have in all versions.
EVERYWHERE = {"block_number", "parent_hash", "finality_status", "execution_status", "data", "revert_reason"}


@pytest.mark.parametrize("version", VERSIONS)
def test_no_answer_has_a_member_of_another_version(version: str) -> None:
    client = Client(version)
    assert ARGUMENTS.keys() <= {name.removeprefix("starknet_") for name in METHODS}
    foreign = {each.name for each in DIFFERENCES if each.kind is Kind.MEMBER and version not in each.versions}
    for method, answer in every_answer(client):
        for found in objects(answer):
            assert not found.keys() & (foreign - EVERYWHERE), method
    for schema, sample in SAMPLES.items():
        assert not sample(client).keys() & versions.missing_members(version, schema), schema


def without(value: object, names: set[str]) -> object:
    if isinstance(value, dict):
        return {name: without(member, names) for name, member in value.items() if name not in names}
    return [without(member, names) for member in value] if isinstance(value, list) else value


@given(st.integers(1, HEAD), st.sampled_from(["getBlockWithTxs", "getBlockWithReceipts", "getStateUpdate"]))
def test_a_settled_block_differs_in_the_members_of_the_table_alone(height: int, method: str) -> None:
    newest = CLIENTS[versions.V0_10](method, block_id={"block_number": height})
    for version in (versions.V0_8, versions.V0_9):
        foreign = {each.name for each in DIFFERENCES if each.kind is Kind.MEMBER and version not in each.versions}
        older = CLIENTS[version](method, block_id={"block_number": height})
        assert older == without(newest, foreign - EVERYWHERE)


CLIENTS = {version: Client(version) for version in VERSIONS}


@pytest.mark.parametrize("method", sorted(SAME_IN_ALL))
def test_some_methods_answer_the_same_in_all_versions(method: str) -> None:
    answers = [CLIENTS[version](method.removeprefix("starknet_")) for version in VERSIONS]
    assert answers == answers[:1] * len(VERSIONS)


def test_each_version_has_its_own_number() -> None:
    assert [CLIENTS[version]("specVersion") for version in VERSIONS] == ["0.8.1", "0.9.0", "0.10.2"]


def test_the_address_without_a_version_answers_by_the_newest() -> None:
    network = SimulatedNode(lambda: NOW, GENESIS).networks["/starknet/mainnet"]
    newest = Client(versions.V0_10)
    for name in METHODS:
        method = name.removeprefix("starknet_")
        given = ARGUMENTS[method](newest, "latest") if method in ARGUMENTS else {}
        if method != "getStorageProof":
            assert network.answer(name, given, NOW) == newest(method, **given)


def test_what_is_submitted_by_one_version_is_there_in_the_others() -> None:
    node = SimulatedNode(lambda: NOW, GENESIS)
    clients = [Client(version, node) for version in VERSIONS]
    sent = clients[0]("addInvokeTransaction", invoke_transaction={})["transaction_hash"]
    for client in clients:
        assert client("getTransactionStatus", transaction_hash=sent) == {"finality_status": "RECEIVED"}
        mined = client("getTransactionStatus", later=BLOCK_SECONDS, transaction_hash=sent)
        assert mined["finality_status"] == "ACCEPTED_ON_L2"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_tag_of_another_version_is_refused_by_every_method(version: str) -> None:
    client = Client(version)
    every = frozenset[str]().union(*map(versions.tags, VERSIONS))
    for tag in every - versions.tags(version):
        for method, arguments in ARGUMENTS.items():
            given = arguments(client, "latest")
            if "block_id" in given:
                code, message = client.error(method, **given | {"block_id": tag})
                assert code == INVALID_PARAMS
                assert message == f"Invalid params: block_id is no block tag of version {version}"
        assert not client.takes("getEvents", filter={"chunk_size": 1, "to_block": tag})
