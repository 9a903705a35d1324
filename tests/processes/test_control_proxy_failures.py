"""Answers of the control process: passed on while they arrive; what becomes of those that fail."""

import asyncio
from collections.abc import Callable

import pytest
from tests.inner import (
    CHUNKED,
    MINE,
    OK,
    SECONDS,
    Call,
    Client,
    Inner,
    advance,
    problem,
    scope,
    with_inner,
)

from tollgate.processes.control_proxy import MAX_HEAD_BYTES, SILENCE_SECONDS, AnswerCut, end_to_end

# --- Answers ----------------------------------------------------------------------------------------


def test_answer_is_passed_on() -> None:
    async def test(inner: Inner) -> None:
        client = Client(inner.app())
        call = await inner.next_call()
        call.respond(
            b"HTTP/1.1 418 Whatever\r\nDate: now\r\nConnection: close\r\nX-Request-Id: inner\r\n"
            b"Set-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Length: 3\r\n\r\ntea"
        )
        assert await client.answer() == (
            418,
            [
                (b"x-request-id", b"inner"),
                (b"set-cookie", b"a=1"),
                (b"set-cookie", b"b=2"),
                (b"content-length", b"3"),
            ],
            b"tea",
        )
        await call.dropped()

    with_inner(test)


@pytest.mark.parametrize(
    ("method", "status"), [("HEAD", 200), ("HEAD", 204), ("HEAD", 304), ("GET", 204), ("GET", 304)]
)
def test_answer_without_a_body_waits_for_none(method: str, status: int) -> None:
    async def test(inner: Inner) -> None:
        client = Client(inner.app(), scope(method, MINE))
        (await inner.next_call()).respond(b"HTTP/1.1 %d \r\ncontent-length: 5\r\netag: 1\r\n\r\n" % status)
        length = [(b"content-length", b"5")] if status == 200 else []
        assert await client.answer() == (status, [*length, (b"etag", b"1"), MINE], b"")

    with_inner(test)


def test_headers_of_the_connection_and_the_date_stay_behind() -> None:
    async def test(inner: Inner) -> None:
        client = Client(inner.app(), scope("GET", MINE))
        (await inner.next_call()).respond(
            b"HTTP/1.1 200 OK\r\nconnection: close, X-Hop\r\nx-hop: 1\r\nkeep-alive: timeout=5\r\n"
            b"proxy-authenticate: Basic\r\nupgrade: h2c\r\nx-empty:\r\ncontent-length: 0\r\n\r\n"
        )
        assert await client.answer() == (200, [(b"x-empty", b""), (b"content-length", b"0"), MINE], b"")

    with_inner(test)


def test_host_is_passed_on_from_any_client() -> None:
    given = [
        (b"host", b"a"),
        (b"connection", b" Host ,X-A"),
        (b"x-a", b"1"),
        (b"connection", b"x-b"),
        (b"x-b", b"2"),
    ]
    assert end_to_end(given) == [(b"host", b"a")]


