"""Takes known secrets out of texts that others wrote: errors of nodes, messages of libraries. Pure.

A node's error may repeat the address that it was called under, and with it the key of the provider.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

HIDDEN = "…"
# Shorter ones are no keys, and would be found in any text.
MIN_SECRET = 6
_BACKSLASH = b"\\"


class SecretMask:
    """Replaces secrets by `…`."""

    def __init__(self, secrets: Iterable[str]) -> None:
        # The longest first: one may be a part of another.
        texts = sorted({text for text in secrets if len(text) >= MIN_SECRET}, key=len, reverse=True)
        self._found = re.compile("|".join(map(re.escape, texts))) if texts else None
        self._bytes = [text.encode() for text in texts]

    def __bool__(self) -> bool:
        return self._found is not None

    def text(self, text: str) -> str:
        """A text without the secrets."""
        return text if self._found is None else self._found.sub(HIDDEN, text)

    def json(self, written: bytes) -> bytes:
        """A JSON value without the secrets in its strings and names; as it was written if it has none."""
        # Where characters are escaped, a secret may be written otherwise.
        if self._found is None or not (_BACKSLASH in written or any(each in written for each in self._bytes)):
            return written
        try:
            value = msgspec.json.decode(written)
            masked = self._value(value)
        except (msgspec.DecodeError, RecursionError):
            return b'{"code":-32603,"message":"The error of the node is not shown."}'
        return written if masked == value else msgspec.json.encode(masked)

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self._value(each) for each in value]
        if isinstance(value, dict):
            return {self.text(name): self._value(each) for name, each in value.items()}
        return value
