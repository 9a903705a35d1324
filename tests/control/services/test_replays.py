"""Idempotency-Key: a creation that is sent twice happens once."""

from __future__ import annotations

import pytest
from tests.control.services.harness import DAY, Harness

from tollgate.control.plane import ControlPlane
from tollgate.control.problems import InvalidInput, KeyReused, RequestRunning
from tollgate.core.people import Replay

ROUTE, KEY, BODY = "POST /teams/{team}/tokens", "a-key", b'{"name": "ci"}'


def begin(harness: Harness, who: str = "owner", route: str = ROUTE, key: str = KEY, body: bytes = BODY) -> Replay:
    return harness.do(harness.plane.replays.begin(harness.actor(who), route, key, body))


def finish(harness: Harness, replay: Replay) -> None:
    harness.do(harness.plane.replays.finish(replay, 201, b'{"secret": null}'))


def test_finished_request_answers_again(harness: Harness) -> None:
    replay = begin(harness)
    assert replay.status == 0
    finish(harness, replay)
    for _ in range(2):
        held = begin(harness)
        assert (held.status, held.answer) == (201, b'{"secret": null}')


def test_request_that_still_runs_is_reported(harness: Harness, plane: ControlPlane) -> None:
    begin(harness)
    problem = harness.refused(RequestRunning, plane.replays.begin(harness.actor("owner"), ROUTE, KEY, BODY))
    assert problem.status == 409


def test_key_with_another_body_is_refused_running_or_finished(harness: Harness, plane: ControlPlane) -> None:
    replay = begin(harness)
    for _ in range(2):
        problem = harness.refused(KeyReused, plane.replays.begin(harness.actor("owner"), ROUTE, KEY, b"{}"))
        assert (problem.status, problem.detail) == (
            422, "This Idempotency-Key was used with another body: use a new key."
        )  # fmt: skip
        finish(harness, replay)


def test_keys_belong_to_an_account_and_a_route(harness: Harness) -> None:
    finish(harness, begin(harness))
    assert begin(harness, who="admin").status == 0
    assert begin(harness, route="POST /teams").status == 0
    assert begin(harness, key="b-key").status == 0
    assert begin(harness).status == 201


def test_failed_request_may_be_sent_again(harness: Harness) -> None:
    harness.do(harness.plane.replays.abandon(begin(harness)))
    assert begin(harness).status == 0


def test_finished_request_is_not_abandoned(harness: Harness) -> None:
    replay = begin(harness)
    finish(harness, replay)
    harness.do(harness.plane.replays.abandon(replay))
    assert begin(harness).status == 201


def test_concurrent_requests_with_one_key_run_once(harness: Harness, plane: ControlPlane) -> None:
    actor = harness.actor("owner")
    results = harness.at_once(*(plane.replays.begin(actor, ROUTE, KEY, BODY) for _ in range(6)))
    assert sum(isinstance(result, Replay) for result in results) == 1
    assert sum(isinstance(result, RequestRunning) for result in results) == 5


def test_answers_are_kept_for_a_day(harness: Harness) -> None:
    finish(harness, begin(harness))
    harness.clock.advance(DAY - 1)
    assert begin(harness).status == 201
    harness.clock.advance(1)
    assert begin(harness).status == 0


def test_key_of_a_request_whose_process_was_killed_is_released(harness: Harness, plane: ControlPlane) -> None:
    begin(harness)
    harness.clock.advance(59)
    harness.refused(RequestRunning, plane.replays.begin(harness.actor("owner"), ROUTE, KEY, BODY))
    harness.clock.advance(1)
    assert begin(harness, body=b"another").status == 0


@pytest.mark.parametrize("key", ["", "x" * 256, "a b", "ä", "a\n", "\x7f"])
def test_odd_keys_are_refused(harness: Harness, plane: ControlPlane, key: str) -> None:
    problem = harness.refused(InvalidInput, plane.replays.begin(harness.actor("owner"), ROUTE, key, BODY))
    assert problem.extras == {"field": "Idempotency-Key"}


@pytest.mark.parametrize("key", ["!", "~" * 255])
def test_key_may_have_any_visible_characters(harness: Harness, key: str) -> None:
    assert begin(harness, key=key).status == 0


def test_neither_key_nor_body_is_kept(harness: Harness) -> None:
    begin(harness, key="a-key-to-look-for", body=b'{"name": "a-body-to-look-for"}')
    kept = b"".join(path.read_bytes() for path in harness.folder.iterdir())
    assert b"to-look-for" not in kept
