"""What becomes of open WebSockets when their grant ends, or cannot be checked."""

import asyncio
from typing import Any

import pytest
from tests.gateway.callers import TOKEN, digest, domain_grant, token_grant
from tests.gateway.fakes import run_pending
from tests.gateway.websocket.asgi_clients import SocketServer, call

from tollgate.core import secrets
from tollgate.shm import metrics
from tollgate.store.base import Changes

OTHER = secrets.new_token()


def drop_token(server: SocketServer, **fields: Any) -> None:
    """Change a token in the store, and let the worker learn of it."""
    if fields:
        server.gateway.store.tokens[digest(TOKEN)] = token_grant(**fields)
    else:
        del server.gateway.store.tokens[digest(TOKEN)]
    server.gateway.store.news.append(Changes(2, tokens=(digest(TOKEN),)))


@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        ({}, 4401, "token_invalid"),
        ({"expires_at": 1.0}, 4401, "token_expired"),
        ({"networks": ("eth/sepolia",)}, 4403, "network_not_allowed"),
    ],
)
async def test_lost_token_closes_its_connections(
    fields: dict[str, Any], code: int, reason: str, server: SocketServer
) -> None:
    server.gateway.store.tokens[digest(OTHER)] = token_grant()
    doomed = [await server.open(), await server.open()]
    other = await server.open(token=OTHER)
    await doomed[0].deliver(call(1, "eth_subscribe", "newHeads"))
    doomed[0].received()
    await server.endpoint.check()
    assert [client.closed for client in (*doomed, other)] == [None, None, None]
    drop_token(server, **fields)
    await server.gateway.directory.refresh()
    await server.endpoint.check()
    await run_pending(40)
    for client in doomed:
        (error,) = client.received()
        assert (error["id"], error["error"]["data"]["reason"]) == (None, reason)
        assert client.closed == (code, reason)
    assert other.closed is None
    assert server.stream.subscribers == []
    assert server.gateway.counted(metrics.WS_CUT, "grant") == 2


async def test_token_that_expires_by_itself_closes_its_connections(server: SocketServer) -> None:
    server.gateway.store.tokens[digest(OTHER)] = token_grant(expires_at=server.gateway.wall.now + 5)
    client = await server.open(token=OTHER)
    await server.endpoint.check()
    assert client.closed is None
    server.gateway.wall.advance(5)
    await server.endpoint.check()
    await run_pending(40)
    assert client.closed == (4401, "token_expired")


async def test_removed_domain_closes_its_connections(server: SocketServer) -> None:
    page = await server.open(token=None, origin="https://app.example.com")
    del server.gateway.store.grants["example.com"]
    server.gateway.store.news.append(Changes(2, domains=("example.com",)))
    await server.gateway.directory.refresh()
    await server.endpoint.check()
    await run_pending(40)
    assert page.closed == (4403, "origin_not_allowed")


async def test_one_look_up_serves_all_connections_with_the_same_token(server: SocketServer) -> None:
    for _ in range(5):
        await server.open()
    server.gateway.store.lookups.clear()
    server.gateway.store.news.append(Changes(2, everything=True))
    await server.gateway.directory.refresh()
    await server.endpoint.check()
    assert server.gateway.store.lookups == [digest(TOKEN)]


async def test_grant_that_cannot_be_checked_is_closed_the_second_time(server: SocketServer) -> None:
    client = await server.open()
    server.gateway.store.news.append(Changes(2, everything=True))
    await server.gateway.directory.refresh()
    server.gateway.store.down = True
    await server.endpoint.check()
    await run_pending(40)
    assert client.closed is None
    await server.endpoint.check()
    await run_pending(40)
    assert client.closed == (1013, "overloaded")


async def test_grant_that_can_be_checked_again_stays(server: SocketServer) -> None:
    client = await server.open()
    for _ in range(2):
        server.gateway.store.news.append(Changes(2, everything=True))
        await server.gateway.directory.refresh()
        server.gateway.store.down = True
        await server.endpoint.check()
        server.gateway.store.down = False
        await server.endpoint.check()
        await run_pending(40)
    assert client.closed is None


async def lose_sight(server: SocketServer) -> None:
    """Let a check of grants fail once."""
    server.gateway.store.news.append(Changes(2, everything=True))
    await server.gateway.directory.refresh()
    server.gateway.store.down = True
    await server.endpoint.check()
    await run_pending(40)
    server.gateway.store.down = False


