"""Upstreams in order of preference. Today: by priority, then as written.

Health, lag and latency will have their say here; nobody else decides an order.
"""

from __future__ import annotations

from collections.abc import Sequence

from tollgate.config import Upstream


def in_order(upstreams: Sequence[Upstream]) -> tuple[Upstream, ...]:
    """Return the upstreams, the one to ask first at the front."""
    return tuple(sorted(upstreams, key=lambda upstream: upstream.priority))
