// Read a chain with ethers: `node ethers_check.mjs URL [--token T]`. Prints one JSON object; exit 1 on failure.
// The library is found through NODE_PATH, which only require() honours.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { parseArgs } from "node:util";

const { FetchRequest, JsonRpcProvider, version } = createRequire(import.meta.url)("ethers");

async function read(provider) {
  const number = await provider.getBlockNumber();
  const latest = await provider.getBlock(number, true);
  const byHash = await provider.getBlock(latest.hash);
  assert.equal(byHash.number, number);
  if (number > 0) assert.equal((await provider.getBlock(number - 1)).hash, latest.parentHash);
  const transactions = latest.prefetchedTransactions;
  const holder = transactions.length ? transactions[0].from : latest.miner;
  // Calls made together leave as one batch.
  const [network, balance, nonce, fees, finalized, logs, called] = await Promise.all([
    provider.getNetwork(),
    provider.getBalance(holder),
    provider.getTransactionCount(holder),
    provider.getFeeData(),
    provider.getBlock("finalized"),
    provider.getLogs({ fromBlock: number, toBlock: number }),
    provider.call({ to: holder }),
  ]);
  return {
    client: `ethers/${version}`,
    chain_id: Number(network.chainId),
    block_number: number,
    block: latest.number,
    block_hash: latest.hash,
    finalized: finalized.number,
    pending: (await provider.getBlock("pending")).number,
    balance: balance.toString(),
    nonce,
    gas_price: fees.gasPrice.toString(),
    logs: logs.length,
    call: called,
    transactions: transactions.length,
    ...(transactions.length ? await readTransaction(provider, transactions[0]) : {}),
  };
}

async function readTransaction(provider, seen) {
  const transaction = await provider.getTransaction(seen.hash);
  const receipt = await provider.getTransactionReceipt(seen.hash);
  assert.equal(transaction.from, seen.from);
  assert.equal(receipt.hash, seen.hash);
  assert.equal(receipt.blockHash, transaction.blockHash);
  return { transaction: seen.hash, receipt_status: receipt.status };
}

const { values, positionals } = parseArgs({ options: { token: { type: "string" } }, allowPositionals: true });
const request = new FetchRequest(positionals[0]);
if (values.token) request.setHeader("Authorization", `Bearer ${values.token}`);
const provider = new JsonRpcProvider(request);
try {
  console.log(JSON.stringify(await read(provider)));
} catch (error) {
  console.error(error);
  process.exitCode = 1;
} finally {
  provider.destroy();
}
