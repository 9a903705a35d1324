// Listen to a simulated node that only makes blocks on demand, with starknet.js: `node starknetjs_listen.mjs URL`.
import { createRequire } from "node:module";
import { call, main, overWebSocket, until } from "./listening.mjs";

const { WebSocketChannel } = createRequire(import.meta.url)("starknet");

await main(async (url) => {
  const channel = new WebSocketChannel({ nodeUrl: overWebSocket(url), autoReconnect: false });
  await channel.waitForConnection();
  const heads = [];
  const events = [];
  const statuses = [];
  const receipts = [];
  const transactions = [];
  const first = await call(url, "starknet_blockNumber");
  const newHeads = await channel.subscribeNewHeads({ blockIdentifier: first - 1 });
  newHeads.on((head) => heads.push(head));
  (await channel.subscribeEvents({ blockIdentifier: first })).on((event) => events.push(event));
  (await channel.subscribeNewTransactionReceipts()).on((receipt) => receipts.push(receipt));
  (await channel.subscribeNewTransactions({ finalityStatus: ["RECEIVED", "ACCEPTED_ON_L2"] })).on((transaction) =>
    transactions.push(transaction),
  );
  const invoke = { type: "INVOKE", sender_address: "0xabc", calldata: ["0x1"] };
  const { transaction_hash } = await call(url, "starknet_addInvokeTransaction", [invoke]);
  (await channel.subscribeTransactionStatus({ transactionHash: transaction_hash })).on((status) =>
    statuses.push(status),
  );
  await until(() => statuses.length === 1, "the first status");
  await call(url, "demo_mine", [2]);
  await until(() => heads.length === 4, "two heads");
  await until(() => statuses.length === 2, "the second status");
  await call(url, "demo_reorg", [1]);
  await until(() => heads.length === 6, "the reorganisation and its head");
  const ended = await newHeads.unsubscribe();
  return {
    first,
    transaction: transaction_hash,
    heads: heads.slice(0, 4).map((head) => [head.block_number, head.block_hash, head.parent_hash]),
    reorg: heads[4],
    replaced: [heads[5].block_number, heads[5].block_hash, heads[5].parent_hash],
    events: events.filter((event) => "keys" in event).length,
    statuses: statuses.slice(0, 2).map((status) => status.status.finality_status),
    receipts: receipts.filter((receipt) => receipt.transaction_hash === transaction_hash).length,
    transactions: transactions
      .filter((transaction) => transaction.transaction_hash === transaction_hash)
      .map((transaction) => transaction.finality_status),
    ended,
  };
});
