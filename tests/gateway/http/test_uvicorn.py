"""What the fast lane relies on inside uvicorn. A new version of it must pass here before the pin is moved."""

import asyncio
import inspect
import re
import tomllib
from collections import deque
from pathlib import Path
from typing import Any

import uvicorn
from tests.gateway.fakes import FakeTransport, run_pending
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import Server, ServerState

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def body_of(function: Any) -> str:
    return inspect.getsource(function)


async def silent(scope: Any, receive: Any, send: Any) -> None:
    await receive()


def made() -> tuple[HttpToolsProtocol, FakeTransport]:
    options: dict[str, Any] = {"log_config": None, "lifespan": "off", "ws": "none"}
    protocol = HttpToolsProtocol(Config(silent, **options), ServerState(), {}, asyncio.get_running_loop())
    transport = FakeTransport(protocol)
    protocol.connection_made(transport)
    return protocol, transport


def test_version_is_the_one_that_is_pinned() -> None:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    (pin,) = [each for each in project["dependencies"] if re.match(r"uvicorn\b", each)]
    assert pin == f"uvicorn=={uvicorn.__version__}"


def test_protocol_is_made_as_our_edge_is() -> None:
    expected = ["config", "server_state", "app_state", "_loop"]
    assert parameters(HttpToolsProtocol.__init__)[1:] == expected
    assert all(f"{name}=" in body_of(Server.startup) for name in expected)


def test_methods_that_we_override_are_there() -> None:
    signatures = {
        "connection_made": ["self", "transport"],
        "connection_lost": ["self", "exc"],
        "data_received": ["self", "data"],
        "pause_writing": ["self"],
        "resume_writing": ["self"],
        "shutdown": ["self"],
        "on_message_begin": ["self"],
        "on_url": ["self", "url"],
        "on_header": ["self", "name", "value"],
        "on_headers_complete": ["self"],
        "on_body": ["self", "body"],
        "on_message_complete": ["self"],
        "on_response_complete": ["self"],
        "_start_asgi_task": ["self", "cycle", "app"],
        "_unset_keepalive_if_required": ["self"],
        "timeout_keep_alive_handler": ["self"],
    }
    assert {name: parameters(getattr(HttpToolsProtocol, name)) for name in signatures} == signatures


async def test_connection_has_what_we_read() -> None:
    protocol, transport = made()
    assert protocol.transport is transport
    assert isinstance(protocol.flow, FlowControl)
    assert isinstance(protocol.pipeline, deque)
    assert protocol.client == ("192.0.2.1", 50_000)
    assert protocol.timeout_keep_alive_task is None
    assert vars(protocol)["cycle"] is None
    assert protocol in protocol.server_state.connections
    assert protocol.loop is asyncio.get_running_loop()
    transport.drop()
    assert protocol not in protocol.server_state.connections


async def test_flow_control_pauses_and_resumes_reading_once() -> None:
    protocol, transport = made()
    flow = protocol.flow
    seen = [(flow.read_paused, transport.paused)]
    for move in (flow.pause_reading, flow.pause_reading, flow.resume_reading):
        move()
        seen.append((flow.read_paused, transport.paused))
    assert seen == [(False, False), (True, True), (True, True), (False, False)]
    assert flow.write_paused is False


async def test_second_request_waits_in_uvicorns_line_and_reading_is_paused() -> None:
    protocol, transport = made()
    transport.deliver(b"GET /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\n\r\n")
    ((cycle, app),) = protocol.pipeline
    assert cycle is protocol.cycle
    assert isinstance(cycle, RequestResponseCycle)
    assert cycle.disconnected is False
    assert isinstance(cycle.message_event, asyncio.Event)
    assert cycle.scope["path"] == "/b"
    assert app is protocol.app
    assert protocol.flow.read_paused
    await run_pending()
    transport.drop()
    await run_pending()


async def test_cycle_notifies_the_protocol_when_its_answer_is_complete() -> None:
    protocol, transport = made()
    completed: list[bool] = []
    protocol.on_response_complete = lambda: completed.append(True)  # type: ignore[method-assign]
    transport.deliver(b"POST /a HTTP/1.1\r\ncontent-length: 5\r\n\r\n")
    cycle = protocol.cycle
    assert cycle.keep_alive
    seen = [cycle.response_complete]
    await cycle.send({"type": "http.response.start", "status": 200, "headers": []})
    await cycle.send({"type": "http.response.body", "body": b"", "more_body": False})
    assert [*seen, cycle.response_complete] == [False, True]
    assert completed == [True]
    transport.drop()
    await run_pending()


async def test_keep_alive_timer_is_armed_after_an_answer_and_only_there() -> None:
    protocol, _ = made()
    protocol.on_response_complete()
    armed = protocol.timeout_keep_alive_task
    assert armed is not None
    protocol._unset_keepalive_if_required()
    assert armed.cancelled()
    assert vars(protocol)["timeout_keep_alive_task"] is None
    arming = [name for name, each in vars(HttpToolsProtocol).items() if _arms(each)]
    assert arming == ["on_response_complete"]


def _arms(function: object) -> bool:
    return inspect.isfunction(function) and "timeout_keep_alive_task = self.loop.call_later" in body_of(function)


async def test_shutdown_closes_an_idle_connection_and_ends_a_busy_one_after_its_answer() -> None:
    """The reason why ours overrides it: to uvicorn a connection without a cycle is idle."""
    protocol, transport = made()
    protocol.shutdown()
    assert transport.closed
    busy, other = made()
    other.deliver(b"GET /a HTTP/1.1\r\n\r\n")
    busy.shutdown()
    assert not other.closed
    assert not busy.cycle.keep_alive
    await run_pending()
    other.drop()
    await run_pending()


# --- The server --------------------------------------------------------------------------------------------


def test_server_has_the_hooks_that_serving_overrides() -> None:
    assert parameters(Server.on_tick) == ["self", "counter"]
    assert inspect.iscoroutinefunction(Server.on_tick)
    assert parameters(Server.capture_signals) == ["self"]
    assert parameters(Server.serve) == ["self", "sockets"]
    server = Server(Config(silent, log_config=None))
    assert server.should_exit is False


def test_server_ticks_at_once_and_then_ten_times_a_second() -> None:
    body = body_of(Server.main_loop)
    assert body.index("on_tick") < body.index("while")
    assert "asyncio.sleep(0.1)" in body


def test_server_directs_every_connection_to_stop_and_waits_for_them_within_the_grace() -> None:
    body = body_of(Server.shutdown)
    assert "server.close()" in body
    assert "for connection in list(self.server_state.connections):\n            connection.shutdown()" in body
    assert "timeout=self.config.timeout_graceful_shutdown" in body
    assert "while self.server_state.connections" in body_of(Server._wait_tasks_to_complete)


def test_signals_are_captured_in_one_place() -> None:
    assert "capture_signals" in body_of(Server.serve)
    assert "signal.signal" not in body_of(Server._serve)


def test_setting_for_the_protocol_takes_anything_that_can_be_called() -> None:
    def protocol(**options: Any) -> asyncio.Protocol:
        raise AssertionError("not made here")

    config = Config(silent, http=protocol, ws="none", lifespan="off", log_config=None)  # type: ignore[arg-type]
    config.load()
    assert config.http_protocol_class is protocol
    assert config.ws_protocol_class is None
