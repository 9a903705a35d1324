"""Readers of an Ethereum chain: several at once, at an even pace, and what each of them was answered.

Each reads as programs do: it requests the newest block, and then for things that this block has. So what it was
answered can be held against the chain afterwards. A part of the answers is large.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .anvils import EMITTER, LARGE, TICK
from .raw_http import RawConnection, call, request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

BROKEN = 0
"""The status of a call that got no whole answer."""
LOGS_BLOCKS = 4
"""Blocks whose logs are requested at once."""
Call = tuple[str, tuple[Any, ...]]
"""A method and its parameters."""


@dataclass(frozen=True)
class ReadAnswer:
    """One call and what came back."""

    method: str
    params: tuple[Any, ...]
    started_at: float
    ended: float
    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def result(self) -> Any:
        """What was answered; None where there was no result."""
        return self.body.get("result") if isinstance(self.body, dict) else None

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.started_at

    @property
    def newest(self) -> int | None:
        """The number of the newest block, where it was requested."""
        if self.result is None:
            return None
        if self.method == "eth_blockNumber":
            return int(self.result, 16)
        if self.method == "eth_getBlockByNumber" and self.params[0] == "latest":
            return int(self.result["number"], 16)
        return None


class Readers:
    """Several readers, until they are stopped."""

    def __init__(
        self, connect: Callable[[], RawConnection], path: str, headers: Mapping[str, str], pause: float
    ) -> None:
        self.answers: list[ReadAnswer] = []
        self._connect = connect
        self._path = path
        self._headers = headers
        self._pause = pause
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def __len__(self) -> int:
        return len(self.answers)

    def start(self, count: int) -> None:
        """Begin."""
        for number in range(count):
            thread = threading.Thread(target=self._go_on, args=(number,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Let each reader have its last answer, and end."""
        self._over.set()
        for thread in self._threads:
            thread.join(30)
            if thread.is_alive():
                raise AssertionError("a reader hangs")

    def _go_on(self, number: int) -> None:
        connection: RawConnection | None = None
        newest: dict[str, Any] = {"number": "0x0", "hash": "", "transactions": []}
        turn = number
        while not self._over.wait(self._pause):
            calls = _question(turn, newest)
            turn += 1
            started_at = time.monotonic()
            try:
                connection = connection or self._connect()
                connection.send(request(self._path, _written(calls), self._headers))
                answer = connection.read()
                status, bodies, headers = answer.status, _apart(answer.json(), len(calls)), answer.headers
            except (OSError, EOFError) as error:
                status, bodies, headers = BROKEN, [repr(error)] * len(calls), {}
                if connection is not None:
                    connection.socket.close()
                connection = None
            ended = time.monotonic()
            for (method, params), body in zip(calls, bodies, strict=True):
                answered = ReadAnswer(method, params, started_at, ended, status, body, headers)
                self.answers.append(answered)
                if params == ("latest", False) and answered.result is not None:
                    newest = answered.result
        if connection is not None:
            connection.socket.close()


def _question(turn: int, newest: dict[str, Any]) -> list[Call]:
    """Choose what to read after a block was returned: one call, or several in a batch."""
    number = newest["number"]
    first = hex(max(1, int(number, 16) - LOGS_BLOCKS + 1))
    logs = {"address": EMITTER, "topics": [TICK], "fromBlock": first, "toBlock": number}
    sent = newest["transactions"]
    receipt: Call = ("eth_getTransactionReceipt", (sent[0],)) if sent else ("eth_chainId", ())
    questions: list[list[Call]] = [
        [("eth_getBlockByNumber", ("latest", False))],
        [("eth_getBlockByNumber", (number, True))],
        [("eth_blockNumber", ())],
        [("eth_getLogs", (logs,))],
        [receipt],
        [("eth_getBalance", (EMITTER, "latest"))],
        [("eth_getCode", (LARGE, "latest"))],
        [("eth_call", ({"to": EMITTER, "data": f"0x{turn:064x}"}, number))],
        [receipt, ("eth_getBlockByNumber", (number, False)), ("eth_getLogs", (logs,)), ("eth_chainId", ())],
    ]
    return questions[turn % len(questions)]


def _written(calls: list[Call]) -> bytes:
    parts = [call(method, *params, id=number) for number, (method, params) in enumerate(calls)]
    return parts[0] if len(parts) == 1 else b"[%b]" % b",".join(parts)


def _apart(body: Any, count: int) -> list[Any]:
    """Give each call of a batch its answer; what is no answer to a batch is the answer to each."""
    return body if isinstance(body, list) and len(body) == count > 1 else [body] * count


def went_back(answered: list[ReadAnswer]) -> list[tuple[ReadAnswer, ReadAnswer]]:
    """Find the callers that were shown an older newest block than another caller before their call."""
    ended = sorted((each for each in answered if each.newest is not None), key=lambda each: each.ended)
    found = []
    highest: ReadAnswer | None = None
    waiting = iter(ended)
    following = next(waiting, None)
    for each in sorted(ended, key=lambda each: each.started_at):
        while following is not None and following.ended < each.started_at:
            highest = max(highest or following, following, key=lambda one: one.newest or 0)
            following = next(waiting, None)
        if highest is not None and (each.newest or 0) < (highest.newest or 0):
            found.append((highest, each))
    return found


@contextmanager
def readers(
    connect: Callable[[], RawConnection],
    path: str,
    headers: Mapping[str, str],
    *,
    count: int,
    pause: float,
) -> Iterator[Readers]:
    """Let so many readers read, each with a connection of its own, until the end of the block."""
    started = Readers(connect, path, headers, pause)
    started.start(count)
    try:
        yield started
    finally:
        started.stop()
