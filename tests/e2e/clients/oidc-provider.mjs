// An OpenID Connect provider for tests: `node oidc-provider.mjs SETTINGS.json`. Prints "ready" once it listens.
// SETTINGS: {port, client_id, client_secret, redirect_uris, accounts: {login: claims}}. Any password will do.
import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import Provider from "oidc-provider";

const { port, client_id, client_secret, redirect_uris, accounts } = JSON.parse(readFileSync(process.argv[2], "utf8"));

const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [{ client_id, client_secret, redirect_uris }],
  claims: { openid: ["sub"], email: ["email", "email_verified"], profile: ["name"] },
  cookies: { keys: [randomBytes(32).toString("hex")] },
  features: { devInteractions: { enabled: true } },
  pkce: { required: () => true },
  findAccount(_ctx, login) {
    if (!Object.hasOwn(accounts, login)) return undefined;
    return { accountId: login, claims: () => ({ sub: login, ...accounts[login] }) };
  },
  // Lifetimes are given so that it does not warn about its defaults.
  ttl: { AccessToken: 600, AuthorizationCode: 60, Grant: 600, IdToken: 600, Interaction: 600, Session: 600 },
});

provider.on("server_error", (_ctx, error) => console.error(error));
provider.listen(port, "127.0.0.1", () => console.log("ready"));
