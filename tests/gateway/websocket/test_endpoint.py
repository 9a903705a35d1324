"""Who may open a WebSocket, how many, how a refusal is reported, and the end of all."""

from typing import Any

import pytest
from tests.gateway.callers import OTHER_TEAM, TOKEN, digest, domain_grant, token_grant
from tests.gateway.fakes import run_pending
from tests.gateway.raw_http import answer_upstream
from tests.gateway.websocket.asgi_clients import PATH, Client, SocketServer, call, open_server

from tollgate.core import secrets
from tollgate.core.limits import Limit
from tollgate.errors import InternalError, Overloaded, RateLimited, Refusal, UnknownNetwork
from tollgate.gateway.websocket import endpoint
from tollgate.gateway.websocket.connection import CLOSE_SECONDS
from tollgate.gateway.websocket.subscriptions import PREFIX_CALLERS, TEAM_CALLERS, CallerUse
from tollgate.processes.status import public_app
from tollgate.settings.model import WebSocketSettings
from tollgate.shm import metrics

OTHER = secrets.new_token()


def code_of(client: Client) -> int | None:
    """The code with which a client was closed."""
    return client.closed[0] if client.closed is not None else None


# --- Credentials -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "token", "headers"),
    [
        (PATH, TOKEN, {}),
        (PATH + "/", TOKEN, {}),
        (PATH, None, {"sec_websocket_protocol": f"tollgate, tollgate.token.{TOKEN}"}),
        (PATH, None, {"origin": "https://app.example.com"}),
        # The token decides alone.
        (PATH, TOKEN, {"origin": "https://elsewhere.com"}),
        (PATH, TOKEN, {"sec_websocket_protocol": "tollgate, tollgate.token.tg_wrong"}),
    ],
)
async def test_good_credentials_are_let_in(
    path: str, token: str | None, headers: dict[str, str], server: SocketServer
) -> None:
    client = await server.open(path, token=token, **headers)
    assert client.accepted is not None
    wanted = "tollgate" if "sec_websocket_protocol" in headers else None
    assert client.accepted.get("subprotocol") == wanted
    await client.deliver(call(1))
    assert client.received() == [{"jsonrpc": "2.0", "id": 1, "result": ["eth_chainId", []]}]


async def test_token_in_the_path(server: SocketServer) -> None:
    server.gateway.store.tokens[digest(OTHER)] = token_grant(allow_in_url=True)
    client = await server.open(f"{PATH}/{OTHER}", token=None)
    await client.deliver(call(1))
    assert [each["id"] for each in client.received()] == [1]
    refused = await server.open(f"{PATH}/{TOKEN}", token=None)
    assert refused.refused is not None
    assert refused.refused[0] == 401


REFUSED: list[tuple[str, str | None, int, str]] = [
    (PATH, None, 401, "token_missing"),
    (PATH, "tg_wrong", 401, "token_invalid"),
    (PATH, OTHER, 401, "token_expired"),
    ("/x/eth/nowhere", TOKEN, 404, "unknown_network"),
]


@pytest.mark.parametrize(("path", "token", "status", "reason"), REFUSED)
async def test_program_is_refused_by_http(
    path: str, token: str | None, status: int, reason: str, server: SocketServer
) -> None:
    server.gateway.store.tokens[digest(OTHER)] = token_grant(expires_at=1.0)
    client = await server.open(path, token=token, x_request_id="mine")
    assert client.accepted is None
    assert client.refused is not None
    refusal, body, headers = client.refused
    assert (refusal, body["id"], body["error"]["data"]["reason"]) == (status, None, reason)
    assert body["error"]["data"]["request_id"] == "mine"
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"x-request-id"] == b"mine"
    assert (b"www-authenticate" in headers) == (status == 401)
    assert server.gateway.counted(metrics.REFUSALS, reason) == 1
    family, network = ("eth", "mainnet") if path == PATH else ("", "")
    assert server.gateway.counted(metrics.REQUESTS, family, network, str(status)) == 1


