"""Opaque texts that callers carry about and bring back: they can neither read nor change what is inside.

A synthetic IV (as in RFC 5297) over HMAC-SHA-256, because the standard library has no cipher: the tag is a MAC of
scope and content, and it is what the key stream begins with. So the same content in the same scope is the same
text for ever, as ids must be; and a text of one scope, such as a team, is none in another. The content has one
size, so that its length reveals nothing either. No clock, randomness or store may enter.
"""

from __future__ import annotations

import base64
import binascii
import hmac

TAG_BYTES = 16
_BLOCK = 32


class BrokenSeal(ValueError):
    """Not a text of ours, or one of another scope."""


class Cipher:
    """Encrypts and authenticates contents under a scope. `kind` keeps its keys apart from those of others."""

    __slots__ = ("_stream_key", "_tag_key", "tag_bytes")

    def __init__(self, pepper: bytes, kind: str, tag_bytes: int = TAG_BYTES) -> None:
        self._tag_key = hmac.digest(pepper, f"{kind}tag".encode(), "sha256")
        self._stream_key = hmac.digest(pepper, f"{kind}stream".encode(), "sha256")
        self.tag_bytes = tag_bytes

    def close(self, scope: str, content: bytes) -> bytes:
        """Make the bytes that stand for this content. A scope must end where no other one goes on."""
        tag = self._tag(scope, content)
        return tag + self._masked(tag, content)

    def open(self, scope: str, sealed: bytes) -> bytes:
        """Return the content of what was closed for this scope, or raise BrokenSeal."""
        tag, masked = sealed[: self.tag_bytes], sealed[self.tag_bytes :]
        content = self._masked(tag, masked)
        if not hmac.compare_digest(tag, self._tag(scope, content)):
            raise BrokenSeal("It was not made here for this.")
        return content

    def _tag(self, scope: str, content: bytes) -> bytes:
        return hmac.digest(self._tag_key, scope.encode() + content, "sha256")[: self.tag_bytes]

    def _masked(self, tag: bytes, content: bytes) -> bytes:
        """Add the key stream, or take it away."""
        blocks = range(-(-len(content) // _BLOCK))
        stream = b"".join(hmac.digest(self._stream_key, tag + b"%d" % block, "sha256") for block in blocks)
        whole = int.from_bytes(content, "big") ^ int.from_bytes(stream[: len(content)], "big")
        return whole.to_bytes(len(content), "big")


class Seal:
    """Seals contents of one kind and size as text. `prefix` names the kind."""

    __slots__ = ("_cipher", "length", "prefix", "size")

    def __init__(self, pepper: bytes, prefix: str, size: int) -> None:
        if (size + TAG_BYTES) % 3:
            raise ValueError("Tag and content must fill whole letters, so that a text has one form only.")
        self._cipher = Cipher(pepper, f"tollgate sealed {prefix}{size} ")
        self.prefix = prefix
        self.size = size
        self.length = len(prefix) + (size + TAG_BYTES) // 3 * 4

    def close(self, scope: str, content: bytes) -> str:
        """Make the text that stands for this content."""
        # The content has one size: where the scope ends is never in doubt.
        if len(content) != self.size:
            raise ValueError(f"{self.prefix} seals {self.size} bytes, not {len(content)}.")
        return self.prefix + base64.urlsafe_b64encode(self._cipher.close(scope, content)).decode()

    def open(self, scope: str, text: str) -> bytes:
        """Return the content of a text that was sealed for this scope, or raise BrokenSeal."""
        if len(text) != self.length or not text.startswith(self.prefix) or not text.isascii():
            raise BrokenSeal("It has not the form of one.")
        try:
            sealed = base64.b64decode(text[len(self.prefix) :], b"-_", validate=True)
        except binascii.Error:
            raise BrokenSeal("It has not the form of one.") from None
        if len(sealed) != self.size + TAG_BYTES:
            raise BrokenSeal("It was not made here for this.")
        return self._cipher.open(scope, sealed)

    def __repr__(self) -> str:
        return f"Seal({self.prefix!r})"
