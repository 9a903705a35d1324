"""Read a chain with web3.py: `web3_check.py URL [--token T]`. Prints one JSON object; exit 1 on failure."""

# The library lives in the e2e tests' own environment.
# mypy: ignore-errors

import argparse
import json
import sys
import warnings

from web3 import HTTPProvider, Web3

# Whatever the library thinks odd about an answer is a failure here.
warnings.simplefilter("error")


def read(w3: Web3) -> dict[str, object]:
    eth = w3.eth
    latest = eth.get_block("latest", full_transactions=True)
    by_hash = eth.get_block(latest["hash"])
    assert by_hash["number"] == latest["number"], "block by hash is another block"
    parent = eth.get_block(latest["number"] - 1) if latest["number"] else None
    assert parent is None or parent["hash"] == latest["parentHash"], "parent link is broken"
    holder = latest["transactions"][0]["from"] if latest["transactions"] else latest["miner"]
    with w3.batch_requests() as batch:
        batch.add(eth.get_block(latest["number"]))
        batch.add(eth.get_balance(holder, latest["number"]))
        numbered, balance = batch.execute()
    assert numbered["hash"] == latest["hash"], "batch answered another block"
    assert balance == eth.get_balance(holder, latest["number"]), "batch answered another balance"
    logs = eth.get_logs({"fromBlock": latest["number"], "toBlock": latest["number"]})
    return {
        "client": w3.client_version,
        "chain_id": eth.chain_id,
        "block_number": eth.block_number,
        "block": latest["number"],
        "block_hash": Web3.to_hex(latest["hash"]),
        "finalized": eth.get_block("finalized")["number"],
        "pending": eth.get_block("pending")["number"],
        "balance": balance,
        "nonce": eth.get_transaction_count(holder),
        "gas_price": eth.gas_price,
        "base_fees": len(eth.fee_history(2, "latest", [50])["baseFeePerGas"]),
        "syncing": eth.syncing,
        "logs": len(logs),
        "call": Web3.to_hex(eth.call({"to": holder})),
        "transactions": len(latest["transactions"]),
    } | (read_transaction(w3, latest["transactions"][0]) if latest["transactions"] else {})


def read_transaction(w3: Web3, seen: dict[str, object]) -> dict[str, object]:
    transaction = w3.eth.get_transaction(seen["hash"])
    receipt = w3.eth.get_transaction_receipt(seen["hash"])
    assert transaction["from"] == seen["from"], "transaction by hash is another one"
    assert receipt["transactionHash"] == seen["hash"], "receipt is of another transaction"
    assert receipt["blockHash"] == transaction["blockHash"], "receipt and transaction disagree"
    return {"transaction": Web3.to_hex(seen["hash"]), "receipt_status": receipt["status"]}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--token")
    given = parser.parse_args()
    headers = {"Content-Type": "application/json"}
    if given.token:
        headers["Authorization"] = f"Bearer {given.token}"
    w3 = Web3(HTTPProvider(given.url, request_kwargs={"headers": headers, "timeout": 20}))
    try:
        found = read(w3)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is the result
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
