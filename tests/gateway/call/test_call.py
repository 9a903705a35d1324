"""Calls and batches: equal on the fast path, on the slow path and by WebSocket; bounds, order, the end."""

from __future__ import annotations

import gc
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest
from tests.gateway.call.situations import (
    CACHED,
    CHAIN,
    HEAD,
    LATEST,
    LOGS,
    NONCE,
    OLD,
    SEND,
    SITUATIONS,
    Situation,
    batch,
    call,
    compact,
    exact,
    one,
    plain_answers,
    play,
    sent,
    warm_up,
)
from tests.gateway.callers import TOKEN, digest, token_grant
from tests.gateway.fake_gateway import FakeGateway
from tests.gateway.fake_node import Http
from tests.gateway.fakes import FakeTransport, run_pending
from tests.gateway.raw_http import edge, hello

from tollgate.core.shapes import Params
from tollgate.errors import Refusal
from tollgate.gateway.access.caller import Caller
from tollgate.gateway.call import admission as admission_module
from tollgate.gateway.call import batch as batch_module
from tollgate.gateway.call.batch import ServedBatch
from tollgate.gateway.call.call import ServedCall
from tollgate.gateway.call.resolver import Resolution
from tollgate.gateway.messages import ServedNetwork
from tollgate.gateway.upstream.attempts import Attempts


@pytest.mark.parametrize("name", SITUATIONS)
async def test_fast_and_slow_path_are_equal(name: str) -> None:
    situation = SITUATIONS[name]
    fast, slow = await play(situation, "fast"), await play(situation, "slow")
    assert fast.answers == slow.answers
    assert fast.records == slow.records
    assert fast.upstream_calls == slow.upstream_calls
    assert fast.floor == slow.floor
    assert fast.fared == slow.fared
    assert fast.seconds == pytest.approx(slow.seconds)
    assert exact(fast.metrics) == exact(slow.metrics)
    if situation.fast is True:
        assert fast.slow == 0, "it left the fast path"
        assert slow.slow > 0


@pytest.mark.parametrize("name", [name for name, each in SITUATIONS.items() if each.fits_websocket])
async def test_websocket_and_http_are_equal(name: str) -> None:
    situation = SITUATIONS[name]
    posted, messages = await play(situation, "fast"), await play(situation, "websocket")
    for answers, received in zip(posted.answers, messages.messages, strict=True):
        # A message without an answer gets none; one that was refused before it was parsed gets its calls' ids.
        expected = [reasons(parsed) if status >= 400 else parsed for status, _, parsed in answers if status != 204]
        statuses = [status for status, _, _ in answers if status != 204]
        found = [reasons(each) if status >= 400 else each for status, each in zip(statuses, received, strict=True)]
        assert found == expected
    assert messages.records == posted.records
    assert messages.upstream_calls == posted.upstream_calls
    assert messages.floor == posted.floor
    assert messages.fared == posted.fared
    assert without_sockets(messages.metrics) == without_sockets(posted.metrics)
    assert messages.slow == posted.slow


def reasons(parsed: Any) -> set[str]:
    """Why calls were refused."""
    return {each["error"]["data"]["reason"] for each in (parsed if isinstance(parsed, list) else [parsed])}


def without_sockets(counts: dict[tuple[str, ...], int]) -> dict[tuple[str, ...], int]:
    return {key: value for key, value in exact(counts).items() if "websocket" not in key[0]}


@pytest.mark.parametrize(
    ("ids", "travel"),
    [
        ([1, 2], [1, 2]),
        ([5, 3], [5, 3]),
        ([0, 7], [0, 7]),
        ([1, 1], [0, 1]),
        ([-1, 3], [0, 1]),
        ([2**53 - 1, 4], [2**53 - 1, 4]),
        ([2**53, 4], [0, 1]),
        ([2**53 - 2, 2**53 - 1], [2**53 - 2, 2**53 - 1]),
        ([2**53 - 1, 2**53], [0, 1]),
    ],
)
@pytest.mark.parametrize("second", [LATEST, CHAIN], ids=["uniform", "other"])
async def test_ids_of_a_batch_travel_where_they_are_distinct_and_exact(
    ids: list[object], travel: list[int], second: dict[str, Any]
) -> None:
    played = await play(Situation(batch(LATEST, second, ids=ids)), "fast")
    assert (played.ids, played.slow) == ([travel], 0)
    assert [each["id"] for each in played.answers[0][0][2]] == ids


