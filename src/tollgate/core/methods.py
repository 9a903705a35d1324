"""Names of methods and lists of them, with `*` as a wildcard.

Pure text rules; what methods do is in `chains`. Names are compared without regard to case for refusing, exactly
for allowing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

# What no node and no rule of ours could read in two ways: neither space nor letters that look like others.
_NAME = re.compile(r"[!-~]+")
_PATTERN = re.compile(r"[A-Za-z0-9_.:/*-]{1,64}")


class Policy(Struct, frozen=True):
    """Lists of methods, `*` standing for any characters. An empty allow list allows everything."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    opened: tuple[str, ...] = ()
    """Methods that may be called although they steer a node, or are unknown to a strict network."""
    domains: tuple[str, ...] = ()
    """Methods that callers from a whitelisted domain may call although they are expensive or unknown."""
    strict: bool = False
    """Whether methods that the family's catalogue does not know are refused."""


def listed(method: str, policy: Policy) -> str | None:
    """Why the allow and deny lists refuse a method, or None where they do not."""
    if policy.deny and matches(method.casefold(), [pattern.casefold() for pattern in policy.deny]):
        return "It is on the deny list of this network."
    if policy.allow and not matches(method, policy.allow):
        return f"Allowed here: {', '.join(policy.allow)}."
    return None


def is_name(text: str) -> bool:
    """Whether a method may have this name: no node could read it as another."""
    return _NAME.fullmatch(text) is not None


def is_pattern(text: str) -> bool:
    """Whether a list may hold this: a method's name, or one with `*` in it."""
    return _PATTERN.fullmatch(text) is not None and "**" not in text


def matches(method: str, patterns: Sequence[str]) -> bool:
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
