// Read a chain with viem: `node viem_check.mjs URL [--token T]`. Prints one JSON object; exit 1 on failure.
// The library is found through NODE_PATH, which only require() honours.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { parseArgs } from "node:util";

const { createPublicClient, http } = createRequire(import.meta.url)("viem");

async function read(client) {
  const latest = await client.getBlock({ includeTransactions: true });
  const { number, transactions } = latest;
  const byHash = await client.getBlock({ blockHash: latest.hash });
  assert.equal(byHash.number, number);
  if (number > 0n) {
    const parent = await client.getBlock({ blockNumber: number - 1n });
    assert.equal(parent.hash, latest.parentHash);
  }
  const address = transactions.length ? transactions[0].from : latest.miner;
  // The transport sends calls made together as one batch.
  const [chainId, newest, balance, nonce, gasPrice, fees, finalized, logs, called] = await Promise.all([
    client.getChainId(),
    client.getBlockNumber(),
    client.getBalance({ address }),
    client.getTransactionCount({ address }),
    client.getGasPrice(),
    client.getFeeHistory({ blockCount: 2, rewardPercentiles: [50] }),
    client.getBlock({ blockTag: "finalized" }),
    client.getLogs({ fromBlock: number, toBlock: number }),
    client.call({ to: address }),
  ]);
  return {
    client: "viem",
    chain_id: chainId,
    block_number: Number(newest),
    block: Number(number),
    block_hash: latest.hash,
    finalized: Number(finalized.number),
    pending: Number((await client.getBlock({ blockTag: "pending" })).number),
    balance: balance.toString(),
    nonce,
    gas_price: gasPrice.toString(),
    base_fees: fees.baseFeePerGas.length,
    logs: logs.length,
    call: called.data ?? "0x",
    transactions: transactions.length,
    ...(transactions.length ? await readTransaction(client, transactions[0]) : {}),
  };
}

async function readTransaction(client, seen) {
  const transaction = await client.getTransaction({ hash: seen.hash });
  const receipt = await client.getTransactionReceipt({ hash: seen.hash });
  assert.equal(transaction.from, seen.from);
  assert.equal(receipt.transactionHash, seen.hash);
  assert.equal(receipt.blockHash, transaction.blockHash);
  return { transaction: seen.hash, receipt_status: receipt.status === "success" ? 1 : 0 };
}

const { values, positionals } = parseArgs({ options: { token: { type: "string" } }, allowPositionals: true });
const headers = values.token ? { Authorization: `Bearer ${values.token}` } : {};
const transport = http(positionals[0], { batch: true, fetchOptions: { headers }, retryCount: 0 });
try {
  console.log(JSON.stringify(await read(createPublicClient({ transport }))));
} catch (error) {
  console.error(error);
  process.exitCode = 1;
}
