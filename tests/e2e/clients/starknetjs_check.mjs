// Read a chain with starknet.js: `node starknetjs_check.mjs URL [--token T]`. Prints one JSON object; exit 1 on
// failure. The library is found through NODE_PATH, which only require() honours.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { parseArgs } from "node:util";

const { RpcProvider } = createRequire(import.meta.url)("starknet");

const STRK = "0x04718f5a0fc34cc1af16a1cdee98ffb20c31f5cd61d6ab07201858f4287c938d";

// Whatever the library thinks odd about an answer is a failure here.
const complaints = [];
console.warn = (...words) => complaints.push(words.join(" "));

async function read(provider) {
  const latest = await provider.getBlockLatestAccepted();
  const block = await provider.getBlockWithTxs(latest.block_hash);
  assert.equal(block.block_number, latest.block_number);
  const parent = await provider.getBlockWithReceipts(latest.block_number - 1);
  assert.equal(parent.block_hash, block.parent_hash);
  const update = await provider.getStateUpdate(latest.block_hash);
  assert.equal(update.new_root, block.new_root);
  const { events } = await provider.getEvents({
    from_block: { block_number: latest.block_number },
    to_block: { block_number: latest.block_number },
    chunk_size: 100,
  });
  return {
    spec_version: await provider.getSpecVersion(),
    chain_id: await provider.getChainId(),
    block_number: await provider.getBlockNumber(),
    block: block.block_number,
    block_hash: block.block_hash,
    hashes: (await provider.getBlock("latest")).transactions.length,
    pre_confirmed: (await provider.getBlock("pre_confirmed")).block_number,
    l1_accepted: (await provider.getBlock("l1_accepted")).block_number,
    syncing: await provider.getSyncingStats(),
    transactions: await provider.getBlockTransactionCount(latest.block_hash),
    events: events.length,
    ...(await readAccount(provider, block.transactions[0])),
  };
}

async function readAccount(provider, seen) {
  const transaction = await provider.getTransactionByHash(seen.transaction_hash);
  assert.equal(transaction.sender_address, seen.sender_address);
  const receipt = await provider.getTransactionReceipt(seen.transaction_hash);
  assert.ok(receipt.isSuccess());
  assert.equal(receipt.value.transaction_hash, seen.transaction_hash);
  const status = await provider.getTransactionStatus(seen.transaction_hash);
  const balanceOf = { contractAddress: STRK, entrypoint: "balanceOf", calldata: [seen.sender_address] };
  const [low, high] = await provider.callContract(balanceOf);
  await provider.getClassAt(STRK);
  return {
    transaction: seen.transaction_hash,
    receipt_status: receipt.value.execution_status,
    finality: status.finality_status,
    nonce: Number(await provider.getNonceForAddress(seen.sender_address)),
    balance: (BigInt(low) + (BigInt(high) << 128n)).toString(),
    class_hash: await provider.getClassHashAt(STRK),
    storage: await provider.getStorageAt(STRK, "0x1"),
  };
}

const { values, positionals } = parseArgs({ options: { token: { type: "string" } }, allowPositionals: true });
const headers = { "Content-Type": "application/json" };
if (values.token) headers.Authorization = `Bearer ${values.token}`;
try {
  // `create` reads the node's version and speaks it.
  const found = await read(await RpcProvider.create({ nodeUrl: positionals[0], headers }));
  assert.deepEqual(complaints, []);
  console.log(JSON.stringify(found));
} catch (error) {
  console.error(error);
  process.exitCode = 1;
}
