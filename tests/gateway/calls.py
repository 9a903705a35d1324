"""Calls through the pipeline of a worker, as the edge would run them."""

import asyncio
import json
from typing import Any

from tests.gateway.fakes import fly, turns
from tests.gateway.worker import Worker, with_token

from tollgate.gateway.messages import Answer, Request


async def answer(worker: Worker, incoming: Request) -> Answer:
    """Run a request as the edge does; where it rests, let that time pass."""
    incoming.network = worker.network
    worker.loop.clock = worker.clock
    answered: asyncio.Future[Answer] = worker.loop.create_future()
    incoming.done = lambda _, answer: answered.set_result(answer)
    got = worker.pipeline.answer(incoming)
    if isinstance(got, Answer):
        return got
    if got is not None:
        # It ends with an answer, or with the word that one comes later.
        def arrived(task: asyncio.Task[Answer | None]) -> None:
            if (answer := task.result()) is not None:
                answered.set_result(answer)

        fly(got).add_done_callback(arrived)
    await turns()
    while worker.loop.timers and not answered.done():
        await worker.loop.later(0.1)
    return await answered


async def send(worker: Worker, body: bytes | object) -> tuple[int, Any]:
    """Send a body with the usual token; return the status and what the answer holds."""
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    got = await answer(worker, with_token(sent))
    return got.status, json.loads(got.body) if got.body else None


def call(call_id: object, method: str = "eth_chainId", **members: Any) -> dict[str, object]:
    """A call, to be written as JSON."""
    return {"jsonrpc": "2.0", "id": call_id, "method": method, **members}


def reason(reply: Any) -> str:
    """Why a call was refused."""
    return str(reply["error"]["data"]["reason"])
