"""Take-overs: a proof takes over an unverified entry at once, a verified one once its own proof is gone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace
from tests.control.services.harness import ACME, ALL, PEOPLE, RIVAL, Harness, details_of, member_id, words

from tollgate.api.domains import DomainChange, NewDomain
from tollgate.api.members import RoleChange
from tollgate.api.teams import NewTeam
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import (
    DomainTaken,
    DomainVerified,
    LimitReached,
    NoSuchTeam,
    NotProven,
    RoleNeeded,
)
from tollgate.core.models import Domain

OURS, THEIRS = ("example.com", ACME.id), ("example.com", RIVAL.id)
TAKE_OVER = NewDomain("example.com", take_over=True)


@pytest.fixture
def held(harness: Harness) -> Domain:
    """An unverified entry of rival."""
    return harness.do(harness.plane.domains.add(harness.actor("outsider"), "rival", NewDomain("example.com")))


@pytest.fixture
def verified(harness: Harness, held: Domain) -> Domain:
    """An entry of rival with a proof, which may have vanished since."""
    entry = replace(held, verified_at=harness.clock.now)
    harness.write(lambda records: records.domains.replace(entry))
    return entry


def take_over(harness: Harness, **settings: int) -> Domain:
    domains = harness.plane.domains
    return harness.do(domains.add(harness.actor("developer"), "acme", replace(TAKE_OVER, **settings)))


def holder(harness: Harness) -> str:
    entry = harness.write(lambda records: records.domains.find(domain="example.com"))
    assert entry is not None
    return entry.team_id


def test_unverified_claim_is_lost_to_a_proof(harness: Harness, held: Domain) -> None:
    harness.proofs.proven.add(OURS)
    entry = take_over(harness, address_per_minute=5)
    assert (entry.team_id, entry.verified_at, entry.address_per_minute) == (ACME.id, harness.clock.now, 5)
    assert entry.id != held.id
    assert harness.proofs.looks == [OURS]
    grant = harness.do(harness.store.domain(["example.com"]))
    assert grant is not None
    assert grant.team.id == ACME.id


def test_both_audit_logs_have_it_and_that_of_the_old_team_does_not_name_the_new(
    harness: Harness, held: Domain
) -> None:
    harness.proofs.proven.add(OURS)
    entry = take_over(harness)
    plane = harness.plane
    lost = harness.do(plane.audit.of_team(harness.actor("outsider"), "rival", ALL)).items
    gained = harness.do(plane.audit.of_team(harness.actor("owner"), "acme", ALL)).items
    assert sorted(note.action for note in lost) == ["domain.add", "domain.lost"]
    [note] = [note for note in lost if note.action == "domain.lost"]
    assert (note.target, note.name, note.actor_id, note.address) == (held.id, "example.com", None, "")
    assert details_of(note) == {"why": "another team proved that it owns the domain", "by": "dns"}
    assert not any(word in str(note) for word in ("acme", "developer", ACME.id))
    assert [(each.action, each.target, each.actor) for each in gained] == [
        ("domain.add", entry.id, PEOPLE["developer"])
    ]
    assert details_of(gained[0]) == {"verified": True, "by": "dns"}


def test_owners_of_the_old_team_get_mail(harness: Harness, held: Domain) -> None:
    harness.joins("loner", "owner", RIVAL)
    harness.joins("viewer", "admin", RIVAL)
    harness.proofs.proven.add(OURS)
    take_over(harness)
    assert sorted(to for to, _, _ in harness.post.posted) == [PEOPLE["loner"], PEOPLE["outsider"]]
    _, subject, text = harness.post.posted[0]
    assert subject == "example.com left your whitelist"
    assert held.id in text
    assert "tollgate rpc whitelist add example.com --take-over" in text
    assert "acme" not in text


def test_without_a_proof_nothing_happens(harness: Harness, plane: ControlPlane, held: Domain) -> None:
    deed = plane.domains.add(harness.actor("developer"), "acme", TAKE_OVER)
    problem = harness.refused(NotProven, deed)
    assert problem.extras["dns_value"] == f"tollgate-team={ACME.id}"
    assert problem.extras["problems"] == ["Nothing was there", "Nor there."]
    assert holder(harness) == RIVAL.id
    assert harness.post.posted == []
    assert len(harness.notes()) == 1


def test_verified_entry_stays_while_its_own_proof_is_published(
    harness: Harness, plane: ControlPlane, verified: Domain
) -> None:
    harness.proofs.proven |= {OURS, THEIRS}
    deed = plane.domains.add(harness.actor("developer"), "acme", TAKE_OVER)
    problem = harness.refused(DomainVerified, deed)
    assert words(problem) == (
        409,
        "domain_verified",
        "Another team has proven example.com, and its proof is still published: remove it, then try again.",
        {"domain": "example.com"},
    )
    assert holder(harness) == RIVAL.id


def test_verified_claim_is_lost_when_its_proof_is_certainly_gone(harness: Harness, verified: Domain) -> None:
    harness.proofs.proven.add(OURS)
    assert take_over(harness).team_id == ACME.id
    assert harness.proofs.looks == [OURS, THEIRS]


def test_verified_entry_stays_while_its_proof_cannot_be_checked(
    harness: Harness, plane: ControlPlane, verified: Domain
) -> None:
    harness.proofs.proven.add(OURS)
    harness.proofs.unsure.add(THEIRS)
    deed = plane.domains.add(harness.actor("developer"), "acme", TAKE_OVER)
    problem = harness.refused(DomainVerified, deed)
    assert "as far as can be checked now" in problem.detail
    assert holder(harness) == RIVAL.id


def test_others_proof_does_not_help_a_verified_claim_against_no_proof_of_ours(
    harness: Harness, plane: ControlPlane, verified: Domain
) -> None:
    deed = plane.domains.add(harness.actor("developer"), "acme", TAKE_OVER)
    harness.refused(NotProven, deed)
    # Without a proof of one's own, the other team's proof is not looked up.
    assert harness.proofs.looks == [OURS]


def test_free_domain_is_simply_added(harness: Harness) -> None:
    entry = take_over(harness)
    assert (entry.team_id, entry.verified_at, harness.proofs.looks) == (ACME.id, None, [])


# --- What happens while the proof is looked for --------------------------------------------------------


def meanwhile(harness: Harness, held: Domain, what: str) -> Callable[[], Awaitable[object]]:
    domains, outsider = harness.plane.domains, harness.actor("outsider")

    async def verify() -> None:
        async with harness.store.changing() as records:
            await records.domains.replace(replace(held, verified_at=harness.clock.now))

    async def anew() -> None:
        await domains.remove(outsider, "rival", held.id)
        await domains.add(outsider, "rival", NewDomain("example.com"))

    return {
        "verified": verify,
        "anew": anew,
        "removed": lambda: domains.remove(outsider, "rival", held.id),
        "changed": lambda: domains.update(outsider, "rival", held.id, DomainChange(active=False)),
    }[what]


@pytest.mark.parametrize("what", ["verified", "anew"])
def test_entry_replaced_meanwhile_is_not_taken_over(
    harness: Harness, plane: ControlPlane, held: Domain, what: str
) -> None:
    harness.proofs.proven.add(OURS)
    harness.proofs.meanwhile = meanwhile(harness, held, what)
    deed = plane.domains.add(harness.actor("developer"), "acme", TAKE_OVER)
    harness.refused(DomainTaken, deed)
    assert holder(harness) == RIVAL.id
    assert "domain.lost" not in harness.actions()


def test_entry_removed_meanwhile_is_no_loss_of_its_old_team(harness: Harness, held: Domain) -> None:
    harness.proofs.proven.add(OURS)
    harness.proofs.meanwhile = meanwhile(harness, held, "removed")
    assert take_over(harness).team_id == ACME.id
    assert "domain.lost" not in harness.actions()


def test_changing_its_settings_all_the_time_does_not_keep_an_entry(harness: Harness, held: Domain) -> None:
    harness.proofs.proven.add(OURS)
    harness.proofs.meanwhile = meanwhile(harness, held, "changed")
    assert take_over(harness).team_id == ACME.id


@pytest.mark.parametrize(("role", "kind"), [("viewer", RoleNeeded), (None, NoSuchTeam)])
def test_role_lost_meanwhile_stops_the_take_over(
    harness: Harness, plane: ControlPlane, held: Domain, role: str | None, kind: type[Exception]
) -> None:
    owner = harness.actor("owner")
    harness.proofs.proven.add(OURS)
    harness.proofs.meanwhile = (
        (lambda: plane.teams.set_role(owner, "acme", member_id("developer"), RoleChange("viewer")))
        if role
        else (lambda: plane.teams.remove(owner, "acme", member_id("developer")))
    )
    harness.refused(kind, plane.domains.add(harness.actor("developer"), "acme", TAKE_OVER))
    assert holder(harness) == RIVAL.id


def test_two_take_overs_at_once_give_it_to_one(harness: Harness, plane: ControlPlane, held: Domain) -> None:
    membership = harness.do(plane.teams.create(harness.actor("loner"), NewTeam("third")))
    harness.proofs.proven |= {OURS, ("example.com", membership.team.id)}
    results = harness.at_once(
        plane.domains.add(harness.actor("developer"), "acme", TAKE_OVER),
        plane.domains.add(harness.actor("loner"), "third", TAKE_OVER),
    )
    assert [type(result) for result in results if isinstance(result, BaseException)] == [DomainTaken]
    assert harness.actions().count("domain.lost") == 1


def test_full_list_takes_nothing_over(harness: Harness, held: Domain) -> None:
    plane = harness.choose(domains_per_team=1)
    harness.do(plane.domains.add(harness.actor("developer"), "acme", NewDomain("example.org")))
    harness.proofs.proven.add(OURS)
    deed = plane.domains.add(harness.actor("developer"), "acme", TAKE_OVER)
    harness.refused(LimitReached, deed)
    assert holder(harness) == RIVAL.id
    assert harness.post.posted == []


def test_old_team_may_take_it_back(harness: Harness, plane: ControlPlane, held: Domain) -> None:
    harness.proofs.proven.add(OURS)
    take_over(harness)
    harness.proofs.proven = {THEIRS}
    entry = harness.do(plane.domains.add(harness.actor("outsider"), "rival", TAKE_OVER))
    assert (entry.team_id, entry.verified_at) == (RIVAL.id, harness.clock.now)
