"""The line of every key in a TOML text.

Owns the walk over the text and nothing else: it reads no file, knows no setting and checks no value. The
standard parser gives values without positions, so this one finds the positions and leaves the values alone.
The text must be one that `tomllib` has accepted: nothing is checked twice.
"""

from __future__ import annotations

import json
import re
import tomllib
from bisect import bisect_right

KeyPath = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SHOWN_BARE = re.compile(r"[A-Za-z0-9_-]+|<[a-z]+>")
_SCALAR = re.compile(r"[^,\]}#\n]*")
_MULTILINE = {
    '"': re.compile(r'"""(?:[^"\\]|\\.|"{1,2}(?!"))*"{3,5}', re.DOTALL),
    "'": re.compile(r"'''(?:[^']|'{1,2}(?!'))*'{3,5}", re.DOTALL),
}
_SINGLE = {'"': re.compile(r'"(?:[^"\\\n]|\\.)*"'), "'": re.compile(r"'[^'\n]*'")}


def dotted(path: KeyPath) -> str:
    """Write a path as an operator would: `families.eth.mainnet.upstreams[0].url`."""
    written = ""
    for segment in path:
        if isinstance(segment, int):
            written += f"[{segment}]"
            continue
        bare = _SHOWN_BARE.fullmatch(segment)
        written += ("." if written else "") + (segment if bare else json.dumps(segment, ensure_ascii=False))
    return written


def locate(text: str) -> dict[KeyPath, int]:
    """Map the path of each key, table and array element to the line on which it is first written."""
    return _Walk(text.replace("\r\n", "\n")).document()


class _Walk:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self.lines: dict[KeyPath, int] = {}
        # Elements so far of each array of tables: a later header continues in its last element.
        self.elements: dict[KeyPath, int] = {}

    def document(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        self.skip(_BLANK)
        while self.at < len(self.text):
            if self.text[self.at] == "[":
                table = self.header()
            else:
                self.pair(table)
            self.skip(_BLANK)
        return self.lines

    def header(self) -> KeyPath:
        line = self.line()
        array = self.text.startswith("[[", self.at)
        self.at += 2 if array else 1
        *parents, last = self.key()
        self.at += 2 if array else 1
        path: KeyPath = ()
        for segment in parents:
            path = self.enter((*path, segment), line)
        path = (*path, last)
        if not array:
            # The line of the table's own header is more use than that of a child's header above it.
            self.lines[path] = line
            return path
        self.lines.setdefault(path, line)
        index = self.elements.get(path, 0)
        self.elements[path] = index + 1
        self.lines[*path, index] = line
        return (*path, index)

    def enter(self, path: KeyPath, line: int) -> KeyPath:
        self.lines.setdefault(path, line)
        count = self.elements.get(path)
        return path if count is None else (*path, count - 1)

    def pair(self, table: KeyPath) -> None:
        line = self.line()
        path = table
        for segment in self.key():
            path = (*path, segment)
            self.lines.setdefault(path, line)
        self.at += 1  # the equals sign
        self.skip(_SPACE)
        self.value(path)

    def key(self) -> list[str]:
        segments = [self.key_segment()]
        while self.at < len(self.text) and self.text[self.at] == ".":
            self.at += 1
            segments.append(self.key_segment())
        return segments

    def key_segment(self) -> str:
        """Read one segment and the space around it."""
        self.skip(_SPACE)
        quote = _SINGLE.get(self.text[self.at])
        raw = self.take(quote or _BARE_KEY)
        self.skip(_SPACE)
        if quote is None:
            return raw
        return str(tomllib.loads(f"key = {raw}")["key"])

    def value(self, path: KeyPath) -> None:
        first = self.text[self.at]
        if first == "[":
            self.array(path)
        elif first == "{":
            self.inline_table(path)
        elif first in _SINGLE:
            multiline = self.text.startswith(first * 3, self.at)
            self.skip((_MULTILINE if multiline else _SINGLE)[first])
        else:
            self.skip(_SCALAR)

    def array(self, path: KeyPath) -> None:
        self.at += 1
        index = 0
        while self.more("]"):
            self.lines[*path, index] = self.line()
            self.value((*path, index))
            index += 1

    def inline_table(self, path: KeyPath) -> None:
        self.at += 1
        while self.more("}"):
            self.pair(path)

    def more(self, end: str) -> bool:
        """Step to the next element of an array or inline table, or past its end."""
        self.skip(_BLANK)
        if self.text[self.at] == ",":
            self.at += 1
            self.skip(_BLANK)
        if self.text[self.at] != end:
            return True
        self.at += 1
        return False

    def line(self) -> int:
        return bisect_right(self.line_starts, self.at)

    def take(self, pattern: re.Pattern[str]) -> str:
        start = self.at
        self.skip(pattern)
        return self.text[start : self.at]

    def skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise ValueError(f"not TOML at line {self.line()}")
        self.at = match.end()
