"""Durations as people write them: `30m`, `24h`, `1h30m`, `2w`. Pure; whole seconds only."""

from __future__ import annotations

import re

_SECONDS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}

# Nine digits of weeks are nineteen million years: enough, and no sum gets out of hand.
_PART = re.compile(r"([0-9]{1,9})([smhdw])")
_WHOLE = re.compile(rf"(?:{_PART.pattern}){{1,20}}")

FORM = "one or more of <number><s|m|h|d|w>, such as 30m, 24h or 1h30m"


def parse(text: str) -> int:
    """Return the seconds of a duration; a ValueError names the accepted form."""
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is not a duration: write {FORM}.")
    return sum(int(number) * _SECONDS[unit] for number, unit in _PART.findall(text))


def spell(seconds: int) -> str:
    """Write seconds as a duration, largest units first: what `parse` reads back as the same number."""
    parts = []
    rest = seconds
    for unit, size in _SECONDS.items():
        number, rest = divmod(rest, size)
        if number:
            parts.append(f"{number}{unit}")
    return "".join(parts) or "0s"
