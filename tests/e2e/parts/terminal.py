"""A terminal with a program on it, as a person sees and types it."""

from __future__ import annotations

import os
import pty
import subprocess
import termios
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .processes import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass
class Screen:
    """A terminal and its text."""

    process: subprocess.Popen[bytes]
    master: int
    text: str = ""

    def wait_for(self, words: str) -> None:
        """Wait until it shows these words."""

        def seen() -> bool:
            try:
                self.text += os.read(self.master, 4096).decode()
            except BlockingIOError:
                pass
            except OSError:
                assert words in self.text, self.text  # the other end is closed
            return words in self.text

        eventually(seen, within=60, what=f"{words!r} on the terminal")

    def type_unseen(self, line: str) -> None:
        """Type a line once the program has switched the echo off."""
        eventually(lambda: not termios.tcgetattr(self.master)[3] & termios.ECHO, what="the end of the echo")
        os.write(self.master, line.encode() + b"\n")


@contextmanager
def terminal(argv: Sequence[str]) -> Iterator[Screen]:
    """Run a program on a terminal, and kill what is left of it."""
    master, slave = pty.openpty()
    os.set_blocking(master, False)
    try:
        process = subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
        os.close(slave)
        try:
            yield Screen(process, master)
        finally:
            process.kill()
            process.wait()
    finally:
        os.close(master)
