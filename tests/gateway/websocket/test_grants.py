"""What becomes of open WebSockets when their grant ends, or cannot be checked."""

import asyncio
from typing import Any

import pytest
from tests.gateway.fakes import turns
from tests.gateway.websocket.visitors import Place, call
from tests.gateway.worker import TOKEN, digest, token_grant

from tollgate.core import secrets
from tollgate.shm import metrics
from tollgate.store.base import Changes

OTHER = secrets.new_token()


def drop_token(place: Place, **fields: Any) -> None:
    """Change a token in the store, and let the worker hear of it."""
    if fields:
        place.worker.store.tokens[digest(TOKEN)] = token_grant(**fields)
    else:
        del place.worker.store.tokens[digest(TOKEN)]
    place.worker.store.news.append(Changes(2, tokens=(digest(TOKEN),)))


@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        ({}, 4401, "token_invalid"),
        ({"expires_at": 1.0}, 4401, "token_expired"),
        ({"networks": ("eth/sepolia",)}, 4403, "network_not_allowed"),
    ],
)
async def test_lost_token_closes_its_connections(
    fields: dict[str, Any], code: int, reason: str, place: Place
) -> None:
    place.worker.store.tokens[digest(OTHER)] = token_grant()
    doomed = [await place.open(), await place.open()]
    other = await place.open(token=OTHER)
    await doomed[0].say(call(1, "eth_subscribe", "newHeads"))
    doomed[0].heard()
    await place.endpoint.check()
    assert [client.closed for client in (*doomed, other)] == [None, None, None]
    drop_token(place, **fields)
    await place.worker.directory.refresh()
    await place.endpoint.check()
    await turns(40)
    for client in doomed:
        (error,) = client.heard()
        assert (error["id"], error["error"]["data"]["reason"]) == (None, reason)
        assert client.closed == (code, reason)
    assert other.closed is None
    assert place.stream.listeners == []
    assert place.worker.counted(metrics.WS_CUT, "grant") == 2


async def test_token_that_expires_by_itself_closes_its_connections(place: Place) -> None:
    place.worker.store.tokens[digest(OTHER)] = token_grant(expires_at=place.worker.wall.now + 5)
    client = await place.open(token=OTHER)
    await place.endpoint.check()
    assert client.closed is None
    place.worker.wall.advance(5)
    await place.endpoint.check()
    await turns(40)
    assert client.closed == (4401, "token_expired")


async def test_removed_domain_closes_its_connections(place: Place) -> None:
    page = await place.open(token=None, origin="https://app.example.com")
    del place.worker.store.grants["example.com"]
    place.worker.store.news.append(Changes(2, domains=("example.com",)))
    await place.worker.directory.refresh()
    await place.endpoint.check()
    await turns(40)
    assert page.closed == (4403, "origin_not_allowed")


async def test_one_look_up_serves_all_connections_with_the_same_token(place: Place) -> None:
    for _ in range(5):
        await place.open()
    place.worker.store.asked.clear()
    place.worker.store.news.append(Changes(2, everything=True))
    await place.worker.directory.refresh()
    await place.endpoint.check()
    assert place.worker.store.asked == [digest(TOKEN)]


async def test_grant_that_cannot_be_checked_is_closed_the_second_time(place: Place) -> None:
    client = await place.open()
    place.worker.store.news.append(Changes(2, everything=True))
    await place.worker.directory.refresh()
    place.worker.store.down = True
    await place.endpoint.check()
    await turns(40)
    assert client.closed is None
    await place.endpoint.check()
    await turns(40)
    assert client.closed == (1013, "overloaded")


async def test_grant_that_can_be_checked_again_stays(place: Place) -> None:
    client = await place.open()
    for _ in range(2):
        place.worker.store.news.append(Changes(2, everything=True))
        await place.worker.directory.refresh()
        place.worker.store.down = True
        await place.endpoint.check()
        place.worker.store.down = False
        await place.endpoint.check()
        await turns(40)
    assert client.closed is None


async def test_network_that_is_not_served_any_more_is_said_goodbye_to(place: Place) -> None:
    client = await place.open()
    place.worker.context.reader.change([], 1_000)
    await place.endpoint.check()
    await turns(40)
    assert client.closed == (4404, "unknown_network")


async def test_client_that_is_being_shown_out_is_counted_once(place: Place) -> None:
    client = await place.open()
    client.reads = False
    drop_token(place)
    await place.worker.directory.refresh()
    for _ in range(3):
        await place.endpoint.check()
        await turns()
    place.endpoint.stop()
    assert place.worker.counted(metrics.WS_CUT, "grant") == 1
    assert place.worker.counted(metrics.WS_CUT, "stop") == 0
    assert place.worker.counted(metrics.REFUSALS, "token_invalid") == 1


async def test_nothing_is_kept_of_who_has_left(place: Place) -> None:
    clients = [await place.open(), await place.open(token=None, origin="https://app.example.com")]
    assert len(place.endpoint._grants) == 2
    place.worker.store.down = True
    place.worker.store.news.append(Changes(2, everything=True))
    for client in clients:
        await client.leave()
    await place.endpoint.check()
    assert len(place.endpoint._grants) == 0


async def test_others_have_their_turn_while_many_grants_are_checked(place: Place) -> None:
    for _ in range(250):
        secret = secrets.new_token()
        place.worker.store.tokens[digest(secret)] = token_grant()
        await place.open(token=secret)
    checking = asyncio.ensure_future(place.endpoint.check())
    await asyncio.sleep(0)
    assert not checking.done()
    await checking
