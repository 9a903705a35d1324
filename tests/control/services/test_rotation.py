"""Rotation: a successor with the name and all settings, and an old secret that keeps working for a while."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest
from msgspec.structs import asdict, replace
from tests.control.services.harness import DAY, HOUR, PEOPLE, Harness, details_of, moment
from tests.samples import sample

from tollgate.api.tokens import MAX_OVERLAP, NewToken, Rotation
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import InvalidInput, NameTaken, NotFound
from tollgate.control.services.tokens import LATEST
from tollgate.core.models import Token
from tollgate.settings.model import Settings


def make(harness: Harness, **wanted: Any) -> tuple[Token, str]:
    wanted = {"name": "ci"} | wanted
    return harness.do(harness.plane.tokens.create(harness.actor("developer"), "acme", NewToken(**wanted)))


def rotation(harness: Harness, token_id: str, overlap: int = 86_400) -> Coroutine[Any, Any, tuple[Token, str]]:
    return harness.plane.tokens.rotate(harness.actor("admin"), "acme", token_id, Rotation(overlap))


def rotate(harness: Harness, token: Token, overlap: int = 86_400) -> tuple[Token, str]:
    return harness.do(rotation(harness, token.id, overlap))


def show(harness: Harness, token: Token) -> Token:
    return harness.do(harness.plane.tokens.show(harness.actor("viewer"), "acme", token.id))


def test_successor_takes_over_the_name_and_every_setting(harness: Harness, plane: ControlPlane) -> None:
    settings = msgspec.convert(sample(NewToken, active=True, expires_at=None), NewToken)
    old, old_secret = make(harness, **asdict(settings))
    harness.clock.advance(HOUR)
    new, secret = rotate(harness, old, 3_600)
    assert new == replace(
        old, id=new.id, prefix=secret[:8], created_at=harness.clock.now, created_by=PEOPLE["admin"],
        replaces=old.id,
    )  # fmt: skip
    assert new.id != old.id
    for token, each in ((new, secret), (show(harness, old), old_secret)):
        grant = harness.do(harness.store.token(plane.context.digest(each)))
        assert grant is not None
        assert grant.token == token
    ended = show(harness, old)
    assert ended.expires_at == harness.clock.now + 3_600
    assert ended.name == f"ci-until-2026-11-15-{old.id[-6:]}"
    assert {name for name, value in asdict(old).items() if value != getattr(ended, name)} == {"name", "expires_at"}


def test_rotation_is_recorded_once_with_both_tokens(harness: Harness) -> None:
    old, _ = make(harness)
    new, _ = rotate(harness, old, 60)
    assert harness.actions() == ["token.create", "token.rotate"]
    entry = harness.notes()[-1]
    assert (entry.actor, entry.target, entry.name) == (PEOPLE["admin"], old.id, "ci")
    assert details_of(entry) == {
        "successor": new.id, "prefix": new.prefix, "old_works_until": harness.clock.now + 60
    }  # fmt: skip


@pytest.mark.parametrize("overlap", [0, 1, MAX_OVERLAP])
def test_overlap_is_from_nothing_to_thirty_days(harness: Harness, overlap: int) -> None:
    old, _ = make(harness)
    rotate(harness, old, overlap)
    assert show(harness, old).expires_at == harness.clock.now + overlap


@pytest.mark.parametrize("overlap", [-1, MAX_OVERLAP + 1, 10**30])
def test_other_overlaps_are_refused(harness: Harness, plane: ControlPlane, overlap: int) -> None:
    old, _ = make(harness)
    problem = harness.refused(InvalidInput, rotation(harness, old.id, overlap))
    assert problem.detail == "`overlap_seconds` is a whole number from 0 to 2592000."
    assert problem.extras == {"field": "overlap_seconds"}


def test_successor_lives_as_long_as_the_old_one_was_meant_to(harness: Harness) -> None:
    old, _ = make(harness, expires_at=moment(harness.clock.now + 30 * DAY))
    harness.clock.advance(20 * DAY)
    new, _ = rotate(harness, old, MAX_OVERLAP)
    assert new.expires_at == harness.clock.now + 30 * DAY
    # The overlap gives the old one no longer life than it had.
    assert show(harness, old).expires_at == old.expires_at


def test_lifetime_beyond_all_calendars_is_cut(harness: Harness) -> None:
    old, _ = make(harness, expires_at=moment(LATEST))
    harness.clock.advance(DAY)
    assert rotate(harness, old)[0].expires_at == LATEST


def test_settings_that_could_not_be_set_any_more_are_carried(harness: Harness, plane: ControlPlane) -> None:
    """A network that the operator took away must not keep a leaked token from being rotated."""
    old, _ = make(harness, networks=["eth/sepolia"])
    harness.plane = harness.another(Settings())
    assert rotate(harness, old)[0].networks == ("eth/sepolia",)


def test_reached_cap_is_carried_and_the_use_is_not(harness: Harness) -> None:
    """The collector counts on from what the old token used: tests/store/test_caps.py."""
    old, _ = make(harness, monthly_requests=10)
    used = replace(old, last_used_at=harness.clock.now, capped_until=harness.clock.now + 60)
    harness.write(lambda records: records.tokens.replace(used))
    new, _ = rotate(harness, old)
    assert (new.capped_until, new.last_used_at) == (used.capped_until, None)


@pytest.mark.parametrize("how", ["disabled", "expired"])
def test_expired_and_disabled_tokens_are_not_rotated(harness: Harness, plane: ControlPlane, how: str) -> None:
    if how == "disabled":
        old, _ = make(harness, active=False)
    else:
        old, _ = make(harness, expires_at=moment(harness.clock.now + 60))
        harness.clock.advance(60)
    problem = harness.refused(InvalidInput, rotation(harness, old.id))
    assert problem.detail == "A token that is disabled or has expired cannot be rotated: create a new one."


def test_token_is_rotated_once_and_its_successor_is_named(harness: Harness, plane: ControlPlane) -> None:
    old, _ = make(harness)
    new, _ = rotate(harness, old)
    problem = harness.refused(InvalidInput, rotation(harness, old.id))
    assert problem.detail == f"This token was rotated already: rotate its successor {new.id}."
    newest, _ = rotate(harness, new)
    assert (newest.name, newest.replaces) == ("ci", new.id)


def test_two_rotations_at_once_make_one_successor(harness: Harness, plane: ControlPlane) -> None:
    old, _ = make(harness)
    results = harness.at_once(*(rotation(harness, old.id) for _ in range(4)))
    assert sum(isinstance(result, InvalidInput) for result in results) == 3


def test_long_names_stay_within_their_bound(harness: Harness) -> None:
    old, _ = make(harness, name="n" * 100)
    new, _ = rotate(harness, old)
    assert new.name == "n" * 100
    assert len(show(harness, old).name) <= 100


def test_taken_name_for_the_old_token_is_reported(harness: Harness, plane: ControlPlane) -> None:
    old, _ = make(harness)
    make(harness, name=f"ci-until-2026-11-16-{old.id[-6:]}")
    harness.refused(NameTaken, rotation(harness, old.id))
    assert show(harness, old) == old


def test_unknown_tokens_are_not_rotated(harness: Harness, plane: ControlPlane) -> None:
    harness.refused(NotFound, rotation(harness, "tok_unknown"))


def test_both_tokens_are_published_to_workers(harness: Harness, plane: ControlPlane) -> None:
    old, old_secret = make(harness)
    start = harness.do(harness.store.changes(None))
    assert start is not None
    _, secret = rotate(harness, old)
    changed = harness.do(harness.store.changes(start.revision))
    assert changed is not None
    assert set(changed.tokens) == {plane.context.digest(old_secret), plane.context.digest(secret)}