@pytest.mark.parametrize("ids", [[1, 2, 3], [9, 10, 11], [10, 11, 12], [0, 1, 2]])
async def test_batch_of_equal_calls_and_its_answers_travel_as_they_are(
    ids: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[object] = []

    def encode(value: object) -> bytes:
        encoded.append(value)
        return msgspec.json.encode(value)

    monkeypatch.setattr(batch_module, "encode_json", encode)
    played = await play(Situation(batch(LATEST, LATEST, LATEST, ids=ids), transform=compact), "fast")
    assert [each["result"] for each in played.answers[0][0][2]] == ["up0"] * 3
    # With ids of several lengths the answers are put together anew.
    assert len(encoded) == (1 if ids[0] == 9 else 0)


async def test_callers_are_let_in_anew_after_a_change_and_before_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission_module, "_MAX_ADMISSIONS", 2)
    async with warm_gateway() as (gateway, (transport,)):
        admissions = gateway.calls._admissions
        admissions.clear()
        for agent, count in (("a", 1), ("b", 2), ("c", 1), ("c", 1), ("d", 2)):
            assert await statuses(transport, sent(call(1, LATEST), f"user-agent: {agent}")) == [200]
            assert len(admissions) == count
        gateway.context.renew()
        assert await statuses(transport, sent(call(1, LATEST), "user-agent: d")) == [200]
        (admission,) = admissions.values()
        assert edge(transport).admission is admission
        assert admission.epoch == gateway.context.epoch


