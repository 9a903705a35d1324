"""The connection of a WebSocket, byte by byte: the handshake through a caller connection, and frames."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.gateway.fakes import run_pending
from tests.gateway.raw_http import Feed, answer_upstream, feeds, post
from tests.gateway.websocket.asgi_clients import SocketServer, call
from tests.gateway.websocket.raw_clients import Caller, open_caller
from websockets.frames import Frame, Opcode

from tollgate.gateway.http.connection_counts import ConnectionCounts
from tollgate.gateway.http.handshake import MAX_LINE_BYTES, MAX_LINES, needed
from tollgate.gateway.websocket.connection import MAX_FRAMES
from tollgate.settings import model

# --- The handshake -----------------------------------------------------------------------------------------


@feeds
async def test_handshake_and_messages_in_any_pieces(feed: Feed, caller: Caller) -> None:
    response = await caller.connect(feed)
    assert response.status_code == 101
    assert "x-request-id" in response.headers
    assert caller.server.gateway.context.connections == set()
    await caller.text(call(1), feed)
    await caller.text(call(2), feed)
    assert [each["id"] for each in caller.messages()] == [1, 2]


async def test_websocket_counts_as_one_connection_of_its_worker_until_it_is_closed(caller: Caller) -> None:
    context = caller.server.gateway.context
    assert (await caller.connect()).status_code == 101
    assert context.upgraded == 1
    caller.transport.close()
    await run_pending(40)
    assert context.upgraded == 0


async def test_websocket_counts_as_one_connection_of_its_address_until_it_is_closed(server: SocketServer) -> None:
    addresses = server.gateway.context.addresses = ConnectionCounts((), 5)
    caller = Caller(server)
    await caller.connect()
    counted = addresses._open[""]
    before = counted.taken
    caller.transport.close()
    await run_pending(40)
    assert (before, counted.taken, server.gateway.budget.held) == (1, 0, 0)


async def test_connection_may_have_answered_requests_before(caller: Caller) -> None:
    await caller.deliver(post(1))
    assert [status for status, _, _ in caller.answers()] == [200]
    assert (await caller.connect()).status_code == 101


async def test_handshake_behind_a_call_under_way_is_declined() -> None:
    async with open_caller(node=lambda _: None) as caller:
        await caller.deliver(post(1) + caller.head())
        answer_upstream(caller.server.gateway)
        await run_pending(40)
        assert [status for status, _, _ in caller.answers()] == [200, 405]


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_WebSocket_Key": None},
        {"Sec_WebSocket_Version": "8"},
        {"Sec_WebSocket_Version": None},
        {"Upgrade": "h2c"},
        {"Authorization": "Bearer " + "x" * MAX_LINE_BYTES},
        {"Sec_WebSocket_Key": "short"},
        {"Sec_WebSocket_Protocol": "tollgate, tollgate.token.tg_secret\xe9"},
        {"Sec_WebSocket_Protocol": "tollgate, tollgate.token.tg_secret tg_secret"},
        {"Sec_WebSocket_Protocol": ", "},
    ],
)
async def test_what_is_no_good_handshake_is_answered_as_http(
    headers: dict[str, str | None], caller: Caller
) -> None:
    await caller.deliver(caller.head(**headers))
    ((status, fields, body),) = caller.answers()
    assert (status, fields[b"allow"]) == (405, b"POST, OPTIONS")
    assert json.loads(body)["error"]["data"]["reason"] == "method_not_post"
    assert b"secret" not in body


@pytest.mark.parametrize("name", ["sec-websocket-key", "sec-websocket-version", "origin"])
async def test_doubled_header_is_answered_as_http(name: str, caller: Caller) -> None:
    head = caller.head(Origin="https://example.com").lower()
    (line,) = [each for each in head.split(b"\r\n") if each.startswith(name.encode() + b":")]
    await caller.deliver(caller.head(Origin="https://example.com").replace(b"\r\n", b"\r\n" + line + b"\r\n", 1))
    assert [status for status, _, _ in caller.answers()] == [405]


async def test_too_many_headers_of_one_kind_are_answered_as_http(caller: Caller) -> None:
    more = b"x-forwarded-for: 192.0.2.1\r\n" * MAX_LINES
    await caller.deliver(caller.head().replace(b"\r\n", b"\r\n" + more, 1))
    assert [status for status, _, _ in caller.answers()] == [405]


@pytest.mark.parametrize(
    ("url", "more", "fits"),
    [
        (b"/", [(b"user-agent", b"a" * MAX_LINE_BYTES)], True),
        (b"/", [(b"user-agent", b"a" * (MAX_LINE_BYTES + 1))], False),
        (b"/" * MAX_LINE_BYTES, [], True),
        (b"/" * (MAX_LINE_BYTES + 1), [], False),
        (b"/\xff", [], False),
        (b"/", [(b"user-agent", b"a")] * (MAX_LINES - 2), True),
        (b"/", [(b"user-agent", b"a")] * (MAX_LINES - 1), False),
        (b"/", [(b"cookie", b"a")] * MAX_LINES, True),
        (b"/", [(b"origin", b"a")], True),
        (b"/", [(b"origin", b"a")] * 2, False),
    ],
)
def test_handshake_may_be_as_long_as_the_bounds(url: bytes, more: list[tuple[bytes, bytes]], fits: bool) -> None:
    headers = [(b"sec-websocket-version", b"13"), (b"sec-websocket-key", b"a" * 22 + b"=="), *more]
    assert (needed(b"GET", url, headers) is not None) is fits
    assert needed(b"POST", url, headers) is None


async def test_long_headers_that_are_not_used_do_no_harm(caller: Caller) -> None:
    await caller.deliver(caller.head(Cookie="x" * 20_000))
    assert caller.transport.take().startswith(b"HTTP/1.1 101 ")


async def test_other_paths_are_answered_as_http(caller: Caller) -> None:
    await caller.deliver(caller.head("/healthz"))
    ((status, _, body),) = caller.answers()
    assert (status, json.loads(body)) == (200, {"status": "ok"})


async def test_refusal_is_a_whole_http_answer_and_is_not_logged(
    caplog: pytest.LogCaptureFixture, caller: Caller
) -> None:
    await caller.deliver(caller.head(Authorization="Bearer tg_wrong"))
    ((status, headers, body),) = caller.answers()
    assert status == 401
    assert headers[b"www-authenticate"] == b"Bearer"
    assert headers[b"content-type"] == b"application/json"
    assert json.loads(body)["error"]["data"]["reason"] == "token_invalid"
    assert caller.transport.closed
    assert caplog.records == []


async def test_without_a_protocol_of_websockets_nothing_is_upgraded(server: SocketServer) -> None:
    caller = Caller(server, ws="none")
    await caller.deliver(caller.head())
    assert [status for status, _, _ in caller.answers()] == [405]
    caller.transport.drop()


# --- Messages and goodbyes ---------------------------------------------------------------------------------


async def test_message_that_is_too_large_ends_the_connection() -> None:
    async with open_caller(limits=model.LimitSettings(body_bytes=10_000)) as caller:
        await caller.connect()
        await caller.text("x" * 10_001)
        assert caller.closed() == 1009
        assert caller.transport.closed


@pytest.mark.parametrize("most", [5_000, 20_000])
async def test_bound_on_messages_that_a_reload_has_changed_holds_for_new_connections(
    most: int, caller: Caller
) -> None:
    gateway = caller.server.gateway
    gateway.context.change(gateway.networks.served, model.LimitSettings(body_bytes=most))
    await caller.connect()
    message = json.dumps(call(1, "eth_call", ""))
    await caller.text(call(1, "eth_call", "x" * (most - len(message))))
    assert [each["id"] for each in caller.messages()] == [1]
    await caller.text(call(2, "eth_call", "x" * (most - len(message) + 1)))
    assert caller.closed() == 1009


async def test_connection_that_was_open_before_a_reload_is_held_to_the_lower_bound(caller: Caller) -> None:
    gateway = caller.server.gateway
    await caller.connect()
    gateway.context.change(gateway.networks.served, model.LimitSettings(body_bytes=100))
    await caller.text(call(1, "eth_call", "x" * 100))
    (fields,) = caller.messages()
    assert (fields["id"], fields["error"]["data"]["reason"]) == (1, "body_too_large")


async def test_message_in_too_many_fragments_ends_the_connection(caller: Caller) -> None:
    await caller.connect()
    caller.client.send_text(b"[", fin=False)
    for _ in range(MAX_FRAMES - 1):
        caller.client.send_continuation(b"", fin=False)
    await caller.send()
    assert caller.closed() is None
    caller.client.send_continuation(b"", fin=False)
    await caller.send()
    assert caller.closed() == 1008
    assert caller.transport.closed


async def test_message_in_fragments_is_read(caller: Caller) -> None:
    await caller.connect()
    text = json.dumps(call(1)).encode()
    caller.client.send_text(text[:5], fin=False)
    caller.client.send_continuation(text[5:], fin=True)
    await caller.send()
    assert [each["id"] for each in caller.messages()] == [1]


@pytest.mark.parametrize("kind", [Opcode.PING, Opcode.PONG, Opcode.TEXT])
async def test_others_have_their_turn_while_many_frames_are_read(kind: Opcode) -> None:
    async with open_caller(limits=model.LimitSettings(in_flight=10)) as caller:
        await caller.connect()
        pings = [Frame(kind, b"1").serialize(mask=True) for _ in range(2_000)]
        end = Frame(Opcode.TEXT, json.dumps(call("end")).encode()).serialize(mask=True)
        before = caller.socket.handled
        caller.transport.deliver(b"".join([*pings, end]))
        assert caller.transport.paused, "what is there comes first"
        read = [caller.socket.handled - before]
        for _ in range(600):
            before = caller.socket.handled
            await asyncio.sleep(0)
            read.append(caller.socket.handled - before)
            assert caller.socket.queue.qsize() <= 250
        assert max(read) <= 250
        await run_pending(2_000)
        assert caller.messages()[-1]["id"] == "end"
        assert not caller.transport.paused


async def test_large_message_is_read_at_once(caller: Caller) -> None:
    await caller.connect()
    caller.client.send_text(json.dumps(call(1, "eth_call", "x" * 200_000)).encode())
    before = caller.socket.handled
    caller.transport.deliver(b"".join(caller.client.data_to_send()))
    assert caller.socket.handled == before + 1
    await run_pending(60)
    assert [each["id"] for each in caller.messages()] == [1]


async def test_text_that_is_not_utf8_ends_the_connection_and_is_not_logged(
    caplog: pytest.LogCaptureFixture, caller: Caller
) -> None:
    await caller.connect()
    caller.client.send_text(b"\xff")
    await caller.send()
    assert caller.closed() == 1007
    assert caplog.records == []


async def test_text_beyond_ascii_is_read_and_bytes_are_no_text(caller: Caller) -> None:
    await caller.connect()
    caller.client.send_text(json.dumps(call("é"), ensure_ascii=False).encode())
    caller.client.send_binary(b"\xff")
    await caller.send()
    assert {each["id"]: each.get("error", {}).get("code") for each in caller.messages()} == {
        "é": None,
        None: -32700,
    }
    assert caller.closed() is None


async def test_messages_that_wait_are_read_when_those_before_are_taken() -> None:
    async with open_caller(node=lambda _: None) as caller:
        await caller.connect()
        for number in range(40):
            caller.client.send_text(json.dumps(call(number)).encode())
        caller.transport.deliver(b"".join(caller.client.data_to_send()))
        assert caller.socket._unread
        await run_pending(200)
        assert not caller.socket._unread, "though nothing was answered yet"


async def test_client_that_answers_our_goodbye_is_let_go_at_once(caller: Caller) -> None:
    await caller.connect()
    caller.server.endpoint.stop()
    await run_pending(40)
    assert caller.closed() == 1001
    await caller.send()
    assert caller.transport.closed
    assert not caller.transport.aborted
    assert caller.socket not in caller.server.gateway.server_state.connections


async def test_client_that_closes_is_answered(caller: Caller) -> None:
    await caller.connect()
    caller.client.send_close(1000, "done")
    await caller.send()
    assert caller.closed() == 1000
    assert caller.transport.closed


async def test_stop_lets_the_app_close() -> None:
    async with open_caller(node=lambda _: None) as caller:
        await caller.connect()
        await caller.text(call(1))
        caller.socket.shutdown()
        await run_pending(40)
        assert not caller.transport.closed
        answer_upstream(caller.server.gateway)
        await run_pending(40)
        assert [each["id"] for each in caller.messages()] == [1]
        assert caller.closed() == 1001


async def test_server_has_no_task_of_a_connection_that_has_ended(caller: Caller) -> None:
    await caller.connect()
    tasks = caller.server.gateway.server_state.tasks
    assert len(tasks) == 1
    caller.client.send_close(1000)
    await caller.send()
    assert not tasks
