"""Failover as a pure conversation, then driven over scripted upstreams."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.fakes import fly, run, turns
from tests.gateway.worker import Worker, http, request

from tollgate import metrics
from tollgate.config import Upstream
from tollgate.core import jsonrpc
from tollgate.core.shapes import Reply
from tollgate.errors import Overloaded, Refusal, UpstreamError, UpstreamTimeout, UpstreamUnavailable
from tollgate.gateway.exchange import BadStatus, Nonsense, failover, read_response
from tollgate.gateway.wire import AttemptFailed, ConnectFailed, NoRoom, PoolFull, Response, TimedOut, TooLarge

UPSTREAMS = tuple(Upstream(name=name, url=f"http://{name}") for name in "abcde")
FAILURES: list[tuple[type[AttemptFailed], bool, type[Refusal]]] = [
    (ConnectFailed, False, UpstreamUnavailable),
    (PoolFull, False, UpstreamUnavailable),
    (TimedOut, False, UpstreamTimeout),
    (TimedOut, True, UpstreamTimeout),
    (AttemptFailed, True, UpstreamError),
    (TooLarge, True, UpstreamError),
    (NoRoom, True, Overloaded),
    (BadStatus, True, UpstreamError),
    (Nonsense, True, UpstreamError),
]
scripts = st.lists(st.sampled_from(FAILURES), min_size=len(UPSTREAMS), max_size=len(UPSTREAMS))
DOUBT = "may have been carried out"


def conversation(
    failures: list[tuple[type[AttemptFailed], bool, type[Refusal]]], count: int, *, repeatable: bool
) -> tuple[list[str], Refusal]:
    """Fail every attempt as scripted; return the names that were asked and the refusal."""
    attempts = failover(UPSTREAMS[:count], repeatable=repeatable)
    asked = []
    try:
        upstream = next(attempts)
        for kind, sent, _ in failures:
            asked.append(upstream.name)
            upstream = attempts.send(kind("scripted", sent=sent))
    except StopIteration as stop:
        return asked, stop.value
    raise AssertionError("asked more often than there are upstreams")


@given(scripts, st.integers(1, len(UPSTREAMS)))
def test_read_asks_each_upstream_once_in_order_and_the_last_failure_speaks(
    failures: list[tuple[type[AttemptFailed], bool, type[Refusal]]], count: int
) -> None:
    asked, refusal = conversation(failures, count, repeatable=True)
    assert asked == [upstream.name for upstream in UPSTREAMS[:count]]
    assert type(refusal) is failures[count - 1][2]
    assert DOUBT not in refusal.message


@given(scripts, st.integers(1, len(UPSTREAMS)))
def test_write_stops_at_the_first_failure_after_sending(
    failures: list[tuple[type[AttemptFailed], bool, type[Refusal]]], count: int
) -> None:
    asked, refusal = conversation(failures, count, repeatable=False)
    unsent = next((number for number, (_, sent, _) in enumerate(failures) if sent), count)
    assert asked == [upstream.name for upstream in UPSTREAMS[: min(unsent + 1, count)]]
    kind = failures[len(asked) - 1]
    assert type(refusal) is kind[2]
    assert (DOUBT in refusal.message) is kind[1]


def test_no_upstream_at_all_is_unavailable() -> None:
    with pytest.raises(StopIteration) as caught:
        next(failover((), repeatable=True))
    assert isinstance(caught.value.value, UpstreamUnavailable)


# --- What is an answer -------------------------------------------------------------------------------------

GOOD = b'{"jsonrpc":"2.0","id":1,"result":"0x1"}'


@pytest.mark.parametrize("status", [200, 201, 400, 404, 405, 413, 422])
def test_json_rpc_body_is_an_answer_whatever_a_node_thinks_of_http(status: int) -> None:
    assert bytes(read_response(Response(status, GOOD), jsonrpc.decode_reply).result) == b'"0x1"'


@pytest.mark.parametrize("status", [301, 302, 307, 401, 402, 403, 407, 408, 429, 500, 502, 503, 504, 599])
def test_status_about_the_upstream_is_a_failure_even_with_a_good_body(status: int) -> None:
    with pytest.raises(BadStatus) as caught:
        read_response(Response(status, GOOD), jsonrpc.decode_reply)
    assert caught.value.sent


@pytest.mark.parametrize("status", [200, 404])
@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"{}", b'{"jsonrpc":"2.0","id":1,"error":"no"}', GOOD[:-1]]
)
def test_body_that_is_no_response_is_nonsense(status: int, body: bytes) -> None:
    with pytest.raises(Nonsense) as caught:
        read_response(Response(status, body), jsonrpc.decode_reply)
    assert caught.value.sent


# --- Driven ------------------------------------------------------------------------------------------------


def ask(worker: Worker, *, write: bool = False, seconds: float = 30.0) -> asyncio.Future[Reply]:
    return fly(
        worker.exchange.ask(b"{}", jsonrpc.decode_reply, worker.clock() + seconds, request(), repeatable=not write)
    )


def attempts(worker: Worker, upstream: str, outcome: str) -> int:
    return worker.counted(metrics.UPSTREAM_ATTEMPTS, "eth", "mainnet", upstream, outcome)


def test_first_upstream_that_answers_is_taken_and_all_attempts_are_counted() -> None:
    async def test() -> None:
        answers = [http(b"", status=b"503 No"), http(b"<html>"), http(GOOD)]
        worker = Worker(node=lambda _: answers.pop(0), upstreams=4)
        assert bytes((await ask(worker)).result) == b'"0x1"'
        assert [host for host, _, _ in worker.loop.asked] == ["up0", "up1", "up2"]
        assert attempts(worker, "up0", "status") == 1
        assert attempts(worker, "up1", "nonsense") == 1
        assert attempts(worker, "up2", "ok") == 1
        spent = [key for key in worker.regions.totals() if key[0] == metrics.UPSTREAM_SECONDS.name]
        assert sum(worker.regions.totals()[key] for key in spent if key[-1] != "sum") == 1

    run(test)


def test_write_goes_on_after_a_refused_connection_and_no_further() -> None:
    async def test() -> None:
        worker = Worker(node=lambda _: http(b"", status=b"502 No"), upstreams=3)
        worker.loop.refusing = True
        asked = ask(worker, write=True)
        await turns(4)
        worker.loop.refusing = False
        with pytest.raises(UpstreamError, match=DOUBT):
            await asked
        assert [host for host, _, _ in worker.loop.asked] == ["up0", "up1"]
        assert attempts(worker, "up0", "connect") == attempts(worker, "up1", "status") == 1

    run(test)


def test_upstream_that_is_silent_gives_way_at_its_own_deadline() -> None:
    async def test() -> None:
        answers = [None, http(GOOD)]
        worker = Worker(node=lambda _: answers.pop(0), upstreams=2)
        asked = ask(worker)
        await turns()
        worker.clock.advance(15.0)
        worker.pools["up0"].sweep()
        assert bytes((await asked).result) == b'"0x1"'
        assert attempts(worker, "up0", "timeout") == 1

    run(test)


@pytest.mark.parametrize("write", [True, False])
def test_no_further_upstream_is_asked_after_the_deadline_of_the_request(write: bool) -> None:
    async def test() -> None:
        worker = Worker(node=lambda _: None, upstreams=2)
        asked = ask(worker, seconds=10.0, write=write)
        await turns()
        worker.clock.advance(10.0)
        worker.pools["up0"].sweep()
        with pytest.raises(UpstreamTimeout) as caught:
            await asked
        assert len(worker.loop.asked) == 1
        assert (DOUBT in caught.value.message) is write

    run(test)


def test_nodes_own_error_is_an_answer() -> None:
    async def test() -> None:
        body = b'{"jsonrpc":"2.0","id":1,"error":{"code":3,"message":"execution reverted"}}'
        worker = Worker(node=lambda _: http(body), upstreams=2)
        assert (await ask(worker)).failed
        assert len(worker.loop.asked) == 1
        assert attempts(worker, "up0", "ok") == 1

    run(test)
