"""Watch a chain with starknet.py: `starknet_watch.py WS_URL TRANSACTION`. A JSON object a line until SIGTERM."""

# The library lives in the e2e tests' own environment.
# mypy: ignore-errors

import asyncio
import json
import sys
import warnings

from starknet_py.net.websockets.websocket_client import WebsocketClient

# Whatever the library thinks odd about a notification is a failure here.
warnings.simplefilter("error")


def show(**line: object) -> None:
    print(json.dumps(line), flush=True)


async def watch(url: str, transaction: str) -> None:
    client = WebsocketClient(url)
    await client.connect()
    client.on_chain_reorg = lambda one: show(
        reorg=[one.result.starting_block_number, one.result.ending_block_hash]
    )
    await client.subscribe_new_heads(
        lambda one: show(head=[one.result.block_number, one.result.block_hash, one.result.parent_hash])
    )
    await client.subscribe_events(lambda one: show(event=one.result.block_number))
    await client.subscribe_new_transaction_receipts(lambda one: show(receipt=one.result.transaction_hash))
    await client.subscribe_new_transactions(lambda one: show(transaction=one.result.transaction.hash))
    await client.subscribe_transaction_status(
        lambda one: show(status=one.result.status.finality_status.value), int(transaction, 16)
    )
    show(ready=True)
    await asyncio.Event().wait()


asyncio.run(watch(*sys.argv[1:]))