@pytest.mark.parametrize(
    ("path", "token", "code", "reason"),
    [
        (PATH, None, 4403, "origin_not_allowed"),
        (PATH, "tg_wrong", 4401, "token_invalid"),
        (PATH, OTHER, 4403, "network_not_allowed"),
        ("/x/eth/nowhere", TOKEN, 4404, "unknown_network"),
    ],
)
async def test_browser_is_let_in_answered_and_shown_out(
    path: str, token: str | None, code: int, reason: str, server: SocketServer
) -> None:
    server.gateway.store.tokens[digest(OTHER)] = token_grant(networks=("eth/sepolia",))
    offered = f"tollgate, tollgate.token.{token}"
    client = await server.open(
        path,
        token=None,
        origin="https://elsewhere.com",
        **({"sec_websocket_protocol": offered} if token else {}),
    )
    assert client.accepted is not None
    assert client.accepted.get("subprotocol") == ("tollgate" if token else None)
    (error,) = client.received()
    assert (error["id"], error["error"]["data"]["reason"]) == (None, reason)
    assert client.closed == (code, reason)
    assert client.task.done()


async def test_refused_handshake_of_a_known_team_is_written_down(server: SocketServer) -> None:
    server.gateway.store.tokens[digest(OTHER)] = token_grant(expires_at=1.0)
    await server.open(token=OTHER)
    (entry,) = server.gateway.sink.written
    assert (entry.status, entry.calls[0].outcome) == (401, "token_expired")


async def test_flood_of_unknown_tokens_is_limited() -> None:
    server = await open_server(misses_per_address=Limit(2, 1.0))
    clients = [await server.open(token=secrets.new_token(), origin="https://a.com") for _ in range(3)]
    assert [client.closed and client.closed[0] for client in clients] == [4401, 4401, 4429]


async def test_public_port_has_no_other_websockets(server: SocketServer) -> None:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        raise AssertionError("nothing is read")

    app = public_app(lambda: None, None, server.endpoint)
    await app({"type": "websocket", "path": "/other"}, receive, send)
    assert sent == [{"type": "websocket.close"}]


# --- Bounds ------------------------------------------------------------------------------------------------


async def test_connections_are_bounded_and_counted() -> None:
    server = await open_server({"connections": 2})
    server.gateway.store.tokens[digest(OTHER)] = token_grant(OTHER_TEAM)
    first = await server.open()
    await server.open(token=OTHER)
    assert server.gateway.counted(metrics.WS_CONNECTIONS) == 2
    third = await server.open()
    assert third.refused is not None
    assert (third.refused[0], third.refused[2][b"retry-after"]) == (503, b"1")
    browser = await server.open(origin="https://elsewhere.com")
    assert browser.closed == (1013, "overloaded")
    await first.leave()
    assert server.gateway.counted(metrics.WS_CONNECTIONS) == 1
    assert (await server.open()).accepted is not None


async def test_browsers_that_are_being_shown_why_they_are_refused_are_bounded_until_they_are_gone() -> None:
    server = await open_server({"connections": 1})
    page = {"origin": "https://elsewhere.com"}
    first, second = [await server.open(token=None, **page) for _ in range(2)]
    assert code_of(first) == 4403
    assert second.refused is not None
    assert second.refused[0] == 403
    await server.gateway.loop.advance(CLOSE_SECONDS)
    third, fourth = [await server.open(token=None, **page) for _ in range(2)]
    assert code_of(third) == 4403
    assert fourth.refused is not None


async def test_half_of_the_free_connections_are_left_to_other_teams() -> None:
    server = await open_server({"connections": 4, "connections_per_domain": 1})
    server.gateway.store.tokens[digest(OTHER)] = token_grant(OTHER_TEAM)
    mine = [await server.open() for _ in range(3)]
    assert [client.accepted is not None for client in mine] == [True, True, False]
    assert mine[2].refused is not None
    assert mine[2].refused[0] == 429
    assert (await server.open(token=OTHER)).accepted is not None


