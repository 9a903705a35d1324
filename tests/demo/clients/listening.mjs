// What the listening clients share: calls to the node beside their library, and waiting with a deadline.

export async function call(url, method, params = []) {
  const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method, params });
  const answer = await fetch(url, { method: "POST", headers: { "Content-Type": "application/json" }, body });
  const { result, error } = await answer.json();
  if (error) throw new Error(`${method}: ${JSON.stringify(error)}`);
  return result;
}

export async function until(condition, what) {
  const deadline = Date.now() + 15_000;
  while (!condition()) {
    if (Date.now() > deadline) throw new Error(`${what} did not come`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

export const overWebSocket = (url) => url.replace(/^http/, "ws");

export async function main(listen) {
  try {
    console.log(JSON.stringify(await listen(process.argv[2])));
    process.exit(0);
  } catch (error) {
    console.error(error);
    process.exit(1);
  }
}
