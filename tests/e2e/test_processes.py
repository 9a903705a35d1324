"""Processes that die, and starts that must not succeed."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from parts.load import BROKEN, load
from parts.ports import accepts
from parts.processes import alive, descendants, eventually, running
from parts.raw_http import call
from parts.stack import PATH, Stack, open_stack
from parts.tollgate import TOLLGATE, Books, linux_only, refusal_to_start, serving, write_settings
from parts.upstream import upstream

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.e2e, linux_only]

NOWHERE = {"eth/mainnet": ["http://127.0.0.1:1"]}
TWO = {"server": {"workers": 2}}
MAX_WAIT_SECONDS = 10.0
"""For a caller while a worker is replaced: usually a fraction of a second. A worker that hangs has 20."""


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with open_stack(tmp_path, TWO) as it:
        yield it


# ---- death


def test_killed_worker_is_replaced_and_others_are_untouched(stack: Stack) -> None:
    gateway = stack.gateway
    counted = gateway.metrics()
    with (
        gateway.spread(3) as held,
        load(
            [connection for each in held.values() for connection in each], stack.request(), reopen=gateway.connect
        ) as callers,
    ):
        (victim, doomed), (_, safe) = held.items()
        eventually(lambda: len(callers) > 100, what="load")
        killed = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        eventually(
            lambda: (
                {each.caller for each in callers.since(killed) if each.status == 200}
                >= set(range(len(doomed) + len(safe)))
            ),
            what="answers for everybody",
        )
        well = max(
            min(each.ended for each in callers.since(killed) if each.caller == caller and each.status == 200)
            for caller in range(len(doomed) + len(safe))
        )
        eventually(lambda: len(callers.since(well)) > 20, what="load after that")
        during = gateway.metrics()
    lost = [each for each in callers.since(0.0) if each.status == BROKEN]
    assert {each.caller for each in lost} <= set(range(len(doomed))), "only the dead worker's connections"
    assert len(lost) <= len(doomed), "each of them once"
    again = min(each.ended for each in callers.since(killed) if each.caller < len(doomed) and each.status)
    assert again - killed <= MAX_WAIT_SECONDS
    assert all(each.status == 200 for each in callers.since(well))
    assert victim not in gateway.workers().values()
    assert len(gateway.workers()) == 2
    fallen = {
        sample: (value, during.get(sample))
        for sample, value in counted.items()
        if ("_total" in sample or "_count" in sample) and during.get(sample, -1.0) < value
    }
    assert not fallen
    answered = sum(value for sample, value in during.items() if sample.startswith("tollgate_requests_total"))
    assert answered >= 100


def test_connections_go_to_workers_that_live_however_often_one_dies(stack: Stack) -> None:
    waits: list[float] = []
    kills = 0
    while kills <= 5 or len(waits) <= 40:
        victim = stack.gateway.workers().get("tg-worker-0")
        if victim is not None:
            os.kill(victim, signal.SIGKILL)
            kills += 1
        for _ in range(8):
            started = time.monotonic()
            try:
                with stack.gateway.connect() as connection:
                    assert connection.exchange(PATH, call("eth_chainId"), stack.headers).status == 200
            except (ConnectionError, EOFError):
                continue  # it was the victim's
            waits.append(time.monotonic() - started)
    assert max(waits) < MAX_WAIT_SECONDS, sorted(waits)[-5:]


def test_connections_of_a_worker_that_hangs_go_to_others(stack: Stack) -> None:
    victim = stack.gateway.workers()["tg-worker-0"]
    os.kill(victim, signal.SIGSTOP)
    try:
        for _ in range(20):
            started = time.monotonic()
            assert stack.exchange(call("eth_chainId")).status == 200
            assert time.monotonic() - started < MAX_WAIT_SECONDS
    finally:
        os.kill(victim, signal.SIGCONT)
    assert stack.exchange(call("eth_chainId")).status == 200


def test_upstream_that_is_silent_for_longer_than_a_hung_process_may_be_costs_the_prober_nothing(
    tmp_path: Path,
) -> None:
    health = {"timeout_seconds": 60.0}
    with silent_port() as port, upstream() as node:
        behind = {"eth/mainnet": [f"http://127.0.0.1:{port}"], "eth/sepolia": [node.url]}
        with serving(tmp_path, behind, {"health": health}) as gateway:
            # The start has taken 15 s; a prober that gives no sign of life would be killed after 20.
            first = gateway.children()["tg-prober"]
            started = time.monotonic()
            eventually(lambda: time.monotonic() - started > 10.0, what="half a minute of silence")
            assert gateway.children()["tg-prober"] == first
            assert "hangs" not in gateway.program.err.read_text()


@contextmanager
def silent_port() -> Iterator[int]:
    """Accept connections and never answer."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        yield int(listener.getsockname()[1])


