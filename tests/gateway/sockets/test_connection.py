"""The connection of a WebSocket, byte by byte: the handshake through the edge, frames, clients that misbehave."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.gateway.fakes import FakeTransport, turns
from tests.gateway.sockets.visitors import Place, call, with_place
from tests.gateway.speech import Answers, Feed, answer_upstream, feeds, post, whole
from tests.gateway.worker import TOKEN
from uvicorn.config import Config
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.uri import parse_uri

from tollgate.gateway.edge import Edge
from tollgate.gateway.sockets.connection import CLOSE_SECONDS, MOST_FRAMES, Socket
from tollgate.gateway.sockets.handshake import MOST_LINE_BYTES, MOST_LINES
from tollgate.status import public_app

PATH = "/x/eth/mainnet"


class Wire(FakeTransport):
    """A transport that can change its protocol, and be full."""

    unsent = 0

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_write_buffer_size(self) -> int:
        return self.unsent


class Caller:
    """A client that speaks the protocol of WebSockets over a fake connection to an edge."""

    def __init__(self, place: Place, **options: Any) -> None:
        self.place = place
        usual = {
            "log_config": None,
            "lifespan": "off",
            "access_log": False,
            "ws": functools.partial(Socket, place.endpoint.stop),
            "ws_max_size": 10_000,
            "ws_per_message_deflate": False,
            "ws_ping_interval": 20.0,
            "ws_ping_timeout": 20.0,
        }
        app = public_app(lambda: None, None, place.endpoint)
        config = Config(app, **{**usual, **options})
        edge = Edge(place.worker.lane, config, place.worker.state, {}, place.worker.loop)
        self.wire = Wire(edge)
        edge.connection_made(self.wire)
        self.client = ClientProtocol(parse_uri(f"ws://gate{PATH}"), max_size=None)

    def head(self, path: str = PATH, /, **headers: str | None) -> bytes:
        """A handshake; a header that is None is left out."""
        request = self.client.connect()
        named = dict(request.headers.raw_items()) | {"Authorization": f"Bearer {TOKEN}"}
        for name, value in headers.items():
            key = name.replace("_", "-")
            named.pop(key, None)
            if value is not None:
                named[key] = value
        lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        return f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode()

    async def say(self, data: bytes, feed: Feed = whole) -> None:
        for piece in feed(data):
            self.wire.say(piece)
        await turns(60)

    async def connect(self, feed: Feed = whole) -> Response:
        request = self.client.connect()
        request.headers["Authorization"] = f"Bearer {TOKEN}"
        self.client.send_request(request)
        await self.say(b"".join(self.client.data_to_send()), feed)
        (response,) = self.events()
        assert isinstance(response, Response)
        return response

    def events(self) -> list[Request | Response | Frame]:
        self.client.receive_data(self.wire.take())
        return list(self.client.events_received())

    async def send(self, feed: Feed = whole) -> None:
        await self.say(b"".join(self.client.data_to_send()), feed)

    async def text(self, message: object, feed: Feed = whole) -> None:
        self.client.send_text(json.dumps(message).encode())
        await self.send(feed)

    def said(self) -> list[Any]:
        return [json.loads(bytes(each.data)) for each in self.frames() if each.opcode is Opcode.TEXT]

    def frames(self) -> list[Frame]:
        return [each for each in self.events() if isinstance(each, Frame)]

    def closed(self) -> int | None:
        self.events()
        return self.client.close_rcvd.code if self.client.close_rcvd is not None else None

    @property
    def socket(self) -> Socket:
        assert isinstance(self.wire.protocol, Socket)
        return self.wire.protocol

    def answers(self) -> list[tuple[int, dict[bytes, bytes], bytes]]:
        """What was answered as HTTP."""
        return Answers(self.wire.take()).read


def with_caller(test: Callable[[Caller], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def inside(place: Place) -> None:
        place.worker.loop.clock = place.worker.clock
        caller = Caller(place)
        await test(caller)
        caller.wire.drop()
        await turns()

    with_place(inside, **options)


# --- The handshake -----------------------------------------------------------------------------------------


@feeds
def test_handshake_and_messages_in_any_pieces(feed: Feed) -> None:
    async def test(caller: Caller) -> None:
        response = await caller.connect(feed)
        assert response.status_code == 101
        assert "x-request-id" in response.headers
        assert caller.place.worker.lane.connections == set()
        await caller.text(call(1), feed)
        await caller.text(call(2), feed)
        assert [each["id"] for each in caller.said()] == [1, 2]

    with_caller(test)


def test_connection_may_have_answered_requests_before() -> None:
    async def test(caller: Caller) -> None:
        await caller.say(post(1))
        assert [status for status, _, _ in caller.answers()] == [200]
        assert (await caller.connect()).status_code == 101

    with_caller(test)


def test_handshake_behind_a_call_under_way_is_declined() -> None:
    async def test(caller: Caller) -> None:
        await caller.say(post(1) + caller.head())
        answer_upstream(caller.place.worker)
        await turns(40)
        assert [status for status, _, _ in caller.answers()] == [200, 405]

    with_caller(test, node=lambda _: None)


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_WebSocket_Key": None},
        {"Sec_WebSocket_Version": "8"},
        {"Sec_WebSocket_Version": None},
        {"Upgrade": "h2c"},
        {"Authorization": "Bearer " + "x" * MOST_LINE_BYTES},
    ],
)
def test_what_is_no_good_handshake_is_answered_as_http(headers: dict[str, str | None]) -> None:
    async def test(caller: Caller) -> None:
        await caller.say(caller.head(**headers))
        ((status, told, body),) = caller.answers()
        assert (status, told[b"allow"]) == (405, b"POST, OPTIONS")
        assert json.loads(body)["error"]["data"]["reason"] == "method_not_post"

    with_caller(test)


def test_too_many_headers_of_one_kind_are_answered_as_http() -> None:
    async def test(caller: Caller) -> None:
        more = b"x-forwarded-for: 192.0.2.1\r\n" * MOST_LINES
        await caller.say(caller.head().replace(b"\r\n", b"\r\n" + more, 1))
        assert [status for status, _, _ in caller.answers()] == [405]

    with_caller(test)


def test_long_headers_that_nobody_needs_do_no_harm() -> None:
    async def test(caller: Caller) -> None:
        await caller.say(caller.head(Cookie="x" * 20_000))
        assert caller.wire.take().startswith(b"HTTP/1.1 101 ")

    with_caller(test)


def test_other_paths_are_answered_as_http() -> None:
    async def test(caller: Caller) -> None:
        await caller.say(caller.head("/healthz"))
        ((status, _, body),) = caller.answers()
        assert (status, json.loads(body)) == (200, {"status": "ok"})

    with_caller(test)


def test_refusal_is_a_whole_http_answer() -> None:
    async def test(caller: Caller) -> None:
        await caller.say(caller.head(Authorization="Bearer tg_wrong"))
        ((status, headers, body),) = caller.answers()
        assert status == 401
        assert headers[b"www-authenticate"] == b"Bearer"
        assert headers[b"content-type"] == b"application/json"
        assert json.loads(body)["error"]["data"]["reason"] == "token_invalid"
        assert caller.wire.closed

    with_caller(test)


def test_without_a_protocol_of_websockets_nothing_is_upgraded() -> None:
    async def test(place: Place) -> None:
        caller = Caller(place, ws="none")
        await caller.say(caller.head())
        assert [status for status, _, _ in caller.answers()] == [405]
        caller.wire.drop()

    with_place(test)


# --- Clients that do not behave ----------------------------------------------------------------------------


def test_message_that_is_too_large_ends_the_connection() -> None:
    async def test(caller: Caller) -> None:
        await caller.connect()
        await caller.text("x" * 10_001)
        assert caller.closed() == 1009
        assert caller.wire.closed

    with_caller(test)


def test_message_in_too_many_fragments_ends_the_connection() -> None:
    async def test(caller: Caller) -> None:
        await caller.connect()
        caller.client.send_text(b"[", fin=False)
        for _ in range(MOST_FRAMES + 5):
            caller.client.send_continuation(b"", fin=False)
        await caller.send()
        assert caller.closed() == 1008
        assert caller.wire.closed

    with_caller(test)


def test_message_in_fragments_is_read() -> None:
    async def test(caller: Caller) -> None:
        await caller.connect()
        text = json.dumps(call(1)).encode()
        caller.client.send_text(text[:5], fin=False)
        caller.client.send_continuation(text[5:], fin=True)
        await caller.send()
        assert [each["id"] for each in caller.said()] == [1]

    with_caller(test)


def test_text_that_is_not_utf8_ends_the_connection() -> None:
    async def test(caller: Caller) -> None:
        await caller.connect()
        caller.client.send_text(b"\xff")
        await caller.send()
        assert caller.closed() == 1007

    with_caller(test)


def test_nothing_is_read_from_a_client_that_does_not_read() -> None:
    async def test(caller: Caller) -> None:
        await caller.connect()
        caller.socket.pause_writing()
        assert caller.wire.paused
        caller.socket.resume_writing()
        assert not caller.wire.paused

    with_caller(test)


def test_goodbye_reaches_a_client_that_does_not_read_and_is_the_end() -> None:
    async def test(caller: Caller) -> None:
        await caller.connect()
        caller.socket.pause_writing()
        caller.place.endpoint.stop()
        await turns(40)
        assert caller.closed() == 1001
        assert not caller.wire.aborted
        await caller.place.worker.loop.later(CLOSE_SECONDS)
        assert caller.wire.aborted

    with_caller(test)


def test_client_that_answers_our_goodbye_is_let_go_at_once() -> None:
    async def test(caller: Caller) -> None:
        await caller.connect()
        caller.place.endpoint.stop()
        await turns(40)
        assert caller.closed() == 1001
        await caller.send()
        assert caller.wire.closed
        assert not caller.wire.aborted
        assert caller.socket not in caller.place.worker.state.connections

    with_caller(test)


def test_client_that_says_goodbye_is_answered() -> None:
    async def test(caller: Caller) -> None:
        await caller.connect()
        caller.client.send_close(1000, "done")
        await caller.send()
        assert caller.closed() == 1000
        assert caller.wire.closed

    with_caller(test)


def test_stop_lets_the_app_say_goodbye() -> None:
    async def test(caller: Caller) -> None:
        await caller.connect()
        await caller.text(call(1))
        caller.socket.shutdown()
        await turns(40)
        assert not caller.wire.closed
        answer_upstream(caller.place.worker)
        await turns(40)
        assert [each["id"] for each in caller.said()] == [1]
        assert caller.closed() == 1001

    with_caller(test, node=lambda _: None)


# --- Signs of life -----------------------------------------------------------------------------------------


def test_client_is_asked_for_a_sign_of_life_and_cut_without_one() -> None:
    async def test(caller: Caller) -> None:
        await caller.connect()
        loop = caller.place.worker.loop
        await loop.later(20.5)
        assert [each.opcode for each in caller.frames()] == [Opcode.PING]
        await caller.send()
        await loop.later(20.5)
        assert [each.opcode for each in caller.frames()] == [Opcode.PING]
        await loop.later(20.5)
        assert caller.wire.closed

    with_caller(test)


def test_client_that_takes_a_long_message_has_its_time() -> None:
    async def test(caller: Caller) -> None:
        await caller.connect()
        loop = caller.place.worker.loop
        caller.wire.unsent = 1_000
        await loop.later(20.5)
        caller.wire.unsent = 600
        await loop.later(20.5)
        assert not caller.wire.closed
        caller.wire.unsent = 100
        await loop.later(20.5)
        assert not caller.wire.closed
        await loop.later(20.5)
        assert caller.wire.closed

    with_caller(test)


def test_client_is_not_cut_while_it_is_us_who_do_not_read() -> None:
    async def test(caller: Caller) -> None:
        await caller.connect()
        loop = caller.place.worker.loop
        for number in range(70):
            await caller.text(call(number))
        assert caller.socket.read_paused
        await loop.later(20.5)
        await loop.later(20.5)
        assert not caller.wire.closed

    with_caller(test, node=lambda _: None)
