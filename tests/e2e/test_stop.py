"""SIGTERM: what was read whole is answered whole, with the end of the connection; the rest is refused."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

import pytest

from parts.certs import make_certificate
from parts.load import BROKEN, load
from parts.ports import accepts
from parts.processes import alive, descendants, eventually
from parts.raw_http import request
from parts.stack import Stack, open_stack, reason
from parts.tollgate import linux_only
from parts.upstream import Reply
from tollgate.gateway.http.bounds import LINGER_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.e2e, linux_only]


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with open_stack(tmp_path, {"server": {"workers": 2, "grace_seconds": 10.0}}) as it:
        yield it


def test_calls_under_way_are_answered_and_new_ones_refused(stack: Stack) -> None:
    gate = threading.Event()
    stack.node.on("eth_call", Reply(gate=gate))
    program = stack.gateway.program
    children = descendants(program.pid)
    with stack.gateway.spread(5) as held:
        connections = [connection for each in held.values() for connection in each]
        for number, connection in enumerate(connections):
            connection.send(stack.request(number, "eth_call"))
        eventually(lambda: len(stack.node.bodies("eth_call")) == len(connections), what="all calls upstream")
        program.send(signal.SIGTERM)
        eventually(lambda: not accepts(stack.gateway.port), what="the door shut")
        assert program.running, "it waits for the calls"
        gate.set()
        for number, connection in enumerate(connections):
            answer = connection.read()
            assert (answer.status, answer.json()["id"]) == (200, number)
            assert answer.headers["connection"] == "close"
            assert connection.ended()
    assert program.popen.wait(30) == 0
    assert not any(map(alive, children))


def test_no_call_is_cut_under_load(stack: Stack) -> None:
    with stack.gateway.spread(4) as held:
        connections = [connection for each in held.values() for connection in each]
        with load(connections, stack.request()) as callers:
            eventually(lambda: len(callers) > 200, what="load")
            stack.gateway.program.send(signal.SIGTERM)
            callers.join()
    for caller in range(len(connections)):
        mine = [outcome for outcome in callers.outcomes if outcome.caller == caller]
        if mine[-1].status == BROKEN:
            # A slow machine held this caller up: its connection was idle for long enough to be closed.
            assert mine.pop().ended - mine[-1].ended > LINGER_SECONDS * 0.9
        else:
            assert mine[-1].closing
        assert {outcome.status for outcome in mine} == {200}
        assert not any(outcome.closing for outcome in mine[:-1])
    assert stack.gateway.program.popen.wait(30) == 0


@pytest.mark.parametrize("between", [b"", request("/healthz", headers={}, method="GET")])
def test_calls_that_wait_in_line_are_answered_too(stack: Stack, between: bytes) -> None:
    """Pipelined requests were read whole, so they are answered; the last answer ends the connection."""
    gate = threading.Event()
    stack.node.on("eth_call", Reply(gate=gate))
    with stack.gateway.connect() as connection:
        connection.send(stack.request(1, "eth_call") + stack.request(2) + between + stack.request(3))
        eventually(lambda: stack.node.bodies("eth_call"), what="the call upstream")
        stack.gateway.program.send(signal.SIGTERM)
        eventually(lambda: not accepts(stack.gateway.port), what="the door shut")
        gate.set()
        assert connection.read().json()["id"] == 1
        assert connection.read().json()["id"] == 2
        if between:
            assert connection.read().json() == {"status": "ok"}
        last = connection.read()
        assert (last.json()["id"], last.headers["connection"]) == (3, "close")
        assert connection.ended()


def test_idle_connections_do_not_hold_it_up(stack: Stack) -> None:
    with stack.gateway.spread(2) as held:
        connections = [connection for each in held.values() for connection in each]
        assert connections[0].exchange("/healthz", method="GET").status == 200
        stack.gateway.program.send(signal.SIGTERM)
        assert stack.gateway.program.popen.wait(9) == 0
        for connection in connections:
            assert connection.ended()


def test_idle_callers_that_never_confirm_the_end_of_tls_do_not_hold_it_up(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    files = {"tls_certificate": str(certificate.certificate), "tls_key": str(certificate.key)}
    settings = {"server": {**files, "grace_seconds": 10.0}}
    with open_stack(tmp_path / "service", settings, tls=certificate.client_context()) as stack:
        with stack.gateway.connect() as connection:
            assert connection.exchange("/healthz", method="GET").status == 200
            stack.gateway.program.send(signal.SIGTERM)
            assert stack.gateway.program.popen.wait(9) == 0
        assert "exceeded" not in stack.gateway.program.err.read_text()


def test_call_that_outlasts_the_grace_is_reported(tmp_path: Path) -> None:
    with open_stack(tmp_path, {"server": {"grace_seconds": 1.0}}) as stack:
        stack.node.on("eth_call", Reply(hang=True))
        with stack.gateway.connect() as connection:
            connection.send(stack.request(1, "eth_call"))
            eventually(lambda: stack.node.bodies("eth_call"), what="the call upstream")
            stack.gateway.program.send(signal.SIGTERM)
            answer = connection.read()
            assert (answer.status, reason(answer)) == (503, "overloaded")
            assert answer.headers["connection"] == "close"
        assert stack.gateway.program.popen.wait(30) == 0


def test_second_signal_does_not_cut_calls(stack: Stack) -> None:
    gate = threading.Event()
    stack.node.on("eth_call", Reply(gate=gate))
    with stack.gateway.connect() as connection:
        connection.send(stack.request(1, "eth_call"))
        eventually(lambda: stack.node.bodies("eth_call"), what="the call upstream")
        for _ in range(3):
            stack.gateway.program.send(signal.SIGTERM)
        eventually(lambda: not accepts(stack.gateway.port), what="the door shut")
        gate.set()
        assert connection.read().json()["id"] == 1
    assert stack.gateway.program.popen.wait(30) == 0
