"""A team's addresses with snippets of code to paste, the first call, and a playground that calls the gateway."""

from __future__ import annotations

from string import Template

import msgspec
from litestar import Response, post

from tollgate.api.logs import LogQuery
from tollgate.api.service import Network
from tollgate.api.usage import By, UsageQuery
from tollgate.control.console.frame import open_frame, page
from tollgate.control.console.paths import HttpRequest, Part, Plane, shown
from tollgate.control.service_context import PageRequest
from tollgate.control.services.networks import methods_of

PLACEHOLDER = "YOUR_TOKEN"
_TOASTS = {"team": "The team was created. Make its first call."}
_CURL = """\
curl -s $url \\
  -H 'Content-Type: application/json' \\
  -H 'Authorization: Bearer $token' \\
  -d '{"jsonrpc":"2.0","id":1,"method":"$method","params":[]}'"""
# Of libraries, by family.
_SNIPPETS = {
    "eth": {
        "web3.py": """\
from web3 import Web3

web3 = Web3(Web3.HTTPProvider(
    "$url",
    request_kwargs={"headers": {"Authorization": "Bearer $token"}},
))
print(web3.eth.block_number)""",
        "viem": """\
import { createPublicClient, http } from "viem"

const client = createPublicClient({
  transport: http("$url", {
    fetchOptions: { headers: { Authorization: "Bearer $token" } },
  }),
})
console.log(await client.getBlockNumber())""",
        "ethers": """\
import { FetchRequest, JsonRpcProvider } from "ethers"

const request = new FetchRequest("$url")
request.setHeader("Authorization", "Bearer $token")
const provider = new JsonRpcProvider(request)
console.log(await provider.getBlockNumber())""",
    },
    "starknet": {
        "starknet.py": """\
import aiohttp
from starknet_py.net.full_node_client import FullNodeClient

async with aiohttp.ClientSession(
    headers={"Authorization": "Bearer $token"}
) as session:
    client = FullNodeClient("$url", session=session)
    print(await client.get_block_number())""",
        "starknet.js": """\
import { RpcProvider } from "starknet"

const provider = new RpcProvider({
  nodeUrl: "$url",
  headers: { Authorization: "Bearer $token" },
})
console.log(await provider.getBlockNumber())""",
    },
}


@shown("/teams/{team:str}/endpoints")
async def endpoints_page(request: HttpRequest, plane: Plane, team: Part) -> Response[str]:
    """All networks, snippets for the chosen one, and the first call."""
    frame = await open_frame(request, plane, team, here="endpoints", toasts=_TOASTS)
    frame.commands = ("tollgate rpc networks",)
    networks = await plane.networks.list()
    wanted = request.query_params.get("network", "")
    chosen = next((each for each in networks if each.network == wanted), networks[0] if networks else None)
    tokens = (await plane.tokens.list(frame.actor, team, PageRequest(2))).items
    used = (await plane.usage.of_team(frame.actor, team, UsageQuery(by=By.NETWORK))).requests
    return page(
        frame,
        "endpoints.html",
        networks=networks,
        chosen=chosen,
        snippets=snippets_of(chosen, in_url=True) if chosen else {},
        has_token=bool(tokens),
        has_called=used > 0 or any(token.last_used_at for token in tokens),
        methods=methods_of(chosen.family) if chosen else [],
        first=_first_method(chosen.family) if chosen else "",
    )


@shown("/teams/{team:str}/endpoints/called")
async def called(request: HttpRequest, plane: Plane, team: Part) -> Response[bytes]:
    """Whether the team has made a call yet, for the first-call guide."""
    frame = await open_frame(request, plane, team)
    if frame.may("SEE_LOGS"):
        found = bool((await plane.logs.page(frame.actor, team, LogQuery(limit=1))).rows)
    else:
        found = (await plane.usage.of_team(frame.actor, team, UsageQuery(by=By.NETWORK))).requests > 0
    return Response(msgspec.json.encode({"called": found}), media_type="application/json")


@post("/teams/{team:str}/playground", status_code=201)
async def playground_token(request: HttpRequest, plane: Plane, team: Part) -> Response[bytes]:
    """The token of the account's own calls, for the playground."""
    frame = await open_frame(request, plane, team)
    token, secret = await plane.tokens.playground(frame.actor, team)
    answer = {"secret": secret, "expires_at": token.expires_at}
    return Response(msgspec.json.encode(answer), media_type="application/json")


def snippets_of(network: Network, token: str = PLACEHOLDER, *, in_url: bool = False) -> dict[str, str]:
    """Code that calls a network with a token, by the name of the tool or library."""
    values = {"url": network.url, "token": token, "method": _first_method(network.family)}
    texts = {"curl": _CURL, **_SNIPPETS.get(network.family, {})}
    if in_url:
        texts["Wallet URL"] = "$url/$token"
    return {name: Template(text).substitute(values) for name, text in texts.items()}


def _first_method(family: str) -> str:
    """A method without parameters that every chain of a family answers."""
    return f"{family}_blockNumber"
