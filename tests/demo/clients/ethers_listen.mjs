// Listen to a simulated node that only makes blocks on demand, with ethers: `node ethers_listen.mjs URL`.
import { createRequire } from "node:module";
import { call, main, overWebSocket, until } from "./listening.mjs";

const { WebSocketProvider } = createRequire(import.meta.url)("ethers");

await main(async (url) => {
  const provider = new WebSocketProvider(overWebSocket(url));
  const blocks = [];
  const logs = [];
  const pending = [];
  await provider.on("block", (number) => blocks.push(number));
  await provider.on({ topics: [] }, (log) => logs.push(log));
  await provider.on("pending", (hash) => pending.push(hash));
  const first = await provider.getBlockNumber();
  const transaction = await provider.send("eth_sendRawTransaction", ["0x02f9"]);
  await until(() => pending.length === 1, "the pending transaction");
  await call(url, "demo_mine", [2]);
  await until(() => blocks.includes(first + 2) && logs.some((log) => log.transactionHash === transaction), "the blocks");
  const receipt = await provider.getTransactionReceipt(transaction);
  await provider.destroy();
  return { first, transaction, pending, blocks, mined: receipt.blockNumber, status: receipt.status };
});
