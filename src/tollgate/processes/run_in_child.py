"""Runs a function in a forked child and returns its result.

For work at the start that imports what the parent and its workers must not carry for good: a migration needs 10 MB
of Alembic, the demo's account all of the control plane.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import TypeVar

import msgspec

from tollgate.errors import StartError, TollgateError

Result = TypeVar("Result")
FORK_REFUSED = "Allow this user more processes (`ulimit -u`, `TasksMax`), or give the machine more memory."


class _ChildResult(msgspec.Struct):
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""


def run_in_child(work: Callable[[], Result], kind: type[Result], what: str) -> Result:
    """Run `work` in a child; return its result, which msgspec must be able to carry, or raise StartError."""
    read, write = os.pipe()
    try:
        child = os.fork()
    except OSError as error:
        os.close(read)
        os.close(write)
        raise StartError(f"{what} failed: {error.strerror}. {FORK_REFUSED}") from error
    if child == 0:
        os.close(read)
        _run(work, write)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        sent = pipe.read()
    os.waitpid(child, 0)
    if not sent:
        raise StartError(f"{what} failed; the lines above show why.")
    outcome = msgspec.json.decode(sent, type=_ChildResult)
    if outcome.error:
        raise StartError(outcome.error)
    return msgspec.json.decode(outcome.result, type=kind)


def _run(work: Callable[[], Result], write: int) -> None:
    """Run `work` in the child, send the result to the parent, and end the process."""
    code = 1
    try:
        try:
            outcome = _ChildResult(msgspec.Raw(msgspec.json.encode(work())))
        except TollgateError as error:
            outcome = _ChildResult(error=str(error))
        with os.fdopen(write, "wb") as pipe:
            pipe.write(msgspec.json.encode(outcome))
        code = 0
    except BrokenPipeError:
        # The parent is gone.
        pass
    except BaseException:  # noqa: BLE001 - the end of the process, whatever it was
        traceback.print_exc()
    finally:
        os._exit(code)
