"""A small coverage-guided fuzzer: inputs that reach new lines of ours are kept and changed further.

`make fuzz` uses atheris instead where it is installed (`pip install atheris`).
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

SEEDS = Path(__file__).parent / "seeds"
MAX_BYTES = 4_096
_PIECES = (
    b"\r\n", b"\r\n\r\n", b"0\r\n", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Upgrade: a\r\n",
    b"CONNECT /x/ HTTP/1.1\r\nhost:\r\n\r\n", b"aa:bb\r\n", b'"id":1', b'"method":"eth_call"', b"[", b"]", b"{",
    b"}", b",", b"\x00", b"\xff", b"\xed\xa0\x80", b"1e400", b"-0", b'"\\ud800"', b"null", b"\x81\x00",
    b"\x88\x00", b"\x89\x7e", b"TGSPOOL2", b"https://", b"xn--", b".", b"tg_", b"0x", b"=",
)  # fmt: skip


class Failed(AssertionError):
    """An input that a target fails at."""


def seeds(target: str) -> list[bytes]:
    """The inputs that are kept in the tree."""
    return [path.read_bytes() for path in sorted((SEEDS / target).glob("*"))]


def fuzz(run: Callable[[bytes], None], begin: Sequence[bytes], seconds: float, chance: random.Random) -> int:
    """Feed changed inputs for so long; return how many. Raise `Failed` with the first that fails."""
    kept, seen = list(begin) or [b""], set[tuple[str, int]]()
    for data in kept:
        seen |= _traced(run, data)
    until, count = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        data = changed(chance.choice(kept), kept, chance)
        lines = _traced(run, data)
        count += 1
        if not lines <= seen:
            seen |= lines
            kept.append(data)
    return count


def changed(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """An input like another one."""
    made = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randint(0, len(made))
        how = chance.randrange(6)
        if how == 0 and made:
            made[at % len(made)] ^= 1 << chance.randrange(8)
        elif how == 1:
            made[at:at] = chance.choice(_PIECES)
        elif how == 2:
            del made[at : at + chance.randint(1, 16)]
        elif how == 3:
            made[at:at] = made[at : at + chance.randint(1, 64)] * chance.randint(1, 3)
        elif how == 4:
            other = chance.choice(others)
            made[at:] = other[min(at, len(other)) :]
        else:
            made[at:at] = chance.randbytes(chance.randint(1, 4))
    return bytes(made[:MAX_BYTES])


def _traced(run: Callable[[bytes], None], data: bytes) -> set[tuple[str, int]]:
    """Run a target, and return the lines of ours that it came by."""
    lines: set[tuple[str, int]] = set()

    def in_ours(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            lines.add((frame.f_code.co_filename, frame.f_lineno))
        return in_ours

    def enter(frame: FrameType, _event: str, _: Any) -> Any:
        return in_ours if "/tollgate/" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        run(data)
    except Exception as error:
        raise Failed(f"{type(error).__name__}: {error}; the input is {data!r}") from error
    finally:
        sys.settrace(before)
    return lines


def named(target: str, data: Iterator[bytes]) -> None:
    """Keep inputs in the tree."""
    folder = SEEDS / target
    folder.mkdir(parents=True, exist_ok=True)
    for number, each in enumerate(data):
        (folder / f"{number:02}").write_bytes(each)
