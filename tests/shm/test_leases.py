"""Limits of which a node has a part, taken by one worker repeatedly."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from tollgate.core.limits import Limit, Taken, take
from tollgate.shm.leases import SETTLE_SECONDS, LeasedMeters, LeasedSlots
from tollgate.shm.limits import WAYS

LIMIT = Limit(10, 1.0)


@pytest.fixture(params=[1, 3])
def meters(request: pytest.FixtureRequest, tmp_path: Path) -> LeasedMeters:
    return LeasedMeters(64, request.param, tmp_path / "lock", b"pepper")


def taken(meters: LeasedMeters, slots: LeasedSlots, now: float) -> int:
    """Take until it is refused; how many were let in."""
    count = 0
    while meters.take_all(slots, now):
        count += 1
    return count


def test_same_slots_follow_a_lease_at_once(meters: LeasedMeters) -> None:
    slots = meters.slots([("a", LIMIT)], 100.0)
    assert taken(meters, slots, 100.0) == 10
    meters.lease(slots[0][0], 0.5, None, 200.0)
    assert taken(meters, slots, 200.0) == 5
    meters.unlease(slots[0][0])
    assert taken(meters, slots, 250.0) == 10
    meters.divide(0.2)
    assert taken(meters, slots, 300.0) == 2
    meters.alone()
    assert taken(meters, slots, 400.0) == 10


def test_same_slots_follow_a_backlog_that_the_keeper_wrote(meters: LeasedMeters) -> None:
    slots = meters.slots([("a", LIMIT)], 100.0)
    assert meters.take_all(slots, 100.0)
    meters.lease(slots[0][0], 1.0, 0.7, 100.0)
    assert taken(meters, slots, 100.0) == 3
    meters.lease(slots[0][0], 1.0, 0.0, 100.0)
    assert taken(meters, slots, 100.0) == 10
    meters.lease(slots[0][0], 1.0, 0.7, 100.0)
    assert [meters.take([("a", LIMIT)], 100.0)[0].allowed for _ in range(4)] == [True, True, True, False]


def test_refused_request_takes_from_none_of_its_limits(meters: LeasedMeters) -> None:
    wide, narrow = ("a", Limit(100, 1.0)), ("b", Limit(2, 1.0))
    assert taken(meters, meters.slots([wide, narrow], 100.0), 100.0) == 2
    assert taken(meters, meters.slots([wide], 100.0), 100.0) == 98


def test_keeper_reads_all_that_was_taken(meters: LeasedMeters) -> None:
    slots = meters.slots([("a", LIMIT)], 100.0)
    others = meters.slots([("a", LIMIT)], 100.0)
    for _ in range(3):
        assert meters.take_all(slots, 100.0)
        assert meters.take_all(others, 100.0, 1)
    assert meters.read(slots[0][0], 100.0).used == pytest.approx(0.6)
    assert list(meters.backlogged(100.0)) == [slots[0][0]]
    assert list(meters.backlogged(100.0)) == []


def test_slots_that_another_limit_was_given_are_refused(tmp_path: Path) -> None:
    meters = LeasedMeters(8, 1, tmp_path / "lock", b"pepper")
    slots = meters.slots([("a", LIMIT)], 100.0)
    assert meters.take_all(slots, 100.0)
    for number in range(200):
        assert meters.take_all(meters.slots([(f"other {number}", LIMIT)], 300.0), 300.0)
    assert not meters.take_all(slots, 300.0)


# --- Against a model -----------------------------------------------------------------------------------------

# Powers of two: sums of such fractions are exact.
LIMITS = {"a": Limit(8, 1.0), "b": Limit(4, 8.0), "c": Limit(2, 0.5)}
steps = st.one_of(
    st.tuples(st.just("take"), st.sampled_from(["a", "b", "c", "ab", "bca"]), st.integers(1, 5)),
    st.tuples(st.just("take_all"), st.sampled_from(["a", "b", "c", "ab", "bca"]), st.integers(1, 5)),
    st.tuples(st.just("lease"), st.sampled_from("abc"), st.sampled_from([1.0, 0.5, 0.25, 1 / 64])),
    st.tuples(st.just("backlog"), st.sampled_from("abc"), st.sampled_from([0.0, 0.25, 0.5])),
    st.tuples(st.just("unlease"), st.sampled_from("abc"), st.just(0)),
    st.tuples(st.just("divide"), st.just(""), st.sampled_from([1.0, 0.5, 0.125])),
    st.tuples(st.just("alone"), st.just(""), st.just(0)),
    st.tuples(st.just("wait"), st.just(""), st.sampled_from([1 / 16, 0.25, 1.0, 20.0])),
    st.tuples(st.just("look"), st.just(""), st.just(0)),
)


class Model:
    """Limits by `core.limits.take` alone, each with the part that this node may use."""

    def __init__(self) -> None:
        self.arrivals = dict.fromkeys(LIMITS, 0.0)
        self.used = dict.fromkeys(LIMITS, 0.0)
        self.looked_at = dict(self.used)
        self.leases: dict[str, float] = {}
        self.default = 1.0

    def part(self, key: str) -> Limit:
        """The limit of this node: it may send one in a window whatever its part."""
        limit = LIMITS[key]
        step = min(limit.seconds, limit.interval / self.leases.get(key, self.default))
        return Limit(limit.seconds / step, limit.seconds)  # type: ignore[arg-type]

    def take(self, key: str, now: float, cost: int) -> Taken:
        found = take(self.part(key), self.arrivals[key], now, cost)
        if not found.allowed and cost <= LIMITS[key].count:
            # What the whole limit allows is only a matter of time, or of another part.
            room = (now + LIMITS[key].seconds - max(now, self.arrivals[key])) / self.part(key).interval - cost
            return structs.replace(found, retry_after=-room * self.part(key).interval)
        return found

    def commit(self, keys: str, now: float, cost: int) -> list[int]:
        left = []
        for key in keys:
            found = self.take(key, now, cost)
            self.arrivals[key] = found.arrival
            self.used[key] += cost * LIMITS[key].interval
            left.append(found.remaining)
            if LIMITS[key].seconds > 1:
                left.append(int(found.arrival - now + 1))
        return left


def at(now: float, taken: Sequence[Taken]) -> list[Taken]:
    """What was found, as of now: an arrival in the past is as good as one now."""
    return [structs.replace(each, arrival=max(now, each.arrival)) for each in taken]


def change(what: str, key: str, value: float, now: float, meters: LeasedMeters, model: Model, slot: int) -> None:
    """What the keeper does."""
    if what == "lease":
        meters.lease(slot, value, None, now)
        model.leases[key] = value
    elif what == "backlog":
        meters.lease(slot, 1.0, value, now)
        model.leases[key], model.arrivals[key] = 1.0, now + value
    elif what == "unlease":
        meters.unlease(slot)
        model.leases.pop(key, None)
    elif what == "divide":
        meters.divide(value)
        model.default = value
    else:
        meters.alone()
        model.leases, model.default = {}, 1.0


@settings(max_examples=2 * settings().max_examples, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=st.lists(st.tuples(steps, st.integers(0, 2)), max_size=30))
@pytest.mark.parametrize("workers", [1, 3])
def test_limits_of_a_part_are_limits(
    workers: int, script: list[tuple[tuple[str, str, float], int]], tmp_path: Path
) -> None:
    meters, model, now = LeasedMeters(64, workers, tmp_path / "lock", b"pepper"), Model(), 1024.0
    slots = {key: meters.slots([(key, limit)], now)[0][0] for key, limit in LIMITS.items()}
    kept = {keys: meters.slots([(key, LIMITS[key]) for key in keys], now) for keys in ("a", "b", "c", "ab", "bca")}
    for (what, keys, value), worker in script:
        meters.settle()
        meters.attach(worker % workers)
        if what == "take":
            expected = []
            for key in keys:
                expected.append(model.take(key, now, int(value)))
                if not expected[-1].allowed:
                    break
                model.commit(key, now, int(value))
            found = meters.take([(key, LIMITS[key]) for key in keys], now, int(value))
            assert at(now, found) == at(now, expected)
        elif what == "take_all":
            allowed = all(model.take(key, now, int(value)).allowed for key in keys)
            assert meters.take_all(kept[keys], now, int(value)) is allowed
            if allowed:
                assert meters.left(kept[keys], now) == tuple(model.commit(keys, now, int(value)))
        elif what == "wait":
            now += value
        elif what == "look":
            backlogged = set(meters.backlogged(now))
            late = {key for key in LIMITS if model.arrivals[key] - now > LIMITS[key].seconds / 2}
            assert backlogged <= {slots[key] for key in late}
            assert backlogged >= {slots[key] for key in late if model.used[key] != model.looked_at[key]}
            model.looked_at = dict(model.used)
        else:
            change(what, keys, value, now, meters, model, slots.get(keys, 0))
        for key, limit in LIMITS.items():
            assert at(now, [meters.peek(key, limit, now)]) == at(now, [model.take(key, now, 1)])
            slot = meters.read(slots[key], now)
            assert (slot.window, slot.count, slot.used) == (limit.seconds, limit.count, model.used[key])
            assert slot.fraction == model.leases.get(key, model.default)
            assert slot.backlog == min(limit.seconds, max(0.0, model.arrivals[key] - now))


def test_keeper_finds_the_slot_of_a_limit_that_another_node_named(meters: LeasedMeters) -> None:
    (slot, mark, *_) = meters.slots([("a", LIMIT)], 100.0)[0]
    assert meters.find(mark, 2.0, 8.0, 100.0) == slot
    found = meters.read(slot, 100.0)
    assert (found.mark, found.window, found.count) == (mark, 2.0, 8.0)
    other = meters.find(mark + 1, 1.0, 4.0, 100.0)
    assert other != slot
    assert meters.read(other, 100.0).fraction == 1.0


def test_lease_that_is_what_it_was_is_not_read_again(meters: LeasedMeters) -> None:
    slot = meters.slots([("a", LIMIT)], 100.0)[0][0]
    meters.lease(slot, 0.5, None, 100.0)
    epoch = meters._epoch[0]
    meters.lease(slot, 0.5, None, 101.0)
    meters.divide(1.0)
    assert meters._epoch[0] == epoch
    meters.lease(slot, 0.5, 0.0, 101.0)
    assert meters._epoch[0] != epoch


@pytest.mark.parametrize("workers", [1, 3])
def test_slot_given_to_another_limit_starts_without_lease_and_backlog(workers: int, tmp_path: Path) -> None:
    meters = LeasedMeters(8, workers, tmp_path / "lock", b"pepper")
    for number in range(8):
        slots = meters.slots([(f"old {number}", LIMIT)], 100.0)
        assert taken(meters, slots, 100.0) == 10
        meters.lease(slots[0][0], 0.5, 0.5, 100.0)
    slots = meters.slots([("new", LIMIT)], 100.0)
    assert meters.read(slots[0][0], 100.0).fraction == 1.0
    assert taken(meters, slots, 100.0) == 10


def test_mark_of_a_limit_is_the_same_on_all_nodes_with_one_secret(tmp_path: Path) -> None:
    marks = [
        LeasedMeters(64, 1, tmp_path / "lock", secret).slots([("a", LIMIT)], 100.0)[0][1]
        for secret in (b"one", b"one", b"other")
    ]
    assert marks[0] == marks[1] != marks[2]


def test_what_was_taken_is_written_for_the_keeper_once_in_a_while(tmp_path: Path) -> None:
    meters = LeasedMeters(64, 1, tmp_path / "lock", b"pepper")
    slots = meters.slots([("a", Limit(100, 1.0))], 100.0)
    for seconds, written in ((0.0, 1), (SETTLE_SECONDS / 2, 1), (SETTLE_SECONDS, 3), (SETTLE_SECONDS * 1.5, 3)):
        assert meters.take_all(slots, 100.0 + seconds)
        assert sum(meters._used) == pytest.approx(written / 100)


def test_windows_of_more_than_a_second_show_when_they_are_whole_again(meters: LeasedMeters) -> None:
    slots = meters.slots([("a", Limit(4, 1.0)), ("b", Limit(4, 2.0))], 100.0)
    for left in ((3, 3, 1), (2, 2, 2)):
        assert meters.take_all(slots, 100.0)
        assert meters.left(slots, 100.0) == left


def test_slots_that_nothing_was_taken_from_yet_show_what_others_have_left(meters: LeasedMeters) -> None:
    limits = [("a", Limit(4, 1.0)), ("b", Limit(4, 2.0))]
    assert meters.left(meters.slots(limits, 100.0), 100.0) == (4, 4, 1)
    assert meters.take_all(meters.slots(limits, 100.0), 100.0)
    assert meters.left(meters.slots(limits, 100.0), 100.0) == (3, 3, 1)


def test_writer_that_lost_a_race_adds_its_take_after_the_other(tmp_path: Path) -> None:
    meters = LeasedMeters(64, 3, tmp_path / "lock", b"pepper")
    slots = meters.slots([("a", Limit(8, 1.0))], 128.0)
    slot = slots[0][0]
    meters.lease(slot, 0.5, 0.0, 128.0)
    written: list[tuple[float, ...]] = []
    meters._write = lambda *values: written.append(values)  # type: ignore[method-assign]
    assert meters.take_all(slots, 128.0, 3)
    assert meters.take([("a", Limit(8, 1.0))], 128.0, 3)[-1].allowed
    credit = meters._credits[slot]
    assert written == [(slot * 3, 128.0 + credit, 128.75 + credit, 0.75)] * 2


@pytest.mark.parametrize("workers", [1, 3])
def test_keeper_looks_at_every_slot_that_was_used_since(workers: int, tmp_path: Path) -> None:
    meters = LeasedMeters(WAYS, workers, tmp_path / "lock", b"pepper")
    found = [meters.slots([(str(number), LIMIT)], 100.0) for number in range(WAYS)]
    for slots in found:
        assert taken(meters, slots, 100.0) == 10
    assert list(meters.backlogged(100.0)) == list(range(WAYS)), "to the last"
    assert not meters._unsettled
    assert list(meters.backlogged(100.0)) == []
    # The backlog of a slot counts as the keeper wrote it; what was taken is subtracted for this read.
    for slots, backlog in ((found[0], 0.0), (found[1], 0.5)):
        meters.lease(slots[0][0], 1.0, backlog, 100.0)
        assert meters.take_all(slots, 100.0)
    backlogged = list(meters.backlogged(100.0))
    assert [slots[0][0] in backlogged for slots in found[:2]] == [False, True]
