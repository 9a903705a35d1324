"""Entity tags for `ETag` and `If-Match`: a change must be based on the current version."""

from __future__ import annotations

import hashlib

import msgspec

from tollgate.control.problems import ChangedMeanwhile

# Fields that change without a request to change them.
_VOLATILE = ("last_used_at", "capped_until", "previous_secret_until")


def version_of(stored: msgspec.Struct) -> str:
    """The version of what is stored, as an entity tag."""
    fields = {name: value for name, value in msgspec.structs.asdict(stored).items() if name not in _VOLATILE}
    return f'"{hashlib.blake2b(msgspec.json.encode(fields), digest_size=12).hexdigest()}"'


def check_version(stored: msgspec.Struct, if_match: str | None) -> None:
    """Refuse a change based on an older version. Weak tags never match (RFC 9110, section 13.1.1)."""
    if if_match is None or if_match.strip() == "*":
        return
    if version_of(stored) not in {tag.strip() for tag in if_match.split(",")}:
        raise ChangedMeanwhile
