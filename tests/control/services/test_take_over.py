"""Domains that another team has: an unverified claim falls to a proof, a verified one when its own is gone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace
from tests.control.services.house import ACME, ALL, PEOPLE, RIVAL, House, details_of, member_id, words

from tollgate.control.plane import ControlPlane
from tollgate.control.problems import (
    DomainTaken,
    DomainVerified,
    LimitReached,
    NoSuchTeam,
    NotProven,
    RoleNeeded,
)
from tollgate.control.services.domains import DomainSettings
from tollgate.core.models import Domain

OURS, THEIRS = ("example.com", ACME.id), ("example.com", RIVAL.id)


@pytest.fixture
def held(house: House) -> Domain:
    """An entry of rival that nobody has proven."""
    return house.do(house.plane.domains.add(house.actor("stranger"), "rival", "example.com"))


@pytest.fixture
def verified(house: House, held: Domain) -> Domain:
    """An entry of rival with a proof, which may have vanished since."""
    entry = replace(held, verified_at=house.clock.now)
    house.write(lambda records: records.domains.replace(entry))
    return entry


def take_over(house: House, wish: DomainSettings | None = None) -> Domain:
    domains = house.plane.domains
    return house.do(
        domains.add(house.actor("developer"), "acme", "example.com", wish or DomainSettings(), take_over=True)
    )


def holder(house: House) -> str:
    entry = house.write(lambda records: records.domains.find(domain="example.com"))
    assert entry is not None
    return entry.team_id


def test_unverified_claim_falls_to_a_proof(house: House, held: Domain) -> None:
    house.proofs.proven.add(OURS)
    entry = take_over(house, DomainSettings(address_per_minute=5))
    assert (entry.team_id, entry.verified_at, entry.address_per_minute) == (ACME.id, house.clock.now, 5)
    assert entry.id != held.id
    assert house.proofs.looks == [OURS]
    grant = house.do(house.store.domain(["example.com"]))
    assert grant is not None
    assert grant.team.id == ACME.id


def test_both_teams_read_of_it_and_the_old_one_hears_not_by_whom(house: House, held: Domain) -> None:
    house.proofs.proven.add(OURS)
    entry = take_over(house)
    plane = house.plane
    lost = house.do(plane.audit.of_team(house.actor("stranger"), "rival", ALL)).items
    gained = house.do(plane.audit.of_team(house.actor("owner"), "acme", ALL)).items
    assert sorted(note.action for note in lost) == ["domain.add", "domain.lost"]
    [note] = [note for note in lost if note.action == "domain.lost"]
    assert (note.target, note.name, note.actor_id, note.address) == (held.id, "example.com", None, "")
    assert details_of(note) == {"why": "another team proved that it owns the domain", "by": "dns"}
    assert not any(word in str(note) for word in ("acme", "developer", ACME.id))
    assert [(each.action, each.target, each.actor) for each in gained] == [
        ("domain.add", entry.id, PEOPLE["developer"])
    ]
    assert details_of(gained[0]) == {"verified": True, "by": "dns"}


def test_owners_of_the_old_team_get_mail(house: House, held: Domain) -> None:
    house.joins("loner", "owner", RIVAL)
    house.joins("viewer", "admin", RIVAL)
    house.proofs.proven.add(OURS)
    take_over(house)
    assert sorted(to for to, _, _ in house.post.posted) == [PEOPLE["loner"], PEOPLE["stranger"]]
    _, subject, text = house.post.posted[0]
    assert subject == "example.com left your whitelist"
    assert held.id in text
    assert "tollgate rpc whitelist add example.com --take-over" in text
    assert "acme" not in text


def test_without_a_proof_nothing_happens(house: House, plane: ControlPlane, held: Domain) -> None:
    deed = plane.domains.add(house.actor("developer"), "acme", "example.com", take_over=True)
    problem = house.refused(NotProven, deed)
    assert problem.extras["dns_value"] == f"tollgate-team={ACME.id}"
    assert problem.extras["problems"] == ["Nothing was there", "Nor there."]
    assert holder(house) == RIVAL.id
    assert house.post.posted == []
    assert len(house.notes()) == 1


def test_verified_claim_stands_while_its_own_proof_does(
    house: House, plane: ControlPlane, verified: Domain
) -> None:
    house.proofs.proven |= {OURS, THEIRS}
    deed = plane.domains.add(house.actor("developer"), "acme", "example.com", take_over=True)
    problem = house.refused(DomainVerified, deed)
    assert words(problem) == (
        409,
        "domain_verified",
        "Another team has proven example.com, and its proof still stands: remove it, then try again.",
        {"domain": "example.com"},
    )
    assert holder(house) == RIVAL.id


def test_verified_claim_falls_when_its_proof_has_vanished_for_certain(house: House, verified: Domain) -> None:
    house.proofs.proven.add(OURS)
    assert take_over(house).team_id == ACME.id
    assert house.proofs.looks == [OURS, THEIRS]


def test_verified_claim_stands_while_nobody_can_tell(house: House, plane: ControlPlane, verified: Domain) -> None:
    house.proofs.proven.add(OURS)
    house.proofs.unsure.add(THEIRS)
    deed = plane.domains.add(house.actor("developer"), "acme", "example.com", take_over=True)
    problem = house.refused(DomainVerified, deed)
    assert "as far as can be checked now" in problem.detail
    assert holder(house) == RIVAL.id


def test_others_proof_does_not_help_a_verified_claim_against_no_proof_of_ours(
    house: House, plane: ControlPlane, verified: Domain
) -> None:
    deed = plane.domains.add(house.actor("developer"), "acme", "example.com", take_over=True)
    house.refused(NotProven, deed)
    # Whether theirs stands is nobody's business without a proof of one's own.
    assert house.proofs.looks == [OURS]


def test_free_domain_is_simply_added(house: House) -> None:
    entry = take_over(house)
    assert (entry.team_id, entry.verified_at, house.proofs.looks) == (ACME.id, None, [])


# --- What happens while the proof is looked for --------------------------------------------------------


def meanwhile(house: House, held: Domain, what: str) -> Callable[[], Awaitable[object]]:
    domains, stranger = house.plane.domains, house.actor("stranger")

    async def verify() -> None:
        async with house.store.changing() as records:
            await records.domains.replace(replace(held, verified_at=house.clock.now))

    async def anew() -> None:
        await domains.remove(stranger, "rival", held.id)
        await domains.add(stranger, "rival", "example.com")

    return {
        "verified": verify,
        "anew": anew,
        "removed": lambda: domains.remove(stranger, "rival", held.id),
        "changed": lambda: domains.update(stranger, "rival", held.id, DomainSettings(active=False)),
    }[what]


@pytest.mark.parametrize("what", ["verified", "anew"])
def test_entry_that_is_another_one_by_then_is_not_taken(
    house: House, plane: ControlPlane, held: Domain, what: str
) -> None:
    house.proofs.proven.add(OURS)
    house.proofs.meanwhile = meanwhile(house, held, what)
    deed = plane.domains.add(house.actor("developer"), "acme", "example.com", take_over=True)
    house.refused(DomainTaken, deed)
    assert holder(house) == RIVAL.id
    assert "domain.lost" not in house.actions()


def test_entry_that_was_removed_by_then_is_not_lost_by_anybody(house: House, held: Domain) -> None:
    house.proofs.proven.add(OURS)
    house.proofs.meanwhile = meanwhile(house, held, "removed")
    assert take_over(house).team_id == ACME.id
    assert "domain.lost" not in house.actions()


def test_changing_its_settings_all_the_time_does_not_keep_an_entry(house: House, held: Domain) -> None:
    house.proofs.proven.add(OURS)
    house.proofs.meanwhile = meanwhile(house, held, "changed")
    assert take_over(house).team_id == ACME.id


@pytest.mark.parametrize(("role", "kind"), [("viewer", RoleNeeded), (None, NoSuchTeam)])
def test_who_may_not_do_it_by_then_does_not_do_it(
    house: House, plane: ControlPlane, held: Domain, role: str | None, kind: type[Exception]
) -> None:
    owner = house.actor("owner")
    house.proofs.proven.add(OURS)
    house.proofs.meanwhile = (
        (lambda: plane.teams.set_role(owner, "acme", member_id("developer"), "viewer"))
        if role
        else (lambda: plane.teams.remove(owner, "acme", member_id("developer")))
    )
    house.refused(kind, plane.domains.add(house.actor("developer"), "acme", "example.com", take_over=True))
    assert holder(house) == RIVAL.id


def test_two_take_overs_at_once_give_it_to_one(house: House, plane: ControlPlane, held: Domain) -> None:
    membership = house.do(plane.teams.create(house.actor("loner"), "third"))
    house.proofs.proven |= {OURS, ("example.com", membership.team.id)}
    results = house.at_once(
        plane.domains.add(house.actor("developer"), "acme", "example.com", take_over=True),
        plane.domains.add(house.actor("loner"), "third", "example.com", take_over=True),
    )
    assert [type(result) for result in results if isinstance(result, BaseException)] == [DomainTaken]
    assert house.actions().count("domain.lost") == 1


def test_full_list_takes_nothing_over(house: House, held: Domain) -> None:
    plane = house.choose(domains_per_team=1)
    house.do(plane.domains.add(house.actor("developer"), "acme", "example.org"))
    house.proofs.proven.add(OURS)
    deed = plane.domains.add(house.actor("developer"), "acme", "example.com", take_over=True)
    house.refused(LimitReached, deed)
    assert holder(house) == RIVAL.id
    assert house.post.posted == []


def test_old_team_may_take_it_back(house: House, plane: ControlPlane, held: Domain) -> None:
    house.proofs.proven.add(OURS)
    take_over(house)
    house.proofs.proven = {THEIRS}
    entry = house.do(plane.domains.add(house.actor("stranger"), "rival", "example.com", take_over=True))
    assert (entry.team_id, entry.verified_at) == (RIVAL.id, house.clock.now)
