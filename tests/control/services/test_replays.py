"""Idempotency-Key: a creation that is sent twice happens once."""

from __future__ import annotations

import pytest
from tests.control.services.house import DAY, House

from tollgate.control.plane import ControlPlane
from tollgate.control.problems import InvalidInput, KeyReused, RequestRunning
from tollgate.core.people import Replay

ROUTE, KEY, BODY = "POST /teams/{team}/tokens", "a-key", b'{"name": "ci"}'


def begin(house: House, who: str = "owner", route: str = ROUTE, key: str = KEY, body: bytes = BODY) -> Replay:
    return house.do(house.plane.replays.begin(house.actor(who), route, key, body))


def finish(house: House, begun: Replay) -> None:
    house.do(house.plane.replays.finish(begun, 201, b'{"secret": null}'))


def test_finished_request_answers_again(house: House) -> None:
    begun = begin(house)
    assert begun.status == 0
    finish(house, begun)
    for _ in range(2):
        held = begin(house)
        assert (held.status, held.answer) == (201, b'{"secret": null}')


def test_request_that_still_runs_is_told_so(house: House, plane: ControlPlane) -> None:
    begin(house)
    problem = house.refused(RequestRunning, plane.replays.begin(house.actor("owner"), ROUTE, KEY, BODY))
    assert problem.status == 409


def test_key_with_another_body_is_refused_running_or_finished(house: House, plane: ControlPlane) -> None:
    begun = begin(house)
    for _ in range(2):
        problem = house.refused(KeyReused, plane.replays.begin(house.actor("owner"), ROUTE, KEY, b"{}"))
        assert (problem.status, problem.detail) == (
            422, "This Idempotency-Key was used with another body: take a new key."
        )  # fmt: skip
        finish(house, begun)


def test_keys_belong_to_an_account_and_a_route(house: House) -> None:
    finish(house, begin(house))
    assert begin(house, who="admin").status == 0
    assert begin(house, route="POST /teams").status == 0
    assert begin(house, key="b-key").status == 0
    assert begin(house).status == 201


def test_failed_request_may_be_sent_again(house: House) -> None:
    house.do(house.plane.replays.abandon(begin(house)))
    assert begin(house).status == 0


def test_finished_request_is_not_abandoned(house: House) -> None:
    begun = begin(house)
    finish(house, begun)
    house.do(house.plane.replays.abandon(begun))
    assert begin(house).status == 201


def test_many_at_once_begin_once(house: House, plane: ControlPlane) -> None:
    actor = house.actor("owner")
    results = house.at_once(*(plane.replays.begin(actor, ROUTE, KEY, BODY) for _ in range(6)))
    assert sum(isinstance(result, Replay) for result in results) == 1
    assert sum(isinstance(result, RequestRunning) for result in results) == 5


def test_answers_are_kept_for_a_day(house: House) -> None:
    finish(house, begin(house))
    house.clock.advance(DAY - 1)
    assert begin(house).status == 201
    house.clock.advance(1)
    assert begin(house).status == 0


def test_mark_of_a_request_whose_process_died_is_overcome(house: House, plane: ControlPlane) -> None:
    begin(house)
    house.clock.advance(59)
    house.refused(RequestRunning, plane.replays.begin(house.actor("owner"), ROUTE, KEY, BODY))
    house.clock.advance(1)
    assert begin(house, body=b"another").status == 0


@pytest.mark.parametrize("key", ["", "x" * 256, "a b", "ä", "a\n", "\x7f"])
def test_odd_keys_are_refused(house: House, plane: ControlPlane, key: str) -> None:
    problem = house.refused(InvalidInput, plane.replays.begin(house.actor("owner"), ROUTE, key, BODY))
    assert problem.extras == {"field": "Idempotency-Key"}


@pytest.mark.parametrize("key", ["!", "~" * 255])
def test_visible_characters_make_a_key(house: House, key: str) -> None:
    assert begin(house, key=key).status == 0


def test_neither_key_nor_body_is_kept(house: House) -> None:
    begin(house, key="a-key-to-look-for", body=b'{"name": "a-body-to-look-for"}')
    kept = b"".join(path.read_bytes() for path in house.folder.iterdir())
    assert b"to-look-for" not in kept