@pytest.mark.parametrize("stays", [False, True])
async def test_grant_that_was_seen_meanwhile_is_not_in_doubt(stays: bool, server: SocketServer) -> None:
    client = await server.open()
    await lose_sight(server)
    if not stays:
        await client.leave()
    client = await server.open()
    if stays:
        await server.endpoint.check()
    await lose_sight(server)
    assert client.closed is None


async def test_connections_with_the_same_grant_are_checked_together_and_no_others(server: SocketServer) -> None:
    server.gateway.store.grants["other.org"] = domain_grant()
    pages = [
        await server.open(token=None, origin=f"https://{host}", address=f"192.0.2.{at}")
        for host in ("example.com", "other.org")
        for at in (1, 2)
    ]
    assert len(server.endpoint._grants) == 2
    # A token may be for some addresses.
    for at in (1, 2):
        await server.open(address=f"192.0.2.{at}")
    assert len(server.endpoint._grants) == 4
    del server.gateway.store.grants["other.org"]
    server.gateway.store.news.append(Changes(2, domains=("other.org",)))
    await server.gateway.directory.refresh()
    await server.endpoint.check()
    await run_pending(40)
    assert [page.closed is None for page in pages] == [True, True, False, False]


async def test_what_waits_for_a_client_is_not_sent_after_its_grant_has_ended(server: SocketServer) -> None:
    client = await server.open()
    await client.deliver(call(1, "eth_subscribe", "newHeads"))
    client.received()
    client.reads = False
    for number in range(3):
        server.stream.notify(number)
        await run_pending()
    drop_token(server)
    await server.gateway.directory.refresh()
    await server.endpoint.check()
    client.read_on()
    await run_pending(40)
    first, last = client.received()
    assert (first["params"]["result"], last["error"]["data"]["reason"]) == (0, "token_invalid")


async def test_network_that_is_not_served_any_more_is_closed(server: SocketServer) -> None:
    client = await server.open()
    server.gateway.context.reader.change([], 1_000)
    await server.endpoint.check()
    await run_pending(40)
    assert client.closed == (4404, "unknown_network")


async def test_client_that_is_being_shown_out_is_counted_once(server: SocketServer) -> None:
    client = await server.open()
    client.reads = False
    drop_token(server)
    await server.gateway.directory.refresh()
    for _ in range(3):
        await server.endpoint.check()
        await run_pending()
    server.endpoint.stop()
    assert server.gateway.counted(metrics.WS_CUT, "grant") == 1
    assert server.gateway.counted(metrics.WS_CUT, "stop") == 0
    assert server.gateway.counted(metrics.REFUSALS, "token_invalid") == 1


async def test_nothing_is_kept_of_who_has_left(server: SocketServer) -> None:
    clients = [await server.open(), await server.open(token=None, origin="https://app.example.com")]
    assert len(server.endpoint._grants) == 2
    server.gateway.store.down = True
    server.gateway.store.news.append(Changes(2, everything=True))
    for client in clients:
        await client.leave()
    await server.endpoint.check()
    assert len(server.endpoint._grants) == 0


async def test_others_have_their_turn_while_many_grants_are_checked(server: SocketServer) -> None:
    for _ in range(250):
        secret = secrets.new_token()
        server.gateway.store.tokens[digest(secret)] = token_grant()
        await server.open(token=secret)
    checking = asyncio.ensure_future(server.endpoint.check())
    await asyncio.sleep(0)
    assert not checking.done()
    await run_pending(4)
    assert checking.done()


async def test_grants_that_are_in_memory_are_not_looked_up(server: SocketServer) -> None:
    client, page = await server.open(), await server.open(token=None, origin="https://app.example.com")
    server.gateway.store.lookups.clear()
    for _ in range(2):
        await server.endpoint.check()
    assert server.gateway.store.lookups == []
    assert (client.closed, page.closed) == (None, None)


@pytest.mark.parametrize("in_memory", [False, True])
async def test_token_that_is_taken_from_a_network_loses_its_connections_there(
    in_memory: bool, server: SocketServer
) -> None:
    client = await server.open()
    server.gateway.store.tokens[digest(TOKEN)] = token_grant(networks=("eth/sepolia",))
    server.gateway.store.news.append(Changes(2, everything=True))
    await server.gateway.directory.refresh()
    if in_memory:
        assert (await server.open()).refused is not None
    await server.endpoint.check()
    await run_pending(40)
    assert client.closed is not None
    assert client.closed[1] == "network_not_allowed"