class InOrder(set[Any]):
    """A set that is gone through in the order in which it was filled."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[Any] = []

    def add(self, each: Any) -> None:
        super().add(each)
        self.order.append(each)

    def __iter__(self) -> Iterator[Any]:
        return iter([each for each in self.order if each in self])

    def pop(self) -> Any:
        first = next(iter(self))
        self.discard(first)
        return first


@asynccontextmanager
async def warm_gateway(
    *upstreams: dict[str, Any], callers: int = 1, grant: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[FakeGateway, list[FakeTransport]]]:
    """Callers that were let in, and idle connections to all upstreams."""
    gateway = FakeGateway(*upstreams or [{}], **options)
    gateway.store.tokens[digest(TOKEN)] = token_grant(**(grant or {}))
    await gateway.directory.refresh()
    gateway.publish_heads(*[HEAD] * len(gateway.nodes), finalized=10)
    transports = [gateway.connect(hello) for _ in range(callers)]
    await warm_up(gateway, transports)
    yield gateway, transports
    for node in gateway.nodes:
        while node.held:
            node.release()
            await run_pending(30)
    for pool in gateway.pools.values():
        pool.close()
    await run_pending()


async def statuses(transport: FakeTransport, *requests: bytes) -> list[int]:
    """What a caller is answered to one request after the other."""
    for request in requests:
        transport.deliver(request)
        await run_pending(30)
    return [status for status, _, _ in plain_answers(transport)]


async def test_batch_with_a_call_that_is_under_way_waits_for_that_answer() -> None:
    async with warm_gateway(callers=2, **CACHED) as (gateway, (first, waiting)):
        node = gateway.nodes[0]
        node.holds = True
        node.requests.clear()
        first.deliver(one(LATEST)[0])
        waiting.deliver(batch(LATEST, CHAIN)[0])
        await run_pending(30)
        assert [isinstance(each, list) for each in node.requests] == [False, False], "the other call goes alone"
        while node.held:
            node.release()
            await run_pending(30)
        ((_, _, parsed),) = plain_answers(waiting)
        assert [each["result"] for each in parsed] == ["up0", "up0"]
        assert "coalesced" in [entry.calls[0].cache for entry in gateway.sink.written[-2:]]


@pytest.mark.parametrize("second", [LATEST, {"method": "foo_bar"}], ids=["fast", "slow"])
async def test_as_many_calls_are_served_as_may_be_under_way(second: dict[str, Any]) -> None:
    async with warm_gateway(callers=3) as (gateway, transports):
        gateway.nodes[0].holds = True
        context = gateway.context
        context.max_in_flight = 2
        answered = [
            await statuses(transport, *one(made))
            for transport, made in zip(transports, (LATEST, second, LATEST), strict=True)
        ]
        assert answered == [[], [], [503]]
        assert (len(context.calls), len(context.tasks)) == (2, 0)
        while gateway.nodes[0].held:
            gateway.nodes[0].release()
        await run_pending(30)
        assert [plain_answers(each)[0][0] for each in transports[:2]] == [200, 200]


@pytest.mark.parametrize("body", [one(LATEST)[0], batch(LATEST, CHAIN)[0]], ids=["call", "batch"])
async def test_time_that_a_call_took_is_written_down(body: bytes) -> None:
    async with warm_gateway() as (gateway, (transport,)):
        gateway.nodes[0].holds = True
        transport.deliver(body)
        await run_pending()
        gateway.clock.advance(0.25)
        gateway.nodes[0].release()
        await run_pending(30)
        assert gateway.sink.written[-1].duration_micros == 250_000


async def test_requests_of_a_loop_turn_leave_together_at_its_end() -> None:
    async with warm_gateway(callers=3) as (gateway, transports):
        gateway.nodes[0].holds = True
        for transport, (request,) in zip(
            transports, (one(LATEST), batch(LATEST, CHAIN), one(LATEST)), strict=True
        ):
            transport.deliver(request)
        assert gateway.nodes[0].held == []
        await run_pending(1)
        assert [isinstance(parsed, list) for _, parsed in gateway.nodes[0].held] == [False, True, False]
        written = len(gateway.sink.written)
        await run_pending()
        assert len(gateway.sink.written) == written, "nothing was answered"


@pytest.mark.parametrize("request_", [one(LATEST)[0], batch(LATEST, CHAIN)[0]], ids=["call", "batch"])
async def test_request_whose_connection_is_lost_before_it_left_goes_another_way(request_: bytes) -> None:
    async with warm_gateway() as (gateway, (transport,)):
        connection: Any = gateway["up0"].pool.idle[-1]._transport
        connection.take()
        transport.deliver(request_)
        connection.drop()
        await run_pending(30)
        assert await statuses(transport) == [200]
        assert (connection.take(), connection.aborted) == (b"", False)


async def test_request_that_cannot_be_written_keeps_no_other_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with warm_gateway(callers=2) as (gateway, transports):
        second, first = (cast("Any", connection._transport) for connection in gateway["up0"].pool.idle[-2:])
        monkeypatch.setattr(first, "write", lambda _data: 1 / 0)
        for transport in transports:
            transport.deliver(one(LATEST)[0])
        await run_pending(30)
        assert [await statuses(transport) for transport in transports] == [[200], [200]]
        assert (first.aborted, second.aborted) == (True, False)


@pytest.mark.parametrize(("seconds", "status"), [(99.9, 200), (100.0, 401)])
async def test_token_that_expires_is_refused_though_it_was_let_in(seconds: float, status: int) -> None:
    async with warm_gateway(grant={"expires_at": 1_700_000_100.0}) as (gateway, (transport,)):
        assert await statuses(transport, *one(LATEST), *one(LATEST)) == [200, 200]
        gateway.wall.advance(seconds)
        assert await statuses(transport, *one(LATEST)) == [status]


def left(*transports: FakeTransport) -> list[str]:
    """What the last answers say of the limit."""
    return [re.findall(rb"r=([0-9]+);", transport.take())[-1].decode() for transport in transports]


async def test_answers_of_one_loop_turn_show_the_same_of_a_limit_and_the_next_ones_what_is_left_then() -> None:
    async with warm_gateway(callers=3, grant={"requests_per_second": 100}) as (gateway, transports):
        for transport in transports:
            transport.take()
        gateway.nodes[0].holds = True
        for transport in transports[:2]:
            transport.deliver(one(LATEST)[0])
        await run_pending(30)
        for _ in range(2):
            gateway.nodes[0].release()
        await run_pending(30)
        both = left(*transports[:2])
        assert both[0] == both[1]
        gateway.nodes[0].holds = False
        transports[2].deliver(one(LATEST)[0])
        await run_pending(30)
        assert int(left(transports[2])[0]) == int(both[0]) - 1
        transports[0].deliver(batch(LATEST, CHAIN)[0])
        await run_pending(30)
        assert int(left(transports[0])[0]) == int(both[0]) - 3


@pytest.mark.parametrize("body", [one(LATEST)[0], batch(LATEST, CHAIN)[0]], ids=["call", "batch"])
async def test_slots_of_limits_are_found_again_where_others_were_given_them(body: bytes) -> None:
    async with warm_gateway(grant={"requests_per_second": 2}) as (gateway, (transport,)):
        await statuses(transport, body)
        admission: Any = edge(transport).admission
        admission.limits, admission.take_limits = "slots of others", lambda *_: None
        gateway.limiter.moved = lambda slots: slots == "slots of others"
        await statuses(transport, body)
        assert admission.limits == admission._limits


@pytest.mark.parametrize(
    ("body", "more"),
    [(one(OLD)[0], one(NONCE)[0]), (batch(OLD, CHAIN)[0], batch(NONCE, LATEST)[0])],
    ids=["call", "batch"],
)
@pytest.mark.parametrize("hedge", [True, False])
async def test_call_leaves_the_fast_path_when_its_upstream_is_late(body: bytes, more: bytes, hedge: bool) -> None:
    async with warm_gateway({}, {}, callers=3, network={"hedge": hedge}, **CACHED) as (gateway, transports):
        for node in gateway.nodes:
            node.holds = True
        context = gateway.context
        context.calls = context.under_way.calls = InOrder()
        gateway.loop.timers.clear()
        context.under_way.sweeping = False
        for transport, each in zip(transports, (body, one(OLD)[0], more), strict=True):
            transport.deliver(each)
        assert len(gateway.loop.timers) == hedge, "one sweep for all"
        sent, coalesced, other = context.calls
        late = gateway.clock() + gateway["up0"].hedge_after
        for now in (gateway.clock(), late - 0.001, late):
            assert set(context.calls) == {sent, coalesced, other}
            assert sent._slow is None
            sent.hedge_if_late(now)
            coalesced.hedge_if_late(now + 1_000)
        assert set(context.calls) == {sent, coalesced, other}
        assert (sent._slow is None) is not hedge


@pytest.mark.parametrize("body", [one(LATEST)[0], batch(LATEST, CHAIN)[0]], ids=["call", "batch"])
@pytest.mark.parametrize("cache_bytes", [0, 1_000_000])
async def test_end_of_the_grace_refuses_what_is_on_the_fast_path_and_leaves_nothing_behind(
    body: bytes, cache_bytes: int
) -> None:
    gateway = FakeGateway({}, cache_bytes=cache_bytes)
    await gateway.directory.refresh()
    gateway.publish_heads(HEAD, finalized=10)
    first, waiting = gateway.connect(hello), gateway.connect(hello)
    await warm_up(gateway, [first, waiting])
    (upstream,) = gateway.exchange.upstreams
    before = upstream.failures
    gateway.nodes[0].holds = True
    context = gateway.context
    context.calls = context.under_way.calls = InOrder()
    first.deliver(body)
    waiting.deliver(one(LATEST, 8)[0])
    await run_pending(30)
    assert len(context.under_way) == 2
    # Where answers are shared, the second waits for the first.
    assert len(gateway.nodes[0].held) == (1 if cache_bytes else 2)
    context.under_way.stop()
    await run_pending(30)
    for transport in (first, waiting):
        ((status, headers, parsed),) = plain_answers(transport)
        assert (status, headers[b"retry-after"]) == (503, b"1")
        errors = [each["error"]["data"]["reason"] for each in (parsed if isinstance(parsed, list) else [parsed])]
        assert set(errors) == {"overloaded"}
    assert (len(context.calls), len(context.under_way), upstream.in_flight) == (0, 0, 0)
    assert (upstream.failures, dict(gateway.resolver.flights)) == (before, {})
    while gateway.nodes[0].held:
        gateway.nodes[0].release()
    await run_pending(30)
    assert not first.written
    assert not waiting.written
    for pool in gateway.pools.values():
        pool.close()
    await run_pending()


# --- On the slow path --------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [one(OLD, 8)[0], batch(OLD, CHAIN)[0]], ids=["call", "batch"])
async def test_defect_on_the_slow_path_is_answered_and_the_next_call_is_served(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with warm_gateway({}, {}, **CACHED) as (gateway, (transport,)):
        gateway.nodes[0].always(Http(503))
        for node in gateway.nodes[1:]:
            node.always("0x1")
        with monkeypatch.context() as patched:
            for name in ("_answer", "_answer_by_name"):
                patched.setattr(ServedCall, name, broken)
            patched.setattr(gateway.pipeline, "render_batch", broken)
            transport.deliver(body)
            await run_pending(30)
            ((status, _, parsed),) = plain_answers(transport)
            assert (status, parsed["error"]["data"]["reason"]) == (500, "internal_error")
        assert (len(gateway.context.under_way), sum(each.in_flight for each in gateway.upstreams)) == (0, 0)
        transport.deliver(one(NONCE, 9)[0])
        await run_pending(30)
        ((status, _, parsed),) = plain_answers(transport)
        assert (status, parsed["result"]) == (200, "0x1")


def broken(*_: object) -> None:
    raise RuntimeError("a defect")


@pytest.mark.parametrize("made", [{"method": "foo_bar"}, SEND, LOGS], ids=["unknown", "transaction", "logs"])
async def test_whether_a_method_may_be_called_is_decided_once(
    made: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with warm_gateway({}) as (gateway, (transport,)):
        decided: list[str] = []
        policy = gateway.pipeline.policy

        def counted(network: ServedNetwork, caller: Caller, method: str, params: Params = None) -> Refusal | None:
            decided.append(method)
            return policy(network, caller, method, params)

        monkeypatch.setattr(gateway.pipeline, "policy", counted)
        for number in range(3):
            transport.deliver(one(made, number)[0])
            await run_pending(30)
            ((status, _, _),) = plain_answers(transport)
            assert status == 200
        assert decided == [made["method"]]


async def test_call_that_waits_for_an_equal_one_can_leave_it() -> None:
    async with warm_gateway({}, callers=2, **CACHED) as (gateway, transports):
        gateway.nodes[0].holds = True
        context = gateway.context
        context.calls = context.under_way.calls = InOrder()
        for number, transport in enumerate(transports):
            transport.deliver(one(OLD, number)[0])
        await run_pending()
        _, waiting = context.calls
        context.calls.discard(waiting)
        waiting.stop()
        gateway.nodes[0].release()
        await run_pending(30)
        (answered,), (refused,) = map(plain_answers, transports)
        assert (answered[0], refused[0]) == (200, 503)
        assert not context.calls


@pytest.mark.parametrize(
    "bodies",
    [one(LOGS), batch(LATEST, LOGS, CHAIN), batch(LATEST, {"method": "foo_bar"}), [*one(OLD), *one(OLD, 8)]],
    ids=["logs", "batch with logs", "batch with an unknown method", "equal calls"],
)
async def test_nothing_of_an_answered_call_stays_in_memory(bodies: list[bytes]) -> None:
    def kept() -> int:
        gc.collect()
        return sum(isinstance(each, ServedBatch | Resolution | Attempts) for each in gc.get_objects())

    async with warm_gateway({}, callers=len(bodies), **CACHED) as (gateway, transports):
        before = kept()
        for number in range(4):
            gateway.nodes[0].holds = len(bodies) > 1
            gateway.publish_heads(HEAD + number, finalized=10)
            for transport, body in zip(transports, bodies, strict=True):
                transport.deliver(body)
            await run_pending(30)
            while gateway.nodes[0].held:
                gateway.nodes[0].release()
            await run_pending(30)
            assert all(plain_answers(transport) for transport in transports)
        # What is left is the last call of each connection.
        assert kept() - before <= 2 * len(bodies)
