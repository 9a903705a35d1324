"""Opaque ids and cursors: encrypted and authenticated, so that callers can neither read nor forge them.

AES-SIV (RFC 5297) is deterministic: the same content in the same scope always yields the same bytes, as ids must.
The scope, such as a team, is associated data: what was sealed for one scope does not open in another. Each purpose
has a key of its own, derived from the pepper or from another key. No clock, randomness or store may enter.
"""

from __future__ import annotations

import base64
import binascii
from functools import cached_property
from typing import TYPE_CHECKING

from tollgate.lazy_module import LazyModule

if TYPE_CHECKING:
    from cryptography import exceptions
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.ciphers import aead
    from cryptography.hazmat.primitives.kdf import hkdf
else:  # 12 MB over all processes, and only workers with filters and the control process need it
    aead = LazyModule("cryptography.hazmat.primitives.ciphers.aead")
    exceptions = LazyModule("cryptography.exceptions")
    hashes = LazyModule("cryptography.hazmat.primitives.hashes")
    hkdf = LazyModule("cryptography.hazmat.primitives.kdf.hkdf")

VERSION = 1
"""Part of every key: text of another version is refused like any other that was not sealed here."""
TAG_BYTES = 16
_KEY_BYTES = 64  # AES-256: one half authenticates, the other encrypts


class BrokenSeal(ValueError):
    """Not sealed here, or sealed for another scope or purpose."""


class Cipher:
    """Seals bytes of any length for one purpose."""

    def __init__(self, pepper: bytes, purpose: str) -> None:
        self._pepper = pepper
        self._info = f"tollgate sealed v{VERSION} {purpose}".encode()

    @cached_property
    def _cipher(self) -> aead.AESSIV:
        derivation = hkdf.HKDF(hashes.SHA256(), _KEY_BYTES, salt=None, info=self._info)
        return aead.AESSIV(derivation.derive(self._pepper))

    def close(self, scope: str, content: bytes) -> bytes:
        return self._cipher.encrypt(content, [scope.encode()])

    def open(self, scope: str, sealed: bytes) -> bytes:
        """Return the content of what was sealed for this scope, or raise BrokenSeal."""
        try:
            return self._cipher.decrypt(sealed, [scope.encode()])
        except exceptions.InvalidTag:
            raise BrokenSeal("It was not sealed here for this scope.") from None


class Seal:
    """Seals contents of one size as text; their length reveals nothing. `prefix` names the purpose."""

    __slots__ = ("_cipher", "length", "prefix", "size")

    def __init__(self, pepper: bytes, prefix: str, size: int) -> None:
        if (size + TAG_BYTES) % 3:
            raise ValueError("Tag and content must fill whole base64 groups, so that each text has one form only.")
        self._cipher = Cipher(pepper, f"{prefix}{size}")
        self.prefix = prefix
        self.size = size
        self.length = len(prefix) + (size + TAG_BYTES) // 3 * 4

    def close(self, scope: str, content: bytes) -> str:
        if len(content) != self.size:
            raise ValueError(f"{self.prefix} seals {self.size} bytes, not {len(content)}.")
        return self.prefix + base64.urlsafe_b64encode(self._cipher.close(scope, content)).decode()

    def open(self, scope: str, text: str) -> bytes:
        """Return the content of a text that was sealed for this scope, or raise BrokenSeal."""
        if len(text) != self.length or not text.startswith(self.prefix) or not text.isascii():
            raise BrokenSeal("Its form is not that of a sealed text.")
        try:
            sealed = base64.b64decode(text[len(self.prefix) :], b"-_", validate=True)
        except binascii.Error:
            raise BrokenSeal("Its form is not that of a sealed text.") from None
        return self._cipher.open(scope, sealed)

    def __repr__(self) -> str:
        return f"Seal({self.prefix!r})"
