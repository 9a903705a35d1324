// What the watching clients share. Each prints a line of JSON for everything that it is told, until it is stopped:
// {"ready":true} once its subscriptions are made, {"head":…}, {"block":…}, {"log":…} or {"event":…}, and {"broken":…}
// for whatever a program would have to mend, such as the end of its connection.
import { parseArgs } from "node:util";

export const { values: given, positionals } = parseArgs({
  options: { token: { type: "string" }, address: { type: "string" } },
  allowPositionals: true,
});
export const [url] = positionals;

const plain = (_, value) => (typeof value === "bigint" ? `0x${value.toString(16)}` : value);
export const show = (line) => console.log(JSON.stringify(line, plain));
export const broken = (what) => show({ broken: String(what?.message ?? what) });

// A browser cannot set headers: the token is offered as a sub-protocol, and the server selects the other one.
export class TokenSocket extends WebSocket {
  constructor(address) {
    super(address, given.token ? ["tollgate", `tollgate.token.${given.token}`] : []);
    this.addEventListener("close", ({ code, reason }) => broken(`closed with ${code} ${reason}`));
    this.addEventListener("open", () => {
      if (given.token && this.protocol !== "tollgate") broken(`the sub-protocol is "${this.protocol}"`);
    });
  }
}

process.on("unhandledRejection", broken);
process.on("SIGTERM", () => process.exit(0));