def test_all_workers_killed_at_once(stack: Stack) -> None:
    for pid in stack.gateway.workers().values():
        os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    assert stack.exchange(call("eth_chainId")).status == 200
    assert time.monotonic() - killed <= MAX_WAIT_SECONDS
    eventually(lambda: len(stack.gateway.workers()) == 2, what="both replaced")


def test_counters_never_fall(stack: Stack) -> None:
    def calls() -> float:
        name = 'tollgate_calls_total{family="eth",method="eth_chainId",network="mainnet",outcome="ok"}'
        return stack.gateway.metrics().get(name, 0.0)

    expected = 0
    for _ in range(3):
        with stack.gateway.spread(1) as held:
            for connection in (connection for each in held.values() for connection in each):
                connection.send(stack.request())
                assert connection.read().status == 200
                expected += 1
        assert calls() == expected
        victim = next(iter(stack.gateway.workers().values()))
        os.kill(victim, signal.SIGKILL)
        eventually(
            lambda victim=victim: (
                victim not in stack.gateway.workers().values()  # type: ignore[misc]
                and len(stack.gateway.workers()) == 2
            ),
            what="the successor",
        )
        assert calls() == expected


def test_metrics_listener_is_replaced_too(stack: Stack) -> None:
    before = stack.gateway.metrics()
    os.kill(stack.gateway.children()["tg-metrics"], signal.SIGKILL)
    after = stack.gateway.metrics()
    assert after.keys() >= before.keys()


def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="killed on purpose"), open_stack(tmp_path, TWO) as stack:  # noqa: PT012
        children = descendants(stack.gateway.program.pid)
        assert len(children) >= 3
        with stack.gateway.connect() as connection:
            connection.send(stack.request())
            assert connection.read().status == 200
            stack.gateway.program.send(signal.SIGKILL)
            eventually(lambda: not any(map(alive, children)), what="the children's end")
            assert connection.ended()
        assert not accepts(stack.gateway.port)
        raise AssertionError("killed on purpose")


# ---- starts that must not succeed


def test_second_service_on_the_same_folder(stack: Stack, tmp_path: Path) -> None:
    words = refusal_to_start(tmp_path / "tollgate.toml")
    assert str(tmp_path / "data") in words
    assert "data_dir" in words
    assert stack.exchange(call("eth_chainId")).status == 200


@pytest.mark.parametrize("setting", ["port", "metrics_port"])
def test_port_in_use(stack: Stack, tmp_path: Path, setting: str) -> None:
    taken = int(stack.gateway.base_url.rpartition(":")[2])
    file = write_settings(tmp_path / "other", NOWHERE, {"server": {setting: taken}})
    words = refusal_to_start(file)
    assert str(taken) in words
    assert "in use" in words
    assert f"server.{setting}" in words


def test_pepper_and_folder_are_for_their_owner_alone(tmp_path: Path) -> None:
    file = write_settings(tmp_path, NOWHERE)
    argv = [TOLLGATE, "serve", "--config", str(file)]
    with running(argv, folder=tmp_path / "output", ready=lambda it: '"ready"' in it.err.read_text()):
        data = tmp_path / "data"
        assert (data / "pepper").stat().st_mode & 0o777 == 0o600
        assert data.stat().st_mode & 0o777 == 0o700
        pepper = (data / "pepper").read_text()
    with serving(tmp_path, NOWHERE):
        assert (data / "pepper").read_text() == pepper, "made once"


@pytest.mark.parametrize("change", ["other", "gone", "short", "readable"])
def test_changed_pepper(tmp_path: Path, change: str) -> None:
    file = write_settings(tmp_path, NOWHERE)
    Books(tmp_path / "data")
    pepper = tmp_path / "data" / "pepper"
    if change == "other":
        pepper.write_text("0" * 64)
    elif change == "gone":
        pepper.unlink()
    elif change == "short":
        pepper.write_text("abc")
    else:
        pepper.chmod(0o644)
    assert "pepper" in refusal_to_start(file)


@pytest.mark.parametrize("command", ["serve", "migrate"])
def test_newer_database(tmp_path: Path, command: str) -> None:
    file = write_settings(tmp_path, NOWHERE)
    books = Books(tmp_path / "data")
    with sqlite3.connect(str(books.url.database)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    words = refusal_to_start(file, command=command)
    assert "newer" in words
    assert "9999" in words


def test_file_that_is_no_database(tmp_path: Path) -> None:
    file = write_settings(tmp_path, NOWHERE)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "control.db").write_bytes(b"hello " * 1000)
    assert "control.db" in refusal_to_start(file)
