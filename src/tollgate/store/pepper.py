"""The pepper: the key under which tokens are hashed. Made once, readable by its owner alone.

A store remembers a fingerprint of the pepper its digests were made with. Started with another one, every
token would be refused one by one; so the service refuses to start instead.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from pathlib import Path

from sqlalchemy.engine import URL

from tollgate.errors import StartError
from tollgate.store import sqlite

FILE_NAME = "pepper"
_FACT = "pepper"


def load(configured: str, data_dir: Path, url: URL) -> bytes:
    """Return the pepper of this installation, making it on the first start."""
    path = data_dir / FILE_NAME
    pepper = configured.encode() if configured else _from_file(path)
    fingerprint = hmac.digest(pepper, b"tollgate pepper", "sha256").hex()[:32]
    if sqlite.keep_fact(url, _FACT, fingerprint) != fingerprint:
        where = "secrets.pepper" if configured else str(path)
        raise StartError(
            f"The pepper in {where} is not the one that this store's tokens were hashed with, so no token would "
            "work. Put the old pepper back, or start with a new data folder."
        )
    return pepper


def _from_file(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _read(path)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(32))
        file.flush()
        os.fsync(file.fileno())
    return _read(path)


def _read(path: Path) -> bytes:
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise StartError(f"{path} can be read by others: run `chmod 600 {path}`.")
    pepper = path.read_bytes().strip()
    if len(pepper) < 32:
        raise StartError(f"{path} is damaged (shorter than 32 characters): restore it from a backup.")
    return pepper
