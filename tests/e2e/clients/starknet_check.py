"""Read a chain with starknet.py: `starknet_check.py URL [--token T]`. One JSON object; exit 1 on failure."""

# The library lives in the e2e tests' own environment.
# mypy: ignore-errors

import argparse
import asyncio
import json
import sys
import warnings

import aiohttp
from starknet_py.hash.selector import get_selector_from_name
from starknet_py.net.client_models import Call
from starknet_py.net.full_node_client import FullNodeClient

# Whatever the library thinks odd about an answer is a failure here.
warnings.simplefilter("error")

STRK = 0x04718F5A0FC34CC1AF16A1CDEE98FFB20C31F5CD61D6AB07201858F4287C938D


async def read(client: FullNodeClient) -> dict[str, object]:
    block = await client.get_block(block_number="latest")
    by_hash = await client.get_block_with_tx_hashes(block_hash=block.block_hash)
    assert by_hash.block_number == block.block_number, "block by hash is another block"
    parent = await client.get_block_with_receipts(block_number=block.block_number - 1)
    assert parent.block_hash == block.parent_hash, "parent link is broken"
    update = await client.get_state_update(block_hash=block.block_hash)
    assert update.new_root == block.new_root, "state update is of another block"
    pre_confirmed = await client.get_block(block_number="pre_confirmed")
    events = await client.get_events(
        from_block_number=block.block_number - 1,
        to_block_number=block.block_number,
        follow_continuation_token=True,
        chunk_size=2,
    )
    transaction = block.transactions[0]
    return {
        "spec_version": await client.spec_version(),
        "chain_id": await client.get_chain_id(),
        "block_number": await client.get_block_number(),
        "newest": (await client.get_block_hash_and_number()).block_number,
        "block": block.block_number,
        "block_hash": hex(block.block_hash),
        "pre_confirmed": pre_confirmed.block_number,
        "l1_accepted": (await client.get_block(block_number="l1_accepted")).block_number,
        "syncing": await client.get_syncing_status(),
        "transactions": await client.get_block_transaction_count(block_hash=block.block_hash),
        "events": len(events.events),
    } | await read_account(client, transaction.hash, transaction.sender_address)


async def read_account(client: FullNodeClient, tx_hash: int, sender: int) -> dict[str, object]:
    transaction = await client.get_transaction(tx_hash)
    assert transaction.sender_address == sender, "transaction by hash is another one"
    receipt = await client.get_transaction_receipt(tx_hash)
    assert receipt.transaction_hash == tx_hash, "receipt is of another transaction"
    status = await client.get_transaction_status(tx_hash)
    selector = get_selector_from_name("balanceOf")
    low, high = await client.call_contract(Call(STRK, selector, [sender]), block_number="latest")
    token_class = await client.get_class_hash_at(STRK, block_number="latest")
    await client.get_class_by_hash(token_class, block_number="latest")
    return {
        "transaction": hex(tx_hash),
        "receipt_status": receipt.execution_status.value,
        "finality": status.finality_status.value,
        "nonce": await client.get_contract_nonce(sender, block_number="latest"),
        "balance": low + (high << 128),
        "class_hash": hex(token_class),
        "storage": await client.get_storage_at(STRK, 1, block_number="latest"),
    }


async def check(url: str, token: str | None) -> dict[str, object]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession(headers=headers) as session:
        return await read(FullNodeClient(url, session=session))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--token")
    given = parser.parse_args()
    try:
        found = asyncio.run(check(given.url, given.token))
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is the result
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