@pytest.mark.parametrize("answer", [OK, CHUNKED + b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"])
def test_answer_is_the_same_however_it_is_cut(answer: bytes) -> None:
    async def test(inner: Inner) -> None:
        answers = []
        for size in (len(answer), 1, 7):
            client = Client(inner.app(), scope("GET", MINE))
            call = await inner.next_call()
            for at in range(0, len(answer), size):
                call.respond(answer[at : at + size])
                await advance(0.0)
            answers.append(await client.answer())
        assert answers[0] == answers[1] == answers[2]

    with_inner(test)


def test_answer_arrives_while_it_is_made() -> None:
    async def test(inner: Inner) -> None:
        client = Client(inner.app())
        call = await inner.next_call()
        call.respond(CHUNKED)
        assert (await client.next())["type"] == "http.response.start"
        for sent in (b"one", b"two"):
            call.respond(b"3\r\n%b\r\n" % sent)
            assert await client.next() == {"type": "http.response.body", "body": sent, "more_body": True}
            # Longer in all than any deadline.
            await advance(SILENCE_SECONDS - 1)
        call.respond(b"0\r\n\r\n")
        assert await client.next() == {"type": "http.response.body", "body": b"", "more_body": False}
        await client.task
        await call.dropped()

    with_inner(test)


def test_answer_may_come_before_the_request_is_taken() -> None:
    async def test(inner: Inner) -> None:
        most = 32 * 1_048_576
        client = Client(inner.app(max_bytes=most), scope("POST"), body=(bytes(most),))
        (await inner.accepted()).respond(OK)
        assert (await client.answer())[0] == 200

    with_inner(test)


# --- What fails ----------------------------------------------------------------------------------------


def test_control_process_that_is_not_there_is_reported() -> None:
    async def test(inner: Inner) -> None:
        await inner.close()
        headers, sent = await problem(Client(inner.app(), scope("GET", MINE)), 503)
        assert headers[b"retry-after"] == b"1"
        assert headers[b"x-request-id"] == b"mine-1"
        assert sent["detail"] == "The control plane is starting or being replaced: try again."
        assert sent["title"] == "Service Unavailable"

    with_inner(test)


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\n"])
def test_head_that_takes_too_long_is_given_up(sent: bytes) -> None:
    async def test(inner: Inner) -> None:
        client = Client(inner.app())
        call = await inner.next_call()
        call.respond(sent)
        await advance(SECONDS - 0.1)
        assert not client.task.done()
        await advance(0.1)
        _, problem_said = await problem(client, 504)
        assert "5 s" in problem_said["detail"]
        await call.dropped()

    with_inner(test)


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\ncontent-le"])
def test_connection_that_ends_before_the_head_is_reported(sent: bytes) -> None:
    async def test(inner: Inner) -> None:
        client = Client(inner.app())
        call = await inner.next_call()
        call.respond(sent)
        call.hang_up()
        await problem(client, 502)

    with_inner(test)


@pytest.mark.parametrize(
    "sent",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 600 ?\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * MAX_HEAD_BYTES,
    ],
)
def test_nonsense_is_reported(sent: bytes) -> None:
    async def test(inner: Inner) -> None:
        client = Client(inner.app())
        call = await inner.next_call()
        call.respond(sent)
        await problem(client, 502)
        await call.dropped()

    with_inner(test)


@pytest.mark.parametrize(
    ("sent", "end"),
    [
        (CHUNKED + b"4\r\nhell\r\n", Call.hang_up),
        (CHUNKED + b"5\r\nhell", Call.hang_up),
        (CHUNKED + b"4\r\nhell\r\n", lambda call: call.respond(b"nonsense\r\n")),
    ],
)
def test_answer_that_is_cut_is_never_completed(sent: bytes, end: Callable[[Call], None]) -> None:
    async def test(inner: Inner) -> None:
        client = Client(inner.app())
        call = await inner.next_call()
        call.respond(sent)
        assert (await client.next())["status"] == 200
        body = b""
        while body != b"hell":
            part = await client.next()
            assert part["more_body"]
            body += part["body"]
        end(call)
        with pytest.raises(AnswerCut):
            await client.task
        assert client.rest() == []

    with_inner(test)


def test_answer_of_a_known_length_is_sent_whole_or_cut() -> None:
    async def test(inner: Inner) -> None:
        client = Client(inner.app())
        call = await inner.next_call()
        call.respond(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhell")
        assert (await client.next())["status"] == 200
        call.hang_up()
        with pytest.raises(AnswerCut):
            await client.task
        assert client.rest() == []

    with_inner(test)


def test_nonsense_that_comes_with_the_head_cuts_the_answer_too() -> None:
    async def test(inner: Inner) -> None:
        client = Client(inner.app())
        (await inner.next_call()).respond(CHUNKED + b"4\r\nhell\r\nnonsense\r\n")
        with pytest.raises(AnswerCut):
            await client.task
        start, part = client.rest()
        assert start["status"] == 200
        assert part == {"type": "http.response.body", "body": b"hell", "more_body": True}

    with_inner(test)


def test_answer_that_falls_silent_is_cut() -> None:
    async def test(inner: Inner) -> None:
        client = Client(inner.app())
        call = await inner.next_call()
        call.respond(CHUNKED + b"1\r\nx\r\n")
        assert (await client.next())["status"] == 200
        assert (await client.next())["body"] == b"x"
        await advance(SILENCE_SECONDS)
        with pytest.raises(AnswerCut, match="did not answer for 60 s"):
            await client.task
        await call.dropped()
        assert client.rest() == []

    with_inner(test)


@pytest.mark.parametrize("sent", [b"", CHUNKED, CHUNKED + b"1\r\nx\r\n"])
def test_client_that_leaves_takes_the_inner_connection_along(sent: bytes) -> None:
    async def test(inner: Inner) -> None:
        client = Client(inner.app())
        call = await inner.next_call()
        call.respond(sent)
        if sent:
            await client.next()
        client.leave()
        await call.dropped()
        await client.task

    with_inner(test)


def test_worker_that_stops_takes_the_inner_connection_along() -> None:
    async def test(inner: Inner) -> None:
        client = Client(inner.app())
        call = await inner.next_call()
        client.task.cancel()
        await call.dropped()
        with pytest.raises(asyncio.CancelledError):
            await client.task

    with_inner(test)
