// Watch a chain with starknet.js: `node starknetjs_watch.mjs WS_URL [--token T]`; see watching.mjs.
import { createRequire } from "node:module";
import { broken, show, TokenSocket, url } from "./watching.mjs";

const { WebSocketChannel } = createRequire(import.meta.url)("starknet");

const channel = new WebSocketChannel({ nodeUrl: url, websocket: TokenSocket, autoReconnect: false });
channel.on("error", () => broken("the connection failed"));
await channel.waitForConnection();
(await channel.subscribeNewHeads()).on((head) => show({ head }));
(await channel.subscribeEvents()).on((event) => show({ event }));
show({ ready: true });
