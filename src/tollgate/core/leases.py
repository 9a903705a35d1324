"""Rate limits that several nodes keep together: how much of a limit each node may use by itself.

A node may use a fraction of a limit, of its rate and of its burst: a small part that it always has, and a share
that it leases. Fractions of all nodes never add up to more than 1.05, so neither do their calls. The arithmetic
is in docs/shared-limits.md. Where leases are kept, and by whom they are handed out, is not known here.
"""

from __future__ import annotations

import math

from msgspec import Struct

OVER = 0.05
"""What all nodes together may use beyond a limit."""
# How much is remembered of a node's use, in requests of the whole limit, and in seconds at least; and after how
# many expected requests that do not come its use has ended. Found by simulation: longer, and shares follow a load
# that moves too late; shorter, and chance moves them. This changes what is lost of a limit, never what is over it.
_MEMORY, _LEAST_MEMORY_SECONDS, _PAUSE = 15, 0.2, 3
# What a node requests beyond its use when its burst is used up, and when it requests all.
_URGENCY, _NEARLY_ALL = 1.5, 0.9


class LeaseReport(Struct, frozen=True):
    """What a node reports of one limit, and what it requests."""

    mark: str
    """Which limit: a hash that all nodes make alike."""
    window: float
    count: float
    """The limit: so many requests in so many seconds."""
    want: float
    """The fraction that it could use now."""
    lowered: float | None = None
    """The share that it has gone down to, as its lease demanded; None: no change."""
    freed: float = 0.0
    """What of its burst it gave up with that: fraction times seconds."""


class Lease(Struct, frozen=True):
    """A node's share of one limit from now on."""

    mark: str
    window: float
    count: float
    share: float
    tokens: float = 0.0
    """What of the burst comes with it: fraction times seconds."""


class LeaseReply(Struct, frozen=True):
    """What a node receives in one exchange."""

    nodes: int
    known: bool
    """Whether it was known there; otherwise nothing before this exchange is remembered."""
    leases: tuple[Lease, ...]


def always(nodes: int, count: float) -> float:
    """The fraction that a node has without a lease: enough for one request."""
    return max(OVER / nodes, 1 / count)


def leased(nodes: int, count: float) -> float:
    """What all leases of a limit add up to at most."""
    return max(0.0, 1 + OVER - nodes * always(nodes, count))


def fraction(share: float, nodes: int, count: float) -> float:
    """The fraction of a limit that a node with this share may use."""
    return min(1.0, share + always(nodes, count))


def unleased(nodes: int) -> float:
    """The fraction of limits that no node requests more of: an equal part."""
    return min(1.0, (1 + OVER) / nodes)


def targets(wants: list[float], pool: float) -> list[float]:
    """Divide a pool: everyone gets what it wants, or an equal part of what is left; what is over is divided."""
    order = sorted(range(len(wants)), key=wants.__getitem__)
    given, left = [0.0] * len(wants), pool
    for done, index in enumerate(order):
        given[index] = min(wants[index], left / (len(wants) - done))
        left -= given[index]
    return [each + left / len(wants) for each in given]


def backlog_after(backlog: float, window: float, before: float, after: float, tokens: float) -> float:
    """The backlog of a limit whose fraction grows: what is left of its burst grows by `tokens` alone."""
    return min(window, max(0.0, window - ((window - backlog) * before + tokens) / after))


def used_rate(rate: float, used: float, seconds: float, idle: float, interval: float) -> float:
    """The fraction of a limit that is being used: a mean over some requests, and none after a long pause.

    `idle`: seconds since the last request; `interval`: seconds between requests that use the whole limit.
    """
    if rate * idle > _PAUSE * interval:
        return 0.0
    memory = max(_LEAST_MEMORY_SECONDS, _MEMORY * interval)
    return rate * math.exp(-seconds / memory) + used / memory


def want(rate: float, used_up: float, nodes: int, count: float) -> float:
    """The share that a node requests: by the fraction that it uses, and by how much of its burst is used up.

    While its burst is whole it requests no more than it uses: what a whole burst could gain is lost.
    The burst absorbs uneven load, and the more of it is used up, the more is requested.
    """
    if used_up > _NEARLY_ALL:
        return 1.0
    return max(0.0, min(1.0, rate * (1 + _URGENCY * used_up)) - always(nodes, count))