async def test_connections_of_one_caller_are_bounded() -> None:
    server = await open_server({"connections_per_caller": 1})
    server.gateway.store.tokens[digest(OTHER)] = token_grant(OTHER_TEAM)
    server.gateway.store.grants["example.com"] = domain_grant()
    await server.open()
    second = await server.open(origin="https://elsewhere.com")
    (error,) = second.received()
    assert error["error"]["code"] == -32005
    assert second.closed == (4429, "rate_limited")
    page = await server.open(token=None, origin="https://example.com")
    assert page.closed is None


# --- Stop --------------------------------------------------------------------------------------------------


async def test_stop_closes_idle_connections_and_refuses_new_ones(server: SocketServer) -> None:
    client = await server.open()
    server.endpoint.stop()
    server.endpoint.stop()
    await run_pending(40)
    assert code_of(client) == 1001
    late = await server.open()
    assert late.refused is not None
    assert late.refused[0] == 503
    assert server.gateway.counted(metrics.WS_CUT, "stop") == 1


async def test_stop_waits_for_calls_under_way_and_refuses_them_at_the_end_of_the_grace() -> None:
    server = await open_server(node=lambda _: None)
    client = await server.open()
    await client.deliver(call(1))
    server.endpoint.stop()
    await run_pending(40)
    assert client.closed is None
    await client.deliver(call(2))
    (refused,) = client.received()
    assert (refused["id"], refused["error"]["data"]["reason"]) == (2, "overloaded")
    await server.gateway.loop.advance(8.5)
    (answer,) = client.received()
    assert answer["error"]["data"]["reason"] == "overloaded"
    assert code_of(client) == 1001


# --- A forged Origin, many addresses ---------------------------------------------------------------------


async def test_one_address_cannot_take_all_connections_of_a_domain() -> None:
    server = await open_server({"connections_per_caller": 2, "connections_per_domain": 4})
    server.gateway.store.grants["example.com"] = domain_grant()
    page = {"origin": "https://example.com"}
    mine = [await server.open(token=None, address="198.51.100.1", **page) for _ in range(3)]
    assert [client.closed is None for client in mine] == [True, True, False]
    assert mine[2].closed == (4429, "rate_limited")
    others = [await server.open(token=None, address=f"203.0.{n}.1", **page) for n in range(3)]
    # All addresses together have a bound as well.
    assert [client.closed is None for client in others] == [True, True, False]
    await mine[0].leave()
    assert (await server.open(token=None, address="203.0.113.9", **page)).closed is None
    assert (await server.open(token=None, address="203.0.114.8", **page)).closed == (4429, "rate_limited")


async def test_one_network_cannot_take_all_connections_of_a_domain_by_using_many_addresses() -> None:
    server = await open_server({"connections_per_caller": 2, "connections_per_domain": 10})
    server.gateway.store.grants["example.com"] = domain_grant()
    page = {"origin": "https://example.com"}

    async def opened(address: str) -> bool:
        return (await server.open(token=None, address=address, **page)).closed is None

    # Each from a /64 of its own: as many as are left to others, then no more.
    assert [await opened(f"2001:db8:0:{n}00::1") for n in range(8)] == [True] * 5 + [False] * 3
    assert [await opened(f"198.51.{n}.1") for n in range(4)] == [True] * 4, "other visitors"


async def test_subscriptions_of_a_domain_are_not_all_taken_by_one_network() -> None:
    server = await open_server({"subscriptions_per_caller": 2})
    server.gateway.store.grants["example.com"] = domain_grant()
    page = {"origin": "https://example.com"}
    attackers = [await server.open(token=None, address=f"2001:db8:0:{n}::1", **page) for n in range(3)]
    made_by = [await made(each, subscribe("1")) for each in attackers for _ in range(2)]
    assert made_by[: 2 * PREFIX_CALLERS] == ["result"] * 2 * PREFIX_CALLERS
    assert "subscriptions" in made_by[-1]
    visitor = await server.open(token=None, address="198.51.100.1", **page)
    assert await made(visitor, subscribe("1")) == "result"


