"""Calls through a gateway: identified, answered and recorded."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.gateway.callers import TOKEN, digest, token_grant, with_token
from tests.gateway.fake_gateway import FakeGateway
from tests.gateway.fakes import run_pending, spawn
from tests.gateway.raw_http import Answers, hello

from tollgate.core.entries import Entry, KeptAttempts
from tollgate.errors import Refusal
from tollgate.gateway.access.caller import Caller
from tollgate.gateway.messages import Answer, Request


async def identify(gateway: FakeGateway, incoming: Request) -> Caller:
    """Find the caller as the pipeline does: from memory, or else from the store."""
    return gateway.credentials.recall(incoming) or await gateway.credentials.look_up(incoming)


async def refusal(gateway: FakeGateway, incoming: Request) -> Refusal:
    """Why a caller is refused."""
    with pytest.raises(Refusal) as caught:
        await identify(gateway, incoming)
    return caught.value


class AwaitedAnswer:
    """What a call needs of its connection, for one answer."""

    answering: Any = None

    def __init__(self, future: asyncio.Future[Answer]) -> None:
        self._future = future

    def answered(self, _request: Request, answer: Answer) -> None:
        self._future.set_result(answer)


async def answer(gateway: FakeGateway, incoming: Request) -> Answer:
    """Run a request as a caller connection does; let the time pass that it waits for."""
    incoming.network = gateway.network
    answered: asyncio.Future[Answer] = gateway.loop.create_future()
    incoming.connection = AwaitedAnswer(answered)
    incoming.started = gateway.clock()
    got = gateway.pipeline.answer(incoming)
    if isinstance(got, Answer):
        return got
    if got is not None:
        # It returns an answer, or None if one comes later.
        def arrived(task: asyncio.Task[Answer | None]) -> None:
            if (answer := task.result()) is not None:
                answered.set_result(answer)

        spawn(got).add_done_callback(arrived)
    await run_pending()
    while gateway.loop.timers and not answered.done():
        await gateway.loop.advance(0.1)
    return await answered


async def send(gateway: FakeGateway, body: bytes | object) -> tuple[int, Any]:
    """Send a body with the usual token; return the status and what the answer holds."""
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    got = await answer(gateway, with_token(sent))
    return got.status, json.loads(got.body) if got.body else None


async def answers_to(gateway: FakeGateway, *requests: bytes, seconds: float = 0.0) -> list[tuple[int, Any]]:
    """Send requests on one connection; what was answered, status and body. `seconds`: let them pass."""
    transport = gateway.connect(hello)
    for each in requests:
        transport.deliver(each)
    await run_pending(300)
    if seconds:
        await gateway.loop.advance(seconds)
    read = Answers(transport.take()).read
    return [(status, json.loads(body) if body else None) for status, _, body in read]


async def recorded(gateway: FakeGateway, *requests: bytes, seconds: float = 0.0) -> list[Entry]:
    """Send requests; return their records."""
    await answers_to(gateway, *requests, seconds=seconds)
    assert not gateway.sink.waiting, "left in memory"
    return gateway.sink.written


def outcomes(entry: Entry) -> list[tuple[str, str, int | None]]:
    return [(each.method, each.outcome, each.code) for each in entry.calls]


def tries(kept: KeptAttempts) -> list[tuple[str, str]]:
    """The attempts of a record that made several: upstream and verdict of each."""
    assert isinstance(kept, tuple)
    return [(each.upstream, each.verdict.label) for each in kept]


def known(gateway: FakeGateway, **fields: Any) -> None:
    """Give the usual token other settings."""
    gateway.store.tokens[digest(TOKEN)] = token_grant(**fields)
