"""Whether a request may be retried as a whole: the database undid a transaction, and nothing was committed.

A database with concurrent writers may undo one of two transactions that wait for each other. The code that runs
requests opens a `Watch`, and checks it afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class CommitWatch:
    """What happened in a store since this was opened."""

    def __init__(self) -> None:
        self.commits = 0
        self.undone = False

    @property
    def may_retry(self) -> bool:
        return self.undone and not self.commits


_current: ContextVar[CommitWatch | None] = ContextVar("watch", default=None)


@contextmanager
def watching() -> Iterator[CommitWatch]:
    """Watch what is done inside, also in tasks that are started there."""
    watch = CommitWatch()
    token = _current.set(watch)
    try:
        yield watch
    finally:
        _current.reset(token)


def note_commit() -> None:
    if (watch := _current.get()) is not None:
        watch.commits += 1


def note_undone() -> None:
    """Note that the database has undone a transaction, which may be retried."""
    if (watch := _current.get()) is not None:
        watch.undone = True
