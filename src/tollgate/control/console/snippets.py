"""Code snippets for an address and a token. Pure text."""

from __future__ import annotations

from msgspec import Struct

from tollgate.api.service import Network

PLACEHOLDER = "YOUR_TOKEN"
_FIRST = {"eth": "eth_blockNumber", "starknet": "starknet_blockNumber"}


class Snippet(Struct, frozen=True):
    """A piece of code and its label."""

    name: str
    text: str


def first_method(family: str) -> str:
    """A method without parameters that every chain of a family answers."""
    return _FIRST.get(family, f"{family}_blockNumber")


def of_network(network: Network, token: str = PLACEHOLDER, *, in_url: bool = False) -> list[Snippet]:
    """All snippets for a network's family."""
    found = [_curl(network, token)]
    if network.family == "eth":
        found += [_web3(network, token), _viem(network, token), _ethers(network, token)]
    if network.family == "starknet":
        found += [_starknet_py(network, token), _starknet_js(network, token)]
    if in_url:
        found.append(Snippet("Wallet URL", f"{network.url}/{token}"))
    return found


def _curl(network: Network, token: str) -> Snippet:
    body = f'{{"jsonrpc":"2.0","id":1,"method":"{first_method(network.family)}","params":[]}}'
    return Snippet(
        "curl",
        f"curl -s {network.url} \\\n"
        "  -H 'Content-Type: application/json' \\\n"
        f"  -H 'Authorization: Bearer {token}' \\\n"
        f"  -d '{body}'",
    )


def _web3(network: Network, token: str) -> Snippet:
    return Snippet(
        "web3.py",
        "from web3 import Web3\n\n"
        "web3 = Web3(Web3.HTTPProvider(\n"
        f'    "{network.url}",\n'
        f'    request_kwargs={{"headers": {{"Authorization": "Bearer {token}"}}}},\n'
        "))\nprint(web3.eth.block_number)",
    )


def _viem(network: Network, token: str) -> Snippet:
    return Snippet(
        "viem",
        'import { createPublicClient, http } from "viem"\n\n'
        "const client = createPublicClient({\n"
        f'  transport: http("{network.url}", {{\n'
        f'    fetchOptions: {{ headers: {{ Authorization: "Bearer {token}" }} }},\n'
        "  }),\n})\nconsole.log(await client.getBlockNumber())",
    )


def _ethers(network: Network, token: str) -> Snippet:
    return Snippet(
        "ethers",
        'import { FetchRequest, JsonRpcProvider } from "ethers"\n\n'
        f'const request = new FetchRequest("{network.url}")\n'
        f'request.setHeader("Authorization", "Bearer {token}")\n'
        "const provider = new JsonRpcProvider(request)\n"
        "console.log(await provider.getBlockNumber())",
    )


def _starknet_py(network: Network, token: str) -> Snippet:
    return Snippet(
        "starknet.py",
        "import aiohttp\nfrom starknet_py.net.full_node_client import FullNodeClient\n\n"
        "async with aiohttp.ClientSession(\n"
        f'    headers={{"Authorization": "Bearer {token}"}}\n'
        ") as session:\n"
        f'    client = FullNodeClient("{network.url}", session=session)\n'
        "    print(await client.get_block_number())",
    )


def _starknet_js(network: Network, token: str) -> Snippet:
    return Snippet(
        "starknet.js",
        'import { RpcProvider } from "starknet"\n\n'
        "const provider = new RpcProvider({\n"
        f'  nodeUrl: "{network.url}",\n'
        f'  headers: {{ Authorization: "Bearer {token}" }},\n'
        "})\nconsole.log(await provider.getBlockNumber())",
    )
