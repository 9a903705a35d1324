"""What shows that calls with a cache were answered as they are measured: hits were hits, misses were misses.

A miss is a call that nobody has made before: looked for, sent to an upstream, and marked as seen. The cache is
full, as it is in a service that has run for a while, so the answer is kept only when the call comes again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from bench.load import load, look, metrics
from bench.plan import CACHED, CONNECTIONS, MISS
from bench.rounds import WARM_UP_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.load import Subject

    Progress = Callable[[str], None]

_HOW = re.compile(r'^tollgate_cache_total\{family="eth",how="(\w+)",network="(\w+)"\} (\S+)$', re.MULTILINE)
_BYTES = re.compile(rf'^tollgate_cache_bytes\{{family="eth",network="{MISS.name}"\}} (\S+)$', re.MULTILINE)
# At most so many seconds until the cache is full. It is when it has not grown for three looks, because the service
# publishes it once a second or a little later; an answer more or less makes no difference.
FILL_SECONDS = 60
LOOKS = 3
MAX_APART = 1_000
# The share of calls that may go another way than is measured.
ODD = 0.001


def fill(subject: Subject, progress: Progress) -> tuple[str, ...]:
    """Miss until the cache is full; return a problem where that took too long."""
    progress("misses, until the cache is full")
    used: list[int] = []
    size = look(subject, MISS).size
    for _ in range(FILL_SECONDS):
        load(subject, MISS, CONNECTIONS[0], WARM_UP_SECONDS, size)
        used.append(sum(round(float(count)) for count in _BYTES.findall(metrics(subject))))
        if is_full(used):
            return ()
    return (f"the cache held {used[-1]:,} bytes after {FILL_SECONDS} s of misses and was not full",)


def is_full(used: Sequence[int]) -> bool:
    """Return whether a cache that was so large, look after look, does not grow any more."""
    last = used[-LOOKS:]
    return len(last) == LOOKS and min(last) > 0 and max(last) - min(last) <= MAX_APART


def odd(before: dict[str, int], after: dict[str, int], wanted: set[str]) -> tuple[str, ...]:
    """Return which calls went another way than those that are measured."""
    ways = {how: count - before.get(how, 0) for how, count in after.items()}
    total = sum(ways.values())
    astray = {how: count for how, count in ways.items() if count and how not in wanted}
    missing = [how for how in sorted(wanted) if not ways.get(how)]
    found = [f"no {how} in {total:,} calls" for how in missing]
    if sum(astray.values()) > ODD * total:
        found += [f"{count:,} of {total:,} calls were {how}" for how, count in sorted(astray.items())]
    return tuple(found)


def counted(subject: Subject) -> dict[str, dict[str, int]]:
    """Read how calls were answered, by body: the name of a body is that of its network."""
    found: dict[str, dict[str, int]] = {body.name: {} for body in CACHED}
    for how, network, count in _HOW.findall(metrics(subject)):
        found.setdefault(network, {})[how] = round(float(count))
    return found
