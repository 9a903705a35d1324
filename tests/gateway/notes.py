"""Requests through a worker's connection, and what was written down of them."""

import json
from typing import Any

from tests.gateway.fakes import turns
from tests.gateway.raw_http import Answers, hello
from tests.gateway.worker import TOKEN, Worker, digest, token_grant

from tollgate.core.entries import Entry

Note = dict[str, object]
NOTIFICATION: Note = {"jsonrpc": "2.0", "method": "eth_call"}


def sent(body: object, *headers: str, token: str | None = TOKEN, path: str = "/x/eth/mainnet") -> bytes:
    """A request as HTTP."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "host: gate",
        "content-type: application/json",
        f"content-length: {len(data)}",
        *([f"authorization: Bearer {token}"] if token else []),
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


async def answers_to(worker: Worker, *requests: bytes, seconds: float = 0.0) -> list[tuple[int, Any]]:
    """Send requests on one connection; what was answered, status and body. `seconds`: let them pass."""
    transport = worker.connect(hello)
    worker.loop.clock = worker.clock
    for each in requests:
        transport.deliver(each)
    await turns(300)
    if seconds:
        await worker.loop.later(seconds)
    read = Answers(transport.take()).read
    return [(status, json.loads(body) if body else None) for status, _, body in read]


async def recorded(worker: Worker, *requests: bytes, seconds: float = 0.0) -> list[Entry]:
    """Send requests; what was written down of them."""
    await answers_to(worker, *requests, seconds=seconds)
    assert not worker.sink.waiting, "left in memory"
    return worker.sink.written


def outcomes(entry: Entry) -> list[tuple[str, str, int | None]]:
    return [(each.method, each.outcome, each.code) for each in entry.calls]


def known(worker: Worker, **fields: Any) -> None:
    """Give the usual token other settings."""
    worker.store.tokens[digest(TOKEN)] = token_grant(**fields)
