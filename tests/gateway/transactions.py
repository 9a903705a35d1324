"""Transactions to send, upstreams to send them to, and what their senders are shown."""

from __future__ import annotations

from typing import Any

from tests.gateway.callers import summary
from tests.gateway.fake_gateway import FakeGateway
from tests.gateway.fake_node import Error
from tests.gateway.fakes import run_pending

from tollgate.errors import Refusal

SEND = "eth_sendRawTransaction"
# The example of EIP-155, and that of eth-account's documentation.
RAW = (
    "0xf86c098504a817c800825208943535353535353535353535353535353535353535880de0b6b3a76400008025"
    "a028ef61340bd939bc2195fe537567866003e1a15d3c71ff63e1590620aa636276"
    "a067cbe9d8997f761aecb703304b3800ccf555c9f3dc64214b297fb1966a3b6d83"
)
HASH = "0x33469b22e9f636356c4160a87eb19df52b7412e8eac32a4a55ffe88ea8350788"
OTHER_RAW = (
    "0xf86a8086d55698372431831e848094f0109fc8df283027b6285cc889f5aa624eac1f55843b9aca008025"
    "a009ebb6ca057a0535d6186462bc0b465b561c94a295bdb0621fc19208ab149a9c"
    "a0440ffd775ce91a833ab410777204d5341a6f9fa91216a6f3ee2c051fea6a0428"
)
OTHER_HASH = "0xd8f64a42b57be0d565f385378db2f6bf324ce14a594afc05de90436e9ce01f60"
FUNDS = Error(-32000, "insufficient funds for gas * price + value")
DUPLICATE = Error(59, "A transaction with the same hash already exists in the mempool")
DOUBT = "may have been carried out"
THREE: tuple[dict[str, Any], ...] = ({}, {}, {})


def plays(gateway: FakeGateway, *replies: Any, found: Any = None) -> None:
    """What each upstream answers to a transaction, and what all of them answer when they are queried for it."""
    for node, each in zip(gateway.nodes, replies, strict=True):
        node.respond_with(lambda replies, method, _: replies if method == SEND else found, each)


def sends(gateway: FakeGateway) -> list[int]:
    """How often each upstream was sent a transaction."""
    return [sum(method != "eth_getTransactionByHash" for method, _ in node.calls) for node in gateway.nodes]


def looks(gateway: FakeGateway) -> int:
    """How often the chain was queried."""
    return sum(method == "eth_getTransactionByHash" for node in gateway.nodes for method, _ in node.calls)


async def sent(gateway: FakeGateway, seconds: float = 0.0, method: str = SEND, params: Any = (RAW,)) -> Any:
    """Send a transaction; what its sender is shown."""
    pending = gateway.send(method, *params)
    await run_pending()
    if seconds:
        await gateway.advance(seconds)
    try:
        return summary(await pending)
    except Refusal as refusal:
        return refusal
