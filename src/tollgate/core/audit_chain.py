"""The chain of an audit log: each entry holds the hash of the one before, and a hash of itself.

To change, remove or insert an entry later, all later hashes must be written anew, and those are in every
export that was made meanwhile. Each entry also has a code (`mac`) under a key that the database holds only sealed:
to write to the database is not enough to make one. One chain for each team, and one for what concerns no team. How
a hash is made is a promise (`docs/managing.md`): exports of years ago are checked with it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from datetime import UTC, datetime

from msgspec import Struct
from msgspec.structs import replace

from tollgate.core.people import AuditEntry

# The chain of what concerns no team.
SERVICE = "service"
# The hash before the first entry.
START = "0" * 64

Line = dict[str, str | int | None]


class AuditChain(Struct, frozen=True):
    """Where a chain ends."""

    id: str
    """A team's id, or `service`."""
    created_at: float
    count: int = 0
    """The number of the newest entry."""
    hash: str = START


def chain_of(team_id: str | None) -> str:
    """Which chain an entry belongs to."""
    return team_id or SERVICE


def linked(entry: AuditEntry, chain: AuditChain, key: bytes) -> tuple[AuditEntry, AuditChain]:
    placed = replace(entry, chain=chain.id, number=chain.count + 1, previous=chain.hash)
    placed = replace(placed, hash=hash_of(shown(placed)))
    placed = replace(placed, mac=_mac(placed, key))
    return placed, replace(chain, count=placed.number, hash=placed.hash)


def is_authentic(entry: AuditEntry, key: bytes) -> bool:
    """Whether the service itself has written an entry, under its key."""
    return hmac.compare_digest(entry.mac, _mac(entry, key))


def _mac(entry: AuditEntry, key: bytes) -> str:
    return hmac.digest(key, f"{entry.chain} {entry.number} {entry.hash}".encode(), "sha256").hex()


def shown(entry: AuditEntry) -> Line:
    """An entry as it is exported: texts, one whole number and nulls, which no two programs write differently."""
    at = datetime.fromtimestamp(entry.created_at, UTC).isoformat(timespec="microseconds")
    names = (name for name in entry.__struct_fields__ if name not in ("created_at", "mac"))
    return {"at": at.replace("+00:00", "Z"), **{name: getattr(entry, name) for name in names}}


def line_of(entry: AuditEntry) -> bytes:
    return _written(shown(entry)) + b"\n"


def hash_of(line: Line) -> str:
    """SHA-256 of a line without its hash."""
    return hashlib.sha256(_written({name: value for name, value in line.items() if name != "hash"})).hexdigest()


def _written(line: Line) -> bytes:
    return json.dumps(line, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def fault_of(line: Line, before: Line | None) -> str | None:
    """What is wrong with an entry, given the one before; without one it is the oldest that is kept."""
    number = line.get("number")
    if hash_of(line) != line.get("hash"):
        return f"entry {number}: its content was changed"
    if before is None:
        return f"entry {number}: entries before it are gone" if number == 1 and line["previous"] != START else None
    if number != int(before["number"] or 0) + 1:
        return f"entry {number}: it comes after entry {before['number']}, others are missing"
    if line["previous"] != before["hash"]:
        return f"entry {number}: it does not follow on entry {before['number']}"
    return None
