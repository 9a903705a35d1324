// Listen to a simulated node that only makes blocks on demand, with viem: `node viem_listen.mjs URL`.
import { createRequire } from "node:module";
import { call, main, overWebSocket, until } from "./listening.mjs";

const { createPublicClient, keccak256, webSocket } = createRequire(import.meta.url)("viem");

await main(async (url) => {
  const client = createPublicClient({ transport: webSocket(overWebSocket(url), { retryCount: 0 }) });
  const failures = [];
  const onError = (error) => failures.push(String(error));
  const blocks = [];
  const logs = [];
  const pending = [];
  const stops = [
    client.watchBlocks({ onBlock: (block) => blocks.push(block), onError }),
    client.watchEvent({ onLogs: (found) => logs.push(...found), onError }),
    client.watchPendingTransactions({ onTransactions: (hashes) => pending.push(...hashes), onError }),
  ];
  const first = Number(await client.getBlockNumber());
  // The subscriptions went out before this call, on the same connection.
  const raw = "0x02f8";
  const transaction = await client.sendRawTransaction({ serializedTransaction: raw });
  await until(() => pending.length === 1, "the pending transaction");
  await call(url, "demo_mine", [1]);
  await until(() => blocks.length === 1 && logs.some((log) => log.transactionHash === transaction), "the block");
  const receipt = await client.waitForTransactionReceipt({ hash: transaction });
  await call(url, "demo_reorg", [1]);
  await until(() => blocks.length === 2 && logs.some((log) => log.removed), "the reorganisation");
  for (const stop of stops) stop();
  return {
    first,
    transaction,
    is_keccak: transaction === keccak256(raw),
    pending,
    blocks: blocks.map((block) => [Number(block.number), block.hash, block.parentHash]),
    status: receipt.status,
    mined: Number(receipt.blockNumber),
    removed: logs.filter((log) => log.removed).length,
    failures,
  };
});
