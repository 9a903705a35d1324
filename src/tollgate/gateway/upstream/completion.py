"""Runs a request's coroutine without an asyncio task.

A task costs three turns of the event loop for each request (its start, its wake-up, its end) and a context copy;
together about 8 µs of the 45 that a call takes. A flight runs its coroutine on the spot until it waits, and
again when what it waits for is there.

So the coroutine must not ask for its task: `asyncio.timeout` and `TaskGroup` need a real one. Whatever needs
those (opening a connection, asking the store) makes a task of its own and awaits that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


class Flight(Generic[T]):
    """A coroutine under way. `land` is called once, with its result or its error."""

    __slots__ = ("_coroutine", "_land")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, T],
        land: Callable[[Flight[T], T | None, BaseException | None], None],
    ) -> None:
        self._coroutine = coroutine
        self._land = land

    def step(self, _awaited: object = None) -> None:
        """Run until the coroutine waits or ends."""
        try:
            awaited = self._coroutine.send(None)
        except StopIteration as stop:
            self._land(self, stop.value, None)
        except BaseException as error:  # noqa: BLE001 - handed over, as a task would
            self._land(self, None, error)
        else:
            # What asyncio's own tasks do with a future.
            awaited._asyncio_future_blocking = False
            awaited.add_done_callback(self.step)

    def cancel(self) -> None:
        """End it where it waits."""
        try:
            self._coroutine.throw(asyncio.CancelledError())
        except StopIteration as stop:
            self._land(self, stop.value, None)
        except BaseException as error:  # noqa: BLE001
            self._land(self, None, error)
        # What it waited for may still come.
        self._land = _nowhere


def _nowhere(_flight: Flight[Any], _value: Any, _error: BaseException | None) -> None:
    """Where a flight lands that was cancelled before."""


class Pending(Generic[T]):
    """A future for one flight, which is resumed on the spot. A task cannot await it."""

    __slots__ = ("_asyncio_future_blocking", "_error", "_loop", "_resume", "_value", "done")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asyncio_future_blocking = False
        self._resume: Callable[[Any], object] | None = None
        self._value: T | None = None
        self._error: BaseException | None = None
        self.done = False

    def add_done_callback(self, resume: Callable[[Any], object]) -> None:
        """Note who waits."""
        self._resume = resume

    def settle(self, value: T) -> None:
        """Hand over the value and resume the waiter, here and now."""
        self.done = True
        self._value = value
        if self._resume is not None:
            self._resume(self)

    def fail(self, error: BaseException) -> None:
        """Hand over an error. The waiter is resumed in a turn of its own: we may be inside another task."""
        self.done = True
        self._error = error
        if self._resume is not None:
            self._loop.call_soon(self._resume, self)

    def __await__(self) -> Generator[Pending[T], None, T]:
        """Wait."""
        if not self.done:
            self._asyncio_future_blocking = True
            yield self
        if self._error is not None:
            raise self._error
        return cast("T", self._value)
