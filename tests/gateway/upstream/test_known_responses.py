"""Heads of responses that were read before, receivers that fail, and packed bodies: at their bounds."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
from tests.gateway.fake_node import http
from tests.gateway.fakes import run_pending
from tests.gateway.raw_http import whole
from tests.gateway.upstream.fake_upstream import BODY, FakeUpstream, ResponseFuture

from tollgate.gateway.memory_budget import SMALL
from tollgate.gateway.upstream import connection as module
from tollgate.gateway.upstream.connection import (
    AttemptFailed,
    Connection,
    KnownHeads,
    NoRoom,
    Response,
    ResponseTooLarge,
)


def head(number: int, length: int = 2) -> bytes:
    return b"HTTP/1.1 200 OK\r\nx: %d\r\ncontent-length: %d\r\n\r\n" % (number, length)


def test_nothing_is_known_at_first() -> None:
    heads = KnownHeads()
    heads.find(head(1) + b"{}")
    assert (heads.length, heads.misses, heads.skip) == (-1, 0, 0)
    heads.find(b"no head")
    assert (heads.last, heads.length) == (b"no head"[:3], -1)


def test_head_is_found_again_with_its_length() -> None:
    heads = KnownHeads()
    for number, body in ((1, b"{}"), (2, b"")):
        heads.remember(head(number, len(body)) + body, body)
    assert (heads.last, heads.length) == (head(2, 0), 0)
    heads.find(head(1) + b"[]")
    assert (heads.last, heads.length, heads.misses) == (head(1), 2, 2)


def test_head_is_kept_only_where_the_body_is_all_the_rest() -> None:
    heads = KnownHeads()
    heads.remember(head(1) + b"{} ", b"{}")
    assert heads.lengths == {}
    long = b"HTTP/1.1 200 OK\r\nx: %b\r\n\r\n" % (b"y" * 3_000)
    heads.remember(long + b"{}", b"{}")
    assert heads.lengths == {}


@pytest.mark.parametrize(("spare", "kept"), [(1, True), (0, False)])
def test_head_may_be_almost_as_long_as_the_bound(spare: int, kept: bool) -> None:
    heads = KnownHeads()
    length = module._MAX_HEAD_BYTES - spare
    start, end = b"HTTP/1.1 200 OK\r\nx: ", b"\r\n\r\n"
    made = start + b"y" * (length - len(start) - len(end)) + end
    heads.remember(made + b"{}", b"{}")
    assert (made in heads.lengths) is kept


def test_heads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_HEADS", 3)
    heads = KnownHeads()
    for number in range(8):
        heads.misses = 0
        heads.remember(head(number) + b"{}", b"{}")
    assert list(heads.lengths) == [head(6), head(7)]


def test_upstream_whose_heads_are_never_the_same_is_not_compared_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MAX_MISSES", 3)
    monkeypatch.setattr(module, "_SKIPPED", 2)
    heads = KnownHeads()
    skips = []
    for number in range(8):
        heads.remember(head(number) + b"{}", b"{}")
        skips.append(heads.skip)
    assert skips == [0, 0, 0, 2, 1, 0, 0, 0]
    assert list(heads.lengths) == [head(6), head(7)], "all were forgotten"
    assert heads.misses == 2


async def test_response_with_a_known_head_ends_a_row_of_unknown_ones() -> None:
    upstream = FakeUpstream()
    for number in range(3):
        assert await upstream.exchange(whole(http(BODY, b"x: %d" % number))) == Response(200, BODY)
    heads = upstream.connection._heads
    assert heads.misses == 3
    assert await upstream.exchange(whole(http(BODY, b"x: 1"))) == Response(200, BODY)
    assert (heads.misses, len(heads.lengths)) == (0, 3)


@pytest.mark.parametrize(("size", "known"), [(SMALL, True), (SMALL + 1, False)])
async def test_heads_of_large_responses_are_not_kept(size: int, known: bool) -> None:
    upstream = FakeUpstream()
    response = http(b"x" * size)
    assert (await upstream.exchange(whole(response))).body == b"x" * size
    assert bool(upstream.connection._heads.lengths) is known


@pytest.mark.parametrize("body", [b"", BODY, gzip.compress(BODY)], ids=["empty", "plain", "packed"])
async def test_response_with_a_known_head_is_the_same_the_second_time(body: bytes) -> None:
    upstream = FakeUpstream()
    answers = [await upstream.exchange(whole(http(body))) for _ in range(3)]
    assert upstream.connection._heads.misses == 0, "the head is known"
    assert answers == [Response(200, BODY if body else b"")] * 3
    assert upstream.pool.idle == [upstream.connection] * 3


async def test_part_of_a_body_that_looks_like_a_known_response_is_a_part_of_it() -> None:
    upstream = FakeUpstream()
    known = http(BODY)
    assert await upstream.exchange(whole(known)) == Response(200, BODY)
    start, body = http(BODY + known).rsplit(known, 1)[0], BODY + known
    assert await upstream.exchange(iter([start, known])) == Response(200, body)


@pytest.mark.parametrize(("waiters", "retired"), [([1], False), ([], True)])
async def test_connection_with_waiters_or_without_keep_alive_goes_back_to_its_pool(
    waiters: list[int], retired: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = FakeUpstream()
    freed: list[Connection] = []
    await upstream.exchange(whole(http(BODY)))
    monkeypatch.setattr(upstream.pool, "freed", freed.append)
    upstream.pool.waiters.extend(waiters)
    upstream.pool.retired = retired
    await upstream.exchange(whole(http(BODY)))
    assert freed == [upstream.connection]
    assert len(upstream.pool.idle) == 1


# --- Receivers -----------------------------------------------------------------------------------------------


class Broken(ResponseFuture):
    """A receiver with a defect."""

    def received(self, status: int, body: bytes) -> None:
        raise ZeroDivisionError


@pytest.mark.parametrize("known", [False, True])
async def test_defect_of_a_receiver_is_a_failure_of_its_call_and_not_of_the_connection(known: bool) -> None:
    upstream = FakeUpstream()
    if known:
        await upstream.exchange(whole(http(BODY)))
    receiver = Broken()
    upstream.connection.send(b"{}", 2_000.0, receiver)
    upstream.transport.deliver(http(BODY))
    with pytest.raises(AttemptFailed, match="could not be taken") as caught:
        await receiver
    assert caught.value.sent
    assert upstream.connection.usable
    assert await upstream.exchange(whole(http(BODY))) == Response(200, BODY)


async def test_nothing_is_sent_on_a_connection_that_was_lost() -> None:
    upstream = FakeUpstream()
    upstream.transport.drop()
    with pytest.raises(AttemptFailed, match="lost") as caught:
        upstream.send()
    assert not caught.value.sent


# --- Packed bodies -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_bytes", [1_000, 1_000_000], ids=["step by step", "at once"])
@pytest.mark.parametrize("cut", [1, 8, 20])
async def test_packed_body_that_is_torn_is_a_failure(cut: int, max_bytes: int) -> None:
    upstream = FakeUpstream(max_bytes=max_bytes)
    pending = upstream.send()
    upstream.transport.deliver(http(gzip.compress(b'{"a": "%b"}' % (b"x" * 500))[:-cut]))
    with pytest.raises(AttemptFailed, match=r"gzip") as caught:
        await pending
    assert caught.value.sent


@pytest.mark.parametrize(("size", "fits"), [(1_000, True), (1_001, False)])
async def test_packed_body_may_unpack_to_the_bound_and_no_further(size: int, fits: bool) -> None:
    upstream = FakeUpstream(max_bytes=1_000)
    pending: Any = upstream.send()
    upstream.transport.deliver(http(gzip.compress(b"x" * size)))
    await run_pending()
    if fits:
        assert (await pending).body == b"x" * size
    else:
        with pytest.raises(ResponseTooLarge) as caught:
            await pending
        assert caught.value.sent


async def test_response_without_room_was_sent_all_the_same() -> None:
    upstream = FakeUpstream(budget=SMALL)
    pending = upstream.send()
    upstream.transport.deliver(http(b"x" * (SMALL + 10)))
    with pytest.raises(NoRoom) as caught:
        await pending
    assert caught.value.sent, "it may have been carried out"
