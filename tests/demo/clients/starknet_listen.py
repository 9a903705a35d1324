"""Listen to a simulated node that only makes blocks on demand, with starknet.py: `starknet_listen.py URL`."""

# The library lives in the e2e tests' own environment.
# mypy: ignore-errors

import asyncio
import json
import sys
import time
import urllib.request
import warnings

from starknet_py.net.client_models import TransactionStatusWithoutL1
from starknet_py.net.websockets.websocket_client import WebsocketClient

# Whatever the library thinks odd about a notification is a failure here.
warnings.simplefilter("error")


def call(url: str, method: str, *params: object) -> object:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)["result"]


async def until(condition, what: str) -> None:
    deadline = time.monotonic() + 15
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come")
        await asyncio.sleep(0.01)


async def listen(url: str) -> dict[str, object]:
    client = WebsocketClient(url.replace("http", "ws", 1))
    await client.connect()
    heads, events, statuses, receipts, transactions, reorgs = [], [], [], [], [], []
    client.on_chain_reorg = reorgs.append
    first = call(url, "starknet_blockNumber")
    name = await client.subscribe_new_heads(heads.append, block_number=first - 1)
    await client.subscribe_events(events.append, block_number=first)
    await client.subscribe_new_transaction_receipts(receipts.append)
    both = [TransactionStatusWithoutL1.RECEIVED, TransactionStatusWithoutL1.ACCEPTED_ON_L2]
    await client.subscribe_new_transactions(transactions.append, finality_status=both)
    sent = [
        call(url, f"starknet_add{kind}Transaction", {"nonce": "0x1"})["transaction_hash"]
        for kind in ("Invoke", "Declare", "DeployAccount")
    ]
    await client.subscribe_transaction_status(statuses.append, int(sent[0], 16))
    await until(lambda: len(statuses) == 1, "the first status")
    call(url, "demo_mine", 2)
    await until(lambda: len(heads) == 4, "two heads")
    await until(lambda: len(statuses) == 2, "the second status")
    call(url, "demo_reorg", 1)
    await until(lambda: len(heads) == 5 and reorgs, "the reorganisation")
    ended = await client.unsubscribe(name)
    await client.disconnect()
    named = {int(one, 16) for one in sent}
    return {
        "first": first,
        "heads": [[one.result.block_number, one.result.block_hash, one.result.parent_hash] for one in heads],
        "reorg": [reorgs[0].result.starting_block_number, reorgs[0].result.ending_block_hash],
        "events": len(events),
        "statuses": [one.result.status.finality_status.value for one in statuses[:2]],
        "receipts": sum(one.result.transaction_hash in named for one in receipts),
        "transactions": sum(one.result.transaction.hash in named for one in transactions),
        "ended": ended,
    }


def main() -> int:
    try:
        found = asyncio.run(asyncio.wait_for(listen(sys.argv[1]), 60))
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is the result
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
