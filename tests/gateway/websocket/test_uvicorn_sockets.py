"""What WebSockets rely on inside uvicorn and `websockets`. A new version of either must pass here first."""

import inspect
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets import http11
from websockets.protocol import Protocol
from websockets.server import ServerProtocol

from tollgate.gateway.http import handshake


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def body_of(function: Any) -> str:
    return inspect.getsource(function)


async def app(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("not called here")


def test_protocol_is_made_from_the_scope_of_the_edge() -> None:
    body = body_of(HttpToolsProtocol.handle_websocket_upgrade)
    assert 'self.scope["method"]' in body
    assert 'self.scope["headers"]' in body
    assert "self.url" in body
    assert all(f"{name}=" in body for name in ("config", "server_state", "app_state"))
    assert "self.connections.discard(self)" in body
    assert parameters(WebSocketsSansIOProtocol.__init__)[1:] == ["config", "server_state", "app_state", "_loop"]


def test_setting_for_the_protocol_takes_anything_that_can_be_called() -> None:
    def protocol(**options: Any) -> Any:
        raise AssertionError("not made here")

    config = Config(app, ws=protocol, lifespan="off", log_config=None)  # type: ignore[arg-type]
    config.load()
    assert config.ws_protocol_class is protocol


def test_methods_that_we_override_are_there() -> None:
    signatures = {
        "connection_lost": ["self", "exc"],
        "data_received": ["self", "data"],
        "handle_events": ["self"],
        "shutdown": ["self"],
        "pause_writing": ["self"],
        "resume_writing": ["self"],
        "receive": ["self"],
        "send": ["self", "message"],
        "keepalive_timeout": ["self"],
        "send_keepalive_ping": ["self"],
        "handle_cont": ["self", "event"],
        "handle_close": ["self", "event"],
        "handle_parser_exception": ["self"],
        "on_task_complete": ["self", "task"],
        "send_receive_event_to_app": ["self"],
    }
    assert {name: parameters(getattr(WebSocketsSansIOProtocol, name)) for name in signatures} == signatures


def test_reading_stops_while_a_message_waits_to_be_taken() -> None:
    assert "self.transport.pause_reading()" in body_of(WebSocketsSansIOProtocol.send_receive_event_to_app)
    assert "self.transport.resume_reading()" in body_of(WebSocketsSansIOProtocol.receive)


def test_send_waits_for_a_client_that_does_not_read_and_fails_when_it_is_gone() -> None:
    body = body_of(WebSocketsSansIOProtocol.send)
    assert body.index("await self.writable.wait()") < body.index("self.disconnected")
    assert "raise ClientDisconnected()" in body
    assert issubclass(ClientDisconnected, OSError)


def test_app_sees_its_own_close() -> None:
    body = body_of(WebSocketsSansIOProtocol.send)
    closing = body[body.rindex('message["type"] == "websocket.close"') :]
    assert closing.index("websocket.disconnect") < closing.index("self.close_sent = True")


def test_lost_connection_wakes_tasks_that_wait_to_send() -> None:
    body = body_of(WebSocketsSansIOProtocol.connection_lost)
    assert "self.writable.set()" in body
    assert "self.disconnected = True" in body


def test_paths_are_only_in_lines_that_we_do_not_log() -> None:
    """A token may be in the path; our log takes warnings and worse of libraries (tollgate/log.py)."""
    source = body_of(WebSocketsSansIOProtocol)
    lines = [part.partition("(")[0] for part in source.split("self.logger.")[1:] if "get_path" in part[:200]]
    assert set(lines) == {"info"}


def test_bound_on_messages_is_looked_at_for_each_frame() -> None:
    assert ServerProtocol(max_size=7).max_message_size == 7
    assert ServerProtocol().events == []
    body = body_of(ServerProtocol.parse) + body_of(Protocol.parse)
    assert body.index("while True") < body.index("self.max_message_size")


def test_every_end_of_a_connection_goes_through_what_we_override() -> None:
    """Where a transport is closed but not aborted: each is followed by our own deadline."""
    closing = {
        name
        for name, function in vars(WebSocketsSansIOProtocol).items()
        if inspect.isfunction(function) and "self.transport.close" in inspect.getsource(function)
    }
    ours = {"keepalive_timeout", "handle_close", "handle_parser_exception", "send", "shutdown"}
    # The last three: before there is an app; its end, after which comes `on_task_complete`; the end itself.
    assert closing == ours | {"handle_connect", "run_asgi", "connection_lost"}


def test_library_takes_as_many_and_as_long_headers_as_we_hand_on() -> None:
    assert handshake.MAX_LINE_BYTES + len("sec-websocket-protocol: \r\n") < http11.MAX_LINE_LENGTH
    assert handshake.MAX_LINES < http11.MAX_NUM_HEADERS
