"""Method names against what may be called: the never-forwarded prefixes, allow and deny lists.

Pure text rules. A method that a node would take for another is judged as that one: names are compared without
regard to case for refusing, exactly for allowing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

# Methods that steer a node or hold keys. No setting forwards them.
NEVER_FORWARDED = ("admin_", "engine_", "personal_", "testing_", "miner_")
_PATTERN = re.compile(r"[A-Za-z0-9_.:/*-]{1,64}")


class Policy(Struct, frozen=True):
    """Allow and deny lists, `*` standing for any characters. An empty allow list allows everything."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


def refusal_of(method: str, policy: Policy) -> str | None:
    """Why a method may not be called, or None where it may."""
    lowered = method.casefold()
    for prefix in NEVER_FORWARDED:
        if lowered.startswith(prefix):
            return f"Methods that begin with {prefix} are never forwarded."
    if matches(lowered, [pattern.casefold() for pattern in policy.deny]):
        return "It is on the deny list of this network."
    if policy.allow and not matches(method, policy.allow):
        return f"Allowed here: {', '.join(policy.allow)}."
    return None


def is_pattern(text: str) -> bool:
    """Whether this can stand in a list: a method's name, or one with `*` in it."""
    return _PATTERN.fullmatch(text) is not None and "**" not in text


def matches(method: str, patterns: Sequence[str]) -> bool:
    """Whether a method fits one of the patterns."""
    return any(_fits(method, pattern) for pattern in patterns)


def _fits(method: str, pattern: str) -> bool:
    """Match `*` in linear time: a regular expression could be made to look for ever."""
    first, *middle = pattern.split("*")
    if not middle:
        return method == pattern
    last = middle.pop()
    if len(method) < len(first) + len(last) or not method.startswith(first) or not method.endswith(last):
        return False
    position = len(first)
    for part in middle:
        found = method.find(part, position, len(method) - len(last))
        if found < 0:
            return False
        position = found + len(part)
    return True