def subscribe(*addresses: str) -> object:
    params = ["logs", {"address": [f"0x{each:0>40}" for each in addresses]}]
    return {"jsonrpc": "2.0", "id": 1, "method": "eth_subscribe", "params": params}


async def made(client: Client, body: object) -> str:
    """What comes of a subscription."""
    client.post(body)
    await run_pending(40)
    (refusal,) = client.received()
    return "result" if "result" in refusal else str(refusal["error"]["message"])


async def test_subscriptions_and_filters_of_one_caller_are_bounded_over_all_connections() -> None:
    server = await open_server({"subscriptions_per_caller": 3, "filter_terms_per_caller": 10})
    server.gateway.store.tokens[digest(OTHER)] = token_grant(OTHER_TEAM)
    one, two = await server.open(), await server.open()
    assert [await made(one, subscribe("1")) for _ in range(2)] == ["result"] * 2
    assert await made(two, subscribe("1")) == "result"
    assert "3 subscriptions" in await made(two, subscribe("1"))
    await one.leave()
    assert "10 addresses and topics" in await made(two, subscribe(*"12345678"))
    assert await made(two, subscribe(*"1234567")) == "result"
    assert "10 addresses and topics" in await made(two, subscribe(*"123"))
    server.endpoint.change(WebSocketSettings(subscriptions_per_caller=3, filter_terms_per_caller=20))
    assert await made(two, subscribe(*"123")) == "result", "a reload has raised the bound"


def test_team_has_as_many_subscriptions_as_some_of_its_callers() -> None:
    settings = WebSocketSettings(subscriptions_per_caller=2, filter_terms_per_caller=10)
    team = CallerUse(None, settings, TEAM_CALLERS)
    callers = [CallerUse(team, settings, 1) for _ in range(TEAM_CALLERS + 1)]
    for caller in callers[:-1]:
        for terms in (4, 6):
            caller.take(terms)
        with pytest.raises(RateLimited, match="You have 2 "):
            caller.take(0)
    with pytest.raises(RateLimited, match=f"You have {2 * TEAM_CALLERS} "):
        callers[-1].take(0)
    callers[0].give_back(4)
    with pytest.raises(RateLimited, match=f"may have {10 * TEAM_CALLERS} "):
        callers[-1].take(5)
    callers[-1].take(4)
    with pytest.raises(RateLimited, match=f"You have {2 * TEAM_CALLERS} "):
        callers[-1].take(0)
    assert [(each.subscriptions, each.terms) for each in (callers[0], callers[-1])] == [(1, 6), (1, 4)]


@pytest.mark.parametrize(
    ("refusal", "code"),
    [(InternalError(), 1011), (Overloaded(), 1013), (RateLimited(), 4429), (UnknownNetwork(), 4404)],
)
def test_code_with_which_a_connection_is_closed_shows_why(refusal: Refusal, code: int) -> None:
    assert endpoint._code(refusal) == code


async def test_places_of_a_caller_are_free_again_when_some_of_its_connections_are_closed() -> None:
    server = await open_server({"connections_per_caller": 2})
    first, second = await server.open(), await server.open()
    for _ in range(3):
        await first.leave()
        first = await server.open()
        assert first.accepted is not None
    await second.leave()
    await first.leave()
    assert server.endpoint._uses == {}
    assert server.endpoint._of_domain == {}


async def test_stop_closes_a_connection_with_the_last_answer_that_it_waits_for() -> None:
    server = await open_server(node=lambda _: None)
    client = await server.open()
    await client.deliver(call(1))
    await client.deliver(call(2, "eth_call", "x"))
    server.endpoint.stop()
    await run_pending(40)
    assert client.closed is None
    answer_upstream(server.gateway)
    await run_pending(80)
    assert sorted(each["id"] for each in client.received()) == [1, 2]
    assert code_of(client) == 1001
