// Watch a chain with viem: `node viem_watch.mjs WS_URL --address CONTRACT`; see watching.mjs. The library opens its
// own connection, so a token has to be in the URL.
import { createRequire } from "node:module";
import { broken, given, show, url } from "./watching.mjs";

const { createPublicClient, parseAbiItem, webSocket } = createRequire(import.meta.url)("viem");

let subscriptions = 0;

// The library does not say when a subscription is made, and gives blocks that it has fetched by a call of its own
// instead of the heads.
function transport(options) {
  const made = webSocket(url, { reconnect: false, retryCount: 0 })(options);
  const { subscribe } = made.value;
  made.value.subscribe = async ({ onData, ...rest }) => {
    const heads = rest.params[0] === "newHeads";
    const shown = (data) => {
      if (heads) show({ head: data.result });
      onData(data);
    };
    const subscription = await subscribe({ ...rest, onData: shown });
    subscriptions += 1;
    if (subscriptions === 2) show({ ready: true });
    return subscription;
  };
  return made;
}

const client = createPublicClient({ transport });
client.watchBlocks({
  onBlock: (block) => (block ? show({ block: Number(block.number) }) : broken("a block that was told of is not there")),
  onError: broken,
});
client.watchEvent({
  address: given.address,
  event: parseAbiItem("event Tick(uint256 number)"),
  onLogs: (logs) => {
    for (const { args, blockNumber, blockHash, removed } of logs)
      show({ log: { number: Number(args.number), block: Number(blockNumber), hash: blockHash, removed } });
  },
  onError: broken,
});
