"""Rotation: a successor with the name and all settings, and an old secret that goes on for a while."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import asdict, replace
from tests.control.services.house import DAY, HOUR, PEOPLE, House, details_of

from tollgate.control.plane import ControlPlane
from tollgate.control.problems import InvalidInput, NameTaken, NotFound
from tollgate.control.services.tokens import LATEST, LONGEST_OVERLAP, TokenSettings
from tollgate.core.models import Token
from tollgate.settings.model import Settings


def make(house: House, **wish: Any) -> tuple[Token, str]:
    wish = {"name": "ci"} | wish
    return house.do(house.plane.tokens.create(house.actor("developer"), "acme", TokenSettings(**wish)))


def rotate(house: House, token: Token, overlap: int = 86_400) -> tuple[Token, str]:
    return house.do(house.plane.tokens.rotate(house.actor("admin"), "acme", token.id, overlap))


def show(house: House, token: Token) -> Token:
    return house.do(house.plane.tokens.show(house.actor("viewer"), "acme", token.id))


def test_successor_takes_over_the_name_and_every_setting(house: House, plane: ControlPlane) -> None:
    old, old_secret = make(
        house, networks=["eth/mainnet"], methods=["eth_*"], requests_per_second=5, monthly_requests=100,
        allow_in_url=True, show_upstream=True,
    )  # fmt: skip
    house.clock.advance(HOUR)
    new, secret = rotate(house, old, 3_600)
    assert new == replace(
        old, id=new.id, prefix=secret[:8], created_at=house.clock.now, created_by=PEOPLE["admin"], replaces=old.id
    )  # fmt: skip
    assert new.id != old.id
    for token, each in ((new, secret), (show(house, old), old_secret)):
        grant = house.do(house.store.token(plane.context.digest(each)))
        assert grant is not None
        assert grant.token == token
    ended = show(house, old)
    assert ended.expires_at == house.clock.now + 3_600
    assert ended.name == f"ci-until-2026-11-15-{old.id[-6:]}"
    assert {name for name, value in asdict(old).items() if value != getattr(ended, name)} == {"name", "expires_at"}


def test_rotation_is_noted_once_with_both_tokens(house: House) -> None:
    old, _ = make(house)
    new, _ = rotate(house, old, 60)
    assert house.actions() == ["token.create", "token.rotate"]
    entry = house.notes()[-1]
    assert (entry.actor, entry.target, entry.name) == (PEOPLE["admin"], old.id, "ci")
    assert details_of(entry) == {
        "successor": new.id, "prefix": new.prefix, "old_works_until": house.clock.now + 60
    }  # fmt: skip


@pytest.mark.parametrize("overlap", [0, 1, LONGEST_OVERLAP])
def test_overlap_is_from_nothing_to_thirty_days(house: House, overlap: int) -> None:
    old, _ = make(house)
    rotate(house, old, overlap)
    assert show(house, old).expires_at == house.clock.now + overlap


@pytest.mark.parametrize("overlap", [-1, LONGEST_OVERLAP + 1, 10**30])
def test_other_overlaps_are_refused(house: House, plane: ControlPlane, overlap: int) -> None:
    old, _ = make(house)
    problem = house.refused(InvalidInput, plane.tokens.rotate(house.actor("admin"), "acme", old.id, overlap))
    assert problem.detail == "`overlap_seconds` is from 0 to 2592000."
    assert problem.extras == {"field": "overlap_seconds"}


def test_successor_lives_as_long_as_the_old_one_was_meant_to(house: House) -> None:
    old, _ = make(house, expires_at=house.clock.now + 30 * DAY)
    house.clock.advance(20 * DAY)
    new, _ = rotate(house, old, LONGEST_OVERLAP)
    assert new.expires_at == house.clock.now + 30 * DAY
    # The overlap gives the old one no longer life than it had.
    assert show(house, old).expires_at == old.expires_at


def test_lifetime_beyond_all_calendars_is_cut(house: House) -> None:
    old, _ = make(house, expires_at=LATEST)
    house.clock.advance(DAY)
    assert rotate(house, old)[0].expires_at == LATEST


def test_settings_that_could_not_be_set_any_more_are_carried(house: House, plane: ControlPlane) -> None:
    """A network that the operator took away must not keep a leaked token from being rotated."""
    old, _ = make(house, networks=["eth/sepolia"])
    house.plane = house.another(Settings())
    assert rotate(house, old)[0].networks == ("eth/sepolia",)


def test_reached_cap_is_carried_and_the_use_is_not(house: House) -> None:
    """The collector counts on from what the old token used: tests/store/test_caps.py."""
    old, _ = make(house, monthly_requests=10)
    used = replace(old, last_used_at=house.clock.now, capped_until=house.clock.now + 60)
    house.write(lambda records: records.tokens.replace(used))
    new, _ = rotate(house, old)
    assert (new.capped_until, new.last_used_at) == (used.capped_until, None)


@pytest.mark.parametrize("how", ["disabled", "expired"])
def test_dead_tokens_are_not_rotated(house: House, plane: ControlPlane, how: str) -> None:
    if how == "disabled":
        old, _ = make(house, active=False)
    else:
        old, _ = make(house, expires_at=house.clock.now + 60)
        house.clock.advance(60)
    problem = house.refused(InvalidInput, plane.tokens.rotate(house.actor("admin"), "acme", old.id, 60))
    assert problem.detail == "A token that is disabled or has expired cannot be rotated: create a new one."


def test_token_is_rotated_once_and_its_successor_is_named(house: House, plane: ControlPlane) -> None:
    old, _ = make(house)
    new, _ = rotate(house, old)
    problem = house.refused(InvalidInput, plane.tokens.rotate(house.actor("admin"), "acme", old.id, 60))
    assert problem.detail == f"This token was rotated already: rotate its successor {new.id}."
    newest, _ = rotate(house, new)
    assert (newest.name, newest.replaces) == ("ci", new.id)


def test_two_rotations_at_once_make_one_successor(house: House, plane: ControlPlane) -> None:
    old, _ = make(house)
    results = house.at_once(*(plane.tokens.rotate(house.actor("admin"), "acme", old.id, 60) for _ in range(4)))
    assert sum(isinstance(result, InvalidInput) for result in results) == 3


def test_long_names_stay_within_their_bound(house: House) -> None:
    old, _ = make(house, name="n" * 100)
    new, _ = rotate(house, old)
    assert new.name == "n" * 100
    assert len(show(house, old).name) <= 100


def test_name_for_the_old_one_that_someone_took_is_told(house: House, plane: ControlPlane) -> None:
    old, _ = make(house)
    make(house, name=f"ci-until-2026-11-16-{old.id[-6:]}")
    house.refused(NameTaken, plane.tokens.rotate(house.actor("admin"), "acme", old.id, 86_400))
    assert show(house, old) == old


def test_unknown_tokens_are_not_rotated(house: House, plane: ControlPlane) -> None:
    house.refused(NotFound, plane.tokens.rotate(house.actor("admin"), "acme", "tok_nobodys", 60))


def test_workers_hear_of_both(house: House, plane: ControlPlane) -> None:
    old, old_secret = make(house)
    start = house.do(house.store.changes(None))
    assert start is not None
    _, secret = rotate(house, old)
    changed = house.do(house.store.changes(start.revision))
    assert changed is not None
    assert set(changed.tokens) == {plane.context.digest(old_secret), plane.context.digest(secret)}
