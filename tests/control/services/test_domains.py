"""Whitelisted domains: root domains alone, one team each, and their proofs."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.control.services.house import ACME, ALL, PEOPLE, RIVAL, House, details_of, words

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
from tollgate.control.services.domains import DomainSettings
from tollgate.control.versions import version_of
from tollgate.core.models import Domain


def add(
    house: House, domain: str = "example.com", who: str = "developer", team: str = "acme", **wish: Any
) -> Domain:
    return house.do(house.plane.domains.add(house.actor(who), team, domain, DomainSettings(**wish)))


# --- Adding --------------------------------------------------------------------------------------------


def test_root_domain_is_added_unverified_and_covers_calls(house: House) -> None:
    entry = add(house, address_per_minute=60, domain_per_minute=600)
    assert entry == Domain(
        entry.id, ACME.id, "example.com", house.clock.now, created_by=PEOPLE["developer"],
        address_per_minute=60, domain_per_minute=600,
    )  # fmt: skip
    assert entry.id.startswith("dom_")
    grant = house.do(house.store.domain(["app.example.com", "example.com"]))
    assert grant is not None
    assert (grant.domain, grant.team) == (entry, ACME)
    [note] = house.notes()
    assert (note.action, note.target, note.name) == ("domain.add", entry.id, "example.com")
    assert details_of(note) == {"verified": False}
    assert house.proofs.looks == []


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
def test_roots_are_kept_in_one_form(house: House, typed: str, kept: str) -> None:
    assert add(house, typed).domain == kept


@pytest.mark.parametrize(
    ("typed", "told", "suggestion"),
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
        ("https://example.com", "without scheme, port or path", None),
        ("example.com:443", "without scheme, port or path", None),
        ("example.com/x", "without scheme, port or path", None),
        ("*.example.com", "is not a domain name", None),
        ("a@example.com", "is not a domain name", None),
        ("", "is not a domain name", None),
        ("x" * 100_000, "is not a domain name", None),
        ("ä" * 100_000, "is not a domain name", None),
        ("ex ample.com", "is not a domain name", None),
    ],
)
def test_what_is_no_root_is_refused_with_the_root_to_use(
    house: House, plane: ControlPlane, typed: str, told: str, suggestion: str | None
) -> None:
    problem = house.refused(RootDomainNeeded, plane.domains.add(house.actor("developer"), "acme", typed))
    assert (problem.status, problem.extras.get("suggestion")) == (422, suggestion)
    assert told in problem.detail
    assert problem.extras["domain"] == typed[:253]
    assert len(problem.detail) < 500
    assert house.do(plane.domains.list(house.actor("viewer"), "acme", ALL)).items == []


def test_ones_own_domain_is_on_the_list_once(house: House, plane: ControlPlane) -> None:
    entry = add(house)
    for take_over in (False, True):
        deed = plane.domains.add(house.actor("developer"), "acme", "EXAMPLE.com", take_over=take_over)
        problem = house.refused(NameTaken, deed)
        assert problem.detail == f"example.com is on your list already, as {entry.id}."
        assert problem.extras == {"field": "domain"}


def test_domain_of_another_team_is_a_conflict_that_says_how_to_prove(house: House, plane: ControlPlane) -> None:
    add(house)
    problem = house.refused(DomainTaken, plane.domains.add(house.actor("stranger"), "rival", "example.com"))
    assert words(problem)[:2] == (409, "domain_taken")
    assert problem.extras == {
        "domain": "example.com",
        "dns_name": "_tollgate.example.com",
        "dns_value": f"tollgate-team={RIVAL.id}",
        "well_known_url": "https://example.com:8443/.well-known/tollgate.txt",
    }
    for part in (*map(str, problem.extras.values()), "whitelist add example.com --take-over --team rival"):
        assert part in problem.detail
    # Not a word of whose it is.
    assert "acme" not in problem.detail.replace("example", "")
    assert ACME.id not in str(problem.extras)


def test_disabled_entry_keeps_its_claim(house: House, plane: ControlPlane) -> None:
    entry = add(house)
    house.do(plane.domains.update(house.actor("developer"), "acme", entry.id, DomainSettings(active=False)))
    house.refused(DomainTaken, plane.domains.add(house.actor("stranger"), "rival", "example.com"))


def test_removed_domain_is_free(house: House, plane: ControlPlane) -> None:
    entry = add(house)
    house.do(plane.domains.remove(house.actor("developer"), "acme", entry.id))
    assert house.do(house.store.domain(["example.com"])) is None
    assert add(house, who="stranger", team="rival").team_id == RIVAL.id


def test_two_teams_at_once_get_it_once(house: House, plane: ControlPlane) -> None:
    results = house.at_once(
        plane.domains.add(house.actor("developer"), "acme", "example.com"),
        plane.domains.add(house.actor("stranger"), "rival", "example.com"),
    )
    assert sum(isinstance(result, DomainTaken) for result in results) == 1


def test_entries_of_a_team_are_bounded(house: House) -> None:
    plane = house.choose(domains_per_team=2)
    add(house, "example.com")
    add(house, "example.org")
    problem = house.refused(LimitReached, plane.domains.add(house.actor("developer"), "acme", "example.net"))
    assert problem.extras == {"limit": 2}


# --- Changing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["address_per_minute", "domain_per_minute"])
@pytest.mark.parametrize("value", [0, -1, 1_000_000_001])
def test_bad_limits_are_refused(house: House, plane: ControlPlane, field: str, value: int) -> None:
    entry = add(house)
    wish = replace(DomainSettings(), **{field: value})
    for deed in (
        plane.domains.update(house.actor("developer"), "acme", entry.id, wish),
        plane.domains.add(house.actor("developer"), "acme", "example.org", wish),
    ):
        problem = house.refused(InvalidInput, deed)
        assert problem.detail == f"`{field}` is from 1 to 1000000000, or null for the usual."
        assert problem.extras == {"field": field}


def test_change_touches_only_what_is_given_and_notes_what_differs(house: House, plane: ControlPlane) -> None:
    entry = add(house, address_per_minute=60, domain_per_minute=600)
    developer = house.actor("developer")
    wish = DomainSettings(address_per_minute=None, domain_per_minute=600, active=False)
    changed = house.do(plane.domains.update(developer, "acme", entry.id, wish))
    assert (changed.address_per_minute, changed.domain_per_minute, changed.active) == (None, 600, False)
    assert details_of(house.notes()[-1]) == {
        "before": {"address_per_minute": 60, "active": True},
        "after": {"address_per_minute": None, "active": False},
    }
    assert house.do(house.store.domain(["example.com"])) is None


def test_version_is_honoured_by_update_and_remove(house: House, plane: ControlPlane) -> None:
    entry, developer = add(house), house.actor("developer")
    seen = version_of(entry)
    changed = house.do(plane.domains.update(developer, "acme", entry.id, DomainSettings(active=False), seen))
    house.refused(
        ChangedMeanwhile, plane.domains.update(developer, "acme", entry.id, DomainSettings(active=True), seen)
    )
    house.refused(ChangedMeanwhile, plane.domains.remove(developer, "acme", entry.id, seen))
    house.do(plane.domains.remove(developer, "acme", entry.id, version_of(changed)))
    problem = house.refused(NotFound, plane.domains.remove(developer, "acme", entry.id))
    assert f"The team acme has no entry {entry.id}: list them with `tollgate rpc whitelist list" in problem.detail


def test_entries_are_listed_page_by_page(house: House, plane: ControlPlane) -> None:
    for name in ("example.com", "example.org", "example.net"):
        house.clock.advance(1)
        add(house, name)
    viewer = house.actor("viewer")
    first = house.do(plane.domains.list(viewer, "acme", PageRequest(2)))
    rest = house.do(plane.domains.list(viewer, "acme", PageRequest(2, first.next)))
    assert [entry.domain for entry in first.items + rest.items] == ["example.com", "example.org", "example.net"]
    # A cursor of tokens is no cursor of domains.
    house.refused(InvalidInput, plane.tokens.list(viewer, "acme", PageRequest(2, first.next)))


# --- Verifying -----------------------------------------------------------------------------------------


def test_proven_entry_is_verified(house: House, plane: ControlPlane) -> None:
    entry, developer = add(house), house.actor("developer")
    house.proofs.proven.add(("example.com", ACME.id))
    house.clock.advance(60)
    verified = house.do(plane.domains.verify(developer, "acme", entry.id))
    assert verified.verified_at == house.clock.now
    assert house.do(plane.domains.show(developer, "acme", entry.id)) == verified
    assert (house.notes()[-1].action, details_of(house.notes()[-1])) == ("domain.verify", {"by": "dns"})


def test_unproven_entry_is_told_what_to_publish(house: House, plane: ControlPlane) -> None:
    entry = add(house)
    problem = house.refused(NotProven, plane.domains.verify(house.actor("developer"), "acme", entry.id))
    assert problem.extras == {
        "domain": "example.com",
        "dns_name": "_tollgate.example.com",
        "dns_value": f"tollgate-team={ACME.id}",
        "well_known_url": "https://example.com:8443/.well-known/tollgate.txt",
        "problems": ["Nothing was there", "Nor there."],
    }
    assert "Nothing was there. Nor there. Publish" in problem.detail
    assert len(house.notes()) == 1


def test_entry_that_is_gone_when_the_proof_was_found_is_not_found(house: House, plane: ControlPlane) -> None:
    entry, developer = add(house), house.actor("developer")
    house.proofs.proven.add(("example.com", ACME.id))
    house.proofs.meanwhile = lambda: plane.domains.remove(developer, "acme", entry.id)
    house.refused(NotFound, plane.domains.verify(developer, "acme", entry.id))
