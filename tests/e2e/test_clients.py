"""The libraries that people use, unchanged, through the gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from parts.anvil import SEPOLIA, Anvil, anvil
from parts.node import run_node
from parts.pyclients import run_python
from parts.starknet import starknet_chain
from parts.tollgate import Demo, Gateway, demo, serving
from tollgate.chains.starknet_versions import path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Anvil]:
    with anvil(tmp_path_factory.mktemp("anvil")) as running:
        first, second = running.call("eth_accounts")[:2]
        running.call("eth_sendTransaction", {"from": first, "to": second, "value": "0x1"})
        yield running


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, chain: Anvil) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("gateway")
    with serving(folder, {"eth/sepolia": [chain.url]}, {"server": {"workers": 2}}) as running:
        yield running


@pytest.fixture(scope="module")
def playground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    with demo(tmp_path_factory.mktemp("demo"), "--workers", "1") as running:
        yield running


def run(client: str, url: str, token: str, folder: Path) -> dict[str, Any]:
    arguments = (url, "--token", token)
    if client.endswith(".mjs"):
        return run_node(client, *arguments, folder=folder)
    environment = "web3" if client.startswith("web3") else "starknet"
    return run_python(environment, client, *arguments, folder=folder)  # type: ignore[arg-type]


@pytest.mark.parametrize("client", ["web3_check.py", "viem_check.mjs", "ethers_check.mjs"])
def test_ethereum_client_reads_anvil_through_the_gateway(
    client: str, gateway: Gateway, chain: Anvil, tmp_path: Path
) -> None:
    books = gateway.books
    team = books.do(lambda records: records.teams.find(name="acme")) or books.team()
    token, _ = books.token(team)
    ran = run(client, f"{gateway.base_url}/x/eth/sepolia", token, tmp_path)
    newest = chain.call("eth_getBlockByNumber", "latest", False)
    assert ran["chain_id"] == SEPOLIA
    assert ran["block_number"] == int(newest["number"], 16)
    assert ran["block_hash"] == newest["hash"]
    assert ran["transaction"] == newest["transactions"][0]
    assert ran["receipt_status"] == 1
    assert int(ran["balance"]) > 0


@pytest.mark.parametrize("client", ["web3_check.py", "viem_check.mjs", "ethers_check.mjs"])
def test_ethereum_client_reads_the_demo_chain(client: str, playground: Demo, tmp_path: Path) -> None:
    ran = run(client, playground.printed["networks"]["eth/mainnet"], playground.printed["token"], tmp_path)
    assert ran["chain_id"] == 1
    assert ran["block_number"] >= ran["block"] > 0


@pytest.mark.parametrize("client", ["starknet_check.py", "starknetjs_check.mjs"])
@pytest.mark.parametrize(("network", "chain_id"), [("mainnet", "SN_MAIN"), ("sepolia", "SN_SEPOLIA")])
def test_starknet_client_reads_the_demo_chain(
    client: str, network: str, chain_id: str, playground: Demo, tmp_path: Path
) -> None:
    url = playground.printed["networks"][f"starknet/{network}"]
    ran = run(client, url, playground.printed["token"], tmp_path)
    assert int(ran["chain_id"], 16) == int.from_bytes(chain_id.encode(), "big")
    assert ran["block_number"] >= ran["block"] > 0
    assert ran["receipt_status"] == "SUCCEEDED"


@pytest.mark.parametrize(
    ("client", "version", "release"),
    [
        ("starknet_check.py", "0.10", "0.10.2"),
        ("starknetjs_check.mjs", "0.9", "0.9.0"),
        ("starknetjs_check.mjs", "0.10", "0.10.2"),
    ],
)
def test_starknet_client_reads_a_node_by_a_version(
    client: str, version: str, release: str, tmp_path: Path
) -> None:
    with starknet_chain() as chain:
        ran = run(client, f"{chain.nodes[0].url}{path(version)}", "unused", tmp_path)
    assert ran["spec_version"] == release
    assert ran["block_number"] == ran["block"] == chain.height
    assert ran["receipt_status"] == "SUCCEEDED"


def test_client_with_a_bad_token_is_informed(gateway: Gateway, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"401|token"):
        run("viem_check.mjs", f"{gateway.base_url}/x/eth/sepolia", "tg_wrong", tmp_path)
