"""Settings on their way from the parent to its children: whole or not at all."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.gateway.fakes import Clock

from parts.processes import eventually
from tollgate import log
from tollgate.processes import shared_settings
from tollgate.processes.shared_settings import (
    MAX_BYTES,
    Fresh,
    SettingsFollower,
    SettingsTooLarge,
    SharedSettings,
    slot_names,
)
from tollgate.settings.model import LimitSettings, LoggingSettings, NetworkSettings, Settings, UpstreamSettings
from tollgate.shm.upstream_status import StatusSlots, assign_slots

SECRET = "https://node.example/very-secret-key"
BEFORE = Settings(
    families={
        "eth": {
            "mainnet": NetworkSettings(upstreams=(UpstreamSettings(name="a", url=SECRET, headers={"X-Key": "1"}),))
        }
    }
)
ROWS = assign_slots(StatusSlots(), slot_names(BEFORE))
WORKER, PROBER = "worker-0", "prober"


def with_batch(calls: int) -> Settings:
    return replace(BEFORE, limits=LimitSettings(batch_calls=calls))


pytestmark = pytest.mark.usefixtures("own_logging")


class Child:
    """What a forked process has: the same memory, and its own idea of what is current."""

    def __init__(self, shared: SharedSettings) -> None:
        self.shared = object.__new__(SharedSettings)
        self.shared.__dict__.update(shared.__dict__)

    def follower(self, name: str, apply: Callable[[Settings, StatusSlots], None], **more: Any) -> SettingsFollower:
        return SettingsFollower(self.shared, name, apply, **more)


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def parent(clock: Clock) -> SharedSettings:
    return SharedSettings(BEFORE, ROWS, [WORKER, PROBER], clock)


def test_rows_are_named_by_network_and_upstream() -> None:
    assert slot_names(BEFORE) == {"eth/mainnet": ["a"]}
    assert StatusSlots({"eth/mainnet": 0}, {"eth/mainnet/a": 0}) == ROWS


def test_at_the_start_there_is_nothing_new_and_no_worker_is_waited_for(parent: SharedSettings) -> None:
    child = Child(parent)
    assert child.shared.current == Fresh(BEFORE, ROWS, 0)
    assert child.shared.poll() is None
    assert (parent.waiting(), parent.failed()) == ([], [])


def test_published_settings_arrive_once_and_whole(parent: SharedSettings) -> None:
    child = Child(parent)
    after, rows = with_batch(7), assign_slots(ROWS, {"eth/mainnet": ["a", "b"]})
    parent.publish(after, rows)
    assert child.shared.poll() == Fresh(after, rows, 1)
    assert child.shared.current == parent.current == Fresh(after, rows, 1)
    assert child.shared.poll() is None


def test_what_children_could_not_read_is_not_published(parent: SharedSettings) -> None:
    child = Child(parent)
    with pytest.raises(msgspec.ValidationError):
        parent.publish(replace(BEFORE, limits=LimitSettings(batch_calls="many")), ROWS)  # type: ignore[arg-type]
    assert parent.current.generation == 0
    assert child.shared.poll() is None
    assert (parent.waiting(), parent.failed()) == ([], [])


def test_only_the_newest_arrives(parent: SharedSettings) -> None:
    child = Child(parent)
    for calls in (7, 8, 9):
        parent.publish(with_batch(calls), ROWS)
    assert child.shared.poll() == Fresh(with_batch(9), ROWS, 3)


def test_process_that_is_forked_later_begins_with_the_newest(parent: SharedSettings) -> None:
    parent.publish(with_batch(7), ROWS)
    child = Child(parent)
    assert child.shared.current.settings == with_batch(7)
    assert child.shared.poll() is None


def test_followers_are_waited_for_until_they_have_reported_how_it_went(parent: SharedSettings) -> None:
    child = Child(parent)
    parent.publish(with_batch(7), ROWS)
    assert parent.waiting() == [WORKER, PROBER]
    parent.applied(PROBER, 1)
    assert parent.waiting() == [WORKER]
    assert child.shared.poll() is not None, "what one reports is not in the way of others"
    parent.refused(WORKER, 1)
    assert (parent.waiting(), parent.failed()) == ([], [WORKER])
    parent.publish(with_batch(8), ROWS)
    assert (parent.waiting(), parent.failed()) == ([WORKER, PROBER], [])


def test_late_word_of_an_older_change_does_not_count(parent: SharedSettings) -> None:
    parent.publish(with_batch(7), ROWS)
    parent.publish(with_batch(8), ROWS)
    parent.applied(WORKER, 1)
    assert parent.waiting() == [WORKER, PROBER]


def test_who_is_no_follower_is_not_waited_for(parent: SharedSettings) -> None:
    parent.publish(with_batch(7), ROWS)
    Child(parent).follower("control", lambda _settings, _slots: None).tick()
    parent.refused("control", 1)
    assert (parent.waiting(), parent.failed()) == ([WORKER, PROBER], [])


def test_settings_wait_until_they_are_old_enough(parent: SharedSettings, clock: Clock) -> None:
    child = Child(parent)
    parent.publish(with_batch(7), ROWS)
    clock.now += 0.1
    assert child.shared.poll(delay=0.2) is None
    clock.now += 0.11
    assert child.shared.poll(delay=0.2) is not None


def test_settings_are_old_enough_at_the_moment_that_they_should_be(parent: SharedSettings, clock: Clock) -> None:
    child = Child(parent)
    parent.publish(with_batch(7), ROWS)
    clock.now += 0.1875
    assert child.shared.poll(delay=0.25) is None
    clock.now += 0.0625
    assert child.shared.poll(delay=0.25) is not None


def test_sequence_is_odd_while_settings_are_written() -> None:
    seen: list[int] = []

    def now() -> float:
        seen.append(made._cells[0])
        return 0.0

    made = SharedSettings(BEFORE, ROWS, [], now)
    for calls in (7, 8):
        made.publish(with_batch(calls), ROWS)
    assert (seen, made._cells[0]) == ([1, 3], 4)


@pytest.mark.parametrize(("spare", "fits"), [(0, True), (-1, False)])
def test_settings_may_be_as_large_as_the_memory(
    spare: int, fits: bool, parent: SharedSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent.publish(with_batch(7), ROWS)
    monkeypatch.setattr(shared_settings, "MAX_BYTES", parent._cells[1] + spare)
    if fits:
        parent.publish(with_batch(8), ROWS)
    else:
        with pytest.raises(SettingsTooLarge):
            parent.publish(with_batch(8), ROWS)
    assert parent.current.generation == 1 + fits


def test_what_is_being_written_is_not_read(parent: SharedSettings) -> None:
    child = Child(parent)
    parent.publish(with_batch(7), ROWS)
    parent._cells[0] -= 1
    assert child.shared.poll() is None
    parent._cells[0] += 1
    assert child.shared.poll() is not None


@pytest.mark.parametrize("offset", [0, 10, 100])
def test_torn_settings_are_not_read(parent: SharedSettings, offset: int) -> None:
    child = Child(parent)
    parent.publish(with_batch(7), ROWS)
    parent._memory[parent._start + offset] ^= 1
    assert child.shared.poll() is None
    parent._memory[parent._start + offset] ^= 1
    assert child.shared.poll() == Fresh(with_batch(7), ROWS, 1)


def test_settings_that_are_too_large_change_nothing(parent: SharedSettings) -> None:
    child = Child(parent)
    large = NetworkSettings(upstreams=(UpstreamSettings(name="a", url=SECRET + "a" * MAX_BYTES),))
    with pytest.raises(SettingsTooLarge, match="restart the service") as caught:
        parent.publish(replace(BEFORE, families={"eth": {"mainnet": large}}), ROWS)
    assert "secret" not in str(caught.value)
    assert parent.current == Fresh(BEFORE, ROWS, 0)
    assert child.shared.poll() is None


def test_largest_settings_arrive(parent: SharedSettings) -> None:
    child = Child(parent)
    upstream = UpstreamSettings(name="a", url=SECRET + "a" * (MAX_BYTES - 10_000))
    parent.publish(replace(BEFORE, families={"eth": {"mainnet": NetworkSettings(upstreams=(upstream,))}}), ROWS)
    fresh = child.shared.poll()
    assert fresh is not None
    assert fresh.settings.families["eth"]["mainnet"].upstreams == (upstream,)


def test_no_secret_is_in_a_repr(parent: SharedSettings) -> None:
    parent.publish(with_batch(7), ROWS)
    assert "secret-key" not in repr(parent.current)
    assert "secret-key" not in repr(parent)


# ---- a child's side


def test_follower_puts_into_effect_and_reports_it(parent: SharedSettings) -> None:
    seen: list[tuple[Settings, StatusSlots]] = []
    follower = Child(parent).follower(WORKER, lambda settings, slots: seen.append((settings, slots)))
    follower.tick()
    assert seen == []
    parent.publish(with_batch(7), ROWS)
    follower.tick()
    follower.tick()
    assert seen == [(with_batch(7), ROWS)]
    assert parent.waiting() == [PROBER]


def test_follower_that_cannot_reports_it_once_and_lives_on(
    parent: SharedSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(settings: Settings, _slots: StatusSlots) -> None:
        if settings.limits.batch_calls == 7:
            raise LookupError("no luck")

    follower = Child(parent).follower(WORKER, refuse)
    parent.publish(with_batch(7), ROWS)
    follower.tick()
    assert parent.failed() == [WORKER]
    assert "could not be put into effect" in capsys.readouterr().out
    follower.tick()
    assert capsys.readouterr().out == ""
    parent.publish(with_batch(8), ROWS)
    follower.tick()
    assert (parent.waiting(), parent.failed()) == ([PROBER], [])


def test_follower_that_was_forked_after_a_change_shows_that_it_is_ready(parent: SharedSettings) -> None:
    parent.publish(with_batch(7), ROWS)
    follower = Child(parent).follower(WORKER, lambda _settings, _slots: None)
    follower.tick()
    assert parent.waiting() == [WORKER, PROBER]
    follower.ready()
    assert parent.waiting() == [PROBER]


def test_follower_changes_the_level_of_its_log(parent: SharedSettings, capsys: pytest.CaptureFixture[str]) -> None:
    follower = Child(parent).follower("metrics", lambda _settings, _slots: None)
    for level in ("error", "debug"):
        parent.publish(replace(BEFORE, logging=LoggingSettings(level=level, format="json")), ROWS)
        follower.tick()
        log.get("test").debug(f"at {level}")
    output = capsys.readouterr().err
    assert "at debug" in output
    assert "at error" not in output


# ---- across a real fork


def test_process_that_reads_all_the_time_never_sees_a_mixture(parent: SharedSettings) -> None:
    """Each version has its number in three places, far apart."""

    def version(number: int) -> Settings:
        padding = tuple(f"eth_m{number}" for _ in range(number % 50))
        network = NetworkSettings(
            upstreams=(UpstreamSettings(name="a", url=f"http://{number}.example"),),
            deny_methods=padding,
            cache=True,
        )
        return replace(with_batch(number), families={"eth": {"mainnet": network}})

    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            seen = 0
            while seen < 2_000:
                fresh = parent.poll()
                if fresh is not None:
                    seen = fresh.settings.limits.batch_calls
                    assert fresh.settings == version(seen)
                    assert fresh.generation == seen
            parent.applied(WORKER, 2_000)
            code = 0
        finally:
            os._exit(code)
    try:
        for number in range(1, 2_001):
            parent.publish(version(number), ROWS)
        eventually(lambda: parent.waiting() == [PROBER], what="the child's word")
    finally:
        os.kill(pid, signal.SIGKILL)
        assert os.waitpid(pid, 0)[0] == pid
