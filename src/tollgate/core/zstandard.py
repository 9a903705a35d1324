"""Compression of blocks: Zstandard at level 1, with a checksum. In the standard library from Python 3.14 on."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["ZstdError", "compress", "decompress"]

ZstdError = zstd.ZstdError
_OPTIONS: dict[int, int] = {
    zstd.CompressionParameter.compression_level: 1,
    zstd.CompressionParameter.checksum_flag: 1,
}


def compress(data: bytes) -> bytes:
    return zstd.compress(data, options=_OPTIONS)


def decompress(data: bytes) -> bytes:
    """Decompress; `ZstdError` where it was not compressed by us, or was changed since."""
    return zstd.decompress(data)
