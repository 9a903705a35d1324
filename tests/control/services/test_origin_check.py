"""Whether a browser call from an origin would pass, and why."""

from __future__ import annotations

from typing import Any

import pytest
from tests.control.services.harness import Harness

from tollgate.api.domains import NewDomain
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import DomainTaken
from tollgate.core.models import Domain


def add(
    harness: Harness, domain: str = "example.com", who: str = "developer", team: str = "acme", **wanted: Any
) -> Domain:
    return harness.do(harness.plane.domains.add(harness.actor(who), team, NewDomain(domain, **wanted)))


@pytest.mark.parametrize(
    ("origin", "allowed", "why"),
    [
        ("https://example.com", True, "The entry example.com ("),
        ("https://app.example.com", True, ") covers app.example.com."),
        ("https://a.b.example.com:8443", True, ") covers a.b.example.com."),
        ("HTTPS://App.Example.COM", True, ") covers app.example.com."),
        ("https://app.example.com.", True, "covers app.example.com"),
        ("https://off.example.org", False, "covers off.example.org, but it is disabled."),
        ("https://notexample.com", False, "acme. To allow it: tollgate rpc whitelist add notexample.com"),
        ("https://x.example.com.evil.net", False, "To allow it: tollgate rpc whitelist add evil.net"),
        ("https://rival.com", False, "rival.com is not on the list of acme."),
        ("https://github.io", False, "is a public suffix, shared by many owners"),
        ("http://example.com", False, "can never be whitelisted: only https origins"),
        ("http://localhost:3000", False, "can never be whitelisted"),
        ("null", False, "can never be whitelisted"),
        ("https://192.0.2.1", False, "can never be whitelisted"),
        ("https://a@example.com", False, "can never be whitelisted"),
        ("example.com", False, "Write one such as https://app.example.com."),
        ("https://example.com/", False, "can never be whitelisted"),
        ("", False, "can never be whitelisted"),
    ],
)  # fmt: skip
def test_check_shows_whether_and_why(
    harness: Harness, plane: ControlPlane, origin: str, allowed: bool, why: str
) -> None:
    entry = add(harness)
    off = add(harness, "example.org", active=False)
    add(harness, "rival.com", who="outsider", team="rival")
    before = len(harness.notes())
    verdict = harness.do(plane.domains.check(harness.actor("viewer"), "acme", origin))
    assert (verdict.origin, verdict.allowed) == (origin, allowed)
    assert why in verdict.why
    covering = entry if allowed else off if "disabled" in why else None
    assert (verdict.domain_id, verdict.domain) == (
        (covering.id, covering.domain) if covering else (None, None)
    )  # fmt: skip
    assert len(harness.notes()) == before


def test_localhost_is_whitelisted_only_where_that_is_set(harness: Harness) -> None:
    plane = harness.choose(allow_localhost=True)
    entry = add(harness, "localhost")
    viewer = harness.actor("viewer")
    for origin in ("http://localhost:3000", "https://localhost", "http://app.localhost"):
        verdict = harness.do(plane.domains.check(viewer, "acme", origin))
        assert (verdict.allowed, verdict.domain_id) == (True, entry.id)
    assert "and localhost" in harness.do(plane.domains.check(viewer, "acme", "http://example.com")).why
    taken = harness.refused(
        DomainTaken, plane.domains.add(harness.actor("outsider"), "rival", NewDomain("localhost"))
    )
    assert "its ownership cannot be proved" in taken.detail
