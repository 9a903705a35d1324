"""The pool: deadlines, connections that cannot be opened, and the bytes of a request's head."""

import asyncio
from typing import Any

import pytest
from tests.gateway.fake_node import http
from tests.gateway.fakes import Clock, run_pending, scripted_loop, spawn

from tollgate import __version__
from tollgate.gateway.memory_budget import Budget
from tollgate.gateway.upstream.connection import AttemptFailed, ConnectFailed, Response, TimedOut
from tollgate.gateway.upstream.pool import Pool
from tollgate.settings import model


def pool(clock: Clock, url: str = "http://node:8545", connections: int = 4, **headers: Any) -> Pool:
    upstream = model.UpstreamSettings(name="a", url=url, connections=connections, headers=headers)
    return Pool(upstream, max_bytes=1_000_000, budget=Budget(10_000_000), now=clock)


async def test_call_without_an_answer_fails_at_its_deadline_with_its_connection() -> None:
    clock = Clock()
    made = pool(clock)
    sent = spawn(made.send(b"{}", clock() + 15, repeatable=True))
    await run_pending()
    clock.advance(14.9)
    made.sweep()
    await run_pending()
    assert not sent.done()
    clock.advance(0.1)
    made.sweep()
    with pytest.raises(TimedOut) as caught:
        await sent
    assert caught.value.sent
    assert scripted_loop().transports[0].aborted
    await run_pending()
    assert made.size == 0


async def test_connection_that_does_not_open_before_the_deadline_is_given_up() -> None:
    clock = Clock()
    scripted_loop().gate = asyncio.Event()
    sent = spawn(pool(clock).send(b"{}", clock(), repeatable=True))
    await run_pending()
    assert sent.done()
    with pytest.raises(ConnectFailed, match="in time"):
        await sent


async def test_waiter_fails_at_its_deadline_and_nothing_was_sent() -> None:
    clock = Clock()
    made = pool(clock, connections=1)
    busy = spawn(made.send(b"{}", clock() + 1_000, repeatable=True))
    await run_pending()
    waiting = spawn(made.send(b"{}", clock() + 15, repeatable=True))
    await run_pending()
    clock.advance(15)
    made.sweep()
    with pytest.raises(TimedOut) as caught:
        await waiting
    assert not caught.value.sent
    scripted_loop().transports[0].deliver(http(b"{}"))
    assert await busy == Response(200, b"{}")


async def test_connection_goes_to_the_waiter_that_still_waits() -> None:
    clock = Clock()
    made = pool(clock, connections=1)
    calls = []
    for seconds in (1_000, 15, 1_000):
        calls.append(spawn(made.send(b"{}", clock() + seconds, repeatable=True)))
        await run_pending()
    clock.advance(15)
    made.sweep()
    await run_pending()
    for _ in range(2):
        scripted_loop().transports[0].deliver(http(b"{}"))
        await run_pending()
    assert isinstance(calls[1].exception(), TimedOut)
    assert calls[0].result() == calls[2].result() == Response(200, b"{}")


@pytest.mark.parametrize("write", [True, False])
async def test_refused_connection_is_a_failure_before_sending(write: bool) -> None:
    scripted_loop().refusing = True
    clock = Clock()
    with pytest.raises(ConnectFailed) as caught:
        await spawn(pool(clock).send(b"{}", clock() + 15, repeatable=not write))
    assert not caught.value.sent
    assert caught.value.outcome == "connect"


async def test_connection_that_does_not_open_before_the_deadline_fails() -> None:
    scripted_loop().gate = asyncio.Event()
    clock = Clock()
    with pytest.raises(ConnectFailed) as caught:
        await spawn(pool(clock).send(b"{}", clock() + 0.01, repeatable=True))
    assert not caught.value.sent


async def test_pool_that_could_not_connect_tries_again() -> None:
    loop, clock = scripted_loop(), Clock()
    made = pool(clock, connections=1)
    loop.refusing = True
    for _ in range(3):
        with pytest.raises(ConnectFailed):
            await spawn(made.send(b"{}", clock() + 15, repeatable=True))
    loop.refusing = False
    loop.node = lambda _: http(b"{}")
    assert await spawn(made.send(b"{}", clock() + 15, repeatable=True)) == Response(200, b"{}")


async def test_closed_pool_fails_what_is_under_way() -> None:
    clock = Clock()
    made = pool(clock)
    sent = spawn(made.send(b"{}", clock() + 15, repeatable=True))
    await run_pending()
    made.close()
    with pytest.raises(AttemptFailed):
        await sent
    await run_pending()
    assert made.size == 0


# --- The head ----------------------------------------------------------------------------------------------


async def sent_head(url: str, **headers: Any) -> bytes:
    """What goes out first for a call to this upstream."""
    clock = Clock()
    scripted_loop().node = lambda _: http(b"{}")
    await spawn(pool(clock, url, **headers).send(b'{"a":1}', clock() + 15, repeatable=True))
    return scripted_loop().transports[-1].take()


async def test_request_to_a_node_is_plain_and_short() -> None:
    assert await sent_head("http://node:8545") == (
        b"POST / HTTP/1.1\r\n"
        b"host: node:8545\r\n"
        b"content-type: application/json\r\n"
        b"accept: application/json\r\n"
        b"user-agent: tollgate/%b\r\n"
        b"content-length: 7\r\n"
        b"\r\n"
        b'{"a":1}' % __version__.encode()
    )


async def test_path_and_query_of_the_upstream_are_kept() -> None:
    assert (await sent_head("http://node/v3/key?x=1&y=2")).startswith(
        b"POST /v3/key?x=1&y=2 HTTP/1.1\r\nhost: node\r\n"
    )


async def test_headers_of_the_settings_are_sent_and_win() -> None:
    head = await sent_head("http://node", **{"Authorization": "Basic abc", "User-Agent": "mine"})
    assert b"\r\nauthorization: Basic abc\r\n" in head
    assert b"\r\nuser-agent: mine\r\n" in head
    assert head.lower().count(b"user-agent") == 1


async def test_gzip_is_requested_by_tls_only() -> None:
    assert b"accept-encoding" not in await sent_head("http://node")
    assert b"\r\naccept-encoding: gzip\r\n" in await sent_head("https://node")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://node", ("node", 80, False)),
        ("https://node", ("node", 443, True)),
        ("https://node:8443/x", ("node", 8443, True)),
        ("http://[2001:db8::1]:8545", ("2001:db8::1", 8545, False)),
    ],
)
async def test_connection_goes_where_the_url_specifies(url: str, expected: tuple[str, int, bool]) -> None:
    clock = Clock()
    scripted_loop().node = lambda _: http(b"{}")
    await spawn(pool(clock, url).send(b"{}", clock() + 15, repeatable=True))
    assert scripted_loop().connects == [expected]


async def test_user_and_password_of_the_url_are_not_sent_as_the_host() -> None:
    head = await sent_head("http://user:secret@node:8545/")
    assert b"\r\nhost: node:8545\r\n" in head
    assert b"secret" not in head.partition(b"\r\nauthorization:")[0]
