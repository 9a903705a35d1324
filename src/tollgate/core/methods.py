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


def matches(method: str, patterns: Sequence[str]) -> bool:
    """Whether a method fits one of the patterns."""
    return any(_compiled(pattern).fullmatch(method) for pattern in patterns)


def _compiled(pattern: str) -> re.Pattern[str]:
    # `re` keeps its own cache of compiled patterns.
    return re.compile(".*".join(re.escape(part) for part in pattern.split("*")), re.DOTALL)
