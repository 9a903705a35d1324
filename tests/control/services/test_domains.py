"""Whitelisted domains: root domains alone, one team each, and their proofs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.control.services.harness import ACME, ALL, PEOPLE, RIVAL, Harness, details_of, words

from tollgate.api.domains import DomainChange, NewDomain
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import (
    ChangedMeanwhile,
    DomainTaken,
    InvalidInput,
    LimitReached,
    NameTaken,
    NotFound,
    NotProven,
    RootDomainNeeded,
)
from tollgate.control.service_context import PageRequest
from tollgate.control.versions import version_of
from tollgate.core.models import Domain


def add(
    harness: Harness, domain: str = "example.com", who: str = "developer", team: str = "acme", **wanted: Any
) -> Domain:
    return harness.do(harness.plane.domains.add(harness.actor(who), team, NewDomain(domain, **wanted)))


# --- Adding --------------------------------------------------------------------------------------------


def test_root_domain_is_added_unverified_and_covers_calls(harness: Harness) -> None:
    entry = add(harness, address_per_minute=60, domain_per_minute=600)
    assert entry == Domain(
        entry.id, ACME.id, "example.com", harness.clock.now, created_by=PEOPLE["developer"],
        address_per_minute=60, domain_per_minute=600,
    )  # fmt: skip
    assert entry.id.startswith("dom_")
    grant = harness.do(harness.store.domain(["app.example.com", "example.com"]))
    assert grant is not None
    assert (grant.domain, grant.team) == (entry, ACME)
    [note] = harness.notes()
    assert (note.action, note.target, note.name) == ("domain.add", entry.id, "example.com")
    assert details_of(note) == {"verified": False}
    assert harness.proofs.looks == []


def test_limits_may_be_as_low_as_one(harness: Harness) -> None:
    entry = add(harness, address_per_minute=1, domain_per_minute=1)
    assert (entry.address_per_minute, entry.domain_per_minute) == (1, 1)


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        (" Example.COM. ", "example.com"),
        ("example.co.uk", "example.co.uk"),
        ("me.github.io", "me.github.io"),
        ("vitalik.eth.limo", "vitalik.eth.limo"),
        ("bücher.de", "xn--bcher-kva.de"),
        ("BÜCHER.de", "xn--bcher-kva.de"),
        ("xn--bcher-kva.de", "xn--bcher-kva.de"),
        ("例え.jp", "xn--r8jz45g.jp"),
    ],
)
def test_roots_are_kept_in_one_form(harness: Harness, typed: str, kept: str) -> None:
    assert add(harness, typed).domain == kept


@pytest.mark.parametrize(
    ("typed", "message", "suggestion"),
    [
        ("app.example.com", "use example.com, which covers all its subdomains", "example.com"),
        ("a.b.example.co.uk", "use example.co.uk", "example.co.uk"),
        ("www.bücher.de", "use xn--bcher-kva.de", "xn--bcher-kva.de"),
        ("x.me.github.io", "use me.github.io", "me.github.io"),
        ("x.vitalik.eth.limo", "use vitalik.eth.limo", "vitalik.eth.limo"),
        ("com", "is a public suffix", None),
        ("co.uk", "is a public suffix", None),
        ("github.io", "is a public suffix", None),
        ("eth.limo", "is a public suffix", None),
        ("ipfs.dweb.link", "is a public suffix", None),
        ("example.invalid-tld-here", "is not under a known public suffix", None),
        ("localhost", "only with whitelist.allow_localhost", None),
        ("192.0.2.1", "is not a domain name", None),
        ("0x7f.1", "is not a domain name", None),
        ("https://github.io/me", "is a public suffix", None),
        ("https://example.com@evil.com/", "without scheme, port or path", None),
        ("https://example.com\\@evil.com/", "without scheme, port or path", None),
        ("ftp://example.com/", "without scheme, port or path", None),
        ("http://127.0.0.1:5173", "whitelist localhost", None),
        ("http://[::1]:5173/", "whitelist localhost", None),
        ("*.example.com", "is not a domain name", None),
        ("a@example.com", "is not a domain name", None),
        ("", "is not a domain name", None),
        ("x" * 253, "is not a domain name", None),
        ("ä" * 253, "is not a domain name", None),
        ("ex ample.com", "is not a domain name", None),
    ],
)
def test_what_is_no_root_is_refused_with_the_root_to_use(
    harness: Harness, plane: ControlPlane, typed: str, message: str, suggestion: str | None
) -> None:
    problem = harness.refused(
        RootDomainNeeded, plane.domains.add(harness.actor("developer"), "acme", NewDomain(typed))
    )
    assert (problem.status, problem.extras.get("suggestion")) == (422, suggestion)
    assert message in problem.detail
    assert problem.extras["domain"] == typed
    assert len(problem.detail) < 500
    assert harness.do(plane.domains.list(harness.actor("viewer"), "acme", ALL)).items == []


@pytest.mark.parametrize("letter", ["x", "ä"])
def test_domain_longer_than_any_name_is_refused(harness: Harness, plane: ControlPlane, letter: str) -> None:
    deed = plane.domains.add(harness.actor("developer"), "acme", NewDomain(letter * 100_000))
    problem = harness.refused(InvalidInput, deed)
    assert problem.detail == "`domain` is a text of 0 to 2000 characters."
    assert problem.extras == {"field": "domain"}


def test_ones_own_domain_is_on_the_list_once(harness: Harness, plane: ControlPlane) -> None:
    entry = add(harness)
    for take_over in (False, True):
        deed = plane.domains.add(harness.actor("developer"), "acme", NewDomain("EXAMPLE.com", take_over=take_over))
        problem = harness.refused(NameTaken, deed)
        assert problem.detail == f"example.com is on your list already, as {entry.id}."
        assert problem.extras == {"field": "domain"}


def test_domain_of_another_team_is_a_conflict_that_shows_how_to_prove(
    harness: Harness, plane: ControlPlane
) -> None:
    add(harness)
    problem = harness.refused(
        DomainTaken, plane.domains.add(harness.actor("outsider"), "rival", NewDomain("example.com"))
    )
    assert words(problem)[:2] == (409, "domain_taken")
    assert problem.extras == {
        "domain": "example.com",
        "dns_name": "_tollgate.example.com",
        "dns_value": f"tollgate-team={RIVAL.id}",
        "well_known_url": "https://example.com:8443/.well-known/tollgate.txt",
    }
    for part in (*map(str, problem.extras.values()), "whitelist add example.com --take-over --team rival"):
        assert part in problem.detail
    # The error does not name its team.
    assert "acme" not in problem.detail.replace("example", "")
    assert ACME.id not in str(problem.extras)


def test_disabled_entry_keeps_its_claim(harness: Harness, plane: ControlPlane) -> None:
    entry = add(harness)
    harness.do(plane.domains.update(harness.actor("developer"), "acme", entry.id, DomainChange(active=False)))
    harness.refused(DomainTaken, plane.domains.add(harness.actor("outsider"), "rival", NewDomain("example.com")))


def test_removed_domain_is_free(harness: Harness, plane: ControlPlane) -> None:
    entry = add(harness)
    harness.do(plane.domains.remove(harness.actor("developer"), "acme", entry.id))
    assert harness.do(harness.store.domain(["example.com"])) is None
    assert add(harness, who="outsider", team="rival").team_id == RIVAL.id


def test_two_teams_at_once_get_it_once(harness: Harness, plane: ControlPlane) -> None:
    results = harness.at_once(
        plane.domains.add(harness.actor("developer"), "acme", NewDomain("example.com")),
        plane.domains.add(harness.actor("outsider"), "rival", NewDomain("example.com")),
    )
    assert sum(isinstance(result, DomainTaken) for result in results) == 1


def test_entries_of_a_team_are_bounded(harness: Harness) -> None:
    plane = harness.choose(domains_per_team=2)
    add(harness, "example.com")
    add(harness, "example.org")
    problem = harness.refused(
        LimitReached, plane.domains.add(harness.actor("developer"), "acme", NewDomain("example.net"))
    )
    assert problem.extras == {"limit": 2}


# --- Changing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["address_per_minute", "domain_per_minute"])
@pytest.mark.parametrize("value", [0, -1, 1_000_000_001])
def test_bad_limits_are_refused(harness: Harness, plane: ControlPlane, field: str, value: int) -> None:
    entry = add(harness)
    wanted: dict[str, Any] = {field: value}
    for deed in (
        plane.domains.update(harness.actor("developer"), "acme", entry.id, DomainChange(**wanted)),
        plane.domains.add(harness.actor("developer"), "acme", NewDomain("example.org", **wanted)),
    ):
        problem = harness.refused(InvalidInput, deed)
        assert problem.detail == f"`{field}` is a whole number from 1 to 1000000000, or null."
        assert problem.extras == {"field": field}


def test_change_sets_only_given_members_and_records_the_differences(harness: Harness, plane: ControlPlane) -> None:
    entry = add(harness, address_per_minute=60, domain_per_minute=600)
    developer = harness.actor("developer")
    wanted = DomainChange(address_per_minute=None, domain_per_minute=600, active=False)
    changed = harness.do(plane.domains.update(developer, "acme", entry.id, wanted))
    assert (changed.address_per_minute, changed.domain_per_minute, changed.active) == (None, 600, False)
    assert details_of(harness.notes()[-1]) == {
        "before": {"address_per_minute": 60, "active": True},
        "after": {"address_per_minute": None, "active": False},
    }
    assert harness.do(harness.store.domain(["example.com"])) is None


def test_version_is_honoured_by_update_and_remove(harness: Harness, plane: ControlPlane) -> None:
    entry, developer = add(harness), harness.actor("developer")
    seen = version_of(entry)
    changed = harness.do(plane.domains.update(developer, "acme", entry.id, DomainChange(active=False), seen))
    harness.refused(
        ChangedMeanwhile, plane.domains.update(developer, "acme", entry.id, DomainChange(active=True), seen)
    )
    harness.refused(ChangedMeanwhile, plane.domains.remove(developer, "acme", entry.id, seen))
    harness.do(plane.domains.remove(developer, "acme", entry.id, version_of(changed)))
    problem = harness.refused(NotFound, plane.domains.remove(developer, "acme", entry.id))
    assert f"The team acme has no entry {entry.id}: list them with `tollgate rpc whitelist list" in problem.detail


def test_entries_are_listed_page_by_page(harness: Harness, plane: ControlPlane) -> None:
    for name in ("example.com", "example.org", "example.net"):
        harness.clock.advance(1)
        add(harness, name)
    viewer = harness.actor("viewer")
    first = harness.do(plane.domains.list(viewer, "acme", PageRequest(2)))
    rest = harness.do(plane.domains.list(viewer, "acme", PageRequest(2, first.next)))
    assert [entry.domain for entry in first.items + rest.items] == ["example.com", "example.org", "example.net"]
    # A cursor of tokens is no cursor of domains.
    harness.refused(InvalidInput, plane.tokens.list(viewer, "acme", PageRequest(2, first.next)))


# --- Verifying -----------------------------------------------------------------------------------------


def test_proven_entry_is_verified(harness: Harness, plane: ControlPlane) -> None:
    entry, developer = add(harness), harness.actor("developer")
    harness.proofs.proven.add(("example.com", ACME.id))
    harness.clock.advance(60)
    verified = harness.do(plane.domains.verify(developer, "acme", entry.id))
    assert verified.verified_at == harness.clock.now
    assert harness.do(plane.domains.show(developer, "acme", entry.id)) == verified
    assert (harness.notes()[-1].action, details_of(harness.notes()[-1])) == ("domain.verify", {"by": "dns"})


def test_unproven_entry_is_shown_what_to_publish(harness: Harness, plane: ControlPlane) -> None:
    entry = add(harness)
    problem = harness.refused(NotProven, plane.domains.verify(harness.actor("developer"), "acme", entry.id))
    assert problem.extras == {
        "domain": "example.com",
        "dns_name": "_tollgate.example.com",
        "dns_value": f"tollgate-team={ACME.id}",
        "well_known_url": "https://example.com:8443/.well-known/tollgate.txt",
        "problems": ["Nothing was there", "Nor there."],
    }
    assert "Nothing was there. Nor there. Publish" in problem.detail
    assert len(harness.notes()) == 1


def test_entry_that_is_gone_when_the_proof_was_found_is_not_found(harness: Harness, plane: ControlPlane) -> None:
    entry, developer = add(harness), harness.actor("developer")
    harness.proofs.proven.add(("example.com", ACME.id))
    harness.proofs.meanwhile = lambda: plane.domains.remove(developer, "acme", entry.id)
    harness.refused(NotFound, plane.domains.verify(developer, "acme", entry.id))


@pytest.mark.parametrize(
    "pasted",
    [
        "https://example.com",
        "https://app.example.com/path?x=1#y",
        "http://APP.example.com:8080/",
        "example.com/pricing",
        "app.example.com/",
        "example.com:443",
    ],
)
def test_root_of_a_pasted_url_is_whitelisted(harness: Harness, pasted: str) -> None:
    entry = harness.do(harness.plane.domains.add(harness.actor("owner"), "acme", NewDomain(pasted)))
    assert entry.domain == "example.com"


def test_address_of_the_own_machine_is_answered_with_localhost(harness: Harness) -> None:
    owner = harness.actor("owner")
    for origin in ("http://127.0.0.1:5173", "http://[::1]:5173", "https://127.0.0.1"):
        found = harness.do(harness.plane.domains.check(owner, "acme", origin))
        assert "Open the page as http://localhost" in found.why
        assert "only https" not in found.why
