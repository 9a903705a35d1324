// Watch a chain with ethers: `node ethers_watch.mjs WS_URL [--token T] --address CONTRACT`; see watching.mjs.
import { createRequire } from "node:module";
import { broken, given, show, TokenSocket, url } from "./watching.mjs";

const { WebSocketProvider } = createRequire(import.meta.url)("ethers");

const subscriptions = [];

class Provider extends WebSocketProvider {
  // The library does not say when a subscription is made.
  send(method, params) {
    const answer = super.send(method, params);
    if (method === "eth_subscribe") subscriptions.push(answer);
    return answer;
  }
}

const provider = new Provider(() => new TokenSocket(url));
provider.on("error", broken);
await provider.on("block", (number) => show({ block: number }));
await provider.on({ address: given.address }, (log) =>
  show({ log: { number: Number(log.data), block: log.blockNumber, hash: log.blockHash, removed: log.removed } }),
);
await Promise.all(subscriptions);
show({ ready: subscriptions.length === 2 });
