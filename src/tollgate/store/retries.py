"""Whether what a request did may be done again from its beginning: nothing was committed, and the database asks.

A database that lets several change at once may undo one of two that wait for each other. Whoever runs requests
opens a `Watch`, and asks it afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Watch:
    """What happened in a store since this was opened."""

    def __init__(self) -> None:
        self.commits = 0
        self.asked = False

    @property
    def may_retry(self) -> bool:
        """Whether all of it may be done again."""
        return self.asked and not self.commits


_current: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def watching() -> Iterator[Watch]:
    """Watch what is done inside, also in tasks that are started there."""
    watch = Watch()
    token = _current.set(watch)
    try:
        yield watch
    finally:
        _current.reset(token)


def note_commit() -> None:
    """Note that a change was committed."""
    if (watch := _current.get()) is not None:
        watch.commits += 1


def ask() -> None:
    """Note that the database has undone a transaction so that it can be done again."""
    if (watch := _current.get()) is not None:
        watch.asked = True
